"""Handwritten digits (8x8, of scikit-learn's own data) and a small vision transformer for them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from attnreg import AttentionLayer, Variant
from attnreg_playground.real.missing import EXTRA, Missing

COUNT = 1797
SIDE, PATCH = 8, 2
PATCHES = (SIDE // PATCH) ** 2
WIDTH, HEADS, LAYERS = 48, 4, 2


@lru_cache(maxsize=1)
def load() -> tuple[Tensor, Tensor]:
    """Return all images (1797, 8, 8) in 0…1 and their digits (1797,); raise ``Missing``."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # nor types
    except ImportError as error:
        raise Missing("scikit-learn", EXTRA) from error
    found: Any = load_digits()
    return torch.tensor(found.images, dtype=torch.float32) / 16.0, torch.tensor(found.target)


def image(index: int) -> Tensor:
    """Return one image, (8, 8)."""
    return load()[0][index]


def patches(images: Tensor) -> Tensor:
    """Cut images (N, 8, 8) into patches (N, 16, 4), row by row."""
    cut = images.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)  # (N, 4, 4, 2, 2)
    return cut.flatten(3).flatten(1, 2)


class Block(nn.Module):
    """Attention and a small network of two layers, each added to what goes in."""

    def __init__(self, variant: Variant, options: Any) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.attention = AttentionLayer(WIDTH, HEADS, variant, max_length=PATCHES, **options)
        self.before_network = nn.LayerNorm(WIDTH)
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(N, 16, WIDTH) to the same."""
        x = x + self.attention(self.before_attention(x))
        return x + self.network(self.before_network(x))  # type: ignore[no-any-return]  # torch's modules are untyped


class VisionTransformer(nn.Module):
    """A ViT of patches 2x2, with any variant as its attention: (N, 8, 8) to (N, 10)."""

    def __init__(self, variant: Variant, options: Any = None) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, WIDTH)
        self.position = nn.Parameter(torch.randn(PATCHES, WIDTH) / math.sqrt(WIDTH))
        self.blocks = nn.ModuleList(Block(variant, options or {}) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.name = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the ten digits."""
        x = self.embed(patches(images)) + self.position
        for block in self.blocks:
            x = block(x)
        named: Tensor = self.name(self.norm(x).mean(dim=1))
        return named

    def weights(self, one: Tensor, layer: int) -> Tensor:
        """Return the weights of a layer on an image (8, 8): (HEADS, 16, 16)."""
        x = self.embed(patches(one[None])) + self.position
        for block in list(self.blocks)[:layer]:
            x = block(x)
        block = self.blocks[layer]
        found: Tensor = block.attention.weights(block.before_attention(x))[0]  # type: ignore[operator, union-attr]  # nn.ModuleList forgets the class
        return found
