"""Linformer attention as an attnreg plugin."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from attnreg import Approximation, Complexity, Implementation, Mask, Variant, hookimpl
from attnreg.families import why_not_fused
from attnreg_linformer.flops import flops
from attnreg_linformer.module import Linformer
from attnreg_linformer.reference import reference

ATTNREG_CONTRACT = 1


def _fused(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    assert isinstance(module, Linformer)  # for mypy: registered for this variant alone
    return module.attend_fused(query, key, value, mask)


VARIANT = Variant(
    name="linformer",
    factory=Linformer,
    summary="keys and values projected along the length to a fixed rank, linear in the length",
    formula=r"\operatorname{softmax}\left(\frac{Q (E K)^\top}{\sqrt{d_k}}\right) (F V)",
    paper="Wang et al. 2020, Linformer: Self-Attention with Linear Complexity, arXiv:2006.04768",
    complexity=Complexity(time="L", memory="L"),
    reference=reference,
    flops=flops,
    approximates=Approximation(
        "scaled_dot_product", "rank", "exact where rank = L and both projections are the identity"
    ),
    implementations=(Implementation("fused", _fused, why_not_fused, rank=10),),
)


@hookimpl
def attnreg_register_variants(register: Callable[[Variant], None]) -> None:
    """Register the variant."""
    register(VARIANT)
