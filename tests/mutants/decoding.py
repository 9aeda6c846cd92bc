"""Wrong only step by step: offsets, normalisers, states that are no values."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from unittest.mock import patch

import torch

from attnreg import Mask, checked, decoding
from attnreg.checked import CheckedAttention
from attnreg.decoding import CacheState, RecurrentState
from attnreg_cosine.module import Cosine
from attnreg_linear.module import Linear
from attnreg_performer.module import Performer
from tests.mutants.agreement import (
    ADDITIVE,
    COSINE,
    EUCLIDEAN,
    LINEAR,
    PERFORMER,
    PRODUCT,
    SPARSE,
    Dense,
    dense,
)
from tests.mutants.mutant import Mutant, wrong


class LastKeyLost(Dense):
    """A single query is taken for the one before the last key."""

    def masked(self, mask, query, key):
        if mask.causal and query.shape[2] == 1 < key.shape[2] and mask.query_offset is None:
            return mask.replace(query_offset=key.shape[2] - 2)
        return mask


class ChunkFromTheLeft(Cosine):
    """A chunk that starts inside a sequence is aligned to its start."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if mask.causal and 1 < query.shape[2] < key.shape[2] and mask.query_offset is None:
            mask = mask.replace(query_offset=0)
        return super().forward(query, key, value, mask)

    attend_fused = forward


class NormaliserForgotten(Linear):
    def step(self, query, key, value, state, mask):
        if state is not None:
            mixed, total, *rest = state.content
            state = replace(state, content=(mixed, torch.zeros_like(total), *rest))
        return super().step(query, key, value, state, mask)


class ScaleForgotten(Performer):
    """The state's scale is taken for 1."""

    def step(self, query, key, value, state, mask):
        if state is not None and len(state.content) == 3:
            mixed, total, log_scale = state.content
            state = replace(state, content=(mixed, total, torch.zeros_like(log_scale)))
        return super().step(query, key, value, state, mask)


class LengthOfTheChunk(Linear):
    def step(self, query, key, value, state, mask):
        output, state = super().step(query, key, value, state, mask)
        return output, replace(state, length=key.shape[2])


class CountsChunks(Performer):
    """The state holds how many chunks there were."""

    def step(self, query, key, value, state, mask):
        old = None if state is None else replace(state, content=state.content[:-1])
        output, made = super().step(query, key, value, old, mask)
        count = made.content[0].new_ones(key.shape[0])
        if state is not None:
            count = count + state.content[-1]
        return output, replace(made, content=(*made.content, count))


class StateOfConstants(Linear):
    def step(self, query, key, value, state, mask):
        output, state = super().step(query, key, value, state, mask)
        return output, replace(state, content=tuple(t.detach() for t in state.content))


class PaddingCounts(Linear):
    """A step does not look at its padding."""

    def step(self, query, key, value, state, mask):
        return super().step(query, key, value, state, mask.replace(key_valid=None))


class NarrowState(Linear):
    """The state is kept in the dtype of the call."""

    def step(self, query, key, value, state, mask):
        output, state = super().step(query, key, value, state, mask)
        return output, replace(state, content=tuple(t.to(query.dtype) for t in state.content))


class NarrowScaledState(Performer):
    def step(self, query, key, value, state, mask):
        if state is not None and query.dtype.itemsize < 4:
            state = replace(state, content=tuple(t.float() for t in state.content))
        output, state = super().step(query, key, value, state, mask)
        return output, replace(state, content=tuple(t.to(query.dtype) for t in state.content))


class OverwrittenState(Linear):
    """The new sums are written over those of the old state."""

    def step(self, query, key, value, state, mask):
        output, made = super().step(query, key, value, state, mask)
        if state is None:
            return output, made
        with torch.no_grad():
            for old, new in zip(state.content, made.content, strict=True):
                old.copy_(new)
        return output, replace(made, content=state.content)


class HistoryInTheState(Linear):
    """The keys seen so far are carried along."""

    def step(self, query, key, value, state, mask):
        old = None if state is None else replace(state, content=state.content[:-1])
        output, made = super().step(query, key, value, old, mask)
        seen = key if state is None else torch.cat([state.content[-1], key], dim=2)
        return output, replace(made, content=(*made.content, seen))


class OneSequence(Linear):
    """The state lives in the module, and what is passed around is a token for it."""

    kept = None

    def step(self, query, key, value, state, mask):
        old = None if state is None or self.kept is None else self.kept
        output, self.kept = super().step(query, key, value, old, mask)
        return output, self.kept


def _detached(state, key, value, key_valid, tracked, extend=decoding.extend_cache):
    made = extend(state, key, value, key_valid, tracked)
    if state is None:
        made.storage.key = made.storage.key.detach()
        made.storage.value = made.storage.value.detach()
    return made


def _borrowed(state, key, value, key_valid, tracked, extend=decoding.extend_cache):
    made = extend(state, key, value, key_valid, tracked)
    if state is None:
        made.storage.key, made.storage.value = key, value
    return made


def _shared(state, key, value, key_valid, tracked, extend=decoding.extend_cache):
    """Write behind the old state even where somebody has already done so."""
    if state is not None:
        state.storage.used = state.length
    return extend(state, key, value, key_valid, tracked)


def _all_of_it(self):
    return self.storage.key, self.storage.value, self.storage.valid


def _each_once(self, batch_index):
    index = torch.as_tensor(batch_index).reshape(-1).unique()
    return replace(self, content=tuple(t.index_select(0, index) for t in self.content))


def _same_padding(self, batch_index, select=CacheState.select):
    made = select(self, batch_index)
    count = made.storage.key.shape[0]
    made.storage.valid = self.storage.valid[:1, : self.length].expand(count, -1).clone()
    return made


def _without_offset(self, query, key, value, state=None, mask=None, step=CheckedAttention.step):
    mask = Mask() if mask is None else mask.replace(query_offset=None)
    return step(self, query, key, value, state, mask)


def _as_it_is(mask, *tensors):
    return tensors


def core(target, name, new):
    """A patch of the core, to be started for each check."""
    return partial(patch.object, target, name, new)


SPARES = ("N-01",)
MUTANTS = [
    dense("the last key lost in a step", LastKeyLost, ("X-07",), ("X-20", "X-21")),
    Mutant("a chunk from the left", wrong(COSINE, ChunkFromTheLeft), ("X-07",), ("X-20",)),
    Mutant("a normaliser forgotten", wrong(LINEAR, NormaliserForgotten), ("X-07",), SPARES),
    Mutant("a scale forgotten", wrong(PERFORMER, ScaleForgotten), ("X-07", "X-20"), SPARES),
    Mutant("the length of a chunk", wrong(LINEAR, LengthOfTheChunk), ("X-20",), ("X-07",)),
    Mutant("chunks are counted", wrong(PERFORMER, CountsChunks), ("X-20",), ("X-07", "X-21")),
    Mutant("a state of constants", wrong(LINEAR, StateOfConstants), ("X-22",), ("X-07", "X-20")),
    Mutant(
        "a cache of constants",
        ADDITIVE,
        ("X-22",),
        ("X-07", "X-20"),
        core(checked, "extend_cache", _detached),
    ),
    Mutant("padding counts in a step", wrong(LINEAR, PaddingCounts), ("X-23", "X-07"), SPARES),
    Mutant(
        "padding is not zeroed",
        EUCLIDEAN,
        ("X-23",),
        ("X-07",),
        core(checked, "_without_padding", _as_it_is),
    ),
    Mutant("a narrow state", wrong(LINEAR, NarrowState), ("X-26",), ("X-07", "X-20")),
    Mutant("a narrow scaled state", wrong(PERFORMER, NarrowScaledState), ("X-26",), ("X-07",)),
    Mutant(
        "a state written over", wrong(LINEAR, OverwrittenState), ("X-08", "X-27"), ("X-07", "X-20")
    ),
    Mutant("a state in the module", wrong(LINEAR, OneSequence), ("X-08", "X-24"), ("X-07",)),
    Mutant(
        "a cache of the caller's memory",
        PRODUCT,
        ("X-08",),
        ("X-07", "X-20"),
        core(checked, "extend_cache", _borrowed),
    ),
    Mutant(
        "a cache written behind",
        SPARSE,
        ("X-08",),
        ("X-07", "X-20"),
        core(checked, "extend_cache", _shared),
    ),
    Mutant("a history in the state", wrong(LINEAR, HistoryInTheState), ("X-21",), ("X-07", "X-20")),
    Mutant(
        "a cache with its spare room",
        COSINE,
        ("X-21", "X-20"),
        ("X-07",),
        core(CacheState, "tensors", _all_of_it),
    ),
    Mutant(
        "each item once",
        LINEAR,
        ("X-24",),
        ("X-07", "X-08"),
        core(RecurrentState, "select", _each_once),
    ),
    Mutant(
        "the padding of item 0",
        COSINE,
        ("X-24",),
        ("X-07", "X-08"),
        core(CacheState, "select", _same_padding),
    ),
    Mutant(
        "an offset ignored in a step",
        PRODUCT,
        ("X-25",),
        ("X-07",),
        core(CheckedAttention, "step", _without_offset),
    ),
    Mutant(
        "any state is taken",
        ADDITIVE,
        ("X-25",),
        ("X-07",),
        core(checked, "_check_state", lambda state, kind, query: None),
    ),
]
