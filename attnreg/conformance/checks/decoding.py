"""X, continued: decoding in chunks is the causal call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnreg.checked import CheckedAttention
from attnreg.conformance.case import Case, Sample, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.checks.shapes import three
from attnreg.conformance.masks import Sizes
from attnreg.conformance.measure import relative, reseed
from attnreg.conformance.trial import takes
from attnreg.errors import UnsupportedFeature
from attnreg.mask import Mask

LAWS = Laws()

MASKS = (
    "causal",
    "causal-left",
    "causal-padding",
    "window-causal",
    "bias-causal",
    "allowed-causal",
    "padding-holes",
)
NEEDS = ("decode", "causal")


class Cannot(Exception):
    """The implementation that was asked for cannot run a step."""


class Decoded(NamedTuple):
    """What a row of steps gives: the outputs joined, and the last state."""

    output: Tensor
    state: Any


def part(mask: Mask, start: int, stop: int) -> Mask:
    """The mask of a step: what a whole call's mask says of the queries from start to stop."""
    changes: dict[str, Any] = {"causal": False, "query_offset": None}
    if mask.key_valid is not None:
        changes["key_valid"] = mask.key_valid[:, start:stop]
    for name in ("allowed", "bias"):
        tensor = getattr(mask, name)
        if tensor is None:
            continue
        rows = slice(None) if tensor.shape[-2] == 1 else slice(start, stop)
        columns = slice(None) if tensor.shape[-1] == 1 else slice(stop)
        changes[name] = tensor[..., rows, columns]
    return mask.replace(**changes)


def step(
    case: Case, attn: CheckedAttention, chunk: Sequence[Tensor], state: Any, mask: Mask
) -> tuple[Tensor, Any]:
    """Take one step; ``Failure`` where it breaks, or where its output has another shape."""
    query, key, value = chunk
    if not case.able.deterministic:
        reseed(97)  # as Case.call does
    tracked = torch.is_grad_enabled() and any(t.requires_grad for t in chunk)
    with case.running("attn.step"), torch.set_grad_enabled(tracked):
        try:
            made = attn.step(query, key, value, state, mask)
        except UnsupportedFeature as error:
            if attn.implementation == "auto":
                raise
            raise Cannot from error  # this implementation leaves such calls to another
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], Tensor)):
        case.holds(False, f"a step returns (output, state), got {type(made).__name__}")
    output, state = made
    shape = (*query.shape[:3], value.shape[3])
    case.holds(
        tuple(output.shape) == shape and output.dtype == query.dtype,
        f"a step gave {tuple(output.shape)} in {output.dtype}, expected {shape} in {query.dtype}",
    )
    return output, state


def decode(
    trial: Trial,
    cuts: Sequence[int],
    inputs: Sequence[Tensor] | None = None,
    mask: Mask | None = None,
    state: Any = None,
) -> Decoded:
    """Decode the trial's sequence in chunks of these lengths."""
    inputs = trial.inputs if inputs is None else inputs
    mask = trial.mask if mask is None else mask
    outputs: list[Tensor] = []
    start = 0
    for size in cuts:
        chunk = [t[:, :, start : start + size] for t in inputs]
        output, state = step(trial.case, trial.attn, chunk, state, part(mask, start, start + size))
        outputs.append(output)
        start += size
    return Decoded(torch.cat(outputs, dim=2), state)


def cuts_of(length: int) -> Iterator[list[int]]:
    """Ways to cut a sequence: whole, token by token, in chunks of several lengths."""
    yield [length]
    yield [1] * length
    if length > 3:
        yield chunks(length, (4, 1, 3))
        yield chunks(length, (1, 5))


def chunks(length: int, sizes: tuple[int, ...]) -> list[int]:
    cuts: list[int] = []
    while sum(cuts) < length:
        cuts.append(min(sizes[len(cuts) % len(sizes)], length - sum(cuts)))
    return cuts


def samples(case: Case, masks: Sequence[str] = MASKS, length: int = 9, **more: Any) -> list[Sample]:
    """Calls whose queries are their keys, of the implementation that is chosen and of each."""
    names = case.implementations()
    more.setdefault("implementations", ("auto", *names) if len(names) > 1 else names)
    sizes = (replace(case.sizes, queries=length, keys=length),)
    return list(case.samples(masks=masks, sizes=sizes, **more))


def each(case: Case, probe: Callable[[Trial], None], tried: Sequence[Sample]) -> None:
    """Try a law on samples whose implementation can run the steps."""

    def patient(trial: Trial) -> None:
        if not trial.sizes.queries == trial.sizes.keys > 0:
            return  # no sequence to decode: a smaller call on the way to the smallest
        try:
            probe(trial)
        except Cannot:
            return

    case.each(patient, tried)


def causal(mask: Mask) -> Mask:
    """The mask of the whole call that equals the steps."""
    return mask.replace(causal=True, query_offset=None)


def _as_one_pass(trial: Trial) -> None:
    mask = causal(trial.mask)
    if not takes(trial.attn, *trial.inputs, mask):
        return
    found = [(cuts, decode(trial, cuts)) for cuts in cuts_of(trial.sizes.keys)]
    whole = trial.run(mask=mask)
    for cuts, made in found:
        trial.close(made.output, whole, trial.near(), f"output of chunks {cuts}, one call expected")


def _in_two_chunks(trial: Trial) -> None:
    mask, length = causal(trial.mask), trial.sizes.keys
    if takes(trial.attn, *trial.inputs, mask):
        cuts = [1, length - 3, 2] if length > 4 else [length]
        made = decode(trial, cuts).output
        trial.close(made, trial.run(mask=mask), trial.near(), f"output of chunks {cuts}")


@LAWS.law("X-07", "claimed", needs=NEEDS)
def steps_are_one_pass(case: Case) -> None:
    """Decoding in chunks of any lengths, or token by token, gives what one causal call gives.

    Whole, one by one, 4, 1, 3, … and 1, 5, …, under left padding that differs by item, holes,
    windows, biases and allowed pairs, in every implementation; relative difference below 1e-11
    in float64. Also past the length of any chunk that is summed up at once.
    """
    each(case, _as_one_pass, samples(case))
    settings = case.settings.all if case.full else case.usual
    quick = samples(case, ("causal",), settings=settings, implementations=("auto",))
    each(case, _as_one_pass, quick)
    if case.full:
        each(case, _as_one_pass, samples(case, ("causal", "causal-left"), 80))
    else:
        each(case, _in_two_chunks, samples(case, ("causal",), 67))
    each(case, _as_one_pass, samples(case, ("causal",), 1))


@LAWS.law("X-20", "claimed", needs=NEEDS)
def final_state(case: Case) -> None:
    """The final state holds the same, and the same length, whatever the chunks were.

    ``state.length`` counts every key, padding included; ``state.tensors()`` agree to 1e-11 in
    float64.
    """

    def probe(trial: Trial) -> None:
        length = trial.sizes.keys
        ends = [decode(trial, cuts).state for cuts in cuts_of(length)]
        for end in ends:
            case.holds(end.length == length, f"state.length is {end.length} after {length} keys")
            mine, theirs = tuple(end.tensors()), tuple(ends[0].tensors())
            case.holds(len(mine) == len(theirs) > 0, "states of other chunks hold other tensors")
            for a, b in zip(mine, theirs, strict=True):
                if a.is_floating_point():
                    trial.close(a, b, trial.near(), "content of the state")
                else:
                    trial.equal(a, b, "content of the state")

    each(case, probe, samples(case, ("causal", "causal-left", "padding-holes")))


@LAWS.law("X-22", "claimed", needs=(*NEEDS, "differentiable"))
def gradients_through_steps(case: Case) -> None:
    """The gradients of a decoded sequence are those of one causal call.

    Of query, key, value, bias and parameters, through chunks and token by token; below 1e-10 in
    float64.
    """

    def probe(trial: Trial) -> None:
        call, mask = trial.tracked(), causal(trial.mask)
        inputs = dict(zip(("query", "key", "value"), call, strict=True))
        if mask.bias is not None:
            inputs["bias"] = mask.bias.clone().requires_grad_()
            mask = mask.replace(bias=inputs["bias"])
        inputs |= {n: p for n, p in trial.attn.named_parameters() if p.requires_grad}
        if not takes(trial.attn, *call, mask):
            return
        whole = trial.run(*call, mask)
        weight = torch.linspace(-1.0, 1.5, whole.numel(), device=whole.device).to(whole.dtype)
        weight = weight.view(whole.shape)
        with case.running("the backward pass"):
            expected = torch.autograd.grad(whole, [*inputs.values()], weight, allow_unused=True)
        for cuts in list(cuts_of(trial.sizes.keys))[1:3]:
            made = decode(trial, cuts, call, mask).output
            with case.running("the backward pass of decoding"):
                found = torch.autograd.grad(made, [*inputs.values()], weight, allow_unused=True)
            for name, mine, theirs in zip(inputs, found, expected, strict=True):
                case.holds(
                    (mine is None) == (theirs is None), f"{name} has a gradient in one of the two"
                )
                if mine is not None:
                    trial.close(
                        mine, theirs, 10 * trial.near(), f"gradient of {name} in chunks {cuts}"
                    )

    each(case, probe, samples(case, ("causal", "causal-left", "bias-causal")))
    if len(case.dtypes) > 1 and len(case.variant.implementations) > 1:
        # Some implementations have no float64 gradient.
        each(case, probe, samples(case, ("causal",), dtypes=case.dtypes[1:2]))


@LAWS.law("X-23", "claimed", needs=(*NEEDS, "key_valid"))
def padding_in_steps(case: Case) -> None:
    """Left padding in a decoded batch is as if it were not there, whatever is stored in it.

    Each item, decoded with its padding, equals the whole call with the same padding, also where
    padded keys and values are NaN or infinite; a chunk may be all padding. Items beside it are
    those that a batch of their own would give.
    """

    def probe(trial: Trial) -> None:
        s = trial.sizes
        pads = torch.arange(s.batch) * 3 % max(1, s.keys)
        valid = (torch.arange(s.keys) >= pads.flip(0)[:, None]).to(trial.key.device)
        mask = Mask(causal=True, key_valid=valid)
        if not takes(trial.attn, *trial.inputs, mask):
            return
        clean = trial.run(mask=mask)
        for filling in (torch.nan, torch.inf, 1e4):
            hidden = ~valid[:, None, :, None]
            key, value = (t.masked_fill(hidden, filling) for t in trial.inputs[1:])
            for cuts in ([1] * s.keys, chunks(s.keys, (2, 4))):
                found = decode(trial, cuts, (trial.query, key, value), mask).output
                what = f"output of chunks {cuts} with {filling} in the padding"
                trial.close(found, clean, trial.near(), what)
        for b in range(s.batch):
            alone = decode(
                trial,
                [1] * s.keys,
                [t[b : b + 1] for t in trial.inputs],
                mask.replace(key_valid=valid[b : b + 1]),
            ).output
            trial.close(alone, clean[b : b + 1], trial.near(), f"output of item {b} by itself")

    each(case, probe, samples(case, ("causal",)))


@LAWS.law("X-26", "claimed", needs=(*NEEDS, "low_precision"))
def steps_in_half_precision(case: Case) -> None:
    """In bfloat16 and float16 a decoded sequence is as exact as any output.

    40 tokens, and 300 of a recurrent state in bfloat16: drawn ones, and large keys before many
    small ones, with values that rise: a sum kept in half precision stops growing there. The last
    rows lie within 2 units in the last place of one call, in the widest dtype or in this one.
    """

    def probe(trial: Trial) -> None:
        index = torch.arange(trial.sizes.keys, device=trial.key.device)[:, None]
        shift = torch.where(index < 8, 3.0, -2.0).to(trial.key.dtype)
        rise = (2.0 * index / len(index)).to(trial.value.dtype)
        value, last = trial.value + rise, slice(trial.sizes.keys // 2, None)
        wide = copy.deepcopy(trial.attn).to(case.dtype)
        for inputs in (
            (trial.query, trial.key, value),
            (0.5 * trial.query, 0.5 * trial.key + shift, value),
        ):
            if not takes(trial.attn, *inputs, causal(trial.mask)):
                continue
            made = decode(trial, [1] * trial.sizes.keys, inputs).output
            exact = three(t.to(case.dtype) for t in inputs)
            if not takes(wide, *exact, causal(trial.mask)):
                continue
            expected = case.call(wide, *exact, causal(trial.mask))
            whole = trial.run(*inputs, causal(trial.mask))
            # What picks keys by their scores may pick others in half precision, in both alike.
            if relative(made[:, :, last], expected[:, :, last]) > trial.limit:
                expected = whole
            trial.close(made[:, :, last], expected[:, :, last], what="last outputs of steps")

    for dtype in case.dtypes:
        if dtype.itemsize == 2:
            summed = case.able.decode == "recurrent" and not case.able.fixed_length
            length = 300 if summed and dtype is torch.bfloat16 else 40
            sizes = (Sizes(1, 2, 1, length, length, 8, 6),)
            each(case, probe, list(case.samples(masks=("causal",), sizes=sizes, dtypes=(dtype,))))
