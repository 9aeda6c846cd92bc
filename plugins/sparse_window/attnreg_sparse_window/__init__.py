"""Sparse window attention (Longformer, BigBird) as an attnreg plugin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from attnreg import Approximation, Complexity, Variant, hookimpl
from attnreg_sparse_window.blocked import BLOCKED
from attnreg_sparse_window.flops import flops
from attnreg_sparse_window.module import SparseWindow
from attnreg_sparse_window.reference import reference

ATTNREG_CONTRACT = 1

VARIANT = Variant(
    name="sparse_window",
    factory=SparseWindow,
    summary="a window, global tokens and random blocks: Longformer and BigBird are settings of it",
    formula=(
        r"\operatorname{softmax}_{j \in W(i) \cup G \cup R(i)}"
        r"\left(\frac{q_i \cdot k_j}{\sqrt{d_k}}\right) V"
    ),
    paper="Beltagy et al. 2020, Longformer, arXiv:2004.05150; Zaheer et al. 2020, Big Bird, "
    "arXiv:2007.14062",
    capabilities=replace(SparseWindow.capabilities, positional=True),
    complexity=Complexity(time="L", memory="L"),
    reference=reference,
    flops=flops,
    approximates=Approximation(
        "scaled_dot_product", "left", "exact where left and right reach the whole sequence"
    ),
    implementations=(BLOCKED, *SparseWindow.implementations),
)


@hookimpl
def attnreg_register_variants(register: Callable[[Variant], None]) -> None:
    """Register the variant."""
    register(VARIANT)
