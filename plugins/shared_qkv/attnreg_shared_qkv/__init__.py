"""Shared-QKV attention as an attnreg plugin."""

from __future__ import annotations

from collections.abc import Callable

from attnreg import Complexity, Variant, hookimpl
from attnreg.flops import softmax_flops
from attnreg_shared_qkv.module import SharedQKV
from attnreg_shared_qkv.projection import SharedProjection
from attnreg_shared_qkv.reference import reference

ATTNREG_CONTRACT = 1

VARIANT = Variant(
    name="shared_qkv",
    factory=SharedQKV,
    summary="one projection for query, key and value: a third of the projection's parameters",
    formula=r"\operatorname{softmax}\left(\frac{(XW)(XW)^\top}{\sqrt{d_k}}\right) X W",
    paper="Kitaev et al. 2020, Reformer: The Efficient Transformer, arXiv:2001.04451",
    complexity=Complexity(time="L^2", memory="L"),
    reference=reference,
    flops=softmax_flops,
    projection=SharedProjection,
)


@hookimpl
def attnreg_register_variants(register: Callable[[Variant], None]) -> None:
    """Register the variant."""
    register(VARIANT)
