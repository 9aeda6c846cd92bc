"""What two variants are compared on: random tensors, or a text turned into query, key, value."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

HAN = (
    ("\u3040", "\u30ff"),
    ("\u3400", "\u9fff"),
    ("\uf900", "\ufaff"),
    ("\U00020000", "\U0003ffff"),
)
"""Characters that are a token each: kana and Chinese, which are written without spaces."""


@dataclass(frozen=True)
class Inputs:
    """One query, key and value (1, H, L, D) for both modules, and what they were made of."""

    query: Tensor
    key: Tensor
    value: Tensor
    label: str
    tokens: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        """The number of queries and keys."""
        return self.query.shape[2]

    def to(self, device: torch.device, dtype: torch.dtype) -> Inputs:
        """Return the same inputs elsewhere; the dtype first, as not every device has float64."""
        query, key, value = (t.to(dtype).to(device) for t in (self.query, self.key, self.value))
        return Inputs(query, key, value, self.label, self.tokens)


def random_inputs(length: int, heads: int, head_dim: int, seed: int) -> Inputs:
    """Draw query, key and value from a normal distribution, in float64 on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(3, 1, heads, length, head_dim, generator=generator, dtype=torch.float64)
    return Inputs(drawn[0], drawn[1], drawn[2], "random query, key and value")


def text_inputs(tokens: Sequence[str], heads: int, head_dim: int, seed: int) -> Inputs:
    """Embed tokens and project them to query, key and value, in float64 on the CPU.

    Each distinct token has a random embedding, to which sinusoidal positions are added; the three
    projections are random too: nothing is trained.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    width = heads * head_dim
    order = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    embedding = draw(len(order), width)[[order[token] for token in tokens]]
    embedding += sinusoidal_positions(len(tokens), width)

    def project() -> Tensor:
        projected = embedding @ (draw(width, width) / math.sqrt(width))
        return projected.view(1, len(tokens), heads, head_dim).transpose(1, 2)

    label = f"{len(tokens)} tokens, random projections, untrained"
    return Inputs(project(), project(), project(), label, tuple(tokens))


def sinusoidal_positions(length: int, width: int) -> Tensor:
    """Return (length, width): sines and cosines of falling frequency (Vaswani et al. 2017)."""
    place = torch.arange(length, dtype=torch.float64)[:, None]
    column = torch.arange(width)
    angle = place / 10_000.0 ** ((column - column % 2).double() / width)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos())


def tokenize(text: str) -> list[str]:
    """Split a text: Chinese into characters, other scripts into words, each sign by itself."""
    tokens: list[str] = []
    inside = False  # a word that the next letter continues
    for sign in unicodedata.normalize("NFC", text):
        alone = any(first <= sign <= last for first, last in HAN)
        letter = not alone and (unicodedata.category(sign)[0] in "LMN" or sign in "'’_-")
        if letter and inside:
            tokens[-1] += sign
        elif not sign.isspace():
            tokens.append(sign)
        inside = letter
    return tokens
