"""The random blocks of a row: a pure function of (seed, head, row block)."""

from __future__ import annotations

import torch
from torch import Tensor

_MODULUS = 2**31


def mix(seed: Tensor, *parts: Tensor | int) -> Tensor:
    """Hash integers to 31 bits, in int64 that never overflows: the same on every device."""
    x = seed % _MODULUS
    for part in parts:
        x = ((x ^ (part + 1)) * 1103515245 + 12345) % _MODULUS
        x = x ^ (x >> 15)
    return x


def draw_blocks(
    seed: Tensor, heads: int, row_block: Tensor, key_blocks: Tensor, count: int, causal: bool
) -> Tensor:
    """Draw the key blocks of each row block without replacement: (H, R, count), -1 for none.

    ``row_block`` (R,) and ``key_blocks`` (R,), the number of key blocks there are. Candidates are
    the earlier blocks where ``causal``, else all but the row's own. Floyd's algorithm (Bentley
    and Floyd 1987, Communications of the ACM 30(9)).
    """
    inside = (row_block >= 0) & (row_block < key_blocks)
    candidates = row_block if causal else key_blocks - inside.to(key_blocks.dtype)
    candidates = torch.where(row_block >= 0, candidates, 0)
    taken = candidates.clamp(max=count)
    head = torch.arange(heads, device=row_block.device)[:, None]
    drawn: list[Tensor] = []
    for step in range(count):
        top = candidates - taken + step
        pick = mix(seed, head, row_block.clamp(min=0), step) % (top + 1).clamp(min=1)
        for earlier in drawn:
            pick = torch.where(pick == earlier, top, pick)
        drawn.append(torch.where(step < taken, pick, -1))
    blocks = torch.stack(drawn, dim=-1)
    if causal:
        return blocks
    own = torch.where(inside, row_block, key_blocks)[:, None]
    return torch.where(blocks >= own, blocks + 1, blocks)
