"""What happens if Q, K and V share one projection instead of three?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attnreg import AttentionLayer
from attnreg_playground import inputs
from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Scene
from attnreg_playground.figures import facts
from attnreg_playground.heat import heat
from attnreg_playground.inputs import HEAD_DIM
from attnreg_playground.questions.common import TEXT, card
from attnreg_playground.texts import Problem, sentence

TIES = ("separate", "qk", "kv", "qkv")


def compute(scene: Scene) -> dict[str, Any] | Problem:
    """Return the raw scores and the weights of a layer that ties its projections, and its size."""
    given = inputs.embed(scene["text"], 1, scene["seed"])
    if isinstance(given, Problem):
        return given
    assert given.x is not None  # for mypy: a sentence is embedded
    torch.manual_seed(scene["seed"])
    tie = scene["tie"]
    options = {} if tie == "separate" else {"tie": tie, "exclude_self": scene["exclude_self"]}
    variant = scene.registry["scaled_dot_product" if tie == "separate" else "shared_qkv"]
    layer = AttentionLayer(HEAD_DIM, 1, variant, **options).eval()
    with torch.no_grad():
        query, key, _ = layer.projection(given.x, given.x, given.x)
        weights = layer.attention.weights(query, key)
    count = sum(one.numel() for one in layer.projection.parameters())
    return {
        "tokens": np.array(given.keys),
        "scores": (query @ key.transpose(-1, -2) / HEAD_DIM**0.5)[0, 0].numpy(),
        "weights": weights[0, 0].numpy(),
        "parameters": np.array(count),
    }


def draw(scene: Scene) -> Drawing:
    """Show scores and weights, how symmetric and how heavy on the diagonal they are."""
    found = compute(scene)
    if isinstance(found, Problem):
        return Drawing(problem=found)
    tokens, tie = found["tokens"].tolist(), scene["tie"]
    lopsided = float(np.abs(found["scores"] - found["scores"].T).max())
    diagonal = float(np.diag(found["weights"]).mean())
    told = [
        (sentence("shared.parameters"), f"{int(found['parameters']):,}"),
        (sentence("shared.lopsided"), f"{lopsided:.3g}"),
        (sentence("shared.diagonal"), f"{diagonal:.0%} ({1 / len(tokens):.0%})"),
    ]
    maps = [
        heat(found[name][None], tokens, tokens, name=name, title=sentence(f"shared.{name}"),
             thumbnails=False, group="shared")
        for name in ("scores", "weights")
    ]  # fmt: skip
    key = "shared.said_symmetric" if tie in ("qk", "qkv") else "shared.said"
    if tie != "separate" and scene["exclude_self"]:
        key = "shared.said_excluded"
    return Drawing(
        figures=(facts("facts", sentence("shared.facts"), told), *maps),
        said=sentence(key, diagonal=f"{diagonal:.0%}"),
        formula=_FORMULAS[tie],
        notes=(sentence("note.untrained_text"),),
        arrays=found,
    )


_FORMULAS = {
    "separate": r"S = (X W_Q)(X W_K)^\top",
    "kv": r"S = (X W_Q)(X W)^\top",
    "qk": r"S = (X W)(X W)^\top = S^\top",
    "qkv": r"S = (X W)(X W)^\top = S^\top",
}

PAGE = card(
    "shared",
    (
        Control("tie", "choice", "qkv", choices=TIES),
        Control("exclude_self", "check", False, when=("tie", ("qk", "kv", "qkv"))),
        TEXT,
        seed(),
    ),
    draw,
    needs=("scaled_dot_product", "shared_qkv"),
)
