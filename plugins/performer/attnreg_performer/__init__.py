"""Performer attention (FAVOR+) as an attnreg plugin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from attnreg import Approximation, Complexity, Variant, hookimpl
from attnreg_performer.flops import flops
from attnreg_performer.module import Performer
from attnreg_performer.reference import reference

ATTNREG_CONTRACT = 1

VARIANT = Variant(
    name="performer",
    factory=Performer,
    summary="positive orthogonal random features that stand for the softmax, linear in the length",
    formula=(
        r"\frac{\phi(q_i)^\top \sum_j \phi(k_j) v_j^\top}{\phi(q_i)^\top \sum_j \phi(k_j)},\quad"
        r"\phi(x)_m = \tfrac{1}{\sqrt{M}} \exp\left(w_m^\top x - \tfrac{1}{2}\|x\|^2\right)"
    ),
    paper="Choromanski et al. 2020, Rethinking Attention with Performers, arXiv:2009.14794",
    # Both kernels have features that are not negative, and the output is always normalised.
    capabilities=replace(Performer.capabilities, normalized=True),
    complexity=Complexity(time="L", memory="L"),
    reference=reference,
    flops=flops,
    approximates=Approximation(
        "scaled_dot_product", "features", "the kernel's mean squared error falls as 1/features"
    ),
)


@hookimpl
def attnreg_register_variants(register: Callable[[Variant], None]) -> None:
    """Register the variant."""
    register(VARIANT)
