"""A mask by its definition, on index grids: shares nothing with ``attnreg.lowering``.

References are called with what this gives, so that an error of the core's own lowering shows.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from attnreg.mask import Mask

Array = np.ndarray[Any, Any]

NOBODY = -1
"""The owner of a packed row past the last offset."""


def lower(
    mask: Mask, batch: int, heads: int, query_length: int, key_length: int
) -> tuple[Array, Array, Array]:
    """Return visible (B, H, Lq, Lk), query_position (Lq,), key_position (Lk,)."""
    query_position, query_owner = _positions(mask.cu_seqlens, query_length)
    keys = mask.cu_seqlens if mask.key_cu_seqlens is None else mask.key_cu_seqlens
    key_position, key_owner = _positions(keys, key_length)
    query_sizes, key_sizes = _sizes(mask.cu_seqlens, query_length), _sizes(keys, key_length)
    for i, owner in enumerate(query_owner):
        if owner != NOBODY:
            given = mask.query_offset
            query_position[i] += key_sizes[owner] - query_sizes[owner] if given is None else given
    query, key = query_position[:, None], key_position[None, :]
    left, right = mask.window or (None, None)
    pairs = (query_owner[:, None] == key_owner[None, :]) & (query_owner != NOBODY)[:, None]
    if mask.causal:
        pairs &= key <= query
    if left is not None:
        pairs &= key >= query - left
    if right is not None:
        pairs &= key <= query + right
    visible = np.zeros((batch, heads, query_length, key_length), dtype=bool)
    visible[:, :] = pairs
    if mask.key_valid is not None:
        visible &= _array(mask.key_valid)[:, None, None, :]
    if mask.allowed is not None:
        visible &= np.broadcast_to(_array(mask.allowed), visible.shape)
    if mask.bias is not None:
        visible &= np.broadcast_to(_array(mask.bias.double()), visible.shape) != -np.inf
    return visible, query_position, key_position


def _array(tensor: Tensor) -> Array:
    found: Array = tensor.detach().cpu().numpy()
    return found


def _sizes(offsets: Tensor | None, length: int) -> list[int]:
    if offsets is None:
        return [length]
    return [b - a for a, b in pairwise(offsets.tolist())]


def _positions(offsets: Tensor | None, length: int) -> tuple[Array, Array]:
    positions: Array = np.zeros(length, dtype=np.int64)
    owners: Array = np.full(length, NOBODY)
    starts = [0, length] if offsets is None else offsets.tolist()
    for owner, (start, stop) in enumerate(pairwise(starts)):
        for index in range(start, stop):
            positions[index], owners[index] = index - start, owner
    return positions, owners
