"""Families: an author writes one formula and gets masks, weights, decoding and lean memory."""

from attnreg.families.dot_product import DotProductAttention
from attnreg.families.fused import attend_fused, attend_visible, equal_widths, why_not_fused
from attnreg.families.kernel import KernelAttention
from attnreg.families.score import ScoreAttention
from attnreg.families.sums import Features

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
