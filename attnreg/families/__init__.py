"""Families: an author writes one formula and gets masks, weights, decoding and lean memory."""

from attnreg.families.dot_product import (
    DotProductAttention,
    attend_fused,
    attend_visible,
    equal_widths,
    why_not_fused,
)
from attnreg.families.kernel import Features, KernelAttention
from attnreg.families.score import ScoreAttention

__all__ = [
    "DotProductAttention",
    "Features",
    "KernelAttention",
    "ScoreAttention",
    "attend_fused",
    "attend_visible",
    "equal_widths",
    "why_not_fused",
]
