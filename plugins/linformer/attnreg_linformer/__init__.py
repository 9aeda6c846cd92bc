"""Linformer attention as an attnreg plugin."""

from __future__ import annotations

from collections.abc import Callable

from attnreg import Approximation, Complexity, Variant, hookimpl
from attnreg_linformer.module import Linformer
from attnreg_linformer.reference import reference

ATTNREG_CONTRACT = 1

VARIANT = Variant(
    name="linformer",
    factory=Linformer,
    summary="keys and values projected along the length to a fixed rank, linear in the length",
    formula=r"\operatorname{softmax}\left(\frac{Q (E K)^\top}{\sqrt{d_k}}\right) (F V)",
    paper="Wang et al. 2020, Linformer: Self-Attention with Linear Complexity, arXiv:2006.04768",
    complexity=Complexity(time="L", memory="L"),
    reference=reference,
    approximates=Approximation(
        "scaled_dot_product", "rank", "exact where rank = L and both projections are the identity"
    ),
)


@hookimpl
def attnreg_register_variants(register: Callable[[Variant], None]) -> None:
    """Register the variant."""
    register(VARIANT)
