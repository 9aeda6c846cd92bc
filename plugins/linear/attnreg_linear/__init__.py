"""Linear attention as an attnreg plugin."""

from __future__ import annotations

from collections.abc import Callable

from attnreg import Complexity, Variant, hookimpl
from attnreg_linear.flops import flops
from attnreg_linear.module import Linear
from attnreg_linear.reference import reference

ATTNREG_CONTRACT = 1

VARIANT = Variant(
    name="linear",
    factory=Linear,
    summary="feature maps instead of a softmax, K^T V first, linear in the length",
    formula=(r"\frac{\phi(q_i)^\top \sum_j \phi(k_j) v_j^\top}{\phi(q_i)^\top \sum_j \phi(k_j)}"),
    paper="Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236",
    complexity=Complexity(time="L", memory="L"),
    reference=reference,
    flops=flops,
)


@hookimpl
def attnreg_register_variants(register: Callable[[Variant], None]) -> None:
    """Register the variant."""
    register(VARIANT)
