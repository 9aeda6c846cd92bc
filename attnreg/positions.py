"""Positions of ``AttentionLayer``: how it learns the order of its input.

A position is an ``nn.Module`` with two methods. ``place(x, position)`` changes queries or keys
(B, H, L, D) at their positions, int64 (L,); ``bias(query_position, key_position)`` returns what is
added to the scores, (1, Hq, Lq, Lk), or None. Decoding calls them on one chunk at a time.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from attnreg.attention import Dims
from attnreg.errors import OptionError, nearest
from attnreg.hookspecs import Position
from attnreg.registry import default_registry


class Positioning(Protocol):
    """What a position's module does."""

    def place(self, x: Tensor, position: Tensor) -> Tensor:
        """Change queries or keys (B, H, L, D) at their positions (L,)."""
        ...

    def bias(self, query_position: Tensor, key_position: Tensor) -> Tensor | None:
        """What is added to the scores, (1, Hq, Lq, Lk), or None."""
        ...


class Rotary(nn.Module):
    """Rotate pairs of coordinates by an angle that grows with the position.

    Coordinates (2m, 2m + 1) turn by position / 10000^(2m / D), so that the dot product of query
    and key depends on their distance alone. Su et al. 2021, RoFormer, arXiv:2104.09864.
    """

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        if dims.head_dim % 2:
            raise OptionError(f"rotary positions need an even head_dim, got {dims.head_dim}")
        self.pairs = dims.head_dim // 2

    def place(self, x: Tensor, position: Tensor) -> Tensor:
        """Rotate (B, H, L, D) by the angles of the positions (L,)."""
        exact = _widest(x.device)
        steps = torch.arange(self.pairs, device=x.device, dtype=exact)
        angle = position[:, None].to(exact) * 10000.0 ** (-steps / self.pairs)
        cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = (even * cosine - odd * sine, even * sine + odd * cosine)
        return torch.stack(turned, dim=-1).flatten(-2)

    def bias(self, query_position: Tensor, key_position: Tensor) -> None:
        """Nothing is added to the scores."""
        return None


class Alibi(nn.Module):
    """Subtract the distance between query and key, times a slope per head, from the score.

    Head h of H has slope 2^(-8 (h + 1) / H). Press et al. 2021, Train Short, Test Long,
    arXiv:2108.12409.
    """

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.num_heads = dims.num_heads

    def place(self, x: Tensor, position: Tensor) -> Tensor:
        """Queries and keys stay as they are."""
        return x

    def bias(self, query_position: Tensor, key_position: Tensor) -> Tensor:
        """Return the penalty of every pair, (1, Hq, Lq, Lk), in float32 or wider."""
        device = query_position.device
        exact = _widest(device)
        heads = torch.arange(1, self.num_heads + 1, device=device, dtype=exact)
        slope = 2.0 ** (-8.0 * heads / self.num_heads)
        distance = (query_position[:, None] - key_position[None, :]).abs()
        return (-slope[:, None, None] * distance)[None]


BUILT_IN = {
    position.name: position
    for position in (
        Position("rotary", Rotary, "rotate query and key by their position"),
        Position("alibi", Alibi, "a penalty that grows with the distance, per head"),
    )
}


def create_position(name: str, dims: Dims) -> nn.Module:
    """Build a position by name: ``rotary``, ``alibi``, or one that a plugin registers."""
    known = {**default_registry().positions, **BUILT_IN}
    if name not in known:
        raise OptionError(
            f"unknown position {name!r}.{nearest(name, known)} Known: {', '.join(sorted(known))}"
        )
    module: nn.Module = known[name].factory(dims)
    return module


def _widest(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # which Apple's GPUs lack
