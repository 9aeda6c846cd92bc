"""Why does the gradient vanish for large d_k without the scale?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attnreg import Mask
from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Scene
from attnreg_playground.figures import bars, curves
from attnreg_playground.questions.common import build, card, draw_heads
from attnreg_playground.texts import sentence

WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
LENGTH = 16


def at(scene: Scene, width: int, scaled: bool) -> tuple[Any, float, float]:
    """Return the first row, the mean largest weight, and the mean size of the gradient.

    The gradient is that of a weight with respect to the scores of its row: the Frobenius norm of
    diag(p) - p p^T, by backpropagation through the plugin to a bias of zeros.
    """
    query, key, _ = draw_heads(LENGTH, 1, width, scene["seed"])
    scale = None if scaled else 1.0
    attention = build(scene.registry, "scaled_dot_product", 1, width, scale=scale)
    bias = torch.zeros(1, 1, LENGTH, LENGTH, requires_grad=True)
    weights = attention.weights(query, key, Mask(bias=bias))[0, 0]
    square = torch.zeros(LENGTH)
    for column in range(LENGTH):
        (slope,) = torch.autograd.grad(weights[:, column].sum(), bias, retain_graph=True)
        square += slope[0, 0].square().sum(dim=-1)
    plain = weights.detach()
    return (
        plain[0].numpy(),
        float(plain.max(dim=-1).values.mean()),
        float(square.sqrt().mean()),
    )


def compute(scene: Scene) -> dict[str, Any]:
    """Return the rows at the chosen width, and largest weight and gradient at every width."""
    width = 2 ** int(scene["power"])
    found: dict[str, Any] = {"widths": np.array(WIDTHS)}
    for name, scaled in (("scaled", True), ("plain", False)):
        found[f"{name}_row"] = at(scene, width, scaled)[0]
        each = [at(scene, one, scaled) for one in WIDTHS]
        found[f"{name}_largest"] = np.array([one[1] for one in each])
        found[f"{name}_gradient"] = np.array([one[2] for one in each])
    return found


def draw(scene: Scene) -> Drawing:
    """Show one row with and without the scale, and the gradient over d_k."""
    found = compute(scene)
    width = 2 ** int(scene["power"])
    at_width = WIDTHS.index(width)
    rows = [
        (str(place + 1), (float(found["scaled_row"][place]), float(found["plain_row"][place])))
        for place in range(LENGTH)
    ]
    both = (sentence("saturation.scaled"), sentence("saturation.plain"))

    def lines(what: str) -> list[dict[str, Any]]:
        return [
            {"name": name, "x": list(WIDTHS), "y": found[f"{key}_{what}"].tolist()}
            for name, key in zip(both, ("scaled", "plain"), strict=True)
        ]

    return Drawing(
        figures=(
            bars("row", sentence("saturation.row", width=width), rows, both, most=1.0),
            curves("gradient", sentence("saturation.gradient"), lines("gradient"), x="d_k",
                   y=sentence("axis.gradient")),
            curves("largest", sentence("saturation.largest"), lines("largest"), x="d_k",
                   y=sentence("axis.weight")),
        ),
        said=sentence(
            "saturation.said",
            width=width,
            largest=f"{found['plain_largest'][at_width]:.2f}",
            scaled=f"{found['scaled_largest'][at_width]:.2f}",
            part=f"{found['plain_gradient'][at_width] / found['scaled_gradient'][at_width]:.0%}",
        ),
        formula=r"\operatorname{Var}(q \cdot k) = d_k,\quad "
        r"\frac{\partial p_i}{\partial s_j} = p_i (\delta_{ij} - p_j)",
        notes=(sentence("saturation.note"),),
        arrays=found,
    )  # fmt: skip


PAGE = card(
    "saturation",
    (Control("power", "slider", 8, low=2, high=10, label="control.dk_power", noted=True), seed()),
    draw,
)
