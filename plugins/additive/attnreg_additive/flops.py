"""The work of additive attention in closed form."""

from __future__ import annotations

from torch import nn

from attnreg.flops import dims_of, visible_pairs
from attnreg_additive.module import Additive


def flops(module: nn.Module, query_length: int, key_length: int, causal: bool) -> float:
    """Return 2 (hidden + Dv) per head and visible pair, and 2 D hidden per query and key.

    The sum over the hidden units counts as a product; the tanh of each does not count.
    """
    assert isinstance(module, Additive)
    dims = dims_of(module)
    pairs = visible_pairs(query_length, key_length, causal)
    scored = 2.0 * pairs * (module.hidden + dims.value_dim)
    projected = 2.0 * (query_length + key_length) * dims.head_dim * module.hidden
    return dims.num_heads * (scored + projected)
