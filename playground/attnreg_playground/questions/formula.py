"""What is the full formula of scaled dot-product attention, and what does each symbol mean?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Scene, array
from attnreg_playground.figures import table
from attnreg_playground.heat import heat
from attnreg_playground.questions.common import build, card, draw_heads
from attnreg_playground.texts import sentence


def compute(scene: Scene) -> dict[str, Any]:
    """Return query, key, value, the scaled scores, and the plugin's weights and output."""
    length, width = scene["length"], scene["width"]
    query, key, value = draw_heads(length, 1, width, scene["seed"])
    attention = build(scene.registry, "scaled_dot_product", 1, width)
    with torch.no_grad():
        weights = attention.weights(query, key)
        output = attention(query, key, value)
    scores = query @ key.transpose(-1, -2) / width**0.5
    found = {"query": query, "key": key, "value": value, "scores": scores, "weights": weights}
    return {name: array(one[0, 0]) for name, one in {**found, "output": output}.items()}


def draw(scene: Scene) -> Drawing:
    """Show the weights and the shape of every symbol."""
    found = compute(scene)
    length, width = scene["length"], scene["width"]
    names = [str(place + 1) for place in range(length)]
    shapes = {
        "Q": found["query"].shape, "K": found["key"].shape, "V": found["value"].shape,
        "QKᵀ/√d_k": found["scores"].shape, "A": found["weights"].shape,
        "AV": found["output"].shape,
    }  # fmt: skip
    meanings = ("q", "k", "v", "scores", "weights", "output")
    rows = [
        [symbol, " × ".join(map(str, shape)), sentence(f"formula.{meaning}")]
        for (symbol, shape), meaning in zip(shapes.items(), meanings, strict=True)
    ]
    rows += [
        ["d_k", str(width), sentence("formula.dk")],
        ["√d_k", f"{np.sqrt(width):.3g}", sentence("formula.root")],
        ["softmax", "", sentence("formula.softmax")],
    ]
    columns = [sentence(f"table.{name}") for name in ("symbol", "shape", "meaning")]
    figure = heat(
        found["weights"][None], names, names, name="weights",
        title=sentence("formula.map"), thumbnails=False,
    )  # fmt: skip
    return Drawing(
        figures=(table("symbols", sentence("formula.symbols"), columns, rows), figure),
        said=sentence("formula.said", length=length, width=width),
        formula=r"\operatorname{Attention}(Q, K, V) = "
        r"\operatorname{softmax}\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V",
        notes=(sentence("note.numbers"),),
        arrays=found,
    )


PAGE = card(
    "formula",
    (
        Control("length", "slider", 5, low=2, high=16),
        Control("width", "slider", 8, low=2, high=128),
        seed(),
    ),
    draw,
)
