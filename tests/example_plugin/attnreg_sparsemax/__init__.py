"""Sparsemax attention as an attnreg plugin: a variant, a law of its own, a tab of its own."""

from __future__ import annotations

from collections.abc import Callable

from attnreg import Check, Complexity, Panel, Variant, hookimpl
from attnreg_sparsemax.laws import exact_zeros
from attnreg_sparsemax.module import Sparsemax
from attnreg_sparsemax.reference import reference

ATTNREG_CONTRACT = 1

VARIANT = Variant(
    "sparsemax",
    Sparsemax,
    summary="the nearest point of the simplex instead of a softmax: most weights are exactly 0",
    formula=r"\left(\operatorname{argmin}_{p \in \Delta} \|p - s\, K q_i / T\|^2\right)^\top V",
    paper="Martins and Astudillo 2016, From Softmax to Sparsemax, arXiv:1602.02068",
    complexity=Complexity(time="L^2 log L", memory="L^2"),
    reference=reference,
)

EXACT_ZEROS = Check(
    "sparsemax-zeros",
    exact_zeros,
    level="claimed",
    summary="a key whose logit lies 1 or more below the best weighs exactly 0",
    needs=("weights",),
    variants=("sparsemax",),
)

PANEL = Panel(
    "sparsemax",
    {"en": "Sparsemax", "zh": "稀疏最大值"},
    "attnreg_sparsemax.panel:build",
)


@hookimpl
def attnreg_register_variants(register: Callable[[Variant], None]) -> None:
    """Register the variant."""
    register(VARIANT)


@hookimpl
def attnreg_register_checks(register: Callable[[Check], None]) -> None:
    """Register what the suite cannot know: that zeros are exact."""
    register(EXACT_ZEROS)


@hookimpl
def attnreg_register_panels(register: Callable[[Panel], None]) -> None:
    """Register the tab; its module is imported by the playground alone."""
    register(PANEL)
