"""N, continued: every dtype gives the numbers of float64, to its rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from attnreg.conformance.case import Case, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.masks import RECIPES, Sizes
from attnreg.conformance.measure import relative
from attnreg.conformance.oracle import Oracle, agrees, finite, in_range

LAWS = Laws()

EVERY = tuple(RECIPES)
SMALL = Sizes(heads=4, queries=3, keys=7, head_dim=4, value_dim=3)
NARROW = (torch.float32, torch.bfloat16, torch.float16)


def narrow(case: Case) -> list[torch.dtype]:
    """The dtypes to check that are not float64, which the laws of meaning already check."""
    return [d for d in case.dtypes if d in NARROW]


@LAWS.law("N-04", needs=("oracle", "narrow"))
def dtypes(case: Case) -> None:
    """In every dtype the output is, to its rounding, that of float64 on the same rounded inputs.

    Inputs and parameters are rounded first, then given to the reference, or to a copy of the
    module in float64 where there is none. The limit is 16 units in the last place of float32 and
    2 of the halves; where a formula is ill-conditioned (a low temperature, say), what four
    roundings of its inputs change is added. Softmax, norms or sums in too narrow a dtype, and
    code for one dtype only, show here.
    """
    chosen = case.settings.all if case.full else case.usual
    with torch.no_grad():
        case.each(agrees, case.samples(settings=chosen, dtypes=narrow(case)))
        case.each(agrees, case.samples(dtypes=narrow(case), seeds=(1, 2)))


def _plain(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    """Softmax attention as anyone writes it, every step in the dtype of its inputs."""
    group = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(group, dim=1) for t in (key, value))
    scores = (query * query.shape[3] ** -0.5) @ key.transpose(-1, -2)
    weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
    output: Tensor = weights.nan_to_num(0.0) @ value
    return output


def _furthest(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().cpu().double() - expected).abs().max()) if found.numel() else 0.0


def _twice(trial: Trial) -> None:
    inputs, dtype = trial.inputs, trial.sample.dtype
    oracle = Oracle(trial)
    expected = oracle(*inputs)
    if not in_range(expected, dtype):
        return
    found = trial.run()
    finite(trial, found, "output")
    visible = trial.visible()
    query, key, value = (t.double() for t in inputs)
    exact = _plain(query, key, value, visible)
    naive = _furthest(_plain(*inputs, visible), exact.cpu())
    stored = expected.to(dtype)
    grain = _furthest((stored + 0.3) - 0.3, stored.double())
    allowed, error = 2 * naive + 2 * grain, _furthest(found, expected)
    if error > allowed:  # the formula's own share, which takes longer to find
        allowed += 8 * max(_furthest(output, expected) for output in oracle.moved(*inputs))
    trial.case.holds(
        error <= allowed,
        f"the largest error in {str(dtype).removeprefix('torch.')} is {error:.2g}; twice that of "
        f"plain attention, and what roundings of the inputs change, is {allowed:.2g}",
        measured=error,
        limit=allowed,
        actual=found,
        expected=expected,
    )


@LAWS.law("N-05", needs=("oracle", "narrow"))
def twice_naive(case: Case) -> None:
    """No entry is further from float64 than twice what a naive computation in that dtype is.

    ``max |error| <= 2 max |error of plain softmax attention, every step in that dtype|`` on the
    same inputs and mask, plus twice the rounding of the output itself: the floor that the dtype
    sets to any attention, whatever its formula. Where that is not enough, eight times the largest
    change by one rounding of the inputs is added: what this formula, unlike softmax attention,
    makes of them. 33 queries, 65 keys: the limits on the mean (N-04) would let one bad entry pass.
    """
    sizes = [Sizes(1, 4, 2, 33, 65, 16, 8)]
    masks = ("none", "causal", "padding") if case.full else ("none", "causal-padding", "padding")
    with torch.no_grad():
        case.each(_twice, case.samples(masks=masks, sizes=sizes, dtypes=narrow(case)))


def _rounded_once(trial: Trial) -> None:
    oracle = Oracle(trial)
    expected = oracle(*trial.inputs)
    eps = torch.finfo(trial.sample.dtype).eps
    limit = 0.5 * eps
    found = trial.run()
    if not relative(found, expected) <= limit:
        limit += max(0.0, oracle.conditioning(*trial.inputs, expected) - 2 * eps)
    trial.close(found.cpu(), expected, limit, "output against float64")


@LAWS.law("N-06", "quality", needs=("oracle", "low_precision"))
def accumulation(case: Case) -> None:
    """The half dtypes round once, at the end: sums over 512 keys are kept in float32.

    Relative error at most half a unit in the last place: what rounding the output alone gives is
    0.3. Computing in float16 or bfloat16 throughout gives 0.6 to 0.8.
    """
    halves = [d for d in case.dtypes if d.itemsize == 2]
    sizes = [Sizes(1, 2, 1, 8, 512, 16, 16)]
    with torch.no_grad():
        case.each(_rounded_once, case.samples(sizes=sizes, dtypes=halves))


@LAWS.law("N-07", "quality", needs=("oracle", "float32"), full=True)
def growth(case: Case) -> None:
    """The error does not grow with the length: at 2048 keys at most twice that at 128.

    In float32, mean over entries, plus 4 units in the last place. Running sums that are never
    rescaled, and positions in too narrow a dtype, show here.
    """
    longer = 2048 if case.able.cross else 1024
    for name in case.implementations():
        errors: list[float] = []

        def measure(trial: Trial, errors: list[float] = errors) -> None:
            expected = Oracle(trial)(*trial.inputs)
            errors.append(trial.close(trial.run().cpu(), expected, float("inf")))

        for length in (128, longer):
            sizes = [Sizes(1, 2, 1, 8, length, 16, 16)]
            samples = case.samples(sizes=sizes, dtypes=[torch.float32], implementations=[name])
            with torch.no_grad():
                case.each(measure, samples)
        if len(errors) == 2:
            short, long = errors
            allowed = 2 * short + 4 * torch.finfo(torch.float32).eps
            case.holds(
                long <= allowed,
                f"{name}: the relative error is {short:.2g} at 128 keys and {long:.2g} at {longer}",
                measured=long,
                limit=allowed,
            )


@LAWS.law("N-14", "claimed", needs=("oracle", "narrow", "masks"))
def masked_dtypes(case: Case) -> None:
    """In every dtype, under every mask, the output is that of float64 to its rounding.

    Limits as in N-04. A number that stands for minus infinity and does not fit into the dtype, or
    a mask that is added in it, shows here.
    """
    with torch.no_grad():
        for index, dtype in enumerate(narrow(case)):
            masks = EVERY if case.full else EVERY[index % 2 :: 2]
            case.each(agrees, case.samples(masks=masks, sizes=[SMALL], dtypes=[dtype]))
