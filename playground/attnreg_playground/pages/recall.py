"""Associative recall, trained while one watches: what softmax keeps and linear gives up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Page, Scene, Step
from attnreg_playground.figures import curves, facts
from attnreg_playground.given import HEAD, Chosen, choose, watched
from attnreg_playground.heat import heat
from attnreg_playground.real.recall import KEYS, LAYERS, Reader, batch, train
from attnreg_playground.texts import Problem, problem, sentence

EVERY = 20


def draw(scene: Scene) -> Iterator[Drawing | Step]:
    """Train one variant after the other, and show both curves and the heads of the first."""
    chosen: list[Chosen] = []
    for name, options in (("variant", "options"), ("other", "other_options")):
        one = choose(scene.registry, scene[name], scene[options])
        if isinstance(one, Problem):
            yield Drawing(problem=one)
            return
        if not one.variant.capabilities.causal:
            yield Drawing(problem=problem("not_causal", variant=one.variant.name, control=name))
            return
        chosen.append(one)
    yield from watched(chosen[0], _train(scene, chosen), chosen[1])


def _train(scene: Scene, chosen: list[Chosen]) -> Iterator[Drawing | Step]:
    found: dict[str, Any] = {"rounds": [[], []], "right": [[], []]}
    heads: Any = None
    rounds, pairs = scene["rounds"], scene["pairs"]
    example, _ = batch(pairs, 1, torch.Generator().manual_seed(scene["seed"] + 1))
    for place, one in enumerate(chosen):
        torch.manual_seed(scene["seed"])
        model = Reader(one.variant, pairs, one.options)
        for done, _, right in train(model, pairs, rounds, scene["seed"]):
            if done % EVERY == 0 or done == rounds:
                found["rounds"][place].append(done)
                found["right"][place].append(right)
                if place == 0 and one.variant.capabilities.weights != "none":
                    with torch.no_grad():
                        heads = model.weights(example, scene["layer"])[0].numpy()
                yield _drawing(scene, chosen, found, heads, example[0].tolist())
            named = sentence("recall.step", variant=one.variant.name, done=done, rounds=rounds)
            yield Step(place * rounds + done, 2 * rounds, named)
    yield _drawing(scene, chosen, found, heads, example[0].tolist())


def _drawing(
    scene: Scene, chosen: list[Chosen], found: Any, heads: Any, example: list[int]
) -> Drawing:
    names = [f"k{one}" if one < KEYS else f"v{one - KEYS}" for one in example]
    lines: list[dict[str, Any]] = [
        {"name": one.variant.name, "x": list(found["rounds"][at]), "y": list(found["right"][at])}
        for at, one in enumerate(chosen)
        if found["rounds"][at]
    ]
    told = [(one["name"], f"{one['y'][-1]:.0%}") for one in lines]
    figures: list[Any] = [
        facts("facts", sentence("recall.facts", pairs=scene["pairs"]), told),
        curves("right", sentence("recall.curve"), lines, x=sentence("axis.round"),
               y=sentence("axis.right"), log=False),
    ]  # fmt: skip
    if heads is not None:
        title = sentence("map.title", variant=chosen[0].variant.name)
        figures.append(heat(heads, names, names, name="weights", title=title, head=scene["head"]))
    last = {"first": told[0][1], "second": told[-1][1] if len(told) > 1 else "…"}
    state = chosen[1].variant.capabilities.decode == "recurrent"
    behind = len(lines) > 1 and lines[1]["y"][-1] < lines[0]["y"][-1] - 0.2
    key = "recall.said_state" if state and behind else "recall.said"
    return Drawing(
        figures=tuple(figures),
        said=sentence(key, a=chosen[0].variant.name, b=chosen[1].variant.name, **last),
        notes=(sentence("recall.note"),),
        formula=r"k_1 v_1 k_2 v_2 \dots k_n v_n\; k_j \to v_j",
        arrays={
            **({} if heads is None else {"weights": heads}),
            **{
                f"{name}_right": np.array(found["right"][at])
                for at, name in enumerate(("first", "second"))
            },
        },
    )


PAGE = Page(
    "recall",
    "models",
    (
        Control("variant", "variant", "scaled_dot_product", label="control.a"),
        Control("options", "options", {}, of="variant"),
        Control("other", "variant", "linear", label="control.b"),
        Control("other_options", "options", {}, of="other"),
        Control("pairs", "slider", 8, low=2, high=16),
        Control("rounds", "slider", 300, low=40, high=1000, step=20),
        Control("layer", "slider", 1, high=LAYERS - 1),
        HEAD,
        seed(),
    ),
    draw,
    presets={
        "softmax_linear": {},
        "softmax_performer": {"other": "performer"},
        "window": {"other": "sparse_window", "other_options": {"left": 4, "right": 0}},
    },
    started=True,
    heavy=True,
    seconds=240.0,
)
