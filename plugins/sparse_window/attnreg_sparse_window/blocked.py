"""The fast path: strips of queries against the keys that the pattern leaves them, linear in L."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnreg import Call, Implementation, Mask
from attnreg.families import attend_visible, equal_widths, why_not_fused
from attnreg.functional import expand_heads
from attnreg.lowering import ALL, Index, LoweredMask
from attnreg_sparse_window.module import SparseWindow

STRIP = 128
"""Queries per strip, rounded to whole blocks."""


def attend_blocked(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Mask
) -> Tensor:
    """Attend strip by strip: (B, Hq, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv) to (B, Hq, Lq, Dv).

    A strip sees the keys of its window, the global keys, and its random blocks, gathered per
    head. Global queries see every key and are computed apart.
    """
    assert isinstance(module, SparseWindow)  # for mypy: registered for this variant alone
    lowered = LoweredMask(mask, query.shape[2], key.shape[2], query.device)
    value_width = value.shape[3]
    key, value = (expand_heads(t, query.shape[1]) for t in (key, value))
    query, key, value = equal_widths(query, key, value)
    if lowered.query_length:
        output = _attend_strips(module, query, key, value, lowered)
        output = _with_global_rows(module, output, query, key, value, lowered)
    else:
        output = query
    return output[..., :value_width]


def why_not_blocked(call: Call) -> list[str]:
    """Say why ``attend_blocked`` should not run a call."""
    reasons = why_not_fused(call)
    if call.compiling:
        reasons.append("while compiling, a loop over strips would fix the length")
    return reasons


BLOCKED = Implementation("blocked", attend_blocked, why_not_blocked, rank=20)


def _attend_strips(
    module: SparseWindow, query: Tensor, key: Tensor, value: Tensor, lowered: LoweredMask
) -> Tensor:
    """Attend to window, global keys and random blocks; at least one query, equal widths."""
    height = module.block_size * max(1, STRIP // module.block_size)
    strips = _strips(lowered, height)
    windows = [_window(module, lowered, rows) for rows in strips]
    shared = [g for g in module.global_positions if g < lowered.key_length]
    shared_keys = torch.tensor(shared, dtype=torch.int64, device=query.device)
    drawn = _random_keys(module, lowered, strips) if module.random_blocks else []
    queries = query.split([rows.stop - rows.start for rows in strips], dim=2)
    keys, values = (_Source(t, height, windows, shared_keys, drawn) for t in (key, value))
    outputs: list[Tensor] = []
    for index, (rows, window) in enumerate(zip(strips, windows, strict=True)):
        visible, bias = _near(module, lowered, rows, window, shared_keys)
        if drawn:
            extra, extra_bias = _far(module, lowered, rows, window, drawn[index])
            visible = _join(visible, extra)
            bias = None if bias is None or extra_bias is None else _join(bias, extra_bias)
        outputs.append(
            attend_visible(
                queries[index],
                keys.of_strip(index),
                values.of_strip(index),
                visible,
                bias,
                scale=module.logit_scale,
                dropout=_dropout(module),
            )
        )
    return torch.cat(outputs, dim=2)


class _Source:
    """Keys or values (B, H, Lk, D), cut and gathered once for all strips.

    A slice's gradient has the size of what it was sliced from. If each strip sliced the whole,
    the backward pass would be quadratic; ``split`` and one gather have a single gradient.
    """

    def __init__(
        self,
        tensor: Tensor,
        height: int,
        windows: Sequence[range],
        shared_keys: Tensor,
        drawn: Sequence[Tensor],
    ) -> None:
        self._height, self._windows = height, windows
        # Only what some window holds: one decoding step should not cut up a long cache.
        self._first = min(window.start for window in windows) // height * height
        last = max(window.stop for window in windows)
        self._pieces = tensor[:, :, self._first : last].split(height, dim=2)
        self._shared = [tensor.index_select(2, shared_keys)] if len(shared_keys) else []
        self._random: Sequence[Tensor] = []
        if drawn:
            chosen = torch.cat(list(drawn), dim=1).clamp(0, tensor.shape[2] - 1)
            index = chosen[None, :, :, None].expand(tensor.shape[0], -1, -1, tensor.shape[3])
            sizes = [columns.shape[1] for columns in drawn]
            self._random = tensor.gather(2, index).split(sizes, dim=2)

    def of_strip(self, index: int) -> Tensor:
        """Window, global keys and random blocks of a strip: (B, H, n, D)."""
        window, height = self._windows[index], self._height
        start, stop = window.start - self._first, window.stop - self._first
        first, last = start // height, (stop - 1) // height
        parts = list(self._pieces[first : last + 1])
        parts[-1] = parts[-1][:, :, : stop - last * height]
        parts[0] = parts[0][:, :, start - first * height :]
        return torch.cat([*parts, *self._shared, *self._random[index : index + 1]], dim=2)


def _strips(lowered: LoweredMask, height: int) -> list[slice]:
    """The rows of each strip. Strips start where blocks start: position 0 is row -offset."""
    length = lowered.query_length
    starts = range(-(lowered.offset % height), length, height)
    return [slice(max(start, 0), min(start + height, length)) for start in starts]


def _window(module: SparseWindow, lowered: LoweredMask, rows: slice) -> range:
    """The keys that hold the window of every row of a strip; at least one."""
    size, reach = module.block_size, module.dilation
    first = (rows.start + lowered.offset) // size - module.left * reach
    last = (rows.stop - 1 + lowered.offset) // size + module.right * reach
    low, high = lowered.key_range(rows.start, rows.stop)
    start, stop = max(first * size, low), min((last + 1) * size, high)
    if start >= stop:  # no window: one key, which the pattern may hide
        start = min(max(start, 0), lowered.key_length - 1)
        stop = start + 1
    return range(start, stop)


def _random_keys(
    module: SparseWindow, lowered: LoweredMask, strips: Sequence[slice]
) -> list[Tensor]:
    """The keys of the random blocks of each strip, (H, row blocks * random_blocks * block_size).

    A block that was not drawn has negative keys; a block past the end has keys past the end.
    """
    size, offset = module.block_size, lowered.offset
    first, last = offset // size, (offset + lowered.query_length - 1) // size
    one_each = torch.arange(first, last + 1, device=lowered.device) * size - offset
    drawn = module.draw(lowered, one_each.clamp(min=0))  # (H, row blocks, random_blocks)
    within = torch.arange(size, device=lowered.device)
    columns = (drawn[..., None] * size + within).flatten(1)
    in_block = module.random_blocks * size
    sizes = [
        ((rows.stop - 1 + offset) // size - (rows.start + offset) // size + 1) * in_block
        for rows in strips
    ]
    return list(columns.split(sizes, dim=1))


def _near(
    module: SparseWindow, lowered: LoweredMask, rows: slice, window: range, shared_keys: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Visibility and bias of a strip on its window and the global keys."""
    near = torch.arange(window.start, window.stop, device=shared_keys.device)
    columns = torch.cat([near, shared_keys])
    pattern = module.visible(lowered, rows, columns)
    if len(shared_keys):  # those inside the window are there already
        again = torch.cat([torch.zeros_like(near, dtype=torch.bool), _inside(shared_keys, window)])
        pattern = pattern & ~again
    pattern = pattern.reshape((1,) * (4 - pattern.dim()) + pattern.shape)
    return _masked(lowered, pattern, rows, columns)


def _far(
    module: SparseWindow, lowered: LoweredMask, rows: slice, window: range, columns: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Visibility and bias of a strip on its random keys (H, n): a row sees those of its block."""
    real = (columns >= 0) & (columns < lowered.key_length) & ~_inside(columns, window)
    if module.global_positions:
        real = real & ~module.is_global(columns)
    row_block = lowered.query_position[rows].div(module.block_size, rounding_mode="floor")
    in_block = module.random_blocks * module.block_size
    owner = torch.arange(columns.shape[1], device=columns.device) // in_block
    mine = (row_block - row_block[0])[:, None] == owner
    keys = columns.clamp(0, lowered.key_length - 1)
    return _masked(lowered, (mine & real[:, None])[None], rows, keys)


def _masked(
    lowered: LoweredMask, pattern: Tensor, rows: Index, columns: Index
) -> tuple[Tensor, Tensor | None]:
    """What pattern and mask both leave of a tile, and its bias."""
    visible = lowered.visible(rows, columns)
    return pattern if visible is None else pattern & visible, lowered.bias(rows, columns)


def _with_global_rows(
    module: SparseWindow,
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lowered: LoweredMask,
) -> Tensor:
    """Compute the rows at global positions against every key, and put them in their place."""
    chosen = [g - lowered.offset for g in module.global_positions]
    chosen = [row for row in chosen if 0 <= row < lowered.query_length]
    if not chosen:
        return output
    rows = torch.tensor(chosen, device=query.device)
    found = attend_visible(
        query.index_select(2, rows),
        key,
        value,
        lowered.visible(rows, ALL),
        lowered.bias(rows, ALL),
        scale=module.logit_scale,
        dropout=_dropout(module),
    )
    return output.index_copy(2, rows, found)


def _dropout(module: SparseWindow) -> float:
    return module.dropout if module.training else 0.0


def _inside(columns: Tensor, window: range) -> Tensor:
    return (columns >= window.start) & (columns < window.stop)


def _join(left: Tensor, right: Tensor) -> Tensor:
    """Concatenate two tiles along their columns, broadcasting the rest."""
    sizes = torch.broadcast_shapes(left.shape[:3], right.shape[:3])
    return torch.cat([left.expand(*sizes, -1), right.expand(*sizes, -1)], dim=-1)
