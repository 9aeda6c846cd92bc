"""Additive (Bahdanau) attention: a small network scores each query and key."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from annotated_doc import Doc
from annotated_types import Interval
from torch import Tensor, nn

from attnreg import Dims, ScoreAttention
from attnreg.tracing import full_precision

TILE_BYTES = 2**20
"""What the (rows, columns, hidden) activations of one tile may take: they stay in the cache."""


class Additive(ScoreAttention):
    """score(q, k) = v^T tanh(W_q q + W_k k + b) / temperature, with W_q, W_k, b and v per head.

    Parameters: ``query_weight`` and ``key_weight`` (Hq, hidden, D), ``bias`` and ``score_weight``
    (Hq, hidden). An (Lq, Lk, hidden) tensor is never formed: tiles of it are.
    Bahdanau et al. 2014, arXiv:1409.0473.
    """

    def __init__(
        self,
        dims: Dims,
        *,
        hidden: Annotated[
            int | None, Interval(ge=1, le=4096), Doc("width of the scoring network; None: head_dim")
        ] = None,
        temperature: Annotated[
            float, Interval(ge=1e-30), Doc("divides the scores before the softmax")
        ] = 1.0,
        **common: Any,
    ) -> None:
        super().__init__(dims, **common)
        self.hidden = dims.head_dim if hidden is None else hidden
        self.temperature = temperature
        heads, width = dims.num_heads, dims.head_dim
        self.query_weight = nn.Parameter(torch.empty(heads, self.hidden, width))
        self.key_weight = nn.Parameter(torch.empty(heads, self.hidden, width))
        self.bias = nn.Parameter(torch.empty(heads, self.hidden))
        self.score_weight = nn.Parameter(torch.empty(heads, self.hidden))
        self.tile_elements = max(256, TILE_BYTES // (4 * self.hidden))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters from torch's generator: variance-preserving, bias 0."""
        width = self.dims.head_dim
        nn.init.normal_(self.query_weight, std=(2 * width) ** -0.5)
        nn.init.normal_(self.key_weight, std=(2 * width) ** -0.5)
        nn.init.zeros_(self.bias)
        nn.init.normal_(self.score_weight, std=self.hidden**-0.5)

    def sides(self, query: Tensor, key: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """What tanh adds, W_q q + b and W_k k, (B, H, length, hidden) each; and v."""
        query_weight, key_weight, bias, score_weight = (
            p.to(wide) for p in (self.query_weight, self.key_weight, self.bias, self.score_weight)
        )
        left = query.to(wide) @ query_weight.transpose(-1, -2) + bias[:, None]
        return left, key.to(wide) @ key_weight.transpose(-1, -2), score_weight

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """Score every pair: (B, H, rows, D), (B, H, columns, D) to (B, H, rows, columns)."""
        wide = torch.promote_types(query.dtype, torch.float32)
        with full_precision(query.device):
            left, right, score_weight = self.sides(query, key, wide)
            hidden = torch.tanh(left[..., :, None, :] + right[..., None, :, :])
            scores = (hidden @ score_weight[:, None, :, None]).squeeze(-1)
            return scores / self.temperature
