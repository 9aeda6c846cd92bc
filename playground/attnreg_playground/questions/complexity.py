"""What are L and d in O(L^2 d), and why does the cost grow with the square of L?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnreg_playground.controls import Control
from attnreg_playground.drawing import Drawing, Scene
from attnreg_playground.figures import curves, facts
from attnreg_playground.questions.common import build, card, draw_heads, fit
from attnreg_playground.texts import sentence


def count(scene: Scene, length: int, width: int) -> int:
    """Return the floating point operations of the plugin's matrix products, counted by torch."""
    attention = build(scene.registry, "scaled_dot_product", 1, width, implementation="eager")
    query, key, value = draw_heads(length, 1, width, 0)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        attention(query, key, value)
    return int(counter.get_total_flops())


def compute(scene: Scene) -> dict[str, Any]:
    """Return the counts at growing lengths, and at growing widths."""
    length, width = scene["length"], scene["width"]
    lengths = [max(1, length // 4), max(1, length // 2), length, 2 * length]
    widths = [max(1, width // 4), max(1, width // 2), width, 2 * width]
    return {
        "lengths": np.array(lengths),
        "by_length": np.array([count(scene, one, width) for one in lengths]),
        "widths": np.array(widths),
        "by_width": np.array([count(scene, length, one) for one in widths]),
    }


def draw(scene: Scene) -> Drawing:
    """Show both curves with their slopes."""
    found = {name: one.tolist() for name, one in compute(scene).items()}
    length, width = scene["length"], scene["width"]
    steep, flat = fit(found["lengths"], found["by_length"]), fit(found["widths"], found["by_width"])
    lines = [
        {"name": sentence("complexity.by_length", width=width), "x": found["lengths"],
         "y": found["by_length"], "slope": steep},
        {"name": sentence("complexity.by_width", length=length), "x": found["widths"],
         "y": found["by_width"], "slope": flat},
    ]  # fmt: skip
    told = [
        (sentence("complexity.cells"), f"{length} × {length} = {length * length:,}"),
        (sentence("complexity.each"), f"2 · 2 · {width} = {4 * width}"),
        (sentence("complexity.total"), f"{found['by_length'][2]:,}"),
    ]
    return Drawing(
        figures=(
            facts("facts", sentence("complexity.facts"), told),
            curves("flops", sentence("complexity.title"), lines,
                   x=sentence("axis.size"), y=sentence("axis.flops")),
        ),
        said=sentence("complexity.said", steep=f"{steep:.2f}", flat=f"{flat:.2f}"),
        formula=r"\underbrace{2 L^2 d_k}_{Q K^\top} + \underbrace{2 L^2 d_v}_{A V} = O(L^2 d)",
        notes=(sentence("complexity.note"),),
        arrays={name: np.array(one) for name, one in found.items()},
    )  # fmt: skip


PAGE = card(
    "complexity",
    (
        Control("length", "slider", 64, low=4, high=256, step=4),
        Control("width", "slider", 32, low=4, high=128, step=4),
    ),
    draw,
)
