"""Euclidean attention from its formula, in NumPy float64, row by row."""

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
    """Softmax attention over negative distances, squared or not.

    query (B, Hq, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv), visible (B, Hq, Lq, Lk),
    bias None or broadcastable to it, query_position (Lq,), key_position (Lk,); returns float64
    (B, Hq, Lq, Dv). Query head h reads key head h // (Hq // Hkv); a row that sees no key is 0.

        score_ij = -|q_i - k_j|^2 / tau_h (squared) or -|q_i - k_j| / tau_h, tau_h = exp(log_tau_h)
        o_i = sum_j softmax_j(scale * score_ij + bias_ij) v_j, over the keys j that row i sees

    With normalize_inputs, q and k are divided by their lengths first (0 stays 0).
    Kim et al. 2020, The Lipschitz Constant of Self-Attention, arXiv:2006.04710: L2
    self-attention, whose tau is the root of the head's width; it also ties the projections of
    query and key.
    """
    batch, heads, rows, _ = query.shape
    group = heads // key.shape[1]
    query, key, value = (np.asarray(a, dtype=np.float64) for a in (query, key, value))
    tau = np.exp(_array(module.log_tau))
    if module.normalize_inputs:
        query = _unit(query)
    seen, added = _mask(visible, bias)
    output = np.zeros((batch, heads, rows, value.shape[3]))
    for b, h, i in np.ndindex(batch, heads, rows):
        # Hidden keys are left out, not multiplied by 0: they may hold NaN.
        columns = np.flatnonzero(seen[b, h, i])
        if columns.size == 0:
            continue
        keys, values = key[b, h // group, columns], value[b, h // group, columns]
        if module.normalize_inputs:
            keys = _unit(keys)
        squares = ((query[b, h, i] - keys) ** 2).sum(axis=-1)
        distances = squares if module.squared else np.sqrt(squares)
        logits = -module.scale * distances / tau[h]
        output[b, h, i] = _softmax(logits + added[b, h, i, columns]) @ values
    return output


def _array(tensor: Any) -> Floats:
    """The numbers of a torch tensor, in float64."""
    return np.asarray(tensor.detach().cpu().double().numpy(), dtype=np.float64)


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


def _unit(vectors: Floats) -> Floats:
    """Each of the vectors (…, D) divided by its length; a zero vector stays 0."""
    length = np.sqrt((vectors**2).sum(axis=-1, keepdims=True))
    return np.asarray(vectors / np.where(length > 0.0, length, 1.0), dtype=np.float64)
