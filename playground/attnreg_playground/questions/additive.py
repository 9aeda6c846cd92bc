"""Why is it called scaled dot-product attention, and how does additive attention differ?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attnreg import Mask
from attnreg_playground import inputs
from attnreg_playground.attend import Ready
from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Scene
from attnreg_playground.figures import facts
from attnreg_playground.heat import heat
from attnreg_playground.measure import median_seconds, peak
from attnreg_playground.questions.common import TEXT, build, card, draw_heads, read, weights_of
from attnreg_playground.texts import Problem, sentence

NAMES = ("scaled_dot_product", "additive")


def compute(scene: Scene) -> dict[str, Any] | Problem:
    """Return the weights of both on the same input, their times, their numbers of parameters."""
    given = inputs.embed(scene["text"], 1, scene["seed"])
    if isinstance(given, Problem):
        return given
    found: dict[str, Any] = {"tokens": np.array(given.keys)}
    seconds, held, parameters = [], [], []
    heads = draw_heads(int(scene["size"]), 4, inputs.HEAD_DIM, scene["seed"])
    for name in NAMES:
        found[name] = weights_of(*read(scene.registry, name, given, scene["seed"])[:3])[0]
        attention = build(scene.registry, name, 4, inputs.HEAD_DIM)
        ready = Ready(attention, *heads, Mask())
        seconds.append(median_seconds(ready))
        held.append(peak(ready))
        parameters.append(sum(one.numel() for one in attention.parameters()))
    return found | {
        "seconds": np.array(seconds),
        "bytes": np.array(held),
        "parameters": np.array(parameters),
    }


def draw(scene: Scene) -> Drawing:
    """Show both maps, and what each takes at the chosen length."""
    found = compute(scene)
    if isinstance(found, Problem):
        return Drawing(problem=found)
    tokens = found["tokens"].tolist()
    maps = [
        heat(found[name][None], tokens, tokens, name=name, title=name, thumbnails=False,
             group="additive")
        for name in NAMES
    ]  # fmt: skip
    slower = float(found["seconds"][1] / found["seconds"][0])
    told = [
        (sentence("additive.time", length=scene["size"]),
         " : ".join(f"{one * 1e3:.2f}" for one in found["seconds"]) + f" ms ({slower:.1f}x)"),
        (sentence("additive.parameters"), " : ".join(map(str, found["parameters"].tolist()))),
        (sentence("additive.apart"),
         f"{np.abs(found[NAMES[0]] - found[NAMES[1]]).max():.3f}"),
    ]  # fmt: skip
    return Drawing(
        figures=(facts("facts", sentence("additive.facts"), told), *maps),
        said=sentence("additive.said", slower=f"{slower:.1f}", length=scene["size"]),
        formula=r"s_{ij} = \frac{q_i^\top k_j}{\sqrt{d_k}},\quad "
        r"s_{ij} = v^\top \tanh(W_q q_i + W_k k_j + b)",
        notes=(
            sentence("note.untrained_text"),
            sentence("note.timed", threads=torch.get_num_threads()),
        ),
        arrays=found,
    )


PAGE = card(
    "additive",
    (Control("size", "choice", "256", choices=("64", "256", "512")), TEXT, seed()),
    draw,
    measured=True,
    needs=NAMES,
)
