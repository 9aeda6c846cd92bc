"""Euclidean attention as an attnreg plugin."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from attnreg import Call, Complexity, Implementation, Mask, Variant, hookimpl
from attnreg.families import why_not_fused
from attnreg.flops import softmax_flops
from attnreg_euclidean.module import Euclidean
from attnreg_euclidean.reference import reference

ATTNREG_CONTRACT = 1


def _fused(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    assert isinstance(module, Euclidean)
    return module.attend_fused(query, key, value, mask)


def _why_not_fused(call: Call) -> list[str]:
    reasons = why_not_fused(call)
    if not getattr(call.module, "squared", False):
        reasons.append("squared=False: a distance that is not squared is no dot product")
    return reasons


VARIANT = Variant(
    name="euclidean",
    factory=Euclidean,
    summary="the nearer a key to the query, the larger its weight",
    formula=r"\operatorname{softmax}_j\left(-\|q_i - k_j\|^2 / \tau\right) V",
    paper="Kim et al. 2020, The Lipschitz Constant of Self-Attention, arXiv:2006.04710",
    complexity=Complexity(time="L^2", memory="L"),
    reference=reference,
    flops=softmax_flops,
    implementations=(Implementation("fused", _fused, _why_not_fused, rank=10),),
)


@hookimpl
def attnreg_register_variants(register: Callable[[Variant], None]) -> None:
    """Register the variant."""
    register(VARIANT)
