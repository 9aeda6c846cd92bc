"""X: lengths, strides and what a module remembers from call to call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attnreg.conformance.case import Case, Inputs, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.masks import RECIPES, Sizes
from attnreg.conformance.measure import LIMITS
from attnreg.conformance.plainmask import lower
from attnreg.conformance.trial import takes
from attnreg.mask import Mask

LAWS = Laws()


def three(tensors: Iterable[Tensor]) -> Inputs:
    """Query, key and value, changed in one way, as a tuple of three."""
    query, key, value = tensors
    return query, key, value


def alike(trial: Trial, found: Tensor, expected: Tensor, what: str) -> None:
    """Compare two runs of one computation: a hundredth of what rounding may do is left to them."""
    on_cpu = trial.case.device.type == "cpu"
    trial.close(found, expected, (0.01 if on_cpu else 1.0) * trial.near(), what)


def _right(trial: Trial) -> None:
    """The numbers of the reference; without one, what any variant must keep."""
    case, sample = trial.case, trial.sample
    if case.variant.reference is not None:
        trial.close(trial.run(), trial.reference(), what="output against the reference")
        return
    if sample.implementation != "eager" and len(case.variant.implementations) > 1:
        eager = Trial(case, replace(sample, implementation="eager"))
        trial.close(trial.run(), eager.run(), trial.near(), "output against the eager one")
    if case.able.positional or sample.mask != "none" or not case.able.deterministic:
        again = Trial(case, sample)
        trial.close(trial.run(), again.run(), trial.near(), "output of an equal module")
        return
    order = torch.randperm(trial.sizes.keys, generator=torch.Generator().manual_seed(3))
    order = order.to(trial.key.device)
    shuffled = trial.run(key=trial.key[:, :, order], value=trial.value[:, :, order])
    trial.close(shuffled, trial.run(), trial.near(), "output with keys in another order")


def _square(*lengths: int) -> Iterator[Sizes]:
    yield from (Sizes(2, 3, 1, n, n, 8, 6) for n in lengths)


ROW_MASKS = ("none", "causal", "padding-holes", "window", "allowed", "bias-causal", "packed")
MASKS = ("none", "causal", "padding-left", "bias-causal", "packed-causal", "window", "padding")


@LAWS.law("X-02")
def short_and_odd_lengths(case: Case) -> None:
    """A length of one, and odd and prime lengths, give the numbers of the formula.

    Square and, where declared, with a single query or a single key, under every kind of mask,
    against the reference at 1e-9; without a reference, keys in another order give the same.
    """
    lengths = (1, 2, 3, 7, 31, 33) if case.full else (1, 2, 3, 31)
    cross = [Sizes(1, 3, 1, a, b, 8, 6) for a, b in ((1, 7), (7, 1), (3, 2), (1, 33), (33, 1))]
    sizes = [*_square(*lengths), *(cross[: None if case.full else 3] if case.able.cross else ())]
    case.each(_right, case.samples(sizes=sizes, masks=MASKS if case.full else MASKS[:5]))


@LAWS.law("X-04")
def lengths_around_blocks(case: Case) -> None:
    """Lengths one below, at and above a block's give the numbers of the formula.

    63 to 66, and with ``cross`` unequal ones around 64, against the reference at 1e-9; without a
    reference, keys in another order give the same. A last block that is cut off, repeated or
    masked as if it were full shows here.
    """
    lengths = (63, 64, 65, 66, 72, 79) if case.full else (64, 65)
    cross = [Sizes(1, 2, 1, a, b, 8, 6) for a, b in ((3, 65), (65, 63), (64, 66), (66, 64))]
    sizes = [*_square(*lengths), *(cross[: None if case.full else 2] if case.able.cross else ())]
    sizes = [replace(s, heads=2, batch=1) for s in sizes]
    masks = MASKS if case.full else ("none", "causal", "padding", "window")
    case.each(_right, case.samples(sizes=sizes, masks=masks))


@LAWS.law("X-05")
def long_lengths(case: Case) -> None:
    """A length past any buffer made beforehand works, and shorter ones after it.

    80 where the length is fixed, else 130 and 300 (full: 1030), then 8, with one head, against
    the reference up to 130. A mask of 64 or 1024 that is sliced shows here.
    """
    longest = (80,) if case.able.fixed_length else (130, 300, 1030) if case.full else (130, 300)

    def long_then_short(trial: Trial) -> None:
        if trial.sizes.keys <= 130:
            _right(trial)
        else:
            trial.case.holds(trial.run().isfinite().all(), "a long output is not finite")
        short = replace(trial.sizes, queries=8, keys=8)
        _as_fresh(trial, short, trial.sample.mask, f"after one of {trial.sizes.keys} keys")

    sizes = [Sizes(1, 1, 1, n, n, 8, 6) for n in longest]
    case.each(long_then_short, case.samples(sizes=sizes, masks=("none", "causal", "window")))


def _as_fresh(trial: Trial, sizes: Sizes, mask: str, what: str, seed: int = 0) -> None:
    """Compare a call of the trial's module with one of a module that has seen nothing yet."""
    case, sample = trial.case, trial.sample
    fresh = case.build(
        sample.options,
        implementation=sample.implementation,
        dtype=sample.dtype,
        sizes=replace(sizes, keys=trial.sizes.keys),  # so that max_length is the same
    )
    inputs = case.inputs(sizes, dtype=sample.dtype, seed=seed)
    made = case.mask(mask, sizes)
    if takes(fresh, *inputs, made):
        expected = case.call(fresh, *inputs, made)
        trial.close(trial.run(*inputs, made), expected, trial.near(), f"output {what}")


@LAWS.law("X-06")
def lengths_in_a_row(case: Case) -> None:
    """One module called with different lengths and batches in a row gives what a fresh one gives.

    Lengths 8, 5, 14, 80, 8 and batches of 2, 1, 3, each mask by itself; relative difference below
    1e-11 in float64. A mask, a position or a projection kept from an earlier length shows here.
    """
    rows = ((8, 2), (5, 2), (14, 1), (80, 2), (8, 3), (8, 1), (13, 1))

    def in_a_row(trial: Trial) -> None:
        packed = trial.sample.mask.startswith("packed")
        for length, items in rows:
            batch = 1 if packed else items
            queries = 1 + length // 2 if case.able.cross else length
            sizes = replace(trial.sizes, batch=batch, queries=queries, keys=length)
            _as_fresh(trial, sizes, trial.sample.mask, f"at length {length} after others", length)

    masks = ROW_MASKS if case.full else ROW_MASKS[:4]
    case.each(in_a_row, case.samples(masks=masks))


@LAWS.law("X-12")
def nothing_is_remembered(case: Case) -> None:
    """Masks and inputs in a row, of the same shapes or even the same memory, do not mix.

    Every kind of mask one after the other at one size, then the same tensors with new values
    written into them; each as from a fresh module. What is cached by shape or address shows here.
    """

    def in_a_row(trial: Trial) -> None:
        names = [n for n, r in RECIPES.items() if r.suits(case.able) and not n.startswith("packed")]
        for name in names:
            _as_fresh(trial, trial.sizes, name, f"with mask {name!r} after other masks")
        masks = [trial.mask]
        if case.able.key_valid:
            valid = torch.ones(trial.sizes.batch, trial.sizes.keys, dtype=torch.bool)
            masks.append(trial.mask.replace(key_valid=valid.to(trial.key.device)))
        for mask in masks:
            if takes(trial.attn, *trial.inputs, mask):
                _written_over(trial, mask)

    case.each(in_a_row, case.samples())


def _written_over(trial: Trial, mask: Mask) -> None:
    """Call, write new values into the same memory, and call again."""
    case = trial.case
    memory = three(t.clone() for t in trial.inputs)
    trial.run(*memory, mask)
    for seed in (1, 2):
        for old, new in zip(memory, case.inputs(trial.sizes, seed=seed), strict=True):
            old.copy_(new)
        if mask.key_valid is not None:
            mask.key_valid[:, seed - 1] = False
        fresh = Trial(case, trial.sample).attn
        expected = case.call(fresh, *three(t.clone() for t in memory), mask)
        trial.close(trial.run(*memory, mask), expected, trial.near(), "output of new values")


def _empty(trial: Trial) -> None:
    case, s, mask = trial.case, trial.sizes, trial.mask
    masks = [mask]
    if case.able.key_valid:
        valid = torch.ones(s.batch, s.keys, dtype=torch.bool, device=trial.key.device)
        masks.append(mask.replace(key_valid=valid))
    for mask in masks:
        inputs = trial.tracked() if case.able.differentiable else trial.inputs
        if not takes(trial.attn, *inputs, mask):
            continue
        output = trial.run(*inputs, mask)
        trial.equal(output.detach(), torch.zeros_like(output), "output of no keys or no queries")
        if case.able.differentiable:
            with case.running("the backward pass of an empty call"):
                (output.sum() + sum(t.sum() for t in inputs) * 0).backward()
            for t in inputs:
                case.holds(t.grad is not None and not t.grad.any(), "gradients of it are not 0")


@LAWS.law("X-03")
def nothing_to_attend(case: Case) -> None:
    """No queries, no keys or no batch items give empty or zero outputs, and a backward pass.

    Lq = 0, Lk = 0, both, and B = 0; zeros are exact. The last batch of a data set and the first
    step of a cache are such calls.
    """
    usual = case.sizes
    sizes = [replace(usual, queries=0, keys=0), replace(usual, batch=0)]
    if case.able.cross:
        sizes += [replace(usual, queries=0), replace(usual, keys=0)]
    case.each(_empty, case.samples(sizes=sizes, masks=("none", "causal", "top-left", "allowed")))


WINDOWS: tuple[tuple[int | None, int | None], ...] = (
    (0, 0),
    (1, 0),
    (0, 1),
    (3, 2),
    (None, 1),
    (2, None),
    (40, 40),
)


@LAWS.law("X-10", "claimed", needs=("window",))
def window_edges(case: Case) -> None:
    """A window reaches to its last position and not one further.

    The value at one key at a time is changed: exactly the queries whose window holds it move, for
    windows of 0, 1, 3, half-open and wider than the sequence, at several offsets, alone and with
    causality (with a pattern of its own, a variant may see less, never more).
    """

    offsets = (None, 0, 2, -1) if case.full else (None, 2)

    def edges(trial: Trial) -> None:
        s = trial.sizes
        plain = Mask(causal=trial.mask.causal, query_offset=s.keys)
        # A variant that picks some keys only, such as the best three, may miss a visible one.
        dense = takes(trial.attn, *trial.inputs, plain) and bool(
            (_moved(trial, plain) > 1e-6).all()
        )
        for window in WINDOWS:
            for offset in offsets:
                mask = Mask(causal=trial.mask.causal, window=window, query_offset=offset)
                if not takes(trial.attn, *trial.inputs, mask):
                    continue
                found = _moved(trial, mask)
                seen = torch.from_numpy(lower(mask, 1, 1, s.queries, s.keys)[0]).to(found.device)
                where = f"window {window}, offset {offset}, causal {mask.causal}"
                beyond = (found > 1e-6) & ~seen
                case.holds(not beyond.any(), f"{where}: a query sees a hidden key", actual=found)
                if dense and case.able.weights == "exact" and not case.able.positional:
                    short = (found <= 1e-6) & seen
                    case.holds(not short.any(), f"{where}: a query misses a key", actual=found)

    sizes = (case.sizes, replace(case.sizes, queries=9), replace(case.sizes, queries=12, keys=7))
    case.each(edges, case.samples(sizes=sizes, masks=("none", "causal")))


def _moved(trial: Trial, mask: Mask) -> Tensor:
    """How far each output moves when the value at one key goes from 0 to 1, (1, H, Lq, Lk).

    All keys are one and the same, so that no weight is small by its score.
    """
    s = trial.sizes
    value = torch.eye(s.keys, dtype=trial.sample.dtype, device=trial.value.device)
    value = value[:, None, :, None].expand(s.keys, s.kv_heads, s.keys, s.value_dim)
    value = torch.cat([torch.zeros_like(value[:1]), value]).contiguous()  # item 0 changes nothing
    query = trial.query[:1].expand(s.keys + 1, *trial.query.shape[1:])
    key = trial.key[:1, :, :1].expand(s.keys + 1, -1, s.keys, -1)
    output = trial.run(query.contiguous(), key.contiguous(), value, mask)
    return (output[1:] - output[:1]).abs().amax(dim=-1).permute(1, 2, 0)[None]


@LAWS.law("X-09", "quality", needs=("accelerator",), full=True)
def index_width(case: Case) -> None:
    """More than 2**31 elements, and more than 65536 positions, are counted right.

    The last batch items of a call of 2**31 elements equal a call of those alone; with ``cross``
    and ``causal`` so do the last of 70000 queries. Needs about six times 2**31 elements of memory.
    """
    dtype = case.dtypes[-1]
    attn = case.build(dtype=dtype, sizes=replace(case.sizes, heads=8, kv_heads=8, head_dim=64))
    width = case.build(dtype=dtype).dims.value_dim if case.able.value_dim else 64
    if case.able.cross and case.able.causal:
        rows = Sizes(1, 8, 8, 70_000, 64, 64, width)
        query, key, value = case.inputs(rows, dtype=dtype)
        whole = case.call(attn, query, key, value, Mask(causal=True, query_offset=-69_950))
        last = case.call(
            attn, query[:, :, -40:], key, value, Mask(causal=True, query_offset=69_960 - 69_950)
        )
        case.close(whole[:, :, -40:], last, 2 * LIMITS[dtype], "the last of 70000 queries")
    items = 2**31 // (8 * 64 * 64) + 3
    needed = 6 * items * 8 * 64 * 64 * dtype.itemsize
    free = torch.get_device_module(case.device).mem_get_info(case.device)[0]
    if needed > free:
        case.skip(f"it needs {needed / 2**30:.0f} GiB of memory")
    shape = (items, 8, 64, 64)
    query, key, value = (
        torch.randn(*shape[:3], n, dtype=dtype, device=case.device) for n in (64, 64, width)
    )
    whole = case.call(attn, query, key, value, case.mask())
    last = case.call(attn, query[-3:], key[-3:], value[-3:], case.mask())
    case.close(whole[-3:], last, 2 * LIMITS[dtype], "the last items of 2**31 elements")
