"""Additive (Bahdanau) attention as an attnreg plugin."""

from __future__ import annotations

from collections.abc import Callable

from attnreg import Complexity, Variant, hookimpl
from attnreg_additive.compiled import COMPILED
from attnreg_additive.flops import flops
from attnreg_additive.module import Additive
from attnreg_additive.reference import reference
from attnreg_additive.tiled import TILED

ATTNREG_CONTRACT = 1

VARIANT = Variant(
    name="additive",
    factory=Additive,
    summary="a small tanh network scores each query and key",
    formula=(r"\operatorname{softmax}_j\left(v^\top \tanh(W_q q_i + W_k k_j + b)\,/\,T\right) V"),
    paper="Bahdanau et al. 2014, Neural Machine Translation by Jointly Learning to Align and "
    "Translate, arXiv:1409.0473",
    complexity=Complexity(time="L^2", memory="L"),
    reference=reference,
    implementations=(COMPILED, TILED),
    flops=flops,
)


@hookimpl
def attnreg_register_variants(register: Callable[[Variant], None]) -> None:
    """Register the variant."""
    register(VARIANT)
