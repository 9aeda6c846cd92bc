"""Performer attention from its formula, in NumPy float64, row by row and without its shortcut."""

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
    """Kernel attention over random features that stand for the softmax kernel, or over relu's.

    query (B, Hq, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv), visible (B, Hq, Lq, Lk),
    bias None (ValueError otherwise), query_position (Lq,), key_position (Lk,); returns float64
    (B, Hq, Lq, Dv). Query head h reads key head h // (Hq // Hkv); a row that sees no key is 0.

        x' = sqrt(scale) x, for queries and keys
        phi_m(x) = exp(w_m.x' - |x'|^2 / 2) / sqrt(M) (softmax) or max(w_m.x', 0) / sqrt(M) (relu)
        A_ij = sum_m phi_m(q_i) phi_m(k_j)
        o_i = sum_j A_ij v_j / sum_j A_ij, over the keys j that row i sees; 0 where the sum is 0

    w_m are the M rows of ``projection``. Choromanski et al. 2020, Rethinking Attention with
    Performers, arXiv:2009.14794, lemma 1 (positive features) and section 2.2 (relu).
    """
    if bias is not None:
        raise ValueError("performer has no logits to add a bias to: bias must be None")
    batch, heads, rows, _ = query.shape
    group = heads // key.shape[1]
    root = np.sqrt(float(module.scale))
    projection = _array(module.projection)  # (M, D)
    output = np.zeros((batch, heads, rows, value.shape[3]))
    for b, h, i in np.ndindex(batch, heads, rows):
        # Hidden keys are left out, not multiplied by 0: they may hold NaN.
        columns = np.flatnonzero(visible[b, h, i])
        if columns.size == 0:
            continue
        one = root * np.asarray(query[b, h, i], dtype=np.float64)
        keys = root * np.asarray(key[b, h // group, columns], dtype=np.float64)
        values = np.asarray(value[b, h // group, columns], dtype=np.float64)
        if module.kernel == "softmax":
            similar = _softmax_similarity(projection, one, keys)
        elif module.kernel == "relu":
            similar = _relu_similarity(projection, one, keys)
        else:
            raise ValueError(f"kernel must be 'softmax' or 'relu', got {module.kernel!r}")
        total = similar.sum()
        if total != 0.0:
            output[b, h, i] = similar @ values / total
    return output


def _softmax_similarity(projection: Floats, query: Floats, keys: Floats) -> Floats:
    """A_ij of one query (D,) with keys (n, D), up to a factor that the division removes: (n,)."""
    from_query = projection @ query - (query**2).sum() / 2.0  # (M,)
    from_keys = keys @ projection.T - (keys**2).sum(axis=-1, keepdims=True) / 2.0  # (n, M)
    powers = from_query + from_keys
    # The largest exponent of the row cancels in the quotient; without it exp could overflow, or
    # every term underflow to 0.
    return np.asarray(np.exp(powers - powers.max()).mean(axis=-1), dtype=np.float64)


def _relu_similarity(projection: Floats, query: Floats, keys: Floats) -> Floats:
    """A_ij of one query (D,) with keys (n, D): (n,)."""
    from_query = np.maximum(projection @ query, 0.0)  # (M,)
    from_keys = np.maximum(keys @ projection.T, 0.0)  # (n, M)
    return np.asarray(from_keys @ from_query / len(projection), dtype=np.float64)


def _array(tensor: Any) -> Floats:
    """The numbers of a torch tensor, in float64."""
    return np.asarray(tensor.detach().cpu().double().numpy(), dtype=np.float64)
