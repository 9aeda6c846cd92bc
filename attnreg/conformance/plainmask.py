"""A mask by its definition, entry by entry: shares nothing with ``attnreg.lowering``."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from attnreg import Mask


def lower(mask, batch, heads, query_length, key_length):
    """Return visible (B, H, Lq, Lk), query_position (Lq,), key_position (Lk,) as NumPy arrays."""
    query_position, query_owner = _positions(mask.cu_seqlens, query_length)
    keys = mask.cu_seqlens if mask.key_cu_seqlens is None else mask.key_cu_seqlens
    key_position, key_owner = _positions(keys, key_length)
    query_sizes, key_sizes = _sizes(mask.cu_seqlens, query_length), _sizes(keys, key_length)
    visible = np.zeros((batch, heads, query_length, key_length), dtype=bool)
    allowed = None if mask.allowed is None else _wide(mask.allowed.numpy(), visible.shape)
    bias = None if mask.bias is None else _wide(mask.bias.detach().numpy(), visible.shape)
    for i in range(query_length):
        owner = query_owner[i]
        if owner is None:
            continue
        given = mask.query_offset
        query_position[i] += key_sizes[owner] - query_sizes[owner] if given is None else given
        for j in range(key_length):
            visible[:, :, i, j] = key_owner[j] == owner and _in_order(
                mask, query_position[i], key_position[j]
            )
    if mask.key_valid is not None:
        visible &= mask.key_valid.numpy()[:, None, None, :]
    if allowed is not None:
        visible &= allowed
    if bias is not None:
        visible &= bias != -np.inf
    return visible, query_position, key_position


def _in_order(mask: Mask, query, key):
    if mask.causal and key > query:
        return False
    left, right = mask.window or (None, None)
    return (left is None or key >= query - left) and (right is None or key <= query + right)


def _sizes(offsets, length):
    if offsets is None:
        return [length]
    ends = offsets.tolist()
    return [b - a for a, b in pairwise(ends)]


def _positions(offsets, length):
    positions, owners = np.zeros(length, dtype=np.int64), [None] * length
    starts = [0, length] if offsets is None else offsets.tolist()
    for owner, (start, stop) in enumerate(pairwise(starts)):
        for index in range(start, stop):
            positions[index], owners[index] = index - start, owner
    return positions, owners


def _wide(array, shape):
    return np.broadcast_to(array, shape)
