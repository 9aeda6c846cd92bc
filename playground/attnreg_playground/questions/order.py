"""Can self-attention see the order of a sequence? If not, what makes up for it?"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnreg import Mask
from attnreg.projection import QKVProjection
from attnreg_playground import inputs
from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Finding, Scene
from attnreg_playground.figures import facts
from attnreg_playground.heat import heat
from attnreg_playground.inputs import HEAD_DIM, sinusoids, sinusoids_at
from attnreg_playground.questions.common import TEXT, build, card
from attnreg_playground.texts import Problem, sentence

POSITIONS = ("none", "sinusoidal", "learned", "t5", "xl")
ORDERS = ("as_is", "swapped", "reversed", "shuffled")


def permutation(order: str, length: int, seed: int) -> Tensor:
    """Return which token comes at each place."""
    places = torch.arange(length)
    if order == "reversed":
        return places.flip(0)
    if order == "swapped" and length > 1:
        return torch.cat([places[:2].flip(0), places[2:]])
    if order == "shuffled":
        return torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    return places


def t5_buckets(length: int, buckets: int = 32, farthest: int = 128) -> Tensor:
    """Return the bucket of every distance j - i, (L, L), as T5 sorts them when it looks both ways.

    Half of the buckets are for keys that come later; of each half, half hold one distance each,
    and the others distances that grow logarithmically up to ``farthest`` (Raffel et al. 2020).
    """
    place = torch.arange(length)
    distance = place[None, :] - place[:, None]
    half, exact = buckets // 2, buckets // 4
    size = distance.abs()
    grown = torch.log(size.clamp(min=1) / exact) / math.log(farthest / exact) * (half - exact)
    coarse = (exact + grown.long()).clamp(max=half - 1)
    near: Tensor = torch.where(size < exact, size, coarse)
    return near + half * (distance > 0)


def xl_bias(query: Tensor, key: Tensor, seed: int) -> Tensor:
    """Return what Transformer-XL adds to q k^T, (L, L): q r + u k + v r, r a sinusoid of i - j.

    ``u`` and ``v`` are learned there and drawn here (Dai et al. 2019).
    """
    length, width = query.shape[-2:]
    generator = torch.Generator().manual_seed(seed)
    u, v = torch.randn(2, width, generator=generator) * 0.5
    codes = sinusoids_at(torch.arange(1 - length, length), width)
    place = torch.arange(length)
    relative = codes[place[:, None] - place[None, :] + length - 1]  # (L, L, width)
    moved: Tensor = torch.einsum("id,ijd->ij", query + v, relative)
    pull: Tensor = key @ u
    return moved + pull[None, :]


def attend(scene: Scene, x: Tensor) -> dict[str, Tensor]:
    """Return weights, output and position bias of tokens (L, width) in the order given."""
    length, kind = len(x), scene["position"]
    generator = torch.Generator().manual_seed(scene["seed"])
    bias: Tensor | None = None
    if kind == "sinusoidal":
        x = x + sinusoids(length, HEAD_DIM)
    if kind == "learned":
        x = x + torch.randn(64, HEAD_DIM, generator=generator)[:length]
    torch.manual_seed(scene["seed"])
    attention = build(scene.registry, "scaled_dot_product", 1, HEAD_DIM)
    projection: nn.Module = QKVProjection(HEAD_DIM, attention.dims, kdim=HEAD_DIM, vdim=HEAD_DIM)
    with torch.no_grad():
        query, key, value = projection(x[None], x[None], x[None])
        if kind == "t5":
            bias = torch.randn(32, generator=generator)[t5_buckets(length)]
        if kind == "xl":
            bias = xl_bias(query[0, 0], key[0, 0], scene["seed"]) / HEAD_DIM**0.5
        mask = Mask() if bias is None else Mask(bias=bias[None, None])
        weights = attention.weights(query, key, mask)[0, 0]
        output = attention(query, key, value, mask)[0, 0]
    shown = torch.zeros(length, length) if bias is None else bias
    if kind in ("sinusoidal", "learned"):
        codes = x if kind == "learned" else sinusoids(length, HEAD_DIM)
        shown = codes @ codes.T / HEAD_DIM**0.5
    return {"weights": weights, "output": output, "bias": shown}


def compute(scene: Scene) -> dict[str, Any] | Problem:
    """Return both runs, and the outputs of the permuted one put back in the first order."""
    given = inputs.embed(scene["text"], 1, scene["seed"])
    if isinstance(given, Problem):
        return given
    assert given.x is not None  # for mypy: a sentence is embedded
    length = len(given.keys)
    x = given.x[0] - sinusoids(length, HEAD_DIM)  # words alone: this card adds the order
    order = permutation(scene["order"], length, scene["seed"])
    plain, moved = attend(scene, x), attend(scene, x[order])
    back = order.argsort()
    return {
        "tokens": np.array(given.keys),
        "order": order.numpy(),
        "weights": plain["weights"].numpy(),
        "moved_weights": moved["weights"].numpy(),
        "output": plain["output"].numpy(),
        "moved_output": moved["output"][back].numpy(),
        "bias": plain["bias"].numpy(),
    }


def draw(scene: Scene) -> Drawing:
    """Show both maps, the position's own matrix, and whether outputs merely moved along."""
    found = compute(scene)
    if isinstance(found, Problem):
        return Drawing(problem=found)
    tokens = found["tokens"].tolist()
    moved = [tokens[place] for place in found["order"]]
    apart = float(np.abs(found["output"] - found["moved_output"]).max())
    maps = [
        heat(found["weights"][None], tokens, tokens, name="weights",
             title=sentence("order.plain"), thumbnails=False),
        heat(found["moved_weights"][None], moved, moved, name="moved_weights",
             title=sentence("order.moved"), thumbnails=False),
    ]  # fmt: skip
    if scene["position"] != "none":
        maps.append(
            heat(found["bias"][None].astype(np.float32), tokens, tokens, name="bias",
                 title=sentence(f"order.bias_{scene['position']}"), thumbnails=False,
                 difference=True)
        )  # fmt: skip
    told = [(sentence("order.apart"), f"{apart:.3g}")]
    return Drawing(
        figures=(facts("facts", sentence("order.facts"), told), *maps),
        said=sentence(_said(scene, found)),
        formula=_FORMULAS[scene["position"]],
        notes=(sentence("order.note"),),
        findings=(Finding("plain", sentence(f"order.{scene['position']}")),),
        arrays=found,
    )


def _said(scene: Scene, found: dict[str, Any]) -> str:
    """Return the key of what is seen: nothing moved, moved along, or changed."""
    if (found["order"] == np.arange(len(found["order"]))).all():
        return "order.said_still"
    return "order.said_same" if scene["position"] == "none" else "order.said_differ"


_FORMULAS = {
    "none": r"\operatorname{Attention}(P X) = P\, \operatorname{Attention}(X)",
    "sinusoidal": r"p_{t, 2m} = \sin(t / 10000^{2m/d}),\quad p_{t, 2m+1} = \cos(t / 10000^{2m/d})",
    "learned": r"x_t + p_t",
    "t5": r"s_{ij} = q_i \cdot k_j / \sqrt{d_k} + b_{\beta(j - i)}",
    "xl": r"s_{ij} = \frac{q_i \cdot k_j + q_i \cdot r_{i-j} + u \cdot k_j + v \cdot r_{i-j}}"
    r"{\sqrt{d_k}}",
}

PAGE = card(
    "order",
    (
        Control("position", "choice", "none", choices=POSITIONS),
        Control("order", "choice", "reversed", choices=ORDERS),
        TEXT,
        seed(),
    ),
    draw,
)
