"""What is the temperature of the softmax, and what does changing it do to the weights?"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnreg_playground import inputs
from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Scene
from attnreg_playground.figures import bars, curves
from attnreg_playground.questions.common import TEXT, card, read, weights_of
from attnreg_playground.texts import Problem, sentence

TRIED = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0)


def compute(scene: Scene) -> dict[str, Any] | Problem:
    """Return the row of a query at T and at 1, and the entropy of that row at many temperatures."""
    given = inputs.embed(scene["text"], 1, scene["seed"])
    if isinstance(given, Problem):
        return given
    row = min(scene["row"], len(given.queries) - 1)

    def at(temperature: float) -> Any:
        name = "scaled_dot_product"
        made = read(scene.registry, name, given, scene["seed"], temperature=temperature)
        return weights_of(*made[:3])[0, row].astype(np.float64)

    tried = np.array(TRIED)
    entropies = np.array([_entropy(at(one)) for one in TRIED])
    return {
        "tokens": np.array(given.keys),
        "row": at(scene["temperature"]),
        "plain": at(1.0),
        "temperatures": tried,
        "entropies": entropies,
    }


def draw(scene: Scene) -> Drawing:
    """Show the row beside that of T = 1, and the entropy over T."""
    found = compute(scene)
    if isinstance(found, Problem):
        return Drawing(problem=found)
    temperature, tokens = scene["temperature"], found["tokens"].tolist()
    rows = [
        (token, (float(found["row"][place]), float(found["plain"][place])))
        for place, token in enumerate(tokens)
    ]
    series = (f"T = {temperature:g}", "T = 1")
    line = {
        "name": sentence("temperature.entropy"),
        "x": found["temperatures"].tolist(),
        "y": found["entropies"].tolist(),
    }
    uniform = (sentence("temperature.uniform"), float(np.log(len(tokens))))
    return Drawing(
        figures=(
            bars("row", sentence("temperature.title"), rows, series, most=1.0),
            curves("entropy", sentence("temperature.curve"), [line], x="T",
                   y=sentence("axis.entropy"), limit=uniform),
        ),
        said=sentence(
            "temperature.said",
            temperature=f"{temperature:g}",
            largest=f"{found['row'].max():.0%}",
            plain=f"{found['plain'].max():.0%}",
        ),
        formula=r"\operatorname{softmax}\left(\frac{Q K^\top}{T \sqrt{d_k}}\right)",
        notes=(sentence("note.untrained_text"),),
        arrays=found,
    )  # fmt: skip


def _entropy(row: Any) -> float:
    kept = row[row > 0]
    return float(-(kept * np.log(kept)).sum())


PAGE = card(
    "temperature",
    (
        Control("temperature", "slider", 0.3, low=0.02, high=10.0, step=0.02),
        Control("row", "slider", 1, high=15, label="control.query", noted=True),
        TEXT,
        seed(),
    ),
    draw,
    presets={"argmax": {"temperature": 0.02}, "uniform": {"temperature": 10.0}},
)
