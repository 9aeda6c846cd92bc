"""X, continued: strides, of the inputs, of masks and of the gradient that arrives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnreg.conformance.case import Case, Inputs, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.checks.shapes import three
from attnreg.conformance.masks import Sizes
from attnreg.conformance.trial import takes

LAWS = Laws()

View = Callable[[Tensor], Tensor]


def _spread(t: Tensor, axis: int, step: int) -> Tensor:
    """The same values with every ``step``-th place of an axis used, after an offset of one."""
    sizes = list(t.shape)
    sizes[axis] = sizes[axis] * step + 1
    index = torch.arange(t.shape[axis], device=t.device) * step + 1
    room: Tensor = t.new_full(sizes, 7.0).index_copy(axis, index, t)
    return room[(*(slice(None),) * axis, slice(1, None, step))]


def _offset(t: Tensor) -> Tensor:
    """The same values one element into their storage."""
    return torch.cat([t.new_full((1,), 7.0), t.reshape(-1)])[1:].view(t.shape)


VIEWS: dict[str, View] = {
    "laid out as (B, L, H, D)": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "laid out as (B, H, D, L)": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
    "laid out as (L, B, H, D)": lambda t: t.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
    "laid out as (H, B, L, D)": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "every second feature": lambda t: _spread(t, 3, 2),
    "every second position": lambda t: _spread(t, 2, 2),
    "a slice of more heads": lambda t: _spread(t, 1, 1),
    "every second batch item": lambda t: _spread(t, 0, 2),
    "one element into its storage": _offset,
}
"""Ways to lay out the same values, each differentiable."""

REPEATED: dict[str, View] = {
    "one batch item, expanded": lambda t: t[:1].expand_as(t),
    "one head, expanded": lambda t: t[:, :1].expand_as(t),
    "one position, expanded": lambda t: t[:, :, :1].expand_as(t),
    "one number, expanded": lambda t: t[:1, :1, :1, :1].expand_as(t),
}

ALONE = (("the value", (2,)), ("the key", (1,)), ("the query", (0,)), ("key and value", (1, 2)))

STRIDE_MASKS = ("none", "causal", "padding-holes", "bias-causal", "packed", "window", "allowed")


def _strided(inputs: Inputs, view: View, which: tuple[int, ...]) -> Inputs:
    query, key, value = (view(t) if n in which else t for n, t in enumerate(inputs))
    return query, key, value


def _laid_out(trial: Trial) -> None:
    mask = trial.mask
    plain = trial.run()
    for n, (name, view) in enumerate(VIEWS.items()):
        alone = ALONE if trial.case.full else (ALONE[0], ALONE[1 + n % 3])
        for what, which in (("query, key and value", (0, 1, 2)), *alone):
            found = trial.run(*_strided(trial.inputs, view, which), mask)
            trial.close(found, plain, trial.near(), f"output with {what} {name}")
    for name, view in REPEATED.items():
        views = _strided(trial.inputs, view, (0, 1, 2))
        expected = trial.run(*three(t.contiguous() for t in views))
        trial.close(trial.run(*views), expected, trial.near(), f"output of {name}")


def _mask_views(trial: Trial) -> None:
    mask, plain = trial.mask, trial.run()
    for name in ("key_valid", "allowed", "bias"):
        tensor = getattr(mask, name)
        if tensor is None or tensor.dim() < 2:
            continue
        turned = tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
        spread = torch.stack([tensor, tensor], dim=-1)[..., 0]
        for view in (turned, spread):
            found = trial.run(mask=mask.replace(**{name: view}))
            trial.close(found, plain, trial.near(), f"output with other strides of {name}")


def _one_tensor(trial: Trial) -> None:
    s = trial.sizes
    if s.queries != s.keys or s.heads != s.kv_heads or s.head_dim != s.value_dim:
        return
    x = trial.query
    expected = trial.run(x, x.clone(), x.clone())
    trial.close(trial.run(x, x, x), expected, trial.near(), "output with one tensor thrice")
    joined = torch.stack(trial.inputs, dim=3).transpose(1, 2).contiguous()  # (B, L, H, 3, D)
    query, key, value = joined.transpose(1, 2).unbind(3)
    trial.close(trial.run(query, key, value), trial.run(), trial.near(), "output of unbound views")


@LAWS.law("X-01")
def strides(case: Case) -> None:
    """Any strides give what contiguous tensors give.

    Query, key and value, together and alone, as transposed views, slices, steps, views into the
    middle of their storage, and expanded ones with stride 0; one tensor as all three; masks with
    other strides. Relative difference below 1e-11 in float64.
    """
    wide = Sizes(keys=9, queries=9, kv_heads=6, value_dim=8)
    case.each(_laid_out, case.samples(masks=STRIDE_MASKS[: None if case.full else 5]))
    some = STRIDE_MASKS[:3] if case.full else ("none",)
    case.each(_laid_out, case.samples(masks=some, dtypes=case.dtypes[1:]))
    case.each(_mask_views, case.samples(masks=("padding-holes", "allowed", "bias-causal")))
    case.each(_one_tensor, case.samples(sizes=(wide,), masks=("none", "causal")))


def _same_gradients(trial: Trial) -> None:
    case, inputs = trial.case, trial.tracked()
    if not takes(trial.attn, *inputs, trial.mask):
        return
    output = trial.run(*inputs)
    weight = torch.linspace(-1.0, 1.5, output.numel(), device=output.device).to(output.dtype)
    weight = weight.view(output.shape)
    with case.running("the backward pass"):
        expected = torch.autograd.grad(output, inputs, weight, allow_unused=True)
    for name, view in VIEWS.items():
        leaves = trial.tracked()
        output = trial.run(*_strided(leaves, view, (0, 1, 2)))
        with case.running("the backward pass"):
            found = torch.autograd.grad(output, leaves, view(weight), allow_unused=True)
        _compare_gradients(trial, found, expected, f"with tensors {name}")
    leaves = trial.tracked()
    output = trial.run(*leaves)
    alike = output.new_full((1, 1, 1, 1), 0.75).expand_as(output)
    with case.running("the backward pass"):
        expanded = torch.autograd.grad(output, leaves, alike, retain_graph=True, allow_unused=True)
        plain = torch.autograd.grad(output, leaves, alike.contiguous(), allow_unused=True)
    _compare_gradients(trial, expanded, plain, "where the arriving gradient has stride 0")


def _compare_gradients(
    trial: Trial, found: tuple[Tensor, ...], expected: tuple[Tensor, ...], what: str
) -> None:
    for name, mine, theirs in zip(("query", "key", "value"), found, expected, strict=True):
        trial.case.holds(
            (mine is None) == (theirs is None), f"{name} gets a gradient or not, {what}"
        )
        if mine is not None:
            trial.close(mine, theirs, trial.near(4.0), f"gradient of {name} {what}")


@LAWS.law("X-11", needs=("differentiable",))
def gradient_strides(case: Case) -> None:
    """Gradients too are the same for any strides, of the inputs and of the gradient that arrives.

    The layouts of X-01 for inputs and arriving gradient, and a gradient with stride 0, as ``sum``
    sends it. A hand-written backward pass that assumes contiguous tensors shows here.
    """
    some = ("none", "causal", "padding-holes", "bias") if case.full else ("none", "causal")
    case.each(_same_gradients, case.samples(masks=some))
    if len(case.dtypes) > 1 and len(case.variant.implementations) > 1:
        # Some implementations have no float64 gradient.
        case.each(_same_gradients, case.samples(dtypes=case.dtypes[1:2], masks=some))
