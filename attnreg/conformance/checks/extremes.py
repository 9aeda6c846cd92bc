"""S, continued: biases, values and gradients at the ends of a dtype's range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from attnreg.conformance.case import Case, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.checks.precision import narrow
from attnreg.conformance.checks.stability import (
    USUAL,
    Change,
    all_equal,
    huge_key,
    large_row,
    spread_by,
    times,
)
from attnreg.conformance.derivative import gradients, in_float64
from attnreg.conformance.oracle import agrees, finite, in_range

LAWS = Laws()


def _saturated(trial: Trial) -> None:
    query, key, value = trial.inputs
    found = gradients(trial, inputs=(query * 1e4, key * 1e4, value))
    if found is None:
        return
    finite(trial, found.output, "output for inputs times 1e4")
    for name, grad in found.grads.items():
        if grad is not None:
            finite(trial, grad, f"gradient of {name} for inputs times 1e4")


@LAWS.law("S-09", "quality", needs=("differentiable", "normalized", "float32"))
def saturated(case: Case) -> None:
    """Where everything is saturated, at inputs times 1e4, gradients are finite in float32.

    Zero, most of them, and never NaN.
    """
    case.each(_saturated, case.samples(sizes=[USUAL], dtypes=[torch.float32]))


def _lowest(trial: Trial) -> None:
    """A bias of the lowest number where a mask is False; one row has no other."""
    s, dtype = trial.sizes, trial.sample.dtype
    generator = torch.Generator().manual_seed(5)
    keep = torch.rand(s.batch, 1, s.queries, s.keys, generator=generator) > 0.4
    keep[..., 0] = True
    bias = torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, torch.finfo(dtype).min)
    bias[0, 0, -1] = torch.finfo(dtype).min
    mask = trial.mask.replace(bias=bias.to(trial.query.device))
    if trial.case.variant.reference is not None or torch.float64 in trial.case.dtypes:
        agrees(trial, *trial.inputs, mask=mask, slack=8.0)
    if trial.case.able.normalized:
        finite(trial, trial.run(mask=mask), "output")


@LAWS.law("S-10", "claimed", needs=("settled", "judged", "bias"))
def lowest_bias(case: Case) -> None:
    """A bias of the dtype's lowest number hides a key and makes nothing NaN.

    As model libraries pass masks. A row of nothing else is not dead: its keys are equal. In every
    dtype, against float64. A sum of bias and score that falls off the end of the range shows here.
    """
    with torch.no_grad():
        samples = case.samples(masks=("none", "causal"), sizes=[USUAL], dtypes=case.dtypes)
        case.each(_lowest, samples)


def _in_between(trial: Trial) -> None:
    query, key, value = trial.inputs
    value = value.sign() * 3e4
    found = trial.run(query, key, value)
    finite(trial, found, "output for values of 30000")
    trial.case.holds(
        bool((found.abs() <= 3.02e4).all()), "an average of values leaves their range", actual=found
    )


@LAWS.law("S-11", "claimed", needs=("float16", "normalized"))
def large_values(case: Case) -> None:
    """An average of values near the largest float16 is between them.

    Values of 30000 and -30000 among 9 and 70 keys. Sums before the division that are kept in
    float16 overflow.
    """
    sizes = [USUAL, replace(USUAL, batch=1, queries=70, keys=70)]
    samples = case.samples(masks=("none", "causal"), sizes=sizes, dtypes=[torch.float16])
    with torch.no_grad():
        case.each(_in_between, samples)


def _finite_gradients(change: Change) -> Callable[[Trial], None]:
    def probe(trial: Trial) -> None:
        inputs = change(trial)
        if any(not t.isfinite().all() for t in inputs):
            return
        exact = in_float64(trial, inputs)
        found = None if exact is None else gradients(trial, inputs=inputs)
        if found is None or exact is None:
            return
        for name, grad in found.grads.items():
            expected = exact.grads[name]
            if grad is not None and (expected is None or in_range(expected, grad.dtype)):
                finite(trial, grad, f"gradient of {name}")

    return probe


@LAWS.law("S-12", "claimed", needs=("differentiable", "float64", "narrow"))
def gradients_in_range(case: Case) -> None:
    """Gradients are finite in every dtype wherever those in float64 are in its range.

    At the inputs of S-01 to S-05: one large row, one row far larger than the others, equal, tiny,
    one huge key.
    """
    for dtype in narrow(case):
        half = dtype is torch.float16
        changes = (
            large_row,
            spread_by(120.0),
            all_equal,
            times(1e-7 if half else 1e-30),
            huge_key(3e3 if half else 1.3e5),
        )
        for change in changes:
            case.each(_finite_gradients(change), case.samples(sizes=[USUAL], dtypes=[dtype]))
