"""Associative recall: pairs of symbols, then the first of one again; a model must name the second.

The multi-query task of Arora et al. 2023 (Zoology, arXiv:2312.04927) in its smallest form.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnreg import AttentionLayer, Mask, Variant

WIDTH, HEADS, LAYERS = 64, 2, 2
KEYS = 32
"""How many different keys there are, and as many values."""


def batch(pairs: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw sequences k1 v1 … kn vn k… (size, 2 pairs + pairs) and the value after each query.

    Every key is asked once, in another order; targets are -100 where nothing is asked.
    """
    keys = torch.rand(size, KEYS, generator=generator).argsort(dim=1)[:, :pairs]
    values = torch.randint(KEYS, (size, pairs), generator=generator) + KEYS
    order = torch.rand(size, pairs, generator=generator).argsort(dim=1)
    shown = torch.stack([keys, values], dim=2).flatten(1)
    asked, answers = keys.gather(1, order), values.gather(1, order)
    nothing = torch.full_like(shown, -100)
    return torch.cat([shown, asked], dim=1), torch.cat([nothing, answers], dim=1)


class Reader(nn.Module):
    """Two causal attention layers with any variant, between embeddings and the next symbol."""

    def __init__(self, variant: Variant, pairs: int, options: Any = None) -> None:
        super().__init__()
        length = 3 * pairs
        self.embed = nn.Embedding(2 * KEYS, WIDTH)
        self.place = nn.Embedding(length, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * LAYERS))
        self.layers = nn.ModuleList(
            AttentionLayer(WIDTH, HEADS, variant, max_length=length, **(options or {}))
            for _ in range(LAYERS)
        )
        self.networks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(LAYERS)
        )
        self.name = nn.Linear(WIDTH, 2 * KEYS)

    def forward(self, symbols: Tensor) -> Tensor:
        """(B, L) to scores (B, L, 2 KEYS)."""
        return self._run(symbols, None)

    def weights(self, symbols: Tensor, layer: int) -> Tensor:
        """Return the weights of a layer, (B, HEADS, L, L)."""
        return self._run(symbols, layer)

    def _run(self, symbols: Tensor, layer: int | None) -> Tensor:
        causal = Mask(causal=True)
        x = self.embed(symbols)
        x = x + self.place.weight[: symbols.shape[1]]
        for at, (attention, network) in enumerate(zip(self.layers, self.networks, strict=True)):
            normed = self.norms[2 * at](x)
            if at == layer:
                found: Tensor = attention.weights(normed, mask=causal)  # type: ignore[operator]  # nn.ModuleList forgets the class
                return found
            x = x + attention(normed, mask=causal)
            x = x + network(self.norms[2 * at + 1](x))
        named: Tensor = self.name(x)
        return named


def train(model: Reader, pairs: int, rounds: int, seed: int) -> Iterator[tuple[int, float, float]]:
    """Train; yield the round, the loss, and the share of right answers on fresh sequences."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=rounds)
    generator = torch.Generator().manual_seed(seed)
    for done in range(rounds):
        symbols, targets = batch(pairs, 64, generator)
        scores = model(symbols)
        loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        asked = targets >= 0
        named = scores.detach().argmax(dim=-1)
        yield done + 1, float(loss.detach()), float((named == targets)[asked].float().mean())
