"""The core of shared-QKV attention from its formula, in NumPy float64, row by row."""

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
    """Softmax attention that can leave out a token's own key; the tying is in the projections.

    query (B, Hq, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv), visible (B, Hq, Lq, Lk),
    bias None or broadcastable to it, query_position (Lq,), key_position (Lk,); returns float64
    (B, Hq, Lq, Dv). Query head h reads key head h // (Hq // Hkv); a row that sees no key is 0.

        o_i = sum_j softmax_j(scale * q_i.k_j + bias_ij) v_j, over the keys j that row i sees,
              with exclude_self without the key at the position of i where another is seen

    Kitaev et al. 2020, Reformer, arXiv:2001.04451, section 2: shared-QK attention, and a token
    attends to itself only where it has nothing else.
    """
    batch, heads, rows, _ = query.shape
    group = heads // key.shape[1]
    query, key, value = (np.asarray(a, dtype=np.float64) for a in (query, key, value))
    seen, added = _mask(visible, bias)
    output = np.zeros((batch, heads, rows, value.shape[3]))
    for b, h, i in np.ndindex(batch, heads, rows):
        # Hidden keys are left out, not multiplied by 0: they may hold NaN.
        columns = np.flatnonzero(seen[b, h, i])
        if module.exclude_self:
            # Keys of other packed sequences are not seen, so an equal position is the same token.
            others = columns[key_position[columns] != query_position[i]]
            columns = others if others.size else columns
        if columns.size == 0:
            continue
        keys, values = key[b, h // group, columns], value[b, h // group, columns]
        logits = module.scale * (keys @ query[b, h, i])
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
