"""The fast path: strips of queries against the keys that the pattern leaves them, linear in L."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnreg import Call, Implementation, Mask
from attnreg.families import why_not_fused
from attnreg.functional import expand_heads
from attnreg.lowering import ALL, LoweredMask
from attnreg_sparse_window.module import SparseWindow

STRIP = 128
"""Queries per strip, rounded to whole blocks."""


def attend_blocked(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Mask
) -> Tensor:
    """Attend strip by strip: (B, Hq, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv) to (B, Hq, Lq, Dv).

    A strip sees one slice of keys (the window), the global keys, and its random blocks, gathered
    per head. Global queries see every key and are computed apart.
    """
    assert isinstance(module, SparseWindow)  # for mypy: registered for this variant alone
    lowered = LoweredMask(mask, query.shape[2], key.shape[2], query.device)
    key, value = (expand_heads(t, query.shape[1]) for t in (key, value))
    width, value_width = query.shape[3], value.shape[3]
    if width != value_width:  # torch leaves its fused kernels where they differ
        wider = max(width, value_width)
        query, key, value = (F.pad(t, (0, wider - t.shape[3])) for t in (query, key, value))
    size = module.block_size
    height = size * max(1, STRIP // size)
    # Strips start where blocks start: position 0 is row -offset.
    first = -(lowered.offset % height) if lowered.query_length else 0
    strips = [
        _attend_strip(module, query, key, value, lowered, slice(max(start, 0), stop))
        for start in range(first, lowered.query_length, height)
        if (stop := min(start + height, lowered.query_length)) > 0
    ]
    output = torch.cat(strips, dim=2) if strips else query[:, :, :0]
    output = _with_global_rows(module, output, query, key, value, lowered)
    return output[..., :value_width]


def why_not_blocked(call: Call) -> list[str]:
    """Say why ``attend_blocked`` should not run a call."""
    reasons = why_not_fused(call)
    if call.compiling:
        reasons.append("while compiling, a loop over strips would fix the length")
    return reasons


BLOCKED = Implementation("blocked", attend_blocked, why_not_blocked, rank=20)


def _attend_strip(
    module: SparseWindow,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lowered: LoweredMask,
    rows: slice,
) -> Tensor:
    start, stop = _window_range(module, lowered, rows)
    columns = torch.arange(start, stop, device=query.device)
    keys, values = [key[:, :, start:stop]], [value[:, :, start:stop]]
    outside = [g for g in module.global_positions if g < lowered.key_length]
    outside = [g for g in outside if not start <= g < stop]
    if outside:
        extra = torch.tensor(outside, device=query.device)
        columns = torch.cat([columns, extra])
        keys.append(key[:, :, extra])
        values.append(value[:, :, extra])
    visible = _visible(module, lowered, rows, columns)
    bias = lowered.bias(rows, columns)
    if module.random_blocks:
        picked, owned = _random_columns(module, lowered, rows, start, stop)
        index = picked.expand(query.shape[0], -1, -1)[..., None]
        keys.append(key.gather(2, index.expand(-1, -1, -1, key.shape[3])))
        values.append(value.gather(2, index.expand(-1, -1, -1, value.shape[3])))
        allowed = lowered.visible(rows, picked)
        owned = owned if allowed is None else owned & allowed
        visible = _join(visible, owned)
        if bias is not None:
            extra_bias = lowered.bias(rows, picked)
            assert extra_bias is not None  # for mypy: there is one for every tile or for none
            bias = _join(bias, extra_bias)
    some = visible.any(dim=-1, keepdim=True)
    tile: Tensor = visible | ~some
    if bias is not None:
        tile = bias.to(query.dtype).masked_fill(~tile, -torch.inf)
    output = F.scaled_dot_product_attention(
        query[:, :, rows],
        torch.cat(keys, dim=2) if len(keys) > 1 else keys[0],
        torch.cat(values, dim=2) if len(values) > 1 else values[0],
        attn_mask=tile,
        dropout_p=module.dropout if module.training else 0.0,
        scale=module.logit_scale,
    )
    return output.masked_fill(~some, 0.0)


def _window_range(module: SparseWindow, lowered: LoweredMask, rows: slice) -> tuple[int, int]:
    """The slice of keys [start, stop) that holds the window of every row of a strip."""
    size, reach = module.block_size, module.dilation
    first = (rows.start + lowered.offset) // size - module.left * reach
    last = (rows.stop - 1 + lowered.offset) // size + module.right * reach
    low, high = lowered.key_range(rows.start, rows.stop)
    start, stop = max(first * size, low), min((last + 1) * size, high)
    if start >= stop:  # no window: one key, which the pattern may hide
        start = min(max(start, 0), lowered.key_length - 1)
        stop = start + 1
    return start, stop


def _visible(module: SparseWindow, lowered: LoweredMask, rows: slice, columns: Tensor) -> Tensor:
    pattern = module.visible(lowered, rows, columns)
    pattern = pattern.reshape((1,) * (4 - pattern.dim()) + pattern.shape)
    visible = lowered.visible(rows, columns)
    return pattern if visible is None else pattern & visible


def _random_columns(
    module: SparseWindow, lowered: LoweredMask, rows: slice, start: int, stop: int
) -> tuple[Tensor, Tensor]:
    """The keys of the random blocks of a strip, (1, H, n), and who owns them, (1, H, rows, n).

    A key that the strip has already, as window or global key, is owned by nobody.
    """
    size = module.block_size
    row_block = lowered.query_position[rows].div(size, rounding_mode="floor")
    blocks, owner = torch.unique_consecutive(row_block, return_inverse=True)
    order = torch.arange(len(blocks), device=owner.device)
    one_each = rows.start + torch.searchsorted(owner, order)
    drawn = module.draw(lowered, one_each)  # (H, blocks, random)
    within = torch.arange(size, device=drawn.device)
    columns = (drawn[..., None] * size + within).flatten(2)  # (H, blocks, random * size)
    real = (drawn[..., None] >= 0).expand(*drawn.shape, size).flatten(2)
    real = real & (columns < lowered.key_length) & ~((columns >= start) & (columns < stop))
    if module.global_positions:
        real = real & ~module.is_global(columns)
    mine = owner[:, None] == order  # (rows, blocks)
    owned = (mine[None, :, :, None] & real[:, None]).flatten(2)
    return columns.clamp(0, lowered.key_length - 1).flatten(1)[None], owned[None]


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
    visible = lowered.visible(rows, ALL)
    bias = lowered.bias(rows, ALL)
    some = None if visible is None else visible.any(dim=-1, keepdim=True)
    tile = None if visible is None or some is None else visible | ~some
    if bias is not None:
        tile = bias.to(query.dtype).masked_fill(
            torch.zeros_like(bias, dtype=torch.bool) if tile is None else ~tile, -torch.inf
        )
    found = F.scaled_dot_product_attention(
        query[:, :, rows],
        key,
        value,
        attn_mask=tile,
        dropout_p=module.dropout if module.training else 0.0,
        scale=module.logit_scale,
    )
    found = found if some is None else found.masked_fill(~some, 0.0)
    return output.index_copy(2, rows, found)


def _join(left: Tensor, right: Tensor) -> Tensor:
    """Concatenate two tiles along their columns, broadcasting the rest."""
    sizes = torch.broadcast_shapes(left.shape[:3], right.shape[:3])
    return torch.cat([left.expand(*sizes, -1), right.expand(*sizes, -1)], dim=-1)
