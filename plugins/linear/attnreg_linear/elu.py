"""elu(x) + 1 without its rounding, and with a derivative that reads the result alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnreg.tracing import is_transformed


def elu_plus_one(x: Tensor) -> Tensor:
    """exp(x) below 0, x + 1 above: elu(x) + 1 would lose the small ones to rounding."""
    if torch.compiler.is_compiling() or is_transformed(x):
        return x.clamp(max=0.0).exp() + x.relu()
    if not (torch.is_grad_enabled() and x.requires_grad):
        return _elu_plus_one(x)
    result: Tensor = _EluPlusOne.apply(x)  # type: ignore[no-untyped-call]  # torch's apply is untyped
    return result


def _elu_plus_one(x: Tensor) -> Tensor:
    return x.clamp(max=0.0).exp_().add_(x.relu())


class _EluPlusOne(torch.autograd.Function):
    """The derivative is min(result, 1): two passes over memory, where the formula's takes five."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = _elu_plus_one(x)
        ctx.save_for_backward(result)
        ctx.save_for_forward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        slope: Tensor = ctx.saved_tensors[0].clamp(max=1.0)
        return grads[0] * slope

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        slope: Tensor = ctx.saved_tensors[0].clamp(max=1.0)
        return tangents[0] * slope
