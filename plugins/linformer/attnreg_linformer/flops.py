"""The work of Linformer attention in closed form."""

from __future__ import annotations

from torch import nn

from attnreg.flops import dims_of
from attnreg_linformer.module import Linformer


def flops(module: nn.Module, query_length: int, key_length: int, causal: bool) -> float:
    """Return 2 rank (D + Dv) per head, key (mixed) and query (scored against the mixtures)."""
    assert isinstance(module, Linformer)
    dims = dims_of(module)
    each = 2.0 * dims.num_heads * module.rank * (dims.head_dim + dims.value_dim)
    return each * (query_length + key_length)
