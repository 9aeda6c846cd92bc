"""Can Euclidean distance or cosine similarity replace the dot product, and what must change?"""

from __future__ import annotations

from typing import Any

import torch

from attnreg_playground.controls import Control
from attnreg_playground.drawing import Drawing, Scene
from attnreg_playground.figures import bars, plane
from attnreg_playground.questions.common import build, card, weights_of
from attnreg_playground.texts import sentence

POINTS = [[1.6, 1.2], [1.2, 2.0], [3.6, 0.9], [0.75, 0.55]]
LABELS = ("q", "k1", "k2", "k3")
KINDS = {
    "dot": ("scaled_dot_product", {}),
    "cosine": ("cosine", {"init_scale": 4.0}),
    "euclidean": ("euclidean", {"tau": 1.0}),
}
REACH = 4.0


def compute(scene: Scene) -> dict[str, Any]:
    """Return the weights that each similarity gives the three keys, by the plugins."""
    points = torch.tensor(scene["points"], dtype=torch.float64)
    query, key = points[None, None, :1], points[None, None, 1:]
    found: dict[str, Any] = {"points": points.numpy()}
    for kind, (name, options) in KINDS.items():
        attention = build(scene.registry, name, 1, 2, dtype=torch.float64, **options)
        found[kind] = weights_of(attention, query, key)[0, 0]
    return found


def draw(scene: Scene) -> Drawing:
    """Show the vectors in the plane, and the three rows of weights."""
    found = compute(scene)
    kind = scene["similarity"]
    rows = [
        (label, tuple(float(found[one][place]) for one in KINDS))
        for place, label in enumerate(LABELS[1:])
    ]
    names = tuple(sentence(f"choice.{one}") for one in KINDS)
    best = {one: LABELS[1 + int(found[one].argmax())] for one in KINDS}
    return Drawing(
        figures=(
            plane("plane", sentence("similarity.plane"), scene["points"], LABELS,
                  found[kind].tolist(), "points", REACH),
            bars("weights", sentence("similarity.weights"), rows, names, most=1.0),
        ),
        said=sentence("similarity.said", **best),
        formula=r"\frac{q \cdot k}{\sqrt{d_k}},\quad s\,\frac{q \cdot k}{\|q\|\,\|k\|},\quad "
        r"-\frac{\|q - k\|^2}{\tau}",
        notes=(sentence("similarity.note"),),
        arrays=found,
    )  # fmt: skip


PAGE = card(
    "similarity",
    (
        Control("similarity", "choice", "dot", choices=tuple(KINDS)),
        Control("points", "points", POINTS, low=-REACH, high=REACH, step=0.1, shape=(4, 2),
                labels=LABELS, limit=4, noted=True),
    ),
    draw,
    needs=("scaled_dot_product", "cosine", "euclidean"),
    presets={
        "long_key": {"points": [[1.5, 0.5], [1.4, 0.6], [3.8, 1.4], [0.5, 1.5]]},
        "opposite": {"points": [[1.5, 0.5], [-1.5, -0.5], [0.5, -1.5], [1.5, 0.5]]},
    },
)  # fmt: skip
