"""Scaled dot-product attention with a softmax temperature."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_doc import Doc
from annotated_types import Interval

from attnreg import Dims, DotProductAttention


class ScaledDotProduct(DotProductAttention):
    """softmax(Q K^T scale / temperature + bias) V, with scale = 1/sqrt(head_dim) by default.

    A low temperature sharpens the weights (one-hot at the largest score in the limit), a high one
    flattens them (uniform in the limit). Vaswani et al. 2017, arXiv:1706.03762.
    """

    def __init__(
        self,
        dims: Dims,
        *,
        temperature: Annotated[
            float, Interval(ge=1e-30), Doc("divides the scaled scores before the softmax")
        ] = 1.0,
        **common: Any,
    ) -> None:
        super().__init__(dims, **common)
        self.temperature = temperature

    @property
    def logit_scale(self) -> float:
        """The scale over the temperature."""
        return self.scale / self.temperature
