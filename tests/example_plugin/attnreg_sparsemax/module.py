"""Sparsemax attention: logits are projected onto the simplex, which makes most weights 0."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_doc import Doc
from annotated_types import Interval
from torch import Tensor, nn
from torch.nn import functional as F

from attnreg import Capabilities, Dims, Mask
from attnreg.functional import cast_in_range, expand_heads
from attnreg.lowering import LoweredMask
from attnreg.tracing import accumulation_dtype, full_precision


class Sparsemax(nn.Module):
    """o_i = sum_j p_ij v_j with p_i the point of the simplex nearest to the logits z_i.

    z_ij = scale * q_i.k_j / temperature + bias_ij over the visible keys, and p_ij =
    max(z_ij - t_i, 0) with the t_i for which the weights sum to 1. Martins and Astudillo 2016,
    From Softmax to Sparsemax, arXiv:1602.02068, algorithm 1.
    """

    capabilities = Capabilities(
        causal=True,
        key_valid=True,
        allowed=True,
        bias=True,
        window=True,
        packed=True,
        cross=True,
        grouped=True,
        value_dim=True,
        dropout=True,
        decode="cache",
        weights="exact",
        normalized=True,
        deterministic=True,
        compile=True,
    )

    def __init__(
        self,
        dims: Dims,
        *,
        temperature: Annotated[
            float, Interval(ge=0.01, le=100), Doc("divides the logits; low makes fewer weights")
        ] = 1.0,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.scale = dims.head_dim**-0.5 if scale is None else scale
        self.dropout = dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008  # Mask() is immutable
        """Attend: (B, Hq, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv) to (B, Hq, Lq, Dv)."""
        weights = F.dropout(self.weights(query, key, mask), self.dropout, self.training)
        value = expand_heads(value, query.shape[1]).to(weights.dtype)
        with full_precision(query.device):
            return (weights @ value).to(query.dtype)

    def weights(self, query: Tensor, key: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008  # Mask() is immutable
        """The weights, (B, Hq, Lq, Lk), in float32 or wider, before dropout."""
        lowered = LoweredMask(mask, query.shape[2], key.shape[2], query.device)
        wide = accumulation_dtype(query.dtype)
        query, key = query.to(wide), expand_heads(key, query.shape[1]).to(wide)
        with full_precision(query.device):
            logits = query @ key.transpose(-1, -2) * (self.scale / self.temperature)
            bias = lowered.bias()
            if bias is not None:
                logits = logits + cast_in_range(bias, wide)
            return sparsemax(logits, lowered.visible())


def sparsemax(logits: Tensor, visible: Tensor | None = None) -> Tensor:
    """Project each row of logits (…, n) onto the simplex; a row that sees nothing gives 0.

    ``visible`` is bool, to (…, n); None hides nothing.
    """
    if logits.shape[-1] == 0:  # no keys, so no weights: no row has a largest number
        return logits
    if visible is None:
        visible = torch.ones_like(logits, dtype=torch.bool)
    # The largest number of a row can be anything, and cancels. Below it by 1 or more, nothing
    # weighs anything: -2 stands for all of that, hidden keys included, so that no sum is infinite.
    top = logits.detach().masked_fill(~visible, -torch.inf).amax(dim=-1, keepdim=True)
    z = (logits - top.masked_fill(top == -torch.inf, 0.0)).masked_fill(~visible, -2.0)
    z = z.clamp(min=-2.0)
    with torch.no_grad():  # which keys weigh something; within one choice all is linear
        falling = z.sort(dim=-1, descending=True).values
        rank = torch.arange(1, z.shape[-1] + 1, device=z.device)
        count = (1.0 + rank * falling > falling.cumsum(dim=-1)).sum(dim=-1, keepdim=True)
        # Written so that a row of NaN, which compares with nothing, is chosen whole and stays NaN.
        chosen = ~(z < falling.gather(-1, count.clamp(min=1) - 1)) & visible
    total = z.masked_fill(~chosen, 0.0).sum(dim=-1, keepdim=True)
    threshold = (total - 1.0) / chosen.sum(dim=-1, keepdim=True).clamp(min=1)
    return (z - threshold).clamp(min=0.0).masked_fill(~chosen, 0.0)
