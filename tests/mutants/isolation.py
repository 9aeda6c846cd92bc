"""Attention in which items, heads, columns or sequences touch each other, or order matters."""

from __future__ import annotations

from unittest.mock import patch

import torch

import attnreg.packing
from attnreg import Features, Implementation, Mask
from attnreg_additive import VARIANT as ADDITIVE
from attnreg_additive.module import Additive
from attnreg_cosine import VARIANT as COSINE
from attnreg_cosine.module import Cosine
from attnreg_euclidean import VARIANT as EUCLIDEAN
from attnreg_euclidean.module import Euclidean
from attnreg_linear import VARIANT as LINEAR
from attnreg_linear.module import Linear
from attnreg_linformer import VARIANT as LINFORMER
from attnreg_linformer.module import Linformer
from attnreg_performer import VARIANT as PERFORMER
from attnreg_performer.module import Performer
from attnreg_scaled_dot_product import VARIANT as DOT
from attnreg_scaled_dot_product.module import ScaledDotProduct
from attnreg_shared_qkv import VARIANT as SHARED
from attnreg_shared_qkv.module import SharedQKV
from attnreg_sparse_window import VARIANT as SPARSE
from attnreg_sparse_window.module import SparseWindow
from tests.mutants.causality import Changed, Dense
from tests.mutants.mutant import Mutant, wrong


class CentredOverTheBatch(Dense, ScaledDotProduct):
    """Keys are centred over the wrong axis."""

    def logits(self, query, key, mask):
        return super().logits(query, key - key.mean(dim=0, keepdim=True), mask)


class StabiliserOfTheBatch(Performer):
    """Features are kept in range by the largest exponent of the whole batch."""

    implementations = ()  # in blocks it would see one block at a time

    def key_features(self, key):
        values, log_scale = super().key_features(key)
        if log_scale is None:
            return Features(values)
        top = log_scale.amax().detach()
        return Features(values * (log_scale - top).exp()[..., None])


class PaddingOfTheFirst(Changed, Euclidean):
    """The padding of the first item serves all."""

    def change(self, mask, query, key):
        if mask.key_valid is None:
            return mask
        return mask.replace(key_valid=mask.key_valid[:1].expand_as(mask.key_valid))


class CentredOverHeads(Additive):
    """Queries are centred over the heads."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().forward(query - query.mean(dim=1, keepdim=True), key, value, mask)


class NormaliserOfAllHeads(Linear):
    """Every head is divided by the mean sum of all."""

    def _quotient(self, mixed):
        if not self.normalize:
            return mixed[..., :-1]
        return mixed[..., :-1] / mixed[..., -1:].mean(dim=1, keepdim=True)


class Tiled(Dense, Euclidean):
    """Key heads are tiled: query head h reads key head h % Hkv."""

    def spread_keys(self, key, heads):
        return key.repeat(1, heads // key.shape[1], 1, 1)

    spread_values = spread_keys


class KeysOneWayValuesAnother(Dense, ScaledDotProduct):
    """Keys are interleaved, values tiled."""

    def spread_values(self, value, heads):
        return value.repeat(1, heads // value.shape[1], 1, 1)


class TiledForTwo(Linear):
    """Key heads are tiled where there are three query heads to each."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        heads, groups = query.shape[1], key.shape[1]
        if heads == 3 * groups:
            key, value = (t.repeat(1, 3, 1, 1) for t in (key, value))
        return super().forward(query, key, value, mask)


class Nearness(Dense, Cosine):
    """Scores fall with the distance, as if positions were declared."""

    def logits(self, query, key, mask):
        rows = torch.arange(query.shape[2], device=query.device)[:, None]
        columns = torch.arange(key.shape[2], device=query.device)
        return super().logits(query, key, mask) - 0.01 * (rows - columns).abs()


class LastKeyTwice(Dense, SharedQKV):
    """An odd number of keys is made even by taking the last one twice."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if key.shape[2] % 2 and mask.used() == () and not self.exclude_self:
            key, value = (torch.cat([t, t[:, :, -1:]], dim=2) for t in (key, value))
        return super().forward(query, key, value, mask)


class RowsCoolDown(Dense, ScaledDotProduct):
    """Later queries are a little sharper."""

    def logits(self, query, key, mask):
        rows = torch.arange(query.shape[2], device=query.device, dtype=query.dtype)
        return super().logits(query, key, mask) * (1 + 1e-3 * rows[:, None])


class QueriesInBlocks(Additive):
    """Queries past the 64th are scored as the ones before them."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if query.shape[2] > 64:
            query = torch.cat([query[:, :, :64], query[:, :, : query.shape[2] - 64]], dim=2)
        return super().forward(query, key, value, mask)


class OnlyQueriesNormalised(Dense, Cosine):
    """The length of the keys counts."""

    def transform(self, query, key):
        turned, _ = super().transform(query, key)
        return turned, key


class NoKeyLength(Dense, Euclidean):
    """The square of the key is left out: what remains is a dot product."""

    def score(self, query, key):
        scores = super().score(query, key)
        if not self.squared or self.normalize_inputs:
            return scores
        rate = (-self.log_tau).exp()[:, None, None].to(scores.dtype)
        return scores + key.square().sum(dim=-1)[..., None, :] * rate


class FirstCoordinateTwice(Dense, ScaledDotProduct):
    """The first coordinate of every vector counts twice."""

    def transform(self, query, key):
        return torch.cat([query, query[..., :1]], dim=-1), torch.cat([key, key[..., :1]], dim=-1)


def _all_at_once(module, query, key, value, mask):
    return module(query, key, value, mask.replace(cu_seqlens=None, key_cu_seqlens=None))


class PackedAsOne(ScaledDotProduct):
    """An implementation that says it takes packed sequences together, and does."""

    implementations = (Implementation("together", _all_at_once, rank=30, packed=True),)


def _same_positions(module, query, key, value, mask):
    visible = mask.replace(causal=False, window=None).dense(query.shape[2], key.shape[2])
    plain = Mask(allowed=visible.to(query.device), causal=mask.causal, window=mask.window)
    plain = plain.replace(bias=mask.bias, query_offset=mask.query_offset)
    return module(query, key, value, plain)


class PackedPositionsRunOn(Euclidean):
    """Sequences are apart, but positions do not start again in each."""

    implementations = (Implementation("together", _same_positions, rank=30, packed=True),)


def _leaves_the_tail():
    """The core fills the rows past the last sequence with what stands there."""

    def attend_each(attend, query, key, value, mask):
        found = attnreg.packing.attend_each(attend, query, key, value, mask)
        end = int(mask.cu_seqlens[-1])
        tail = found[:, :, :1].expand_as(found[:, :, end:]) if end else found[:, :, end:]
        return torch.cat([found[:, :, :end], tail], dim=2)

    return patch("attnreg.checked.attend_each", attend_each)


class CentredOutput(Linformer):
    """The output is centred over its columns."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        output = super().forward(query, key, value, mask)
        return output - 0.1 * output.mean(dim=-1, keepdim=True)


class ScaledByValues(SparseWindow):
    """The output is kept in range by the largest value of its row."""

    implementations = ()

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        size = 1 + value.abs().amax(dim=-1, keepdim=True)
        output = super().forward(query, key, value / size, mask)
        return output * 2


MUTANTS = [
    Mutant(
        "batch-centred-keys",
        wrong(DOT, CentredOverTheBatch),
        kills=("I-01",),
        spares=("I-02", "C-01"),
    ),
    Mutant(
        "batch-stabiliser",
        wrong(PERFORMER, StabiliserOfTheBatch),
        kills=("I-01",),
        spares=("N-01", "M-02", "C-04"),
    ),
    Mutant(
        "batch-padding-of-the-first",
        wrong(EUCLIDEAN, PaddingOfTheFirst),
        kills=("I-01", "M-02"),
        spares=("N-01", "I-02"),
    ),
    Mutant(
        "heads-centred-queries",
        wrong(ADDITIVE, CentredOverHeads),
        kills=("I-02",),
        spares=("I-01", "C-01"),
    ),
    Mutant(
        "heads-share-a-normaliser",
        wrong(LINEAR, NormaliserOfAllHeads),
        kills=("I-02",),
        spares=("I-05", "C-01"),
    ),
    Mutant(
        "groups-tiled",
        wrong(EUCLIDEAN, Tiled),
        kills=("I-02", "I-03"),
        spares=("I-01", "C-01"),
    ),
    Mutant(
        "groups-values-tiled",
        wrong(DOT, KeysOneWayValuesAnother),
        kills=("I-02", "I-03"),
        spares=("I-01", "C-01"),
    ),
    Mutant(
        "groups-tiled-in-threes",
        wrong(LINEAR, TiledForTwo),
        kills=("I-03",),
        spares=("I-01", "C-01"),
    ),
    Mutant(
        "order-of-nearness",
        wrong(COSINE, Nearness),
        kills=("I-04", "I-05"),
        spares=("I-01", "I-02"),
    ),
    Mutant(
        "order-last-key-twice",
        wrong(SHARED, LastKeyTwice),
        kills=("I-04", "M-09"),
        spares=("I-01", "I-05", "C-04"),
    ),
    Mutant(
        "order-rows-cool-down",
        wrong(DOT, RowsCoolDown),
        kills=("I-05",),
        spares=("I-01", "I-04", "C-01"),
    ),
    Mutant(
        "order-queries-in-blocks",
        wrong(ADDITIVE, QueriesInBlocks),
        kills=("I-05",),
        spares=("N-01", "I-04"),
    ),
    Mutant(
        "formula-only-queries-normalised",
        wrong(COSINE, OnlyQueriesNormalised),
        kills=("I-06",),
        spares=("I-01", "C-01"),
    ),
    Mutant(
        "formula-no-key-length",
        wrong(EUCLIDEAN, NoKeyLength),
        kills=("I-06",),
        spares=("I-01", "C-01"),
    ),
    Mutant(
        "formula-first-coordinate-twice",
        wrong(DOT, FirstCoordinateTwice),
        kills=("I-06",),
        spares=("I-01", "C-01", "I-04"),
    ),
    Mutant(
        "packed-as-one",
        wrong(DOT, PackedAsOne),
        kills=("I-07", "M-13"),
        spares=("N-01", "C-04", "M-05"),
    ),
    Mutant(
        "packed-positions-run-on",
        wrong(EUCLIDEAN, PackedPositionsRunOn),
        kills=("I-07",),
        spares=("N-01", "C-04", "M-05"),
    ),
    Mutant(
        "packed-tail-is-filled",
        LINFORMER,
        kills=("I-07", "M-04"),
        spares=("N-01", "M-02"),
        patch=_leaves_the_tail,
    ),
    Mutant(
        "columns-centred",
        wrong(LINFORMER, CentredOutput),
        kills=("I-09",),
        spares=("I-01", "M-04"),
    ),
    Mutant(
        "columns-share-a-scale",
        wrong(SPARSE, ScaledByValues),
        kills=("I-09",),
        spares=("I-01", "C-01"),
    ),
]
