"""Ask torch in what context code runs: function transforms, autocast, half precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual


def is_transformed(tensor: Tensor) -> bool:
    """Whether the tensor is inside a function transform, such as ``torch.func.vmap``."""
    if torch.compiler.is_compiling():
        return False
    try:
        tensor.untyped_storage()
    except NotImplementedError:  # torch's wrappers of transformed tensors have no storage
        return True
    return False


def are_transformed(tensors: Iterable[Tensor]) -> bool:
    """Whether any is inside a function transform or has a tangent, as ``make_dual`` gives it one.

    Most of torch's kernels have no rule for either.
    """
    if torch.compiler.is_compiling():
        return False
    for tensor in tensors:  # a loop: this stands between a user and every kernel
        if is_transformed(tensor) or unpack_dual(tensor).tangent is not None:
            return True
    return False


def autocasts(kind: str) -> bool:
    """Whether a kind of device, such as "cpu", is under autocast."""
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def full_precision(device: torch.device) -> torch.autocast:
    """Return a context in which autocast does not lower the precision of float32 operations."""
    kind = device.type if torch.amp.is_autocast_available(device.type) else "cpu"
    return torch.autocast(kind, enabled=False)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for the half types, the dtype itself otherwise."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def eager_on_cpu(tensor: Tensor) -> bool:
    """Whether code may look at values cheaply and use an ``autograd.Function`` of its own."""
    return tensor.device.type == "cpu" and not (
        torch.compiler.is_compiling() or is_transformed(tensor)
    )


def known_true(condition: Tensor) -> bool:
    """Whether every entry is true, as far as that can be read without waiting for a device."""
    return _read(condition, lambda: bool(condition.all()))


def known_at_least(tensor: Tensor, bound: float) -> bool:
    """Whether no entry is below a bound, or NaN, as far as ``known_true`` would know."""
    return _read(tensor, lambda: tensor.numel() == 0 or bool(tensor.amin() >= bound))


def _read(tensor: Tensor, question: Callable[[], bool]) -> bool:
    if tensor.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    try:
        return question()
    except (RuntimeError, NotImplementedError):  # transformed, fake and meta tensors hold no values
        return False
