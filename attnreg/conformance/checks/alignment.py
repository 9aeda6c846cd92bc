"""C: with causality all of the past counts, and positions are aligned as the mask says."""

from __future__ import annotations

from dataclasses import replace

import torch

from attnreg.conformance.case import Case, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.masks import Sizes
from attnreg.conformance.visibility import (
    CAUSAL,
    LONG,
    agrees,
    attend_to_what_the_mask_shows,
    open_mask,
    samples,
    shown_is_all,
    small,
    spread,
    square,
    truncated,
)

LAWS = Laws()


@LAWS.law("C-03", "claimed", needs=("settled", "causal", "cross", "order_free"))
def past_counts(case: Case) -> None:
    """A causal row is what a call with only the keys up to its position gives, itself included.

    For variants without positions; every causal mask, square and not. One position too many or
    too few, an offset of 0 where it is Lk - Lq: all of it shows here, and needs no reference.
    """
    case.each(shown_is_all, case.samples(masks=(*CAUSAL, "blind-rows")))
    case.each(
        shown_is_all,
        case.samples(masks=("causal",), sizes=(square(7), square(2), square(1), LONG)),
    )


@LAWS.law("C-04", "claimed", needs=("causal", "reference"))
def reference(case: Case) -> None:
    """Causal output is that of the reference at every length.

    Lengths 1 to 17, then 63, 65 and 70; every setting; limit 1e-9 in float64.
    """
    lengths = range(1, 18) if case.full else (1, 2, 3, 8, 17)
    long = (small(n, n) for n in ((63, 64, 65, 70) if case.full else (65, 70)))
    plain = [square(n, heads=2, kv_heads=1) for n in lengths]
    case.each(agrees, case.samples(masks=("causal",), sizes=(*plain, *long)))
    case.each(agrees, case.samples(settings=case.settings.all, masks=("causal",)))
    if case.full:
        sizes = (small(65, 65),)
        case.each(agrees, case.samples(settings=case.usual, masks=("causal",), sizes=sizes))


def is_aligned_at_the_end(trial: Trial) -> None:
    """Fewer queries than keys are the last rows of the square call; more start with blind rows."""
    case, sizes = trial.case, trial.sizes
    missing = sizes.keys - sizes.queries
    if missing >= 0:
        first = case.inputs(replace(sizes, queries=missing), dtype=trial.sample.dtype, seed=5)[0]
        whole = torch.cat([first, trial.query], dim=2)
        expected = case.call(trial.attn, whole, trial.key, trial.value, trial.mask)
        expected = expected[:, :, missing:]
    else:
        seeing = trial.query[:, :, -missing:]
        rest = case.call(trial.attn, seeing, trial.key, trial.value, trial.mask)
        expected = torch.cat([torch.zeros_like(rest[:, :, :1]).repeat(1, 1, -missing, 1), rest], 2)
    trial.close(trial.run(), expected, trial.near(), "against the same rows of the square call")


@LAWS.law("C-05", "claimed", needs=("settled", "causal", "cross"))
def bottom_right(case: Case) -> None:
    """With Lq != Lk the last query sees the last key; queries before the first key give 0.

    (Lq, Lk) of (3, 8), (1, 8), (8, 3), (1, 70), (66, 70) and more, with and without padding:
    against the same rows of the square call, and against the reference where there is one.
    """
    shapes = [Sizes(queries=q, keys=k) for q, k in ((3, 8), (1, 8), (8, 3), (2, 1))]
    shapes += [small(1, 70), small(66, 70), small(70, 66)]
    case.each(
        is_aligned_at_the_end,
        case.samples(masks=("causal", "causal-padding", "causal-left"), sizes=shapes),
    )
    if case.variant.reference is not None:
        case.each(agrees, samples(case, ("causal",), shapes[:3]))
        case.each(agrees, case.samples(masks=("causal",), sizes=shapes[3:]))


def right_padding_is_truncation(trial: Trial) -> None:
    """Keys padded on the right are as if they were not there, causality or not."""
    truncated(trial, [max(1, trial.sizes.keys - 4), max(1, trial.sizes.keys - 1)])


@LAWS.law("C-06", "claimed", needs=("causal", "key_valid"))
def with_padding(case: Case) -> None:
    """Causality and padding both hold where both are given.

    Padding on the right, on the left and everywhere, for two items and for one; against the
    reference, the truncated call, and by what is hidden. A fast path for one of them must not
    forget the other.
    """
    names = ("causal-padding", "causal-left")
    attend_to_what_the_mask_shows(case, names)
    attend_to_what_the_mask_shows(case, names, (square(7, batch=1),))
    case.each(
        right_padding_is_truncation,
        case.samples(masks=("causal",), sizes=(case.sizes, square(9), LONG)),
    )


def first_sees_itself(trial: Trial) -> None:
    """The first row of a square causal call is the first value."""
    value = trial.value.repeat_interleave(trial.sizes.heads // trial.sizes.kv_heads, dim=1)
    trial.close(trial.run()[:, :, 0], value[:, :, 0], trial.near(), "row 0 against value 0")


@LAWS.law("C-09", "claimed", needs=("causal", "normalized", "weights", "order_free"))
def first_position(case: Case) -> None:
    """The first position sees itself alone: its output is its value.

    For variants without positions whose weights sum to 1; at lengths 1, 2, 7 and 70.
    """
    sizes = (square(1), square(2), square(7), LONG)
    case.each(first_sees_itself, case.samples(masks=("causal",), sizes=sizes))


def is_its_triangle(trial: Trial) -> None:
    """Causality is the lower triangle as ``allowed``, and a window without a right side."""
    able, sizes = trial.case.able, trial.sizes
    offset = sizes.keys - sizes.queries
    expected = trial.run()
    if able.allowed:
        triangle = torch.ones(sizes.queries, sizes.keys, dtype=torch.bool).tril(offset)
        mask = trial.mask.replace(causal=False, allowed=triangle.to(trial.query.device))
        trial.close(trial.run(mask=mask), expected, trial.near(), "the triangle as allowed")
    if able.window:
        mask = trial.mask.replace(causal=False, window=(None, 0))
        trial.close(trial.run(mask=mask), expected, trial.near(), "window=(None, 0)")
    whole = open_mask(trial.case, sizes.keys).replace(causal=True, query_offset=sizes.keys)
    trial.close(
        trial.run(mask=whole), trial.run(mask=trial.mask.replace(causal=False)), trial.near()
    )


@LAWS.law("C-11", "claimed", needs=("causal", "noncausal", "order_free"))
def triangle(case: Case) -> None:
    """Causality is its lower triangle as ``allowed``, and is nothing where it hides nothing.

    For variants without positions: also window=(None, 0), and an offset that reaches every key.
    """
    sizes = (case.sizes, square(10), LONG)
    case.each(is_its_triangle, case.samples(masks=("causal",), sizes=sizes))


def offset_is_explicit(trial: Trial) -> None:
    """An offset of Lk - Lq is the default one; an offset shifts the rows."""
    sizes = trial.sizes
    default = sizes.keys - sizes.queries
    expected = trial.run()
    found = trial.run(mask=trial.mask.replace(query_offset=default))
    trial.close(found, expected, trial.near(), f"query_offset={default}, which is the default")
    if sizes.queries > 2:
        expected = trial.run(mask=trial.mask.replace(query_offset=1))[:, :, :-2]
        query = trial.query.roll(2, dims=2)
        found = trial.run(query, mask=trial.mask.replace(query_offset=-1))[:, :, 2:]
        trial.close(found, expected, trial.near(), "two more queries in front, an offset two less")


def seeing_all_is_seeing_all(trial: Trial) -> None:
    """The last key counts from the offset on at which it becomes visible."""
    keys = trial.sizes.keys
    found = trial.run(mask=trial.mask.replace(query_offset=2 * keys + 7))
    for row in spread(trial.sizes.queries, 4):
        edge = trial.run(mask=trial.mask.replace(query_offset=keys - 1 - row))
        what = f"row {row}, at the offset that shows the last key and at a larger one"
        trial.close(edge[:, :, row], found[:, :, row], trial.near(), what)


@LAWS.law("C-12", "claimed", needs=("causal",))
def offsets(case: Case) -> None:
    """Query i stands at i + query_offset, whatever the offset.

    Offsets that hide the first rows, that show everything, that are top-left: by what is hidden,
    against the reference, and against the call with two more queries in front. Without positions,
    an offset that shows the last key shows as much as any larger one.
    """
    names = ("top-left", "blind-rows", "far-causal")
    attend_to_what_the_mask_shows(case, names)
    sizes = (case.sizes, square(7))
    case.each(offset_is_explicit, case.samples(masks=("causal",), sizes=sizes))
    if not case.able.positional:
        lengths = (*sizes, square(1), LONG)
        case.each(seeing_all_is_seeing_all, case.samples(masks=("causal",), sizes=lengths))
