"""I: packed sequences are apart: together they give what each gives alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnreg.conformance.case import Case, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.masks import RECIPES
from attnreg.conformance.visibility import (
    attend_to_what_the_mask_shows,
    garbage,
    samples,
    small,
    square,
    suited,
    thin,
)

LAWS = Laws()


def packed_is_apart(trial: Trial) -> None:
    """Each packed sequence gives what it gives alone, gradients too; the rest gives 0."""
    case, mask = trial.case, trial.mask
    assert mask.cu_seqlens is not None  # every kind of mask that this probe gets is packed
    assert mask.key_offsets is not None
    rows, columns = mask.cu_seqlens.tolist(), mask.key_offsets.tolist()
    tracked = case.able.differentiable and trial.takes(trial.tracked())
    whole, apart = (trial.tracked() if tracked else trial.inputs for _ in range(2))
    found = trial.run(*whole)
    pieces: list[Tensor] = []
    for n in range(len(rows) - 1):
        r, c = slice(rows[n], rows[n + 1]), slice(columns[n], columns[n + 1])
        inner = mask.replace(cu_seqlens=None, key_cu_seqlens=None)
        if mask.key_valid is not None:
            inner = inner.replace(key_valid=mask.key_valid[:, c])
        for name in ("allowed", "bias"):
            tensor = getattr(mask, name)
            if tensor is not None:
                inner = inner.replace(**{name: tensor[..., r, :][..., c]})
        query, key, value = apart
        pieces.append(case.call(trial.attn, query[:, :, r], key[:, :, c], value[:, :, c], inner))
    rest = trial.sizes.queries - rows[-1]
    pieces.append(torch.zeros_like(found[:, :, :rest]))
    expected = torch.cat(pieces, dim=2)
    trial.close(found, expected, trial.near(), "packed sequences against separate calls")
    trial.equal(found[:, :, rows[-1] :], pieces[-1], "rows past the last sequence")
    if not found.requires_grad:
        return
    arriving = torch.randn(found.shape, generator=torch.Generator().manual_seed(41)).to(found)
    with case.running("the backward pass"):
        mine = torch.autograd.grad(found, whole, arriving, allow_unused=True)
        theirs = torch.autograd.grad(expected, apart, arriving, allow_unused=True)
    for name, a, b in zip(("query", "key", "value"), mine, theirs, strict=True):
        if a is not None and b is not None:
            trial.close(a, b, trial.near(), f"gradient by {name} against separate calls")


def packed_garbage_stays(trial: Trial) -> None:
    """Other numbers in one packed sequence, and NaN past the last, move no other sequence."""
    mask = trial.mask
    assert mask.cu_seqlens is not None
    assert mask.key_offsets is not None
    rows, columns = mask.cu_seqlens.tolist(), mask.key_offsets.tolist()
    expected = trial.run()
    for n in range(len(rows) - 1):
        query, key, value = (t.clone() for t in trial.inputs)
        for tensor, bounds in ((query, rows), (key, columns), (value, columns)):
            inside = slice(bounds[n], bounds[n + 1])
            tensor[:, :, inside] = garbage(tensor[:, :, inside])
            tensor[:, :, bounds[-1] :] = math.nan
        found = trial.run(query, key, value)
        for part in (slice(0, rows[n]), slice(rows[n + 1], None)):
            trial.close(
                found[:, :, part],
                expected[:, :, part],
                trial.near(),
                f"the other sequences, after sequence {n} got other numbers",
            )


PACKED = tuple(name for name in RECIPES if name.startswith("packed"))


@LAWS.law("I-07", "claimed", needs=("packed",))
def packed(case: Case) -> None:
    """Packed sequences give what they give in calls of their own, and do not touch each other.

    Outputs and gradients within 1e-11; empty sequences, sequences without keys, rows past the
    last offset (exactly 0, whatever is stored there); every mask field counted inside.
    """
    attend_to_what_the_mask_shows(case, PACKED)
    case.each(packed_is_apart, case.samples(masks=thin(case, PACKED, 2, 1), sizes=(square(11),)))
    case.each(packed_is_apart, case.samples(masks=thin(case, PACKED)))
    case.each(packed_is_apart, samples(case, ("packed-full", "packed-causal")))
    case.each(packed_garbage_stays, case.samples(masks=thin(case, PACKED)))
    few = suited(case, PACKED)[:2]
    case.each(packed_garbage_stays, case.samples(masks=few, dtypes=case.dtypes[1:]))
    if case.full:
        case.each(packed_is_apart, case.samples(masks=PACKED, sizes=(small(70, 75),)))
