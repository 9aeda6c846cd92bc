"""The work of performer attention in closed form."""

from __future__ import annotations

from torch import nn

from attnreg.flops import dims_of, kernel_flops
from attnreg_performer.module import Performer


def flops(module: nn.Module, query_length: int, key_length: int, causal: bool) -> float:
    """Return 2 M (D + Dv + 1) per head, query and key, with M random features."""
    assert isinstance(module, Performer)
    dims = dims_of(module)
    drawn = 2.0 * dims.num_heads * module.features * dims.head_dim * (query_length + key_length)
    return drawn + kernel_flops(module, query_length, key_length, module.features)
