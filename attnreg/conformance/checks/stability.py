"""S: large, equal, tiny and spread inputs give finite numbers, and the right ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnreg.conformance.case import Case, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.checks.precision import narrow
from attnreg.conformance.masks import Sizes
from attnreg.conformance.oracle import agrees, finite

LAWS = Laws()

WIDE = Sizes(2, 4, 2, 5, 9, 64, 8)
USUAL = Sizes(2, 4, 2, 5, 9, 8, 6)
HALVES = (torch.bfloat16, torch.float16)

LOOSE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.4}
"""How far outputs may be from float64 where scores are so large that their own rounding shows."""

Change = Callable[[Trial], tuple[Tensor, Tensor, Tensor]]


def _judged(change: Change, *, blank: bool = False) -> Callable[[Trial], None]:
    """A probe: with these inputs the output is finite, and that of float64.

    ``blank``: or 0 in rows where implied weights have a normaliser that underflows.
    """

    def probe(trial: Trial) -> None:
        inputs = change(trial)
        if any(not t.isfinite().all() for t in inputs):
            return  # the inputs themselves are out of the dtype's range
        _agrees(trial, inputs, blank)

    return probe


def _agrees(trial: Trial, inputs: tuple[Tensor, ...], blank: bool) -> None:
    case, limit = trial.case, LOOSE[trial.sample.dtype]
    if case.variant.reference is not None or torch.float64 in case.dtypes:
        agrees(trial, *inputs, slack=8.0, limit=limit, blank=blank)
    if case.able.normalized:  # an average of the values is in range whatever float64 says
        query, key, value = inputs
        finite(trial, trial.run(query, key, value), "output")


def _one_row(trial: Trial, size: float) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (t.clone() for t in trial.inputs)
    query[:, :, -1], key[:, :, -1] = size, size
    return query, key, value


def large_row(trial: Trial) -> tuple[Tensor, Tensor, Tensor]:
    return _one_row(trial, 45.0)


@LAWS.law("S-01", needs=("judged", "narrow"))
def products(case: Case) -> None:
    """One query and one key of large entries do not overflow, in any dtype.

    64 entries of 45 each: their product is 129600, past the largest float16, but the score is
    16200. Finite, and that of float64 on the same inputs to the dtype's rounding (times what eight
    roundings of the inputs change). Scaling after the product, in the dtype of the call, shows
    here.
    """
    masks = ("none", "causal", "padding")
    samples = case.samples(masks=masks, sizes=[WIDE], dtypes=narrow(case))
    with torch.no_grad():
        case.each(_judged(large_row), samples)


def spread_by(factor: float) -> Change:
    def change(trial: Trial) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (t.clone() for t in trial.inputs)
        query[0, 0, -1] = query[0, 0, -1] * factor
        if trial.sizes.batch > 1:
            key[-1, :, 0] = key[-1, :, 0] * (factor / 10)
        return query, key, value

    return change


@LAWS.law("S-02", needs=("judged",))
def spread(case: Case) -> None:
    """One row of scores far larger than the others overflows nothing and drowns nobody.

    One query times 60 and times 2000, in another item one key times 6 and times 200, in every
    dtype in which that is in range: finite, and that of float64. An exponential without its row's
    maximum overflows; one with the maximum of the whole tensor leaves the other rows 0 by 0.
    """
    with torch.no_grad():
        for factor in (60.0, 2000.0):
            dtypes = [d for d in case.dtypes if d is not torch.float16 or factor < 100]
            samples = case.samples(masks=("none", "causal"), sizes=[USUAL], dtypes=dtypes)
            case.each(_judged(spread_by(factor)), samples)


def all_equal(trial: Trial) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = trial.inputs
    return torch.full_like(query, 30.0), torch.full_like(key, 30.0), value


def _mean(trial: Trial) -> None:
    case = trial.case
    _judged(all_equal)(trial)
    if not case.able.normalized or case.able.positional or not _dense(trial):
        return
    query, key, value = all_equal(trial)
    keep = trial.visible().double()
    spread = value.double().repeat_interleave(trial.sizes.heads // trial.sizes.kv_heads, dim=1)
    mean = keep @ spread / keep.sum(-1, keepdim=True).clamp(min=1)
    limit = {torch.float64: 1e-9, torch.float32: 1e-4}.get(trial.sample.dtype, 2 * trial.limit)
    found = trial.run(query, key, value)
    trial.close(found, mean, limit, "output for keys that are all the same, against the mean")


def _dense(trial: Trial) -> bool:
    """Whether every visible key has a weight: else which of equals count is the variant's own."""
    case = trial.case
    if case.able.weights == "none":
        return False  # it cannot be known
    with case.running("attn.weights"):
        weights = trial.attn.weights(trial.query, trial.key, trial.mask)
    return bool((weights[trial.visible()] > 0).all())


@LAWS.law("S-03", needs=("judged",))
def equal(case: Case) -> None:
    """Scores that are large and all equal give the mean of the values that are visible.

    Every entry of query and key 30, in every dtype: finite, and that of float64. Where the weights
    are normalized and the order does not matter, equal keys have equal weights.
    """
    samples = case.samples(masks=("none", "padding", "causal"), sizes=[WIDE], dtypes=case.dtypes)
    with torch.no_grad():
        case.each(_mean, samples)


def times(factor: float) -> Change:
    def change(trial: Trial) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = trial.inputs
        return query * factor, key * factor, value

    return change


def _tiny_finite(trial: Trial) -> None:
    inputs = times(1e-7 if trial.sample.dtype is torch.float16 else 1e-30)(trial)
    finite(trial, trial.run(*inputs), "output for query and key that are all but 0")


@LAWS.law("S-04", needs=("settled",))
def tiny(case: Case) -> None:
    """Query and key that are all but 0 give a finite output: no 0 by 0.

    Times 1e-30 (float16: 1e-7) finite, in every dtype and setting; times 1e-12 (float16: 1e-2)
    that of float64. A norm or a normaliser that underflows shows here.
    """
    with torch.no_grad():
        samples = case.samples(settings=case.usual, sizes=[USUAL], dtypes=case.dtypes)
        case.each(_tiny_finite, samples)
        for dtype in narrow(case):
            change = times(1e-2 if dtype is torch.float16 else 1e-12)
            case.each(_judged(change), case.samples(sizes=[USUAL], dtypes=[dtype]))


def huge_key(size: float) -> Change:
    def change(trial: Trial) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (t.clone() for t in trial.inputs)
        key[:, :, 0] = size * key[:, :, 0].sign()
        return query, key, value

    return change


@LAWS.law("S-05", needs=("judged", "narrow"))
def huge(case: Case) -> None:
    """One key of huge entries makes nothing NaN.

    130000 in bfloat16 and float32, 3000 in float16, with either sign: finite, and that of float64,
    where that is in range.
    """
    with torch.no_grad():
        for dtype in narrow(case):
            probe = _judged(huge_key(3e3 if dtype is torch.float16 else 1.3e5))
            case.each(probe, case.samples(masks=("none", "padding"), dtypes=[dtype]))


def _far(move: Callable[[Tensor], Tensor]) -> Callable[[Trial], None]:
    def probe(trial: Trial) -> None:
        for parameter in trial.attn.parameters():
            kept = parameter.detach().clone()
            with torch.no_grad():
                parameter.copy_(move(kept))
            try:
                agrees(trial, slack=8.0)
            finally:
                with torch.no_grad():
                    parameter.copy_(kept)

    return probe


@LAWS.law("S-06", "claimed", needs=("reference", "parameters"))
def far_parameters(case: Case) -> None:
    """Parameters that training has moved far still give what the reference gives, and finite.

    Each in turn times 20 and times -3, and all its entries 9, -20 and 400, in float32 and the
    widest dtype, wherever the reference itself is finite and in range. A temperature, or its
    logarithm, that is clamped in the formula and not in the code shows here.
    """
    moves: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda p: p * 20,
        lambda p: p * -3,
        lambda p: torch.full_like(p, 9.0),
        lambda p: torch.full_like(p, -20.0),
        lambda p: torch.full_like(p, 400.0),
    )
    dtypes = dict.fromkeys([case.dtype, *(d for d in case.dtypes if d is torch.float32)])
    with torch.no_grad():
        case.each(agrees, case.samples(sizes=[USUAL]))
        for move in moves:
            case.each(_far(move), case.samples(sizes=[USUAL], dtypes=dtypes))


def _all_large(trial: Trial) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = trial.inputs
    return query.sign() * 45.0, key.sign() * 45.0, value


@LAWS.law("S-07", needs=("judged", "low_precision"))
def norms(case: Case) -> None:
    """Norms past the largest float16 overflow nothing: every entry of query and key 45 or -45.

    Of 64 such entries the squares sum to 129600. In both halves: finite, and that of float64
    wherever that is well-conditioned; where weights are implied, rows whose normaliser underflows
    are 0. Squaring in the dtype of the call shows here.
    """
    halves = [d for d in case.dtypes if d in HALVES]
    with torch.no_grad():
        for change in (_all_large, large_row):
            samples = case.samples(settings=case.usual, sizes=[WIDE], dtypes=halves)
            case.each(_judged(change, blank=True), samples)


@LAWS.law("S-08", needs=("judged", "low_precision"))
def many(case: Case) -> None:
    """Sums over thousands of keys neither overflow nor lose their digits in a half dtype.

    4096 keys (512 where queries and keys must be as many), 16 wide, all entries of one sign: a sum
    of features passes the largest float16, and one kept in bfloat16 stops growing. Finite, and
    that of float64.
    """
    halves = [d for d in case.dtypes if d in HALVES]
    longer = 4096 if case.able.cross else 512

    def positive(trial: Trial) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = trial.inputs
        return query.abs(), key.abs(), value.abs()

    sizes = [Sizes(1, 2, 1, 3, longer, 16, 4)]

    def probe(trial: Trial) -> None:
        if case.variant.reference is not None or torch.float64 in case.dtypes:
            agrees(trial, *positive(trial), slack=8.0)
        finite(trial, trial.run(*positive(trial)), "output")

    with torch.no_grad():
        case.each(probe, case.samples(sizes=sizes, dtypes=halves))
