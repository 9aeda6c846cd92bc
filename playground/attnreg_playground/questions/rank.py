"""Is the matrix of weights of low rank, and what does that mean for efficient attention?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attnreg_playground import inputs
from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Scene
from attnreg_playground.figures import bars, curves, facts
from attnreg_playground.given import PASSAGE
from attnreg_playground.heat import effective_rank, heat
from attnreg_playground.inputs import Given
from attnreg_playground.questions.common import build, card
from attnreg_playground.texts import Label, Problem, sentence
from attnreg_playground.tokens import MAX_CHARACTERS

LONG = (
    "Attention lets every word of a sentence look at every other word, however far away it is, "
    "and most of the rows that a trained model computes are close to a few simple patterns."
)


def compute(scene: Scene) -> dict[str, Any] | Problem:
    """Return the weights, their singular values, the rank-k part, and how far others are off."""
    given = (
        inputs.from_model(scene["passage"], scene["layer"])
        if scene["source"] == "real"
        else inputs.random(48, 0, 12, scene["seed"])
    )
    if isinstance(given, Problem):
        return given
    full = build(scene.registry, "scaled_dot_product", given.num_heads, inputs.HEAD_DIM)
    torch.manual_seed(scene["seed"])
    query, key, value = inputs.project(given, full, scene["seed"])
    head = min(scene["head"], given.num_heads) - 1
    with torch.no_grad():
        weights = full.weights(query, key)[0].double().numpy()
        output = full(query, key, value)[0].double().numpy()
    left, values, right = np.linalg.svd(weights[head])
    kept = min(scene["rank"], len(values))
    low = (left[:, :kept] * values[:kept]) @ right[:kept]
    exact = value[0].double().numpy()
    errors = {"truncated": _error(low @ exact[head], output[head])}
    others, mixed = _others(scene, given, (query, key, value), output, head, kept)
    errors |= others
    return {
        "tokens": np.array(given.keys),
        "weights": weights[head],
        "values": values,
        "low": low,
        "heads": np.array([effective_rank(one) for one in np.linalg.svd(weights)[1]]),
        "errors": np.array(list(errors.values())),
        "names": np.array(list(errors)),
        "mixed": np.array(np.nan if mixed is None else mixed),
    }


def _others(
    scene: Scene, given: Given, heads: Any, output: Any, head: int, kept: int
) -> tuple[dict[str, float], float | None]:
    """Return the error of other variants on one head, and of a mix of heads on all."""
    errors: dict[str, float] = {}
    window: Any = None
    for name in ("linformer", "performer", "sparse_window"):
        if name not in scene.registry:
            continue
        torch.manual_seed(scene["seed"])
        other = build(
            scene.registry, name, given.num_heads, inputs.HEAD_DIM,
            max_length=len(given.keys), **_budget(name, kept, len(given.keys)),
        )  # fmt: skip
        with torch.no_grad():
            got = other(*heads)[0].double().numpy()
        errors[name] = _error(got[head], output[head])
        window = got if name == "sparse_window" else window
    if window is not None:
        half = len(output) // 2  # half of the heads look around, the others everywhere
        return errors, _error(np.concatenate([window[:half], output[half:]]), output)
    return errors, None


def draw(scene: Scene) -> Drawing:
    """Show the spectrum, the weights beside their rank-k part, and the errors."""
    found = compute(scene)
    if isinstance(found, Problem):
        return Drawing(problem=found)
    tokens = found["tokens"].tolist()
    values, kept = found["values"], min(scene["rank"], len(found["values"]))
    share = float((values[:kept] ** 2).sum() / (values**2).sum())
    line = {
        "name": sentence("rank.values"),
        "x": list(range(1, len(values) + 1)),
        "y": np.clip(values, 1e-8, None).tolist(),
    }
    maps = [
        heat(found[name][None].astype(np.float32), tokens, tokens, name=name,
             title=sentence(f"rank.{name}", rank=kept), thumbnails=False, group="rank",
             signed=False)
        for name in ("weights", "low")
    ]  # fmt: skip
    errors = [
        (_label(str(name), kept, len(tokens)), (float(error),))
        for name, error in zip(found["names"], found["errors"], strict=True)
    ]
    told = [
        (sentence("rank.effective"), f"{effective_rank(values):.1f} / {len(values)}"),
        (sentence("rank.energy", rank=kept), f"{share:.1%}"),
        (sentence("rank.heads"), f"{found['heads'].min():.1f} … {found['heads'].max():.1f}"),
        (sentence("rank.mixed"), f"{float(found['mixed']):.3f}"),
    ]
    return Drawing(
        figures=(
            facts("facts", sentence("rank.facts"), told),
            curves("values", sentence("rank.spectrum"), [line],
                   x=sentence("axis.index"), y=sentence("axis.singular")),
            *maps,
            bars("errors", sentence("rank.errors"), errors),
        ),
        said=sentence(
            "rank.said" if kept < len(values) else "rank.said_full",
            rank=kept,
            share=f"{share:.0%}",
            length=len(values),
        ),
        formula=r"A = \sum_m \sigma_m u_m v_m^\top \approx \sum_{m \le k} \sigma_m u_m v_m^\top",
        notes=(sentence("rank.note"),),
        arrays=found,
    )  # fmt: skip


def _budget(name: str, kept: int, length: int) -> dict[str, int]:
    """Return the options that give a variant about as much room as rank k."""
    side = max(1, kept // 2)
    return {
        "linformer": {"rank": min(kept, length)},
        "performer": {"features": max(8, 8 * kept)},
        "sparse_window": {"left": side, "right": side},
    }[name]


def _label(name: str, kept: int, length: int) -> Label:
    if name == "truncated":
        return sentence("rank.truncated", rank=kept)
    said = ", ".join(f"{key}={value}" for key, value in _budget(name, kept, length).items())
    return f"{name} ({said})"


def _error(got: Any, exact: Any) -> float:
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact))


PAGE = card(
    "rank",
    (
        Control("source", "choice", "real", choices=("real", "chance")),
        Control(
            "passage", "text", LONG, limit=MAX_CHARACTERS, when=("source", ("real",)), noted=True
        ),
        Control("layer", "slider", 3, high=5, when=("source", ("real",))),
        Control("head", "slider", 1, low=1, high=12, label="control.which_head"),
        Control("rank", "slider", 8, low=1, high=64),
        seed(),
    ),
    draw,
    presets={"short_passage": {"passage": PASSAGE, "rank": 4}, "chance": {"source": "chance"}},
)
