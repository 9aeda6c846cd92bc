"""G: gradients are those of the formula; what they must never be is in ``backward``."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attnreg.conformance.case import Case, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.derivative import (
    INPUTS,
    Gradients,
    check_slopes,
    cotangent,
    gradients,
    in_float64,
    named,
    parameters,
)
from attnreg.conformance.masks import RECIPES, Sizes
from attnreg.conformance.measure import LIMITS, relative
from attnreg.conformance.oracle import in_range, nudged

LAWS = Laws()

EVERY = tuple(RECIPES)
SMALL = Sizes(heads=4, queries=3, keys=5, head_dim=4, value_dim=3)


def _slopes_of(trial: Trial, names: set[str] | None) -> Gradients | None:
    """Compare the gradients of these names (None: all) with central differences."""
    if trial.case.able.deterministic:
        trial.attn.train()  # what gradients are for; dropout is 0
    arriving = cotangent(trial)
    found = gradients(trial, arriving=arriving)
    if found is not None:
        check_slopes(trial, found, arriving, names)
    return found


def _inputs_right(trial: Trial) -> None:
    _slopes_of(trial, {*INPUTS, "bias"})


@LAWS.law("G-01", "claimed", needs=("differentiable", "slopes"))
def of_inputs(case: Case) -> None:
    """The gradients of query, key, value and bias are the slopes of the formula.

    Central differences of the NumPy reference in float64 (of the module itself where there is
    none) along a direction, against autograd in every implementation: every mask with the default
    options, every setting without one, and lengths 1, 7 and 65; 1e-6 in float64. In training mode
    where the variant is deterministic. A detached factor, a backward pass of one's own, and a mask
    that only the forward pass honours show here.
    """
    lengths = ((1, 1), (1, 7), (7, 1), (3, 65), (65, 65)) if case.full else ((1, 7), (3, 65))
    sizes = [replace(SMALL, batch=1, queries=q, keys=k) for q, k in lengths]
    case.each(_inputs_right, case.samples(masks=EVERY, sizes=[SMALL]))
    case.each(_inputs_right, case.samples(settings=case.usual, sizes=[SMALL]))
    case.each(_inputs_right, case.samples(masks=("none", "causal"), sizes=sizes))
    if case.full:
        masks = ("causal", "padding", "bias", "packed-causal", "window")
        case.each(_inputs_right, case.samples(settings=case.usual, masks=masks, sizes=[SMALL]))


@LAWS.law("G-02", "claimed", needs=("differentiable", "slopes", "parameters"))
def of_parameters(case: Case) -> None:
    """Every parameter gets a gradient, and it is the slope of the formula.

    As G-01, moving each parameter that is trained; and none may be left out of every call. A
    temperature that is read with ``.item()`` or detached, and a layer that is never used, show
    here.
    """
    used: set[str] = set()

    def probe(trial: Trial) -> None:
        own = parameters(trial)
        found = _slopes_of(trial, set(own))
        if found is None or trial.sample.options:
            return
        for name in own:
            grad = found.grads[name]
            if grad is not None and bool((grad != 0).any()):
                used.add(name)

    masks = ("none", "causal", "padding", "allowed", "bias", "packed", "window")
    case.each(probe, case.samples(masks=masks, sizes=[SMALL]))
    case.each(probe, case.samples(settings=case.usual, sizes=[SMALL]))
    unused = set(named(case.build().module, trained=True)) - used
    case.holds(not unused, f"no call gives a gradient to {', '.join(sorted(unused))}")


def _second(trial: Trial) -> None:
    case = trial.case
    arriving = cotangent(trial)
    generator = torch.Generator().manual_seed(4)
    along, moved = (
        [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t) for t in made]
        for made in (trial.inputs, trial.inputs)
    )
    tracked = trial.tracked()
    if trial.attn.explain(*tracked, trial.mask).chosen is None:
        return
    output = trial.run(*tracked)
    with case.running("the second backward pass"):
        first = torch.autograd.grad(output, tracked, arriving, create_graph=True, allow_unused=True)
        total = sum((g * a).sum() for g, a in zip(first, along, strict=True) if g is not None)
        slope = torch.zeros((), dtype=torch.float64, device=case.device)
        if isinstance(total, Tensor) and total.requires_grad:
            second = torch.autograd.grad(total, tracked, allow_unused=True)
            for grad, change in zip(second, moved, strict=True):
                slope = slope if grad is None else slope + (grad * change).sum()
    step = 1e-5
    sides: list[Tensor] = []
    for sign in (step, -step):
        inputs = tuple(t + sign * m for t, m in zip(trial.inputs, moved, strict=True))
        found = gradients(trial, arriving=arriving, inputs=inputs)
        assert found is not None  # for mypy: the same call was taken above
        grads = [found.of(n, t) for n, t in zip(INPUTS, inputs, strict=True)]
        sides.append(torch.stack([(g * a).sum() for g, a in zip(grads, along, strict=True)]).sum())
    expected = (sides[0] - sides[1]) / (2 * step)
    trial.close(slope.reshape(1), expected.reshape(1), 1e-5, "slope of the gradient")


@LAWS.law("G-03", "quality", needs=("differentiable", "float64"))
def twice(case: Case) -> None:
    """The gradient can be differentiated, and its slope is right.

    In float64, the gradient's derivative along a direction by autograd against central differences
    of the gradient; 1e-5. A kernel without a second derivative fails here, which is no fault.
    """
    sizes = [replace(SMALL, batch=1)]
    masks = ("none", "causal", "padding", "bias")
    case.each(_second, case.samples(masks=masks, sizes=sizes, dtypes=[torch.float64]))


def _mean_size(tensor: Tensor) -> float:
    return float(tensor.square().mean().sqrt())


def _rounded(trial: Trial) -> None:
    arriving, dtype = cotangent(trial), trial.sample.dtype
    found = gradients(trial, arriving=arriving)
    if found is None:
        return
    exact = in_float64(trial, trial.inputs, arriving)
    if exact is None:
        return
    moved: list[Gradients] = []
    for name, grad in found.grads.items():
        like = exact.grads[name] if grad is None else grad
        if like is None:
            continue
        expected, got = exact.of(name, like).double(), found.of(name, like)
        if not in_range(expected, dtype):
            continue
        # A softmax's backward pass subtracts numbers of this size: of what little is left where
        # they cancel, their roundings are a large part.
        size = 0.1 * _mean_size(arriving.double()) * _mean_size(trial.value.double())
        limit = 3 * LIMITS[dtype] * max(1.0, size / max(_mean_size(expected), 1e-3))
        if not relative(got, expected) <= limit:
            if not moved:
                half = torch.finfo(dtype).eps / 2
                generator = torch.Generator().manual_seed(2)
                for _ in range(3):
                    near = tuple(nudged(t, half, generator) for t in trial.inputs)
                    other = in_float64(trial, near, arriving)
                    moved += [] if other is None else [other]
            limit += 6 * max(relative(other.of(name, like), expected) for other in moved)
        trial.close(got, expected, limit, f"gradient of {name} against float64")


@LAWS.law("G-08", "claimed", needs=("differentiable", "float64", "oracle", "narrow"))
def low_precision(case: Case) -> None:
    """In every dtype the gradients are, to their rounding, those of float64.

    Of the same module in float64 on the same rounded inputs, in its eager implementation: three
    times the limits of outputs, and where the formula is ill-conditioned six times what one
    rounding of its inputs changes. Every implementation, masks of every kind.
    """
    masks = ("none", "causal", "padding", "allowed", "bias", "packed-causal", "window")
    narrow = [d for d in case.dtypes if d is not torch.float64]
    case.each(_rounded, case.samples(masks=masks, sizes=[SMALL], dtypes=narrow))
    for index, setting in enumerate(case.usual[1:]):
        dtypes = narrow if case.full else [narrow[index % len(narrow)]]
        case.each(_rounded, case.samples(settings=[setting], sizes=[SMALL], dtypes=dtypes))
    longer = [Sizes(1, 2, 1, 33, 65, 16, 8)]
    case.each(_rounded, case.samples(masks=("none", "causal"), sizes=longer, dtypes=narrow))


def _bias_right(trial: Trial) -> None:
    s = trial.sizes
    shapes = (
        (s.batch, s.heads, s.queries, s.keys),
        (s.batch, 1, 1, s.keys),
        (1, s.heads, s.queries, 1),
        (s.heads, 1, s.keys),
        (s.queries, s.keys),
        (s.queries, 1),
        (s.keys,),
        (1,),
    )
    base = trial.mask
    for index, shape in enumerate(shapes):
        generator = torch.Generator().manual_seed(index)
        bias = torch.randn(shape, generator=generator, dtype=torch.float64).to(trial.query)
        trial.mask = base.replace(bias=bias)
        _slopes_of(trial, {"bias"})


@LAWS.law("G-10", "claimed", needs=("differentiable", "slopes", "bias"))
def of_bias(case: Case) -> None:
    """A bias of any shape that broadcasts gets its gradient, summed over what it was spread over.

    Eight shapes, from (B, Hq, Lq, Lk) to a single number, alone, causal and with padding; central
    differences as in G-01. A learned relative bias is trained through this.
    """
    masks = ("none", "causal", "causal-padding")
    case.each(_bias_right, case.samples(masks=masks, sizes=[SMALL]))
