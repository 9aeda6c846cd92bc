"""Sparse window attention from its formula, in NumPy float64, row by row."""

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
    """Softmax attention over a window, global tokens and random blocks of keys.

    query (B, Hq, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv), visible (B, Hq, Lq, Lk),
    bias None or broadcastable to it, query_position (Lq,), key_position (Lk,); returns float64
    (B, Hq, Lq, Dv). Query head h reads key head h // (Hq // Hkv); a row that sees no key is 0.

        o_i = sum_j softmax_j(scale * q_i.k_j + bias_ij) v_j, over the keys j that row i sees and
              that are in its window, or global (or i is), or in one of its random blocks

    Beltagy et al. 2020, Longformer, arXiv:2004.05150, section 3.1 (window, dilation, global);
    Zaheer et al. 2020, Big Bird, arXiv:2007.14062, section 2 and appendix D (blocks, random).
    """
    batch, heads, rows, _ = query.shape
    group = heads // key.shape[1]
    query, key, value = (np.asarray(a, dtype=np.float64) for a in (query, key, value))
    seen, added = _mask(visible, bias)
    output = np.zeros((batch, heads, rows, value.shape[3]))
    for b, h, i in np.ndindex(batch, heads, rows):
        # Hidden keys are left out, not multiplied by 0: they may hold NaN.
        columns = np.flatnonzero(seen[b, h, i])
        if columns.size:
            columns = columns[_pattern(module, h, int(query_position[i]), key_position[columns])]
        if columns.size == 0:
            continue
        keys, values = key[b, h // group, columns], value[b, h // group, columns]
        logits = module.scale * (keys @ query[b, h, i])
        output[b, h, i] = _softmax(logits + added[b, h, i, columns]) @ values
    return output


def _pattern(module: Any, head: int, position: int, keys: Integers) -> Bools:
    """Which of the keys at these positions (n,) a query attends to: (n,)."""
    block, key_blocks = position // module.block_size, keys // module.block_size
    steps = key_blocks - block
    window = (
        (steps % module.dilation == 0)
        & (steps >= -module.left * module.dilation)
        & (steps <= module.right * module.dilation)
    )
    everywhere = np.isin(keys, module.global_positions) | (position in module.global_positions)
    random = np.isin(key_blocks, _random_blocks(module, head, block))
    return np.asarray(window | everywhere | random, dtype=np.bool_)


def _random_blocks(module: Any, head: int, block: int) -> list[int]:
    """The random key blocks of a row block: half of them before it (rounded up), half after it.

    The later ones lie among the block + 8 that follow, and may be past the end. Floyd's sampling
    without replacement (Bentley and Floyd 1987), with a hash for the draws so that a row's blocks
    depend on nothing but the seed, the head and the row block.
    """
    if block < 0:
        return []
    before = (module.random_blocks + 1) // 2
    after = module.random_blocks - before
    seed = int(module.seed)
    earlier = _floyd(seed, head, block, block, before, 0)
    later = _floyd(seed, head, block, block + 8, after, before)
    return earlier + [block + 1 + pick for pick in later]


def _floyd(seed: int, head: int, block: int, candidates: int, count: int, slot: int) -> list[int]:
    """Draw count of range(candidates), or all of them where they are fewer."""
    drawn: list[int] = []
    chosen = min(count, candidates)
    for step in range(chosen):
        top = candidates - chosen + step
        pick = _hash(seed, head, block, slot + step) % (top + 1)
        drawn.append(top if pick in drawn else pick)
    return drawn


def _hash(seed: int, *parts: int) -> int:
    """Mix integers into 31 bits."""
    x = _scramble(seed % 2**31)
    for part in parts:
        x = _scramble(x ^ (part + 1))
    return _scramble(x)


def _scramble(x: int) -> int:
    x = (x * 1103515245 + 12345) % 2**31
    x = x ^ (x >> 15)
    x = (x * 747796405) % 2**31
    return x ^ (x >> 13)


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
