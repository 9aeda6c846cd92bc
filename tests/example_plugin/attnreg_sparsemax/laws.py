"""The law that only sparsemax must keep, for the conformance suite."""

from __future__ import annotations

from typing import Any

import torch

from attnreg.functional import expand_heads

SHARPER = 8.0
"""What queries are multiplied by, so that logits differ by more than 1 in every row."""


def exact_zeros(case: Any) -> None:
    """Keys whose logit lies 1 or more below the best weigh exactly 0; the others sum to 1."""
    attn = case.build()
    query, key, _ = case.inputs()
    query = SHARPER * query
    weights = attn.weights(query, key)
    wide = expand_heads(key, query.shape[1]).to(weights.dtype)
    logits = query.to(weights.dtype) @ wide.transpose(-1, -2) * (attn.scale / attn.temperature)
    below = logits.amax(dim=-1, keepdim=True) - logits
    far = below > 1.01  # nearer to 1, rounding may decide
    assert far.any(dim=-1).all(), "the inputs of this check have lost their spread"
    assert not weights[far].any(), (
        f"keys that lie more than 1 below the best weigh up to {float(weights[far].max()):.3g}, "
        "not 0"
    )
    total = weights.sum(dim=-1)
    case.close(total, torch.ones_like(total), 1e-6, "the sum of each row of weights")
