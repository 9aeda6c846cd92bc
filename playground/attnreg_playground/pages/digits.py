"""A small vision transformer, trained while one watches: its heads sharpen on the digits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Page, Scene, Step
from attnreg_playground.figures import curves, facts
from attnreg_playground.given import HEAD, Chosen, choose, watched
from attnreg_playground.heat import entropy, heat
from attnreg_playground.real import digits
from attnreg_playground.real.digits import VisionTransformer
from attnreg_playground.real.missing import Missing
from attnreg_playground.texts import Problem, problem, sentence

HELD_OUT, BATCH, EVERY = 400, 64, 20


def draw(scene: Scene) -> Iterator[Drawing | Step]:
    """Train, and show accuracy and the weights on one digit again and again."""
    chosen = choose(scene.registry, scene["variant"], scene["options"])
    if isinstance(chosen, Problem):
        yield Drawing(problem=chosen)
        return
    if not chosen.variant.capabilities.noncausal:
        yield Drawing(problem=problem("only_causal", variant=chosen.variant.name))
        return
    try:
        images, labels = digits.load()
    except Missing as error:
        yield Drawing(problem=error.problem())
        return
    yield from watched(chosen, _train(scene, chosen, images, labels))


def _train(scene: Scene, chosen: Chosen, images: Any, labels: Any) -> Iterator[Drawing | Step]:
    torch.manual_seed(scene["seed"])
    order = torch.randperm(len(images))
    train, held = order[HELD_OUT:], order[:HELD_OUT]
    model = VisionTransformer(chosen.variant, chosen.options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    rounds, seen = scene["rounds"], held[scene["digit"] % HELD_OUT]
    found: dict[str, list[float | None]] = {"round": [], "right": [], "entropy": []}
    for done in range(rounds + 1):
        if done % EVERY == 0 or done == rounds:
            model.eval()
            with torch.no_grad():
                right = float((model(images[held]).argmax(-1) == labels[held]).float().mean())
                named = int(model(images[seen][None]).argmax())
                weights = model.weights(images[seen], scene["layer"]).numpy()
            every = np.ones(weights.shape[:2], bool)
            for name, value in zip(found, (done, right, entropy(weights, every)), strict=True):
                found[name].append(value)
            shown = {"image": images[seen], "label": int(labels[seen]), "named": named}
            yield _drawing(scene, chosen, found, weights, shown)
        if done == rounds:
            return
        yield Step(done, rounds, sentence("digits.step", done=done, rounds=rounds))
        model.train()
        picked = train[torch.randint(len(train), (BATCH,))]
        loss = F.cross_entropy(model(images[picked]), labels[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _drawing(
    scene: Scene, chosen: Chosen, found: dict[str, list[float | None]], weights: Any, shown: Any
) -> Drawing:
    names = [f"{row + 1},{column + 1}" for row in range(4) for column in range(4)]
    told = [
        (sentence("digits.right"), f"{found['right'][-1] or 0.0:.1%}"),
        (sentence("digits.named"), f"{shown['named']} ({shown['label']})"),
    ]
    first, last = found["entropy"][0], found["entropy"][-1]
    sharper = first is not None and last is not None and last < first - 0.05
    key = "digits.said_sharper" if sharper else "digits.said"
    if first is not None and last is not None:
        told.append((sentence("digits.entropy"), f"{first:.2f} → {last:.2f}"))
    return Drawing(
        figures=(
            facts("facts", sentence("digits.facts", round=found["round"][-1]), told),
            heat(weights, names, names, name="weights",
                 title=sentence("map.title", variant=chosen.variant.name), head=scene["head"],
                 image={"pixels": shown["image"], "rows": 4, "columns": 4}),
            curves("right", sentence("digits.curve"),
                   [{"name": sentence("digits.right"), "x": found["round"], "y": found["right"]}],
                   x=sentence("axis.round"), y=sentence("axis.right"), log=False),
        ),
        said=sentence(key, variant=chosen.variant.name),
        notes=(sentence("digits.note", held=HELD_OUT), sentence("about.caution")),
        formula=chosen.variant.formula,
        arrays={"weights": weights, **{name: np.array(one, float) for name, one in found.items()}},
    )  # fmt: skip


PAGE = Page(
    "digits",
    "models",
    (
        Control("variant", "variant", "scaled_dot_product"),
        Control("options", "options", {}, of="variant"),
        Control("rounds", "slider", 300, low=20, high=1000, step=20),
        Control("digit", "slider", 7, high=HELD_OUT - 1, label="control.shown_digit"),
        Control("layer", "slider", 1, high=digits.LAYERS - 1),
        HEAD,
        seed(),
    ),
    draw,
    started=True,
    heavy=True,
    seconds=180.0,
)
