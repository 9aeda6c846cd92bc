"""What a call has to do at least: operations of products, and bytes to read and write."""

from __future__ import annotations

import torch
from torch import nn

from attnreg.benchmark.records import Limits, Measurement, Settings
from attnreg.checked import CheckedAttention
from attnreg.variant import Variant

BACKWARD = {"exact": 2.5}
"""Operations of the backward pass, over those of the forward pass, by ``capabilities.weights``.

Every product has two in the backward pass, one for each of its factors: 2. Where the weights are
those of a softmax (weights "exact"), nobody keeps all of them: the scores are computed again, which
is half of the forward pass once more: 2.5.
"""


def operations(
    variant: Variant, module: nn.Module, settings: Settings, mode: str, length: int
) -> float | None:
    """Return the operations of one call by the variant's closed form; None where it has none."""
    if variant.flops is None:
        return None
    inner = module.module if isinstance(module, CheckedAttention) else module
    forward = float(variant.flops(inner, length, length, settings.causal)) * settings.batch
    back = BACKWARD.get(variant.capabilities.weights, 2.0)
    return forward * (1.0 + back) if mode == "backward" else forward


def moved(settings: Settings, mode: str, length: int) -> int:
    """Return the bytes that query, key, value and output take, each read or written once.

    The backward pass reads these four again and a gradient, and writes three.
    """
    width = getattr(torch, settings.dtype).itemsize
    one = settings.batch * settings.heads * length * settings.head_dim * width
    return int(one * (12 if mode == "backward" else 4))


def share(found: Measurement, limits: Limits) -> tuple[float, str] | None:
    """Return which part of the machine's limit a measurement attains, and which limit that is.

    The least time that the machine needs, over what the call took: for the operations at the rate
    of the fastest product, or for the bytes at that of copying, whichever is longer ("products" or
    "memory"). None where a variant has no closed form. More than 1 can come of caches.
    """
    if not found.median or found.flops is None:
        return None
    products = found.flops / limits.flops_per_second
    memory = found.moved / limits.bytes_per_second
    return max(products, memory) / found.median, "products" if products >= memory else "memory"
