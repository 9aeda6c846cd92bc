"""Sparsemax attention from its formula, in NumPy float64, row by row."""

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
    """Return the output, float64 (B, Hq, Lq, Dv); a row that sees no key is 0.

    query (B, Hq, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv), visible (B, Hq, Lq, Lk),
    bias None or broadcastable to it. Martins and Astudillo 2016, arXiv:1602.02068, equation (2).
    """
    group = query.shape[1] // key.shape[1]
    added = np.broadcast_to(0.0 if bias is None else bias, visible.shape)
    output = np.zeros((*query.shape[:3], value.shape[3]))
    for b, h, i in np.ndindex(query.shape[:3]):
        # Hidden keys are left out, not multiplied by 0: they may hold NaN.
        seen = np.flatnonzero(visible[b, h, i])
        if seen.size:
            scores = key[b, h // group, seen] @ query[b, h, i]
            logits = module.scale * scores / module.temperature + added[b, h, i, seen]
            output[b, h, i] = _nearest(logits) @ value[b, h // group, seen]
    return output


def _nearest(z: Floats) -> Floats:
    """The point of the simplex nearest to z (n,), without sorting: Michelot 1986.

    Project onto the plane where coordinates sum to 1, drop those that are not positive, repeat.
    """
    z = z - z.max()  # which changes nothing, and keeps the 1 from drowning in large numbers
    kept = np.ones(z.shape, dtype=bool)
    while True:
        threshold = (z[kept].sum() - 1.0) / kept.sum()
        positive = kept & (z > threshold)
        if (positive == kept).all():
            return np.where(kept, z - threshold, 0.0)
        kept = positive
