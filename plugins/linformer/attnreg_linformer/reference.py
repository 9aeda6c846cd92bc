"""Linformer attention from its formula, in NumPy float64, row by row."""

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
    """Softmax attention over a fixed number of mixtures of the keys and values.

    query (B, Hq, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv), visible (B, Hq, Lq, Lk),
    bias None (ValueError otherwise), query_position (Lq,), key_position (Lk,); returns float64
    (B, Hq, Lq, Dv). Query head h reads key head h // (Hq // Hkv); a row that sees no key is 0.

        K'_r = sum_j E[r, p_j] k_j and V'_r = sum_j F[r, p_j] v_j,
               over the keys j that row i sees, at their positions p_j
        o_i = sum_r softmax_r(scale * q_i.K'_r) V'_r, over the ranks r

    E is key_projection and F value_projection, (Hq or 1, rank, max_length); F = E where
    value_projection is None. Only padding and packing may hide keys, so that all rows of a
    sequence share one K'. Wang et al. 2020, Linformer, arXiv:2006.04768, equation (7).
    """
    if bias is not None:
        raise ValueError("linformer has no logit of a single key: bias must be None")
    batch, heads, rows, _ = query.shape
    group = heads // key.shape[1]
    query, key, value = (np.asarray(a, dtype=np.float64) for a in (query, key, value))
    key_projection = _array(module.key_projection)
    shared = module.value_projection is None
    value_projection = key_projection if shared else _array(module.value_projection)
    output = np.zeros((batch, heads, rows, value.shape[3]))
    for b, h, i in np.ndindex(batch, heads, rows):
        # Hidden keys are left out, not multiplied by 0: they may hold NaN.
        columns = np.flatnonzero(visible[b, h, i])
        if columns.size == 0:
            continue
        positions = key_position[columns]
        of_head = h if len(key_projection) > 1 else 0  # one projection may serve all heads
        mixed_keys = key_projection[of_head][:, positions] @ key[b, h // group, columns]
        mixed_values = value_projection[of_head][:, positions] @ value[b, h // group, columns]
        logits = module.scale * (mixed_keys @ query[b, h, i])  # (rank,)
        output[b, h, i] = _softmax(logits) @ mixed_values
    return output


def _array(tensor: Any) -> Floats:
    """The numbers of a torch tensor, in float64."""
    return np.asarray(tensor.detach().cpu().double().numpy(), dtype=np.float64)


def _softmax(logits: Floats) -> Floats:
    """exp(logits) / sum exp(logits) over (n,); the maximum cancels and keeps exp finite."""
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum(), dtype=np.float64)
