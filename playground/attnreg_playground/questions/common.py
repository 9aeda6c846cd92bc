"""What the question cards share: how a card becomes a page, and how a plugin is run for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

import attnreg
from attnreg import CheckedAttention, Mask, Registry
from attnreg_playground import inputs
from attnreg_playground.controls import Control
from attnreg_playground.drawing import Drawing, Drawn, Page, Scene, Step
from attnreg_playground.inputs import Given
from attnreg_playground.texts import problem

SENTENCE = "我爱你，你也爱我。"
TEXT = Control("text", "text", SENTENCE, limit=200, noted=True)


def card(
    name: str,
    controls: tuple[Control, ...],
    draw: Callable[[Scene], Drawn],
    *,
    needs: tuple[str, ...] = ("scaled_dot_product",),
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    **more: Any,
) -> Page:
    """Return the page of a question; without a variant that it needs it says which."""

    def drawn(scene: Scene) -> Drawn:
        missing = [one for one in needs if one not in scene.registry]
        if missing:
            return Drawing(problem=problem("needs", variant=missing[0]))
        try:
            return draw(scene)
        except (Exception, SystemExit) as error:
            told = f"{type(error).__name__}: {error}"[:1000]
            plugins = ", ".join(scene.registry.owner(one) for one in needs)
            names = ", ".join(needs)
            return Drawing(problem=problem("plugin", plugin=plugins, variant=names, error=told))

    return Page(f"q_{name}", "questions", controls, drawn, presets=presets or {}, **more)


def build(
    registry: Registry, name: str, heads: int = 1, head_dim: int = 32, **options: Any
) -> CheckedAttention:
    """Return a variant's module in evaluation mode."""
    return attnreg.create(registry[name], num_heads=heads, head_dim=head_dim, **options).eval()


def draw_heads(
    length: int, heads: int, head_dim: int, seed: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw normal query, key and value (1, heads, length, head_dim)."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(1, heads, length, head_dim, generator=generator, dtype=dtype) for _ in range(3)
    )
    return query, key, value


def read(
    registry: Registry, name: str, given: Given, seed: int, **options: Any
) -> tuple[CheckedAttention, Tensor, Tensor, Tensor]:
    """Return a variant with the query, key and value of an embedded sentence."""
    torch.manual_seed(seed)
    attention = build(
        registry, name, given.num_heads, inputs.HEAD_DIM, max_length=len(given.keys), **options
    )
    return attention, *inputs.project(given, attention, seed)


def weights_of(attention: CheckedAttention, query: Tensor, key: Tensor, mask: Mask = Mask()) -> Any:  # noqa: B008  # Mask() is immutable
    """Return the weights (H, Lq, Lk) as an array."""
    with torch.no_grad():
        return attention.weights(query, key, mask)[0].numpy()


def fit(x: list[float], y: list[float]) -> float | None:
    """Return the slope of log y over log x, least squares; None with fewer than two points."""
    import numpy as np

    pairs = [(a, b) for a, b in zip(x, y, strict=True) if a > 0 and b > 0]
    if len(pairs) < 2:
        return None
    logs = np.log(np.array(pairs))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


Steps = Iterator[Drawing | Step]
