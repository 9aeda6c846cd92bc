"""Cosine attention as an attnreg plugin."""

from __future__ import annotations

from collections.abc import Callable

from attnreg import Complexity, Variant, hookimpl
from attnreg.flops import softmax_flops
from attnreg_cosine.module import Cosine
from attnreg_cosine.reference import reference

ATTNREG_CONTRACT = 1

VARIANT = Variant(
    name="cosine",
    factory=Cosine,
    summary="the cosine of query and key, times a scale per head",
    formula=(
        r"\operatorname{softmax}_j\left("
        r"\min(s_h, 100)\,\frac{q_i \cdot k_j}{\|q_i\|\,\|k_j\|}\right) V"
    ),
    paper="Luo et al. 2017, arXiv:1702.05870; Liu et al. 2021, Swin Transformer V2, "
    "arXiv:2111.09883",
    complexity=Complexity(time="L^2", memory="L"),
    reference=reference,
    flops=softmax_flops,
)


@hookimpl
def attnreg_register_variants(register: Callable[[Variant], None]) -> None:
    """Register the variant."""
    register(VARIANT)
