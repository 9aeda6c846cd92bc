"""Cut a call into pieces whose rows see much the same keys, and say who sees whom in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from attnreg.lowering import ALL, Index, LoweredMask
from attnreg.tracing import known_true
from attnreg_sparse_window.module import SparseWindow
from attnreg_sparse_window.tiles import FullRows, Piece, Tiles

STRIP = 128
"""Rows of a tile that is computed by itself, rounded to whole blocks."""
ENTRIES = 2**20
"""How many entries what is copied or made for one piece may have, forward twice as many."""
FULL_ROWS = 512
"""Global rows of one piece."""


class Sizes(NamedTuple):
    """The sizes of a call."""

    batch: int
    heads: int
    key_heads: int
    width: int


class Layout:
    """The pieces of one call: tiles along the window, and the global rows apart.

    Where only causality, a window or padding narrow the pattern, all tiles but those at the ends
    look alike: many are computed at once, with one visibility or one that is made for all of
    them. Under ``allowed`` or a bias each strip has a visibility of its own.
    """

    def __init__(
        self,
        module: SparseWindow,
        seed: Tensor,
        lowered: LoweredMask,
        sizes: Sizes,
        backward: bool,
    ) -> None:
        mask, self.size = lowered.mask, module.block_size
        self.module, self.lowered, self.sizes, self.backward = module, lowered, sizes, backward
        self.device, self.offset = lowered.device, lowered.offset
        left, right = mask.window or (None, None)
        right = 0 if mask.causal else right
        reach = self.size * module.dilation
        # How far before its first row, and behind its last, a tile sees.
        self.before = module.left * reach if left is None else min(module.left * reach, left)
        self.behind = module.right * reach if right is None else min(module.right * reach, right)
        self.globals = [g for g in module.global_positions if g < lowered.key_length]
        self.shared = torch.tensor(self.globals, dtype=torch.int64, device=self.device)
        spread = module.dilation > 1 and self.size > 1
        self.listed = bool(self.globals or module.random_blocks or spread)
        self.height = self.size * -(-self._goal() // self.size)
        self.block_width = min(self.size, lowered.key_length)
        self.first_block = self.offset // self.size
        self.draws: Tensor | None = None
        if module.random_blocks and lowered.query_length:
            last_block = (self.offset + lowered.query_length - 1) // self.size
            blocks = torch.arange(self.first_block, last_block + 1, device=self.device)
            self.draws = module.draw_blocks(blocks, seed)
        rows = (g - self.offset for g in module.global_positions)
        self.full = [row for row in rows if 0 <= row < lowered.query_length]

    def pieces(self) -> Iterator[Piece]:
        """All pieces; where two have the same row, the later one counts."""
        first, last = self._window_rows()
        start, count = self._alike(first, last)
        yield from self._strips(first, start)
        yield from self._groups(start, count)
        yield from self._strips(start + count * self.height, last)
        yield from self._full_rows()

    @property
    def is_light(self) -> bool:
        """Whether pieces copy no keys, and most of them share one visibility."""
        mask = self.lowered.mask
        return not self.listed and all(t is None for t in (mask.allowed, mask.bias, mask.key_valid))

    def overwritten(self) -> list[int]:
        """The rows of tiles that a later piece computes."""
        first, last = self._window_rows()
        return [row for row in self.full if first <= row < last]

    def _goal(self) -> int:
        """How many rows a tile should have: measured, on two cores with AVX-512."""
        if self.module.random_blocks:
            return 32
        if self.listed:
            return STRIP
        span = self.before + self.behind
        # Larger ones see more keys in vain, smaller ones add up more gradients for each key.
        return min(max(span // 4, 64), 256) if self.backward else min(max(span // 8, 32), 128)

    def _window_rows(self) -> tuple[int, int]:
        """The rows [first, last), without the global rows at both ends."""
        first, last = 0, self.lowered.query_length
        full = set(self.full)
        while first in full:
            first += 1
        while last - 1 in full and last > first:
            last -= 1
        return first, last

    def _alike(self, first: int, last: int) -> tuple[int, int]:
        """The first row of the tiles that look alike, and how many they are."""
        mask = self.lowered.mask
        if mask.allowed is not None or mask.bias is not None:
            return last, 0
        start, stop = first + self.offset, last + self.offset
        if not self.listed:  # what is not listed is read in place: it must be there
            start = max(start, self.before)
            stop = min(stop, self.lowered.key_length - self.behind)
        start = -(-start // self.size) * self.size
        count = (stop - start) // self.height
        return (start - self.offset, count) if count > 1 else (last, 0)

    def _strips(self, first: int, last: int) -> Iterator[Tiles]:
        """Tiles of at most a strip, one by one, for all batch items and any mask."""
        step = self.size * max(1, STRIP // self.size)
        while first < last:
            stop = min(last, first + step - (first + self.offset) % step)
            yield self._strip(first, stop)
            first = stop

    def _strip(self, first: int, stop: int) -> Tiles:
        top, bottom = first + self.offset, stop - 1 + self.offset
        block, last_block = top // self.size, bottom // self.size
        reach = self.size * self.module.dilation
        low, high = self.lowered.key_range(first, stop)
        low = max(low, block * self.size - self.module.left * reach)
        high = min(high, (last_block + 1) * self.size + self.module.right * reach)
        near = torch.arange(low, max(low, high), device=self.device)[None]
        query = torch.arange(top, bottom + 1, device=self.device)[None]
        seen, columns = self._see(query, near, block, last_block + 1 - block)
        if columns.shape[2] == 0:
            return Tiles(ALL, first, stop - first, 1, None)
        place: Index = slice(low, high)
        if self.listed:
            place = columns[0, 0] if columns.shape[1] == 1 else columns[0]
        rows = slice(first, stop)
        visible = self.lowered.visible(rows, place)
        return Tiles(
            items=ALL,
            row=first,
            height=stop - first,
            count=1,
            visible=seen if visible is None else seen & visible,
            bias=self.lowered.bias(rows, place),
            key=low,
            width=high - low,
            columns=columns if self.listed else None,
        )

    def _groups(self, start: int, count: int) -> Iterator[Tiles]:
        """Tiles that look alike, as many at once as the scratch memory allows."""
        height, mask = self.height, self.lowered.mask
        blocks = height // self.size
        # Whole blocks may be seen alike by all rows of a tile: then one row stands for them.
        rows = 1 if blocks == 1 and not mask.causal and mask.window is None else height
        within = torch.arange(rows, device=self.device)
        copied = self._near(start + self.offset, 1).shape[1] + self.shared.shape[0]
        copied += self.module.random_blocks * blocks * self.block_width
        # Read in place, keys have no copy, but they have a gradient.
        each = copied if self.listed else 2 * copied if self.backward else height
        # Positions take twice the memory of a float, while who sees whom is found.
        masked = rows * copied * (1 if self.draws is None else self.sizes.heads)
        each *= self.sizes.heads * self.sizes.width
        room = ENTRIES if self.backward else 2 * ENTRIES
        at_once = max(1, min(room // max(1, each), ENTRIES // (2 * masked)))
        common: Tensor | None = None
        for done in range(0, count, at_once):
            many = min(at_once, count - done)
            row = start + done * height
            top = row + self.offset
            query = self._tops(top, many) + within
            near = self._near(top, many)
            alike = self._is_alike(top, many)
            if alike and common is None:
                common, _ = self._see(query[:1], near[:1], 0, 0)
            if alike:
                visible, columns = common, self._columns(near, None)
            else:
                visible, columns = self._see(query, near, top // self.size, blocks)
            tiles = Tiles(
                items=ALL,
                row=row,
                height=height,
                count=many,
                visible=visible,
                key=top - self.before,
                width=near.shape[1],
                columns=columns if self.listed else None,
            )
            for item in range(self.sizes.batch):
                yield from self._of_item(tiles, item)

    def _of_item(self, tiles: Tiles, item: int) -> Iterator[Tiles]:
        """The same tiles for one batch item, without its padding, or without any key."""
        valid, items = self.lowered.mask.key_valid, slice(item, item + 1)
        if valid is None:
            yield replace(tiles, items=items)
            return
        if tiles.columns is None:
            kept = _each_tile(valid.to(self.device)[item], tiles)
        else:
            kept = valid.to(self.device)[item][tiles.columns]
        if known_true(kept):
            yield replace(tiles, items=items)
        elif not known_true(~kept):
            visible = kept[:, :, None, :]
            if tiles.visible is not None:
                visible = visible & tiles.visible
            yield replace(tiles, items=items, visible=visible)
        else:
            yield replace(tiles, items=items, visible=None, columns=None, key=0, width=0)

    def _full_rows(self) -> Iterator[FullRows]:
        """The global rows against all keys, a few heads at a time where keys get gradients."""
        sizes, lowered = self.sizes, self.lowered
        if not self.full:
            return
        group = sizes.heads // sizes.key_heads
        at_once = sizes.key_heads
        if self.backward:
            each = sizes.batch * lowered.key_length * sizes.width
            busy = -(-torch.get_num_threads() // sizes.batch)  # torch gives a head to a thread
            at_once = max(busy, ENTRIES // max(1, each))
        for row in torch.tensor(self.full, dtype=torch.int64, device=self.device).split(FULL_ROWS):
            visible, bias = lowered.visible(row, ALL), lowered.bias(row, ALL)
            for first in range(0, sizes.key_heads, at_once):
                last = min(first + at_once, sizes.key_heads)
                heads = slice(first * group, last * group)
                yield FullRows(
                    row=row,
                    heads=heads,
                    key_heads=slice(first, last),
                    visible=_of_heads(visible, heads),
                    bias=_of_heads(bias, heads),
                )

    def _tops(self, top: int, count: int) -> Tensor:
        """The positions of the first rows of tiles, (count, 1)."""
        return top + self.height * torch.arange(count, device=self.device)[:, None]

    def _near(self, top: int, count: int) -> Tensor:
        """The keys of the windows of tiles, (count, n), also those past the ends."""
        module, length = self.module, self.lowered.key_length
        if module.dilation > 1 and self.height == self.size > 1:  # no block between the steps
            n = (module.left + module.right + 1) * self.size
            if n < length:
                step = torch.arange(-module.left, module.right + 1, device=self.device)
                start = step[:, None] * (module.dilation * self.size)
                inside = torch.arange(self.size, device=self.device)
                return self._tops(top, count) + (start + inside).flatten()
        span = self.before + self.height + self.behind
        if self.listed and span >= length:
            return torch.arange(length, device=self.device).expand(count, -1)
        return self._tops(top - self.before, count) + torch.arange(span, device=self.device)

    def _is_alike(self, top: int, count: int) -> bool:
        """Whether all tiles of a group see the same, each from its own place."""
        if not self.listed:
            return True
        low, high = top - self.before, top + count * self.height + self.behind
        if self.draws is not None or low < 0 or high > self.lowered.key_length:
            return False
        if not self.globals:
            return True
        if self.lowered.mask.window is not None:
            return False
        past = all(g < low for g in self.globals)
        return past or not (self.lowered.mask.causal or any(low <= g < high for g in self.globals))

    def _see(self, query: Tensor, near: Tensor, block: int, blocks: int) -> tuple[Tensor, Tensor]:
        """Who sees whom in tiles by pattern, causality and window, and the keys that they list.

        query (count, rows) and near (count, n) are positions; a tile has ``blocks`` blocks of
        rows, the first one's first is ``block``. Returns bool, (count, 1 or H, rows, all keys),
        and the keys, (count, 1 or H, all keys).
        """
        module, mask, length = self.module, self.lowered.mask, self.lowered.key_length
        rows, key = query[:, None, :, None], near[:, None, None, :]
        seen = module.in_window(rows, key) & (key >= 0) & (key < length)
        if self.globals:  # they are listed apart, once
            seen = seen & ~module.is_global(key)
            ones = torch.ones(1, 1, 1, len(self.globals), dtype=torch.bool, device=self.device)
            seen = _join(seen, ones)
        drawn: Tensor | None = None
        if self.draws is not None:
            first = block - self.first_block
            chosen = self.draws[:, first : first + blocks * query.shape[0]]
            chosen = chosen.unflatten(1, (query.shape[0], blocks)).transpose(0, 1)
            inside = torch.arange(self.block_width, device=self.device)
            own = block + torch.arange(query.shape[0] * blocks, device=self.device)
            own = own.view(-1, blocks, 1).expand(*chosen.shape[:1], *chosen.shape[2:])
            own = own.flatten(1).repeat_interleave(self.block_width, 1)
            drawn = (chosen.flatten(2)[..., None] * self.size + inside).flatten(2)
            key = drawn[:, :, None, :]
            mine = own[:, None, None, :] == rows.div(self.size, rounding_mode="floor")
            mine = mine & (key >= 0) & (key < length) & ~module.in_window(rows, key)
            if self.globals:
                mine = mine & ~module.is_global(key)
            seen = _join(seen, mine)
        columns = self._columns(near, drawn)
        key = columns[:, :, None, :]
        if mask.causal:
            seen = seen & (key <= rows)
        if mask.window is not None:
            left, right = mask.window
            if left is not None:
                seen = seen & (key >= rows - left)
            if right is not None:
                seen = seen & (key <= rows + right)
        return seen, columns

    def _columns(self, near: Tensor, drawn: Tensor | None) -> Tensor:
        """The keys of tiles, those past the ends moved inside: (count, 1 or H, n)."""
        parts = [near[:, None, :]]
        if self.globals:
            parts.append(self.shared.expand(near.shape[0], 1, -1))
        columns = torch.cat(parts, dim=-1)
        if drawn is not None:
            columns = torch.cat([columns.expand(-1, drawn.shape[1], -1), drawn], dim=-1)
        return columns.clamp(0, self.lowered.key_length - 1)


def _each_tile(vector: Tensor, tiles: Tiles) -> Tensor:
    """The entries of the windows of tiles that lie in place, (count, 1, width)."""
    return vector[tiles.key :].unfold(0, tiles.width, tiles.height)[: tiles.count, None]


def _of_heads(tensor: Tensor | None, heads: slice) -> Tensor | None:
    return tensor if tensor is None or tensor.shape[1] == 1 else tensor[:, heads]


def _join(left: Tensor, right: Tensor) -> Tensor:
    """Concatenate two tiles along their columns, broadcasting the rest."""
    sizes = torch.broadcast_shapes(left.shape[:3], right.shape[:3])
    return torch.cat([left.expand(*sizes, -1), right.expand(*sizes, -1)], dim=-1)
