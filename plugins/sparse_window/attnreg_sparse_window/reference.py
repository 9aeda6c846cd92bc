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
    causal = not np.any(visible & (key_position > query_position[:, None]))
    seen, added = _mask(visible, bias)
    output = np.zeros((batch, heads, rows, value.shape[3]))
    for b, h, i in np.ndindex(batch, heads, rows):
        # Hidden keys are left out, not multiplied by 0: they may hold NaN.
        columns = np.flatnonzero(seen[b, h, i])
        if columns.size:
            count = _key_count(seen, query_position, key_position, columns[0])
            pattern = _pattern(
                module, h, int(query_position[i]), key_position[columns], causal, count
            )
            columns = columns[pattern]
        if columns.size == 0:
            continue
        keys, values = key[b, h // group, columns], value[b, h // group, columns]
        logits = module.scale * (keys @ query[b, h, i])
        output[b, h, i] = _softmax(logits + added[b, h, i, columns]) @ values
    return output


def _pattern(
    module: Any, head: int, position: int, keys: Integers, causal: bool, count: int
) -> Bools:
    """Which of the keys at these positions (n,) a query attends to: (n,)."""
    block, key_blocks = position // module.block_size, keys // module.block_size
    steps = key_blocks - block
    window = (
        (steps % module.dilation == 0)
        & (steps >= -module.left * module.dilation)
        & (steps <= module.right * module.dilation)
    )
    everywhere = np.isin(keys, module.global_positions) | (position in module.global_positions)
    random = np.isin(key_blocks, _random_blocks(module, head, block, causal, count))
    return np.asarray(window | everywhere | random, dtype=np.bool_)


def _random_blocks(module: Any, head: int, block: int, causal: bool, count: int) -> list[int]:
    """The random key blocks of a row block, among the earlier ones where causal.

    Floyd's sampling without replacement (Bentley and Floyd 1987), with a hash for the draws so
    that a row's blocks depend on nothing but the seed, the head and the row block.
    """
    if block < 0:
        return []
    blocks = -(-count // module.block_size)
    inside = block < blocks
    candidates = block if causal else blocks - inside
    drawn: list[int] = []
    chosen = min(module.random_blocks, candidates)
    for draw in range(chosen):
        top = candidates - chosen + draw
        pick = _hash(int(module.seed), head, block, draw) % (top + 1)
        drawn.append(top if pick in drawn else pick)
    if causal or not inside:
        return drawn
    return [pick + (pick >= block) for pick in drawn]  # the row's own block is no candidate


def _hash(seed: int, *parts: int) -> int:
    """Mix integers into 31 bits."""
    x = seed % 2**31
    for part in parts:
        x = ((x ^ (part + 1)) * 1103515245 + 12345) % 2**31
        x = x ^ (x >> 15)
    return x


def _key_count(seen: Bools, query_position: Integers, key_position: Integers, column: int) -> int:
    """The number of keys in the packed sequence of a key, padding included."""
    starts = np.flatnonzero(np.diff(key_position, prepend=-2) != 1)
    first = int(starts[starts <= column].max())
    last = int(min(starts[starts > column], default=len(key_position)))
    packed = len(starts) > 1 or bool(np.any(np.diff(query_position) != 1))
    if not packed or last < len(key_position):
        return last - first
    # Positions go on past the end of the last sequence, where no row sees anything. Its length
    # shows in the last key that is seen, and in the position of the last row that sees one.
    inside = seen[..., first:]
    last_key = int(np.flatnonzero(inside.any(axis=(0, 1, 2))).max())
    last_row = int(query_position[np.flatnonzero(inside.any(axis=(0, 1, 3))).max()])
    return min(max(last_key, last_row) + 1, last - first)


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
