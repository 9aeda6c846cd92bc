"""Scaled dot product attention from its formula, in NumPy float64, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


def reference(
    module: Any,
    query: Floats,
    key: Floats,
    value: Floats,
    visible: Bools,
    bias: Floats | None,
    query_position: Integers,
    key_position: Integers,
) -> Floats:
    """Softmax attention over scaled dot products.

    query (B, Hq, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv), visible (B, Hq, Lq, Lk),
    bias None or broadcastable to it, query_position (Lq,), key_position (Lk,); returns float64
    (B, Hq, Lq, Dv). Query head h reads key head h // (Hq // Hkv); a row that sees no key is 0.

        logit_ij = scale * q_i.k_j / temperature + bias_ij
        o_i = sum_j softmax_j(logit_ij) v_j, over the keys j that row i sees

    Vaswani et al. 2017, Attention Is All You Need, arXiv:1706.03762, equation (1). The paper's
    scale is 1/sqrt(D) and its temperature 1.
    """
    batch, heads, rows, _ = query.shape
    group = heads // key.shape[1]
    query, key, value = (np.asarray(a, dtype=np.float64) for a in (query, key, value))
    seen, added = _mask(visible, bias)
    output = np.zeros((batch, heads, rows, value.shape[3]))
    for b, h, i in np.ndindex(batch, heads, rows):
        # Hidden keys are left out, not multiplied by 0: they may hold NaN.
        columns = np.flatnonzero(seen[b, h, i])
        if columns.size == 0:
            continue
        keys, values = key[b, h // group, columns], value[b, h // group, columns]
        logits = keys @ query[b, h, i] * module.scale / module.temperature
        output[b, h, i] = _softmax(logits + added[b, h, i, columns]) @ values
    return output


def _mask(visible: Bools, bias: Floats | None) -> tuple[Bools, Floats]:
    """Who sees whom, and what is added to the logits: both (B, Hq, Lq, Lk)."""
    if bias is None:
        return visible, np.zeros(visible.shape)
    added = np.broadcast_to(np.asarray(bias, dtype=np.float64), visible.shape)
    return visible & (added != -np.inf), added


def _softmax(logits: Floats) -> Floats:
    """exp(logits) / sum exp(logits) over (n,); the maximum cancels and keeps exp finite."""
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum(), dtype=np.float64)
