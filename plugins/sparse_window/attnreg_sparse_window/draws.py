"""The random blocks of a row: a pure function of (seed, head, row block), whatever the length."""

from __future__ import annotations

import torch
from torch import Tensor

_MODULUS = 2**31
AHEAD = 8
"""Block b draws its later blocks among the b + AHEAD after it: as far ahead as it looks back."""


def mix(seed: Tensor, *parts: Tensor | int) -> Tensor:
    """Hash integers to 31 bits, in int64 that never overflows: the same on every device."""
    x = _round(seed % _MODULUS)  # so that neighbouring seeds have nothing in common
    for part in parts:
        x = _round(x ^ (part + 1))
    return _round(x)


def _round(x: Tensor) -> Tensor:
    x = (x * 1103515245 + 12345) % _MODULUS
    x = x ^ (x >> 15)
    x = (x * 747796405) % _MODULUS
    return x ^ (x >> 13)


def draw_blocks(seed: Tensor, heads: int, row_block: Tensor, count: int) -> Tensor:
    """Draw the key blocks of each row block (R,) without replacement: (H, R, count), -1 for none.

    Half of them (rounded up) lie before the row's block, half after it; those past the end of the
    sequence are simply not there. So neither the length nor causality, which hides the later
    half, changes what a row sees.
    """
    before = (count + 1) // 2
    earlier = _floyd(seed, heads, row_block, row_block.clamp(min=0), before, 0)
    later = _floyd(seed, heads, row_block, row_block.clamp(min=0) + AHEAD, count - before, before)
    later = torch.where(later >= 0, later + row_block[:, None] + 1, -1)
    drawn = torch.cat([earlier, later], dim=-1)
    return torch.where(row_block[:, None] >= 0, drawn, -1)


def _floyd(
    seed: Tensor, heads: int, row_block: Tensor, candidates: Tensor, count: int, first_slot: int
) -> Tensor:
    """Draw ``count`` of 0 … candidates - 1 by Floyd's algorithm, -1 where there are too few.

    Bentley and Floyd 1987, A sample of brilliance, Communications of the ACM 30(9).
    """
    taken = candidates.clamp(max=count)
    head = torch.arange(heads, device=row_block.device)[:, None]
    drawn: list[Tensor] = []
    for step in range(count):
        top = candidates - taken + step
        hashed = mix(seed, head, row_block.clamp(min=0), first_slot + step)
        pick = hashed % (top + 1).clamp(min=1)
        for earlier in drawn:
            pick = torch.where(pick == earlier, top, pick)
        drawn.append(torch.where(step < taken, pick, -1))
    empty = row_block.new_zeros(heads, row_block.shape[0], 0)
    return torch.stack(drawn, dim=-1) if drawn else empty
