"""What does a row of the weights mean, and what can a picture of the weights tell?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attnreg_playground import inputs
from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Finding, Scene
from attnreg_playground.figures import bars
from attnreg_playground.heat import heat
from attnreg_playground.questions.common import TEXT, card, read
from attnreg_playground.texts import Problem, sentence


def compute(scene: Scene) -> dict[str, Any] | Problem:
    """Return the weights, and the output of a row as its weighted sum of values and as it came."""
    given = inputs.embed(scene["text"], 1, scene["seed"])
    if isinstance(given, Problem):
        return given
    attention, query, key, value = read(scene.registry, "scaled_dot_product", given, scene["seed"])
    row = min(scene["row"], len(given.queries) - 1)
    with torch.no_grad():
        weights = attention.weights(query, key)[0, 0].numpy()
        output = attention(query, key, value)[0, 0].numpy()
    return {
        "tokens": np.array(given.keys),
        "row": np.array(row),
        "weights": weights,
        "mixed": weights[row] @ value[0, 0].numpy(),
        "output": output[row],
    }


def draw(scene: Scene) -> Drawing:
    """Show the map, the row as bars, and that it gives the output."""
    found = compute(scene)
    if isinstance(found, Problem):
        return Drawing(problem=found)
    tokens, row = found["tokens"].tolist(), int(found["row"])
    weights = found["weights"][row]
    largest = int(weights.argmax())
    apart = float(np.abs(found["mixed"] - found["output"]).max())
    good = apart < 1e-5
    listed = [(token, (float(weights[place]),)) for place, token in enumerate(tokens)]
    return Drawing(
        figures=(
            bars("row", sentence("rows.title", token=tokens[row]), listed, most=1.0),
            heat(found["weights"][None], tokens, tokens, name="weights",
                 title=sentence("rows.map"), thumbnails=False),
        ),
        said=sentence(
            "rows.said",
            token=tokens[row],
            sum=f"{weights.sum():.4f}",
            largest=tokens[largest],
            share=f"{weights[largest]:.0%}",
        ),
        formula=r"A_{ij} \ge 0,\quad \sum_j A_{ij} = 1,\quad y_i = \sum_j A_{ij} v_j",
        notes=(sentence("note.untrained_text"), sentence("about.caution")),
        findings=(
            Finding("good" if good else "bad", sentence("rows.mixed", apart=f"{apart:.1e}")),
        ),
        arrays=found,
    )  # fmt: skip


PAGE = card(
    "rows",
    (Control("row", "slider", 1, high=15, label="control.query", noted=True), TEXT, seed()),
    draw,
)
