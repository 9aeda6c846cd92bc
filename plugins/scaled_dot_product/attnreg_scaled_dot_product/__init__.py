"""Scaled dot-product attention as an attnreg plugin."""

from __future__ import annotations

from collections.abc import Callable

from attnreg import Complexity, Variant, hookimpl
from attnreg.flops import softmax_flops
from attnreg_scaled_dot_product.module import ScaledDotProduct
from attnreg_scaled_dot_product.reference import reference

ATTNREG_CONTRACT = 1

VARIANT = Variant(
    name="scaled_dot_product",
    factory=ScaledDotProduct,
    summary="softmax of scaled dot products, with a temperature",
    formula=r"\operatorname{softmax}\left(\frac{Q K^\top}{T\sqrt{d_k}}\right) V",
    paper="Vaswani et al. 2017, Attention Is All You Need, arXiv:1706.03762",
    complexity=Complexity(time="L^2", memory="L"),
    reference=reference,
    flops=softmax_flops,
)


@hookimpl
def attnreg_register_variants(register: Callable[[Variant], None]) -> None:
    """Register the variant."""
    register(VARIANT)
