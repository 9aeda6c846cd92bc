"""How are the weights dynamic, and what is the advantage over a fixed window or a convolution?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from attnreg_playground import inputs
from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Scene
from attnreg_playground.figures import facts
from attnreg_playground.heat import heat
from attnreg_playground.questions.common import card, read, weights_of
from attnreg_playground.texts import Problem, problem, sentence


def convolution(length: int, seed: int) -> Any:
    """Return what a convolution of width 3 does to every position, as a matrix (L, L)."""
    torch.manual_seed(seed)
    layer = nn.Conv1d(1, 1, 3, padding=1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(layer.weight.softmax(dim=-1))
        return layer(torch.eye(length)[:, None])[:, 0].T.numpy()


def compute(scene: Scene) -> dict[str, Any] | Problem:
    """Return the weights of two sentences, and the convolution's matrix for both."""
    found: dict[str, Any] = {}
    for name in ("first", "second"):
        given = inputs.embed(scene[name], 1, scene["seed"])
        if isinstance(given, Problem):
            return given
        made = read(scene.registry, "scaled_dot_product", given, scene["seed"])
        found[f"{name}_tokens"] = np.array(given.keys)
        found[name] = weights_of(*made[:3])[0]
    one, other = len(found["first"]), len(found["second"])
    if one != other:
        return problem("unequal", one=one, other=other, control="second")
    found["convolution"] = convolution(one, scene["seed"])
    found["second_convolution"] = convolution(other, scene["seed"])
    return found


def draw(scene: Scene) -> Drawing:
    """Show the two maps of attention beside the one of the convolution."""
    found = compute(scene)
    if isinstance(found, Problem):
        return Drawing(problem=found)
    maps = [
        heat(found[name][None], found[f"{name}_tokens"].tolist(),
             found[f"{name}_tokens"].tolist(), name=name, title=sentence(f"dynamic.{name}"),
             thumbnails=False, group="dynamic")
        for name in ("first", "second")
    ]  # fmt: skip
    places = [str(place + 1) for place in range(len(found["convolution"]))]
    fixed = heat(
        found["convolution"][None].astype(np.float32), places, places, name="convolution",
        title=sentence("dynamic.convolution"), thumbnails=False, group="dynamic",
    )  # fmt: skip
    moved = float(np.abs(found["first"] - found["second"]).max())
    still = float(np.abs(found["convolution"] - found["second_convolution"]).max())
    key = "dynamic.said" if moved > 1e-6 else "dynamic.said_same"
    told = [
        (sentence("dynamic.moved"), f"{moved:.3f}"),
        (sentence("dynamic.kernel_moved"), f"{still:.3f}"),
        (sentence("dynamic.reach"), f"{len(places)} : 3"),
    ]
    return Drawing(
        figures=(facts("facts", sentence("dynamic.facts"), told), *maps, fixed),
        said=sentence(key, moved=f"{moved:.2f}"),
        formula=r"y_i = \sum_j A_{ij}(X)\, v_j,\quad y_i = \sum_{m=-1}^{1} w_m x_{i+m}",
        notes=(sentence("note.untrained_text"),),
        arrays=found,
    )


PAGE = card(
    "dynamic",
    (
        Control("first", "text", "我爱你", limit=100),
        Control("second", "text", "他恨她", limit=100, noted=True),
        seed(),
    ),
    draw,
    presets={"order": {"first": "我爱你", "second": "你爱我"}},
)
