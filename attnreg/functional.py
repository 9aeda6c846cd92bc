"""Small operations that several variants need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attnreg.tracing import eager_on_cpu, full_precision, is_transformed


def expand_heads(tensor: Tensor, num_heads: int) -> Tensor:
    """Repeat each key head for the query heads that read it: (B, Hkv, L, D) to (B, Hq, L, D).

    Query head h reads key head h // (Hq // Hkv).
    """
    groups = num_heads // tensor.shape[1]
    return tensor if groups == 1 else tensor.repeat_interleave(groups, dim=1)


def unit_vectors(x: Tensor) -> Tensor:
    """Divide each vector of (…, D) by its norm, in float32 or wider, as which it is returned.

    A zero vector stays zero and gets zero gradient; neither huge nor tiny vectors leave the range.
    """
    with full_precision(x.device):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if not eager_on_cpu(wide):
            return _unit_vectors(wide)
        unit: Tensor = _UnitVectors.apply(wide)[0]  # type: ignore[no-untyped-call]  # torch's apply is untyped
        return unit


def _unit_vectors(x: Tensor) -> Tensor:
    """The formula in operations that torch can trace, transform and differentiate twice."""
    largest = x.abs().amax(dim=-1, keepdim=True).detach()
    zero = largest == 0
    x = (x / largest.masked_fill(zero, 1.0)).masked_fill(zero, 0.0)
    return x * x.square().sum(dim=-1, keepdim=True).masked_fill(zero, 1.0).rsqrt()


class _UnitVectors(torch.autograd.Function):
    """The same in fewer passes, forward and backward; only the result and 1 / norm are kept."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        inverse = torch.linalg.vector_norm(x, dim=-1, keepdim=True).reciprocal_()
        unit = x * inverse
        limits = torch.finfo(x.dtype)
        # Within these bounds no square has left the range. Vector by vector, so that none is
        # rounded otherwise because of another one.
        odd = ~((inverse > limits.tiny**0.45) & (inverse < limits.max**0.45))[..., 0]
        if odd.any():
            unit[odd], inverse[odd] = _scaled_first(x[odd])
        return unit, inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, *output)
        ctx.save_for_forward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor | None:
        x, unit, inverse = ctx.saved_tensors
        if wants_graph(grads[0]):
            (found,) = plain_gradients(_unit_vectors, (x,), grads[0])
            return found
        return _across(grads[0], unit, inverse)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> tuple[Tensor, None]:
        _, unit, inverse = ctx.saved_tensors
        return _across(tangents[0], unit, inverse), None


def _scaled_first(x: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors and 1 / norm of vectors (n, D) whose squares would leave the range, or of 0."""
    largest = torch.linalg.vector_norm(x, ord=torch.inf, dim=-1, keepdim=True)
    zero = largest == 0
    largest = largest.masked_fill(zero, 1.0)
    unit = x / largest
    inverse = torch.linalg.vector_norm(unit, dim=-1, keepdim=True).reciprocal()
    inverse = inverse.masked_fill(zero, 0.0)
    # Of a subnormal vector 1 / norm is out of range: the largest number, lest 0 * inf be NaN.
    return unit * inverse, (inverse / largest).clamp(max=torch.finfo(x.dtype).max)


def _across(change: Tensor, unit: Tensor, inverse: Tensor) -> Tensor:
    """What a change of a vector, or of the loss by it, is across its direction, over its norm."""
    along = (change * unit).sum(dim=-1, keepdim=True)
    return torch.addcmul(change, unit, along, value=-1.0) * inverse


def wants_graph(grad: Tensor) -> bool:
    """Whether a hand-written backward pass will not do for the gradient that arrives.

    Somebody wants the gradient's gradient, or many at once (``is_grads_batched``).
    """
    return torch.is_grad_enabled() or is_transformed(grad)


def plain_gradients(
    run: Callable[..., Tensor], inputs: Sequence[Tensor | None], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of ``run(*inputs)`` by autograd; None for inputs that want none."""
    graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases: where one input was made of another, the way between them is not ours to go.
        given = [t.view_as(t) if t is not None and t.requires_grad else t for t in inputs]
        output = run(*given)
    wanted = [t for t in given if t is not None and t.requires_grad]
    found = torch.autograd.grad(output, wanted, grad, create_graph=graph, allow_unused=True)
    each = iter(found)
    return tuple(next(each) if t is not None and t.requires_grad else None for t in inputs)


def cast_in_range(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to a floating dtype; what leaves its range becomes its largest number, not inf.

    A bias that says "hardly ever" by a huge number must not turn into -inf, which says "never".
    """
    if x.dtype == dtype:
        return x
    largest = torch.finfo(dtype).max
    if largest < torch.finfo(x.dtype).max:
        x = x.clamp(-largest, largest)
    return x.to(dtype)


def attend_to_nothing(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend to no key at all: exact zeros (B, Hq, Lq, Dv) that are still part of the graph."""
    key, value = (expand_heads(t[:, :, :0], query.shape[1]) for t in (key, value))
    return query @ key.transpose(-1, -2) @ value


def zero_where(x: Tensor, hidden: Tensor) -> Tensor:
    """Put 0 where ``hidden`` (bool, broadcast to x) says so, whatever was there, NaN included."""
    if not eager_on_cpu(x):
        return x.masked_fill(hidden, 0.0)
    cleared: Tensor = _ZeroWhere.apply(x, hidden)  # type: ignore[no-untyped-call]  # torch's apply is untyped
    return cleared


_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class _ZeroWhere(torch.autograd.Function):
    """``zero_where`` with its derivatives: the same of what arrives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, hidden: Tensor) -> Tensor:
        # masked_fill by a broadcast mask runs at a quarter of the memory's speed on the CPU; an
        # AND with all bits or with none runs at the whole of it.
        x = x.resolve_neg()  # the bits must be those of the numbers
        integer = _INTEGERS[x.element_size()]
        kept: Tensor = x.view(integer) & (hidden.to(integer) - 1)
        return kept.view(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.hidden = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return zero_where(grads[0], ctx.hidden), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return zero_where(tangents[0], ctx.hidden)
