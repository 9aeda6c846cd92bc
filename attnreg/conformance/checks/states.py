"""X, continued: what a decoder carries from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnreg.conformance.case import Case, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.checks.decoding import NEEDS, causal, decode, each, part, samples, step
from attnreg.conformance.checks.shapes import three
from attnreg.conformance.trial import takes
from attnreg.errors import AttnregError, ShapeError, UnsupportedMask
from attnreg.mask import Mask

LAWS = Laws()


@LAWS.law("X-08", "claimed", needs=NEEDS)
def a_state_is_a_value(case: Case) -> None:
    """A state can be continued twice, in two ways, and nothing later changes it.

    A fork: two continuations with different inputs, a token of one and a token of the other in
    turn, then the first again. Each equals the whole sequence, and the state itself has not
    changed, not even where the caller writes over the tensors that it was made from.
    """

    def probe(trial: Trial) -> None:
        length = trial.sizes.keys
        if length < 4:
            return
        first = length // 2
        whole = Trial(case, trial.sample).mask  # what is written over below is another one
        memory = tuple(t.clone() for t in trial.inputs)
        state = None
        for start, stop in ((0, first - 1), (first - 1, first)):  # so that a cache has spare room
            mask, chunk = part(trial.mask, start, stop), [t[:, :, start:stop] for t in memory]
            _, state = step(case, trial.attn, chunk, state, mask)
            for tensor in chunk:
                tensor.fill_(3.0)
            if mask.key_valid is not None:
                mask.key_valid.fill_(True)
        assert state is not None  # for mypy: there were two steps
        before = [t.clone() for t in state.tensors()]
        other = case.inputs(trial.sizes, dtype=trial.sample.dtype, seed=5)
        chains: list[list[Any]] = [
            [inputs, state, []] for inputs in (trial.inputs, other, trial.inputs)
        ]
        for turn in (chains[:2], chains[2:]):
            for n in range(first, length):
                for chain in turn:
                    chunk = [t[:, :, n : n + 1] for t in chain[0]]
                    mask = part(whole, n, n + 1)
                    output, chain[1] = step(case, trial.attn, chunk, chain[1], mask)
                    chain[2].append(output)
        for old, new in zip(before, state.tensors(), strict=True):
            trial.equal(new, old, "content of a state that was continued")
        for inputs, _, outputs in chains:
            joined = three(
                torch.cat([a[:, :, :first], b[:, :, first:]], dim=2)
                for a, b in zip(trial.inputs, inputs, strict=True)
            )
            if takes(trial.attn, *joined, causal(whole)):
                expected = trial.run(*joined, causal(whole))[:, :, first:]
                found = torch.cat(outputs, dim=2)
                trial.close(found, expected, trial.near(), "a continuation of a forked state")

    each(case, probe, samples(case, ("causal", "causal-left")))


@LAWS.law("X-21", "claimed", needs=NEEDS)
def size_of_a_state(case: Case) -> None:
    """A recurrent state has one size for ever; a cache grows by the same for every token.

    Bytes of ``state.tensors()`` at 10, 40 and 70 tokens.
    """
    sizes = replace(case.sizes, batch=1, queries=70, keys=70)
    attn = case.build(sizes=sizes)
    query, key, value = case.inputs(sizes)
    counts, state = [], None
    for start, stop in ((0, 10), (10, 40), (40, 70)):
        chunk = [t[:, :, start:stop] for t in (query, key, value)]
        _, state = step(case, attn, chunk, state, Mask())
        counts.append(sum(t.numel() * t.element_size() for t in state.tensors()))
    if case.able.decode == "recurrent":
        case.holds(len(set(counts)) == 1, f"bytes at 10, 40 and 70 tokens: {counts}")
    else:
        grows = counts[1] - counts[0]
        case.holds(
            counts[2] - counts[1] == grows >= 0 and counts[0] * 3 >= grows,
            f"bytes at 10, 40 and 70 tokens do not grow evenly: {counts}",
        )


@LAWS.law("X-24", "claimed", needs=NEEDS)
def select(case: Case) -> None:
    """``state.select`` picks, repeats and reorders batch items, as beam search does.

    Going on from the selected state gives the rows that going on from the whole state gives; a
    number, a list and a tensor are taken, the selected state is a value of its own, and an item
    that is not there is refused.
    """

    def probe(trial: Trial) -> None:
        s = trial.sizes
        if s.keys < 3:
            return
        first = s.keys - 2
        _, state = decode(trial, [first - 1, 1] if first > 1 else [1])
        last = s.batch - 1
        for index in ([last, last, 0], torch.tensor([0, last]), 0, last):
            rows = torch.as_tensor(index, device=trial.query.device).reshape(-1)
            with case.running("state.select"):
                picked = state.select(index)
            at, kept = picked, state
            case.holds(picked.length == state.length, "select changed the length of a state")
            for n in (first, first + 1):
                chunk = [t[:, :, n : n + 1] for t in trial.inputs]
                mask = part(trial.mask, n, n + 1)
                whole, kept = step(case, trial.attn, chunk, kept, mask)
                if mask.key_valid is not None:
                    mask = mask.replace(key_valid=mask.key_valid[rows])
                found, at = step(case, trial.attn, [t[rows] for t in chunk], at, mask)
                trial.close(found, whole[rows], trial.near(), f"output after select({index})")
        for wrong in ([s.batch], [-1], "a"):
            case.refuses(AttnregError, f"select({wrong!r})", lambda bad=wrong: state.select(bad))  # type: ignore[misc]  # the default binds the value of this turn

    each(case, probe, samples(case, ("causal", "causal-left")))


@LAWS.law("X-25", "claimed", needs=NEEDS)
def refusals_of_a_step(case: Case) -> None:
    """A step refuses what makes no sense in decoding with the typed error.

    An explicit ``query_offset``, an empty chunk, more queries than keys, a key_valid longer than
    the chunk, a state of another kind, or of another batch: ``ShapeError``; packed sequences:
    ``UnsupportedMask``. Afterwards the module and the state still work.
    """
    sizes = replace(case.sizes, batch=2, queries=4, keys=4)
    attn = case.build(sizes=sizes)
    query, key, value = case.inputs(sizes)
    expected, state = step(case, attn, (query, key, value), None, Mask())

    def refused(what: str, *call: Any, kind: type[Exception] = ShapeError) -> None:
        case.refuses(kind, what, lambda: attn.step(*call))

    chunk = (query, key, value)
    for offset in (0, 4, -1):
        refused("an explicit query_offset", *chunk, state, Mask(query_offset=offset))
    refused("an empty chunk", *(t[:, :, :0] for t in chunk), state)
    refused("fewer queries than keys", query[:, :, :2], key, value, state)
    refused("more queries than keys", query, key[:, :, :2], value[:, :, :2], state)
    for wrong in (key, state.tensors(), {"length": 4}, "state"):
        refused(f"a state that is a {type(wrong).__name__}", *chunk, wrong)
    refused("a state of another batch", *(t[:1] for t in chunk), state)
    if case.able.key_valid:
        valid = torch.ones(2, 8, dtype=torch.bool, device=query.device)
        refused("a key_valid of the whole sequence", *chunk, state, Mask(key_valid=valid))
    packed = Mask.packed([4]).replace(
        cu_seqlens=torch.tensor([0, 4], dtype=torch.int32, device=query.device)
    )
    ones = [t[:1] for t in chunk]
    refused("a packed chunk", *ones, None, packed, kind=UnsupportedMask)
    again, _ = step(case, attn, chunk, None, Mask())
    case.close(again, expected, case.same, "output of a step after refusals")
    step(case, attn, chunk, state, Mask())


@LAWS.law("X-27", "claimed", needs=NEEDS)
def a_state_crosses_modes(case: Case) -> None:
    """A state made in inference mode or without gradients continues outside, with the same output.

    Steps in ``inference_mode``, then in ``no_grad``, and, where the variant is differentiable,
    steps in ``no_grad`` and then with gradients.
    """

    def probe(trial: Trial) -> None:
        length = trial.sizes.keys
        if length < 4 or not takes(trial.attn, *trial.inputs, causal(trial.mask)):
            return
        whole = trial.run(mask=causal(trial.mask))

        def half(inputs: Sequence[Tensor], start: int, stop: int, state: object) -> object:
            found = []
            for n in range(start, stop):
                chunk = [t[:, :, n : n + 1] for t in inputs]
                output, state = step(case, trial.attn, chunk, state, part(trial.mask, n, n + 1))
                found.append(output)
            what = f"output of tokens {start} to {stop} in another mode"
            joined = torch.cat(found, dim=2)
            trial.close(joined.detach(), whole[:, :, start:stop], trial.near(), what)
            return state

        with torch.inference_mode():
            state = half(trial.inputs, 0, length // 2, None)
        with torch.no_grad():
            half(trial.inputs, length // 2, length, state)
            state = half(trial.inputs, 0, length // 2, None)
        inputs = trial.tracked()
        if case.able.differentiable and takes(trial.attn, *inputs, causal(trial.mask)):
            half(inputs, length // 2, length, state)

    each(case, probe, samples(case, ("causal", "causal-left")))
