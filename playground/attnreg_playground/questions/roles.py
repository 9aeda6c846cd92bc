"""What do Q, K and V stand for, and how do they come from the input?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attnreg_playground import inputs
from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Scene
from attnreg_playground.figures import bars
from attnreg_playground.heat import heat
from attnreg_playground.questions.common import TEXT, card, read
from attnreg_playground.texts import Problem, sentence

PARTS = ("query", "key", "value")


def compute(scene: Scene) -> dict[str, Any] | Problem:
    """Return weights and output before and after one token's part is replaced by another's."""
    given = inputs.embed(scene["text"], 1, scene["seed"])
    if isinstance(given, Problem):
        return given
    attention, query, key, value = read(scene.registry, "scaled_dot_product", given, scene["seed"])
    heads = [query, key, value]
    last = len(given.keys) - 1
    place, source = min(scene["token"], last), min(scene["source_token"], last)
    changed = [one.clone() for one in heads]
    part = changed[PARTS.index(scene["part"])]
    part[:, :, place] = part[:, :, source].clone()
    with torch.no_grad():
        found = {
            "before": attention.weights(heads[0], heads[1]),
            "after": attention.weights(changed[0], changed[1]),
            "output_before": attention(*heads),
            "output_after": attention(*changed),
        }
    arrays = {name: one[0, 0].numpy() for name, one in found.items()}
    return {"tokens": np.array(given.keys), "place": np.array([place, source]), **arrays}


def draw(scene: Scene) -> Drawing:
    """Show both maps, and by how much each token's output moved."""
    found = compute(scene)
    if isinstance(found, Problem):
        return Drawing(problem=found)
    tokens = found["tokens"].tolist()
    place, source = (int(one) for one in found["place"])
    moved = np.linalg.norm(found["output_after"] - found["output_before"], axis=1)
    maps = [
        heat(found[name][None], tokens, tokens, name=name, title=sentence(f"roles.{name}"),
             thumbnails=False, group="roles")
        for name in ("before", "after")
    ]  # fmt: skip
    changed = np.abs(found["after"] - found["before"]) > 1e-6
    rows = [(token, (float(moved[at]),)) for at, token in enumerate(tokens)]
    return Drawing(
        figures=(*maps, bars("moved", sentence("roles.moved"), rows)),
        said=sentence(
            f"roles.said_{scene['part']}",
            token=tokens[place],
            source=tokens[source],
            rows=int(changed.any(axis=1).sum()),
            outputs=int((moved > 1e-6).sum()),
        ),
        formula=r"Q = X W_Q,\quad K = X W_K,\quad V = X W_V",
        notes=(sentence("note.untrained_text"),),
        arrays={**found, "moved": moved},
    )


PAGE = card(
    "roles",
    (
        Control("part", "choice", "query", choices=PARTS),
        Control("token", "slider", 1, high=15, noted=True),
        Control("source_token", "slider", 0, high=15),
        TEXT,
        seed(),
    ),
    draw,
)
