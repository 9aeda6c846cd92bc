"""The work of linear attention in closed form."""

from __future__ import annotations

from torch import nn

from attnreg.flops import dims_of, kernel_flops


def flops(module: nn.Module, query_length: int, key_length: int, causal: bool) -> float:
    """Return 2 D (Dv + 1) per head, query and key: phi keeps the head dimension."""
    return kernel_flops(module, query_length, key_length, dims_of(module).head_dim)
