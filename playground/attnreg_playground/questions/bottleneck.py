"""What is the bottleneck of long sequences, in time and in memory?"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

from attnreg_playground.controls import Control
from attnreg_playground.drawing import Drawing, Scene, Step
from attnreg_playground.figures import curves
from attnreg_playground.measure import median_seconds, peak
from attnreg_playground.questions.common import Steps, build, card, draw_heads, fit
from attnreg_playground.texts import sentence

LENGTHS = (128, 256, 512, 1024, 2048)
HEADS, WIDTH = 4, 32


def textbook(query: Any, key: Any, value: Any) -> Any:
    """Attend as the formula is written, with every weight in memory at once."""
    return (query @ key.transpose(-1, -2) / WIDTH**0.5).softmax(dim=-1) @ value


def measure(scene: Scene, name: str, length: int) -> tuple[float, float]:
    """Return the median seconds and the peak bytes of a call."""
    heads = draw_heads(length, HEADS, WIDTH, 0)
    made = textbook if name == "textbook" else build(scene.registry, name, HEADS, WIDTH)

    def call() -> Any:
        return made(*heads)

    seconds = median_seconds(call)
    held = peak(call)
    gc.collect()
    return seconds, held


def draw(scene: Scene) -> Steps:
    """Measure one length after the other, and show what is known so far."""
    lengths = [one for one in LENGTHS if one <= int(scene["longest"])]
    names = ["textbook", *(one for one in scene["variants"] if one in scene.registry)]
    found: dict[str, tuple[list[int], list[float], list[float]]] = {
        name: ([], [], []) for name in names
    }
    cells = [(length, name) for length in lengths for name in names]
    for done, (length, name) in enumerate(cells):
        yield Step(done, len(cells), sentence("bottleneck.step", name=name, length=length))
        seconds, held = measure(scene, name, length)
        found[name][0].append(length)
        found[name][1].append(seconds)
        found[name][2].append(held)
        if name == names[-1]:
            yield _drawing(found)


def _drawing(found: dict[str, Any]) -> Drawing:
    def lines(at: int, unit: float) -> list[dict[str, Any]]:
        return [
            {
                "name": sentence("bottleneck.textbook") if name == "textbook" else name,
                "x": kept[0],
                "y": [one * unit for one in kept[at]],
                "slope": fit([*kept[0]][-3:], [*kept[at]][-3:]),
            }
            for name, kept in found.items()
        ]

    arrays = {"lengths": np.array(next(iter(found.values()))[0])}
    for name, (_, seconds, held) in found.items():
        arrays |= {f"{name}_seconds": np.array(seconds), f"{name}_bytes": np.array(held)}
    length = int(arrays["lengths"][-1])
    return Drawing(
        figures=(
            curves("time", sentence("bottleneck.time"), lines(1, 1e3),
                   x=sentence("axis.length"), y=sentence("axis.milliseconds")),
            curves("memory", sentence("bottleneck.memory"), lines(2, 2**-20),
                   x=sentence("axis.length"), y=sentence("axis.mebibytes")),
        ),
        said=sentence(
            "bottleneck.said",
            length=length,
            held=f"{arrays['textbook_bytes'][-1] / 2**20:.1f}",
            cells=f"{HEADS * length * length:,}",
        ),
        formula=r"t = O(L^2 d),\quad m = O(L^2 + L d)",
        notes=(sentence("bottleneck.note"),),
        arrays=arrays,
    )  # fmt: skip


PAGE = card(
    "bottleneck",
    (
        Control("longest", "choice", "1024", choices=("512", "1024", "2048")),
        Control("variants", "variants", ["scaled_dot_product", "linear", "sparse_window"], limit=6),
    ),
    draw,
    needs=(),
    seconds=60.0,
    measured=True,
)
