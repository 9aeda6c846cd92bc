"""Can K^T V be computed first, and then be multiplied by Q? What is gained, what is lost?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Finding, Scene
from attnreg_playground.figures import bars
from attnreg_playground.questions.common import build, card, draw_heads
from attnreg_playground.texts import sentence


def compute(scene: Scene) -> dict[str, Any]:
    """Return both products, the outputs of softmax and linear attention, and counted operations."""
    length, width = scene["length"], scene["width"]
    query, key, value = draw_heads(length, 1, width, scene["seed"], torch.float64)

    def left() -> Any:
        return (query @ key.transpose(-1, -2)) @ value

    def right() -> Any:
        return query @ (key.transpose(-1, -2) @ value)

    counts = []
    for product in (left, right):
        with FlopCounterMode(display=False) as counter:
            product()
        counts.append(counter.get_total_flops())
    softmax = build(scene.registry, "scaled_dot_product", 1, width, dtype=torch.float64)
    linear = build(scene.registry, "linear", 1, width, dtype=torch.float64)
    with torch.no_grad():
        exact, rough = softmax(query, key, value), linear(query, key, value)
    found = {"left": left(), "right": right(), "softmax": exact, "linear": rough}
    arrays = {name: one[0, 0].numpy() for name, one in found.items()}
    return {**arrays, "flops": np.array(counts)}


def draw(scene: Scene) -> Drawing:
    """Show both counts, and the error of dropping the softmax."""
    found = compute(scene)
    length, width = scene["length"], scene["width"]
    apart = float(np.abs(found["left"] - found["right"]).max() / np.abs(found["left"]).max())
    error = float(
        np.linalg.norm(found["linear"] - found["softmax"]) / np.linalg.norm(found["softmax"])
    )
    rows = [
        ("(QKᵀ)V", (float(found["flops"][0]),)),
        ("Q(KᵀV)", (float(found["flops"][1]),)),
    ]
    errors = [
        (sentence("reorder.plain"), (apart,)),
        (sentence("reorder.linear"), (error,)),
    ]
    good = apart < 1e-9
    return Drawing(
        figures=(
            bars("flops", sentence("reorder.flops"), rows, digits=0),
            bars("errors", sentence("reorder.errors"), errors, digits=3),
        ),
        said=sentence(
            "reorder.said",
            part=f"{float(found['flops'][1] / found['flops'][0]):.3g}",
            length=length,
            width=width,
            error=f"{error:.0%}",
        ),
        formula=r"(Q K^\top) V = Q (K^\top V),\quad 4 L^2 d : 4 L d^2,\quad "
        r"\operatorname{softmax}(Q K^\top) V \ne Q (K^\top V)",
        notes=(sentence("reorder.note"),),
        findings=(
            Finding("good" if good else "bad", sentence("reorder.equal", apart=f"{apart:.1e}")),
        ),
        arrays=found,
    )


PAGE = card(
    "reorder",
    (
        Control("length", "slider", 256, low=8, high=1024, step=8),
        Control("width", "slider", 32, low=4, high=256, step=4),
        seed(),
    ),
    draw,
    needs=("scaled_dot_product", "linear"),
    presets={"short": {"length": 32, "width": 128}, "long_sequence": {"length": 1024}},
)
