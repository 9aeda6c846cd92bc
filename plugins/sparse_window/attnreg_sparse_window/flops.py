"""The work of sparse window attention in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from attnreg.flops import dims_of
from attnreg_sparse_window.draws import AHEAD
from attnreg_sparse_window.module import SparseWindow

Integers = np.ndarray[Any, np.dtype[np.int64]]


def flops(module: nn.Module, query_length: int, key_length: int, causal: bool) -> float:
    """Return 2 (D + Dv) per head and pair that the pattern shows.

    Window and global tokens are counted exactly, random blocks as they fall on average. The count
    takes time and memory linear in the length.
    """
    assert isinstance(module, SparseWindow)
    dims = dims_of(module)
    position = np.arange(query_length, dtype=np.int64) + (key_length - query_length)
    stop = np.full_like(position, key_length)
    if causal:
        stop = np.clip(position + 1, 0, key_length)
    block = position // module.block_size
    seen = _near(module, block, stop) + _random(module, block, stop)
    seen = np.where(np.isin(position, module.global_positions), stop, seen)
    return 2.0 * dims.num_heads * float(seen.sum()) * (dims.head_dim + dims.value_dim)


def _near(module: SparseWindow, block: Integers, stop: Integers) -> Integers:
    """Of the keys before ``stop``, how many the rows of a block see by window or global tokens."""
    size, stride = module.block_size, module.dilation
    last = (stop - 1) // size
    first_step = np.maximum(-module.left, -(block // stride))
    last_step = np.minimum(module.right, (last - block) // stride)
    shown = np.maximum(last_step - first_step + 1, 0) * size
    cut = (last_step >= first_step) & (block + last_step * stride == last)
    shown = shown - np.where(cut, (last + 1) * size - stop, 0)
    for key in module.global_positions:
        step, rest = np.divmod(key // size - block, stride)
        inside = (rest == 0) & (step >= -module.left) & (step <= module.right)
        shown = shown + ((key < stop) & ~inside)
    counted: Integers = shown
    return counted


def _random(module: SparseWindow, block: Integers, stop: Integers) -> Any:
    """How many further keys the random blocks of a row show on average."""
    size, blocks = module.block_size, module.random_blocks
    at = np.maximum(block, 0)

    def average(count: int, candidates: Integers, first: Integers) -> Any:
        # ``count`` blocks are drawn among so many candidates that begin at key ``first``.
        start, end = np.minimum(first, stop), np.minimum(first + candidates * size, stop)
        fresh = (end - start) - (_near(module, block, end) - _near(module, block, start))
        return fresh * np.minimum(count, candidates) / np.maximum(candidates, 1)

    earlier = average((blocks + 1) // 2, at, np.zeros_like(at))
    later = average(blocks // 2, at + AHEAD, (at + 1) * size)
    return np.where(block >= 0, earlier + later, 0.0)
