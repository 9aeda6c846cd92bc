"""Small operations that several variants need."""

from __future__ import annotations

import torch
from torch import Tensor

from attnreg.tracing import full_precision


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
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        largest = x.abs().amax(dim=-1, keepdim=True).detach()
        zero = largest == 0
        x = (x / largest.masked_fill(zero, 1.0)).masked_fill(zero, 0.0)
        return x * x.square().sum(dim=-1, keepdim=True).masked_fill(zero, 1.0).rsqrt()


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
