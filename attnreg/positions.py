"""Positions of ``AttentionLayer``: how it learns the order of its input.

Each module's ``forward(query, key, query_position, key_position)`` returns ``(query, key, bias)``;
positions are int64 (Lq,) and (Lk,), or (Lq,) and (Lk,) counted within packed sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnreg.attention import Dims
from attnreg.errors import OptionError, nearest
from attnreg.hookspecs import Position
from attnreg.registry import default_registry


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

    def forward(
        self, query: Tensor, key: Tensor, query_position: Tensor, key_position: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        """Rotate query (B, Hq, Lq, D) and key (B, Hkv, Lk, D); there is no bias."""
        return self._turn(query, query_position), self._turn(key, key_position), None

    def _turn(self, x: Tensor, position: Tensor) -> Tensor:
        steps = torch.arange(self.pairs, device=x.device, dtype=torch.float64)
        angle = position[:, None].double() * 10000.0 ** (-steps / self.pairs)
        cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = (even * cosine - odd * sine, even * sine + odd * cosine)
        return torch.stack(turned, dim=-1).flatten(-2)


class Alibi(nn.Module):
    """Subtract the distance between query and key, times a slope per head, from the score.

    Head h of H has slope 2^(-8 (h + 1) / H). Press et al. 2021, Train Short, Test Long,
    arXiv:2108.12409.
    """

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.num_heads = dims.num_heads

    def forward(
        self, query: Tensor, key: Tensor, query_position: Tensor, key_position: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Leave query and key alone; the bias is (1, Hq, Lq, Lk)."""
        heads = torch.arange(1, self.num_heads + 1, device=query.device, dtype=torch.float64)
        slope = (2.0 ** (-8.0 * heads / self.num_heads)).to(query.dtype)
        distance = (query_position[:, None] - key_position[None, :]).abs().to(query.dtype)
        return query, key, (-slope[:, None, None] * distance)[None]


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
