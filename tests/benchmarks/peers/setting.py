"""What one measurement is of, and the numbers that peers and ours have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

COSINE_SCALE = 10.0
TAU = 8.0
WINDOW = 128
"""Keys that a query sees on each side."""
FEATURES = 256
RANK = 256
BLOCK = 64
RANDOM_BLOCKS = 3

Core = Callable[[Tensor, Tensor, Tensor], Tensor]
"""An attention core: query, key and value of shape (B, H, L, D) to (B, H, L, D)."""


class Setting(NamedTuple):
    """Sizes of one measurement."""

    length: int
    causal: bool = False
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    dtype: str = "float32"

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def width(self) -> int:
        """All heads side by side."""
        return self.heads * self.head_dim

    def inputs(self, count: int = 4, **sizes: int) -> list[Tensor]:
        """Normal tensors of shape (B, H, L, D): query, key, value, and a gradient."""
        size = self._replace(**sizes)
        generator = torch.Generator().manual_seed(1)
        shape = (size.batch, size.heads, size.length, size.head_dim)
        return [torch.randn(shape, generator=generator).to(size.torch_dtype) for _ in range(count)]

    def __str__(self) -> str:
        size = f"B={self.batch} H={self.heads} D={self.head_dim}, "
        usual = Setting(0)
        same = (self.batch, self.heads, self.head_dim) == (usual.batch, usual.heads, usual.head_dim)
        parts = [f"{'' if same else size}L={self.length}"]
        parts += ["causal"] if self.causal else []
        parts += [self.dtype] if self.dtype != usual.dtype else []
        return ", ".join(parts)


def score_weights(setting: Setting) -> Tensor:
    """The vector that weighs the hidden units of additive attention, (D,)."""
    return torch.linspace(-1.0, 1.0, setting.head_dim)


def mixtures(setting: Setting) -> tuple[Tensor, Tensor]:
    """The key and the value projection of Linformer, (RANK, L) each."""
    generator = torch.Generator().manual_seed(2)
    shape = (2, RANK, setting.length)
    key, value = torch.randn(shape, generator=generator).mul(RANK**-0.5).to(setting.torch_dtype)
    return key, value
