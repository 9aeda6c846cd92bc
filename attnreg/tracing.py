"""Ask torch in what context code runs: function transforms, autocast, half precision."""

from __future__ import annotations

import torch
from torch import Tensor


def is_transformed(tensor: Tensor) -> bool:
    """Whether the tensor is inside a function transform, such as ``torch.func.vmap``."""
    if torch.compiler.is_compiling():
        return False
    try:
        tensor.untyped_storage()
    except NotImplementedError:  # torch's wrappers of transformed tensors have no storage
        return True
    return False


def full_precision(device: torch.device) -> torch.autocast:
    """Return a context in which autocast does not lower the precision of float32 operations."""
    kind = device.type if torch.amp.is_autocast_available(device.type) else "cpu"
    return torch.autocast(kind, enabled=False)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for the half types, the dtype itself otherwise."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
