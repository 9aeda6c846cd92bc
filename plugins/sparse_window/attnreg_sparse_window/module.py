"""Sparse window attention: a window, global tokens, random blocks."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from annotated_doc import Doc
from annotated_types import Interval
from torch import Tensor

from attnreg import Dims, DotProductAttention
from attnreg.lowering import LoweredMask
from attnreg_sparse_window.draws import draw_blocks


class SparseWindow(DotProductAttention):
    """Scaled dot-product attention over a window, global tokens and random blocks of keys.

    With p the position of a query and c that of a key, both counted in blocks of ``block_size``,
    key c is visible where (c - p) is a multiple of ``dilation`` between -left and right times it;
    or where either is a global position; or where block c was drawn for the head and block p.
    Longformer (Beltagy et al. 2020, arXiv:2004.05150) is a window with global tokens; BigBird
    (Zaheer et al. 2020, arXiv:2007.14062) has ``block_size=64, left=1, right=1,
    random_blocks=3, global_tokens=128``. Positions are absolute and count inside each packed
    sequence; the pattern intersects with the mask.

    Half of the random blocks (rounded up) lie before block p, half after it, among the p + 8 that
    follow: causality hides the later half, and those past the end are not there. The draw
    depends on seed, head and p alone, so neither length nor padding nor mask changes it.

    The buffer ``seed`` is saved in the state dict, so that a reloaded module draws the same.
    """

    seed: Tensor

    def __init__(
        self,
        dims: Dims,
        *,
        left: Annotated[int, Interval(ge=0, le=2**30), Doc("steps back that a query sees")] = 64,
        right: Annotated[int, Interval(ge=0, le=2**30), Doc("steps ahead that a query sees")] = 64,
        dilation: Annotated[int, Interval(ge=1, le=2**30), Doc("size of a step")] = 1,
        global_tokens: Annotated[
            int | tuple[int, ...],
            Interval(ge=0, le=2**20),
            Doc("how many of the first positions, or which positions, see and are seen by all"),
        ] = 0,
        random_blocks: Annotated[
            int,
            Interval(ge=0, le=64),
            Doc("random blocks of keys per block of queries, half before and half after it"),
        ] = 0,
        block_size: Annotated[
            int,
            Interval(ge=1, le=2**30),
            Doc("positions per block, in which window and draws count"),
        ] = 1,
        seed: Annotated[
            int | None, Interval(ge=0, lt=2**31), Doc("of the random blocks; None: torch's own")
        ] = None,
        **common: Any,
    ) -> None:
        super().__init__(dims, **common)
        self.left, self.right, self.dilation = left, right, dilation
        self.random_blocks, self.block_size = random_blocks, block_size
        positions = range(global_tokens) if isinstance(global_tokens, int) else global_tokens
        self.global_positions = tuple(sorted(set(positions)))
        self.global_are_first = self.global_positions == tuple(range(len(self.global_positions)))
        drawn = torch.randint(2**31, (), dtype=torch.int64) if seed is None else seed
        self.register_buffer("seed", torch.as_tensor(drawn, dtype=torch.int64))

    def pattern(self, lowered: LoweredMask, rows: slice, columns: slice) -> Tensor | None:
        """The visibility of a tile: bool, (rows, columns) or (H, rows, columns)."""
        query = lowered.query_position[rows][:, None]
        key = lowered.key_position[columns]
        window = self.in_window(query, key)
        if self.global_positions:
            window = window | self.is_global(query) | self.is_global(key)
        if self.random_blocks:
            drawn = self.draw(lowered, rows)
            for index in range(self.random_blocks):
                window = window | (drawn[:, :, index, None] == key // self.block_size)
        return window

    def in_window(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether keys are in the window of queries: positions that broadcast to one another."""
        step = key // self.block_size - query.div(self.block_size, rounding_mode="floor")
        inside = (step >= -self.left * self.dilation) & (step <= self.right * self.dilation)
        return inside if self.dilation == 1 else inside & (step % self.dilation == 0)

    def is_global(self, position: Tensor) -> Tensor:
        """Which positions are global, in the shape of ``position``."""
        count = len(self.global_positions)
        if self.global_are_first:
            return (position >= 0) & (position < count)
        chosen = torch.tensor(self.global_positions, device=position.device)
        return torch.isin(position, chosen)

    def draw(self, lowered: LoweredMask, rows: slice) -> Tensor:
        """The random key blocks of each row, (H, rows, random_blocks), -1 for none."""

        def every_row() -> Tensor:
            size = self.block_size
            blocks = lowered.query_position.div(size, rounding_mode="floor")
            return self.draw_blocks(blocks, self.seed)

        return lowered.once("random_blocks", every_row)[:, rows]

    def draw_blocks(self, row_block: Tensor, seed: Tensor) -> Tensor:
        """The random key blocks of each block of rows (R,), (H, R, random_blocks), -1 for none."""
        return draw_blocks(seed, self.dims.num_heads, row_block, self.random_blocks)
