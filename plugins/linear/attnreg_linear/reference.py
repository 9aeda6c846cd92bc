"""Linear attention from its formula, in NumPy float64, row by row and without its shortcut."""

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
    """Kernel attention: the similarity is a dot product of features.

    query (B, Hq, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv), visible (B, Hq, Lq, Lk),
    bias None (ValueError otherwise), query_position (Lq,), key_position (Lk,); returns float64
    (B, Hq, Lq, Dv). Query head h reads key head h // (Hq // Hkv); a row that sees no key is 0.

        A_ij = phi(q_i).phi(k_j)
        o_i = sum_j A_ij v_j / sum_j A_ij, over the keys j that row i sees; 0 where the sum is 0

    Without ``normalize`` the division is left out. phi(x), entry by entry, is elu(x) + 1,
    max(x, 0), exp(x) or x. Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236,
    equations (4), (5) and (7).
    """
    if bias is not None:
        raise ValueError("linear attention has no logits to add a bias to: bias must be None")
    batch, heads, rows, _ = query.shape
    group = heads // key.shape[1]
    query, key, value = (np.asarray(a, dtype=np.float64) for a in (query, key, value))
    output = np.zeros((batch, heads, rows, value.shape[3]))
    for b, h, i in np.ndindex(batch, heads, rows):
        # Hidden keys are left out, not multiplied by 0: they may hold NaN.
        columns = np.flatnonzero(visible[b, h, i])
        if columns.size == 0:
            continue
        keys, values = key[b, h // group, columns], value[b, h // group, columns]
        similar = _similarity(module, query[b, h, i], keys)
        total = similar.sum() if module.normalize else 1.0
        if total != 0.0:
            output[b, h, i] = similar @ values / total
    return output


def _similarity(module: Any, query: Floats, keys: Floats) -> Floats:
    """A_ij of one query (D,) with keys (n, D), up to a factor that the division removes: (n,)."""
    if module.feature_map_name == "exp" and module.normalize:
        powers = query + keys  # exp(q) exp(k) = exp(q + k): the largest cancels, exp stays finite
        return np.asarray(np.exp(powers - powers.max()).sum(axis=-1), dtype=np.float64)
    return _features(module.feature_map_name, keys) @ _features(module.feature_map_name, query)


def _features(name: str, x: Floats) -> Floats:
    if name == "elu+1":
        # The minimum keeps exp finite where its branch is not the one that is taken.
        return np.where(x > 0.0, x + 1.0, np.exp(np.minimum(x, 0.0)))
    if name == "relu":
        return np.maximum(x, 0.0)
    if name == "exp":
        return np.asarray(np.exp(x), dtype=np.float64)
    if name == "identity":
        return x
    raise ValueError(f"feature_map must be 'elu+1', 'relu', 'exp' or 'identity', got {name!r}")
