"""Cosine attention: the angle between query and key, times a scale per head."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from annotated_doc import Doc
from annotated_types import Interval
from torch import Tensor, nn

from attnreg import Dims, DotProductAttention
from attnreg.functional import unit_vectors

LARGEST_SCALE = 100.0


class Cosine(DotProductAttention):
    """score(q, k) = min(s_h, 100) cos(q, k), with a scale s_h per head, ``head_scale`` (Hq,).

    The norms of query and key do not matter; a zero vector has cosine 0 with everything, and
    zero gradient. Luo et al. 2017, arXiv:1702.05870; Liu et al. 2021 (Swin V2), arXiv:2111.09883.
    """

    default_scale = 1.0

    def __init__(
        self,
        dims: Dims,
        *,
        init_scale: Annotated[
            float, Interval(gt=0, le=LARGEST_SCALE), Doc("the scale of every head at the start")
        ] = 10.0,
        learnable: Annotated[bool, Doc("whether the scale of each head is trained")] = True,
        **common: Any,
    ) -> None:
        super().__init__(dims, **common)
        self.init_scale = init_scale
        self.learnable = learnable
        scale = torch.empty(dims.num_heads)
        if learnable:
            self.head_scale = nn.Parameter(scale)
        else:
            self.register_buffer("head_scale", scale)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the scale of every head to ``init_scale``."""
        nn.init.constant_(self.head_scale, self.init_scale)

    def transform(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise both, in float32 or wider, and scale the query."""
        query, key = unit_vectors(query), unit_vectors(key)
        scale = self.head_scale.clamp(max=LARGEST_SCALE).to(query.dtype)
        return query * scale[:, None, None], key
