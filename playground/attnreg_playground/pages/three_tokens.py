"""Three tokens: X -> Q, K, V -> scores -> scale -> mask -> softmax -> weighted sum, in numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import attnreg
from attnreg import Mask
from attnreg_playground.controls import Control
from attnreg_playground.drawing import Drawing, Finding, Page, Scene
from attnreg_playground.figures import matrix, mixing, steps
from attnreg_playground.texts import Sentence, problem, sentence

TOKENS = ("我", "爱", "你")
PLACES = ("first", "second", "third")
STAGES = ("x", "qkv", "scores", "scale", "mask", "softmax", "output")

# Small numbers that can be followed by hand; 爱 looks most at 你.
X = [[1.0, 0.0, 1.0, 0.0], [0.0, 2.0, 0.0, 1.0], [1.0, 1.0, 0.0, 2.0]]
W_Q = [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]
W_K = [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
W_V = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]]

Floats = NDArray[np.float64]


def compute(scene: Scene) -> dict[str, Floats]:
    """Return every matrix of the calculation, in float64; weights and output are the plugin's."""
    x, w_q, w_k, w_v = (np.array(scene[name]) for name in ("x", "w_q", "w_k", "w_v"))
    query, key, value = x @ w_q, x @ w_k, x @ w_v
    scale = 1.0 / np.sqrt(query.shape[1]) if scene["scaled"] else 1.0
    scores = query @ key.T
    visible = _visible(scene)
    attention = attnreg.create(
        scene.registry["scaled_dot_product"],
        num_heads=1,
        head_dim=3,
        scale=scale,
        temperature=scene["temperature"],
        dtype=torch.float64,
    ).eval()
    mask = Mask(allowed=torch.from_numpy(visible)[None, None])
    heads = [torch.from_numpy(one)[None, None] for one in (query, key, value)]
    with torch.no_grad():
        weights = attention.weights(heads[0], heads[1], mask)[0, 0].numpy()
        output = attention(*heads, mask)[0, 0].numpy()
    scaled = scores * scale / scene["temperature"]
    return {
        "x": x,
        "w_q": w_q,
        "w_k": w_k,
        "w_v": w_v,
        "query": query,
        "key": key,
        "value": value,
        "scores": scores,
        "scaled": scaled,
        "masked": np.where(visible, scaled, -np.inf),
        "weights": weights,
        "output": output,
    }


def draw(scene: Scene) -> Drawing:
    """Show the calculation up to the chosen step, with the row of the chosen query marked."""
    if "scaled_dot_product" not in scene.registry:
        return Drawing(problem=problem("needs", variant="scaled_dot_product"))
    found, stage = compute(scene), scene["step"] - 1
    row = PLACES.index(scene["row"])
    hidden: NDArray[np.bool_] = ~_visible(scene)
    features = ("x1", "x2", "x3", "x4")
    wide: dict[str, Any] = {"rows": TOKENS, "row": row}
    square: dict[str, Any] = {**wide, "columns": TOKENS}
    parts = [
        matrix("x", "X", found["x"], columns=features, control="x", **wide),
        *(
            part
            for letter, name in (("q", "query"), ("k", "key"), ("v", "value"))
            for part in (
                matrix(f"w_{letter}", f"W_{letter.upper()}", found[f"w_{letter}"], rows=features,
                       control=f"w_{letter}"),
                matrix(name, sentence(f"three.{name}"), found[name], rows=TOKENS,
                       row=row if letter == "q" else None),
            )
        ),
        matrix("scores", sentence("three.scores"), found["scores"], **square),
        matrix("scaled", sentence("three.scaled"), found["scaled"], **square),
        matrix("masked", sentence("three.masked"), found["scaled"], hidden=hidden,
               hidden_as="−∞", **square),
        matrix("weights", sentence("three.weights"), found["weights"], hidden=hidden, digits=3,
               **square),
        matrix("output", sentence("three.output"), found["output"], digits=3, **wide),
    ]  # fmt: skip
    ends = {"x": 1, "qkv": 7, "scores": 8, "scale": 9, "mask": 10, "softmax": 11, "output": 12}
    name = STAGES[stage]
    figures = [steps("steps", sentence("three.title"), parts[: ends[name]], stage)]
    if name in ("softmax", "output"):
        figures.append(
            mixing(
                "mixing",
                sentence("three.mixing", token=TOKENS[row]),
                found["weights"][row],
                found["value"],
                TOKENS,
                row,
                found["output"][row],
            )
        )
    sums, seen = found["weights"].sum(axis=1), [bool(one.any()) for one in ~hidden]
    good = bool(np.abs(sums - np.array(seen)).max() < 1e-9)  # a row that sees nothing is 0
    check = Finding("good" if good else "bad", sentence("three.sums", sums=_numbers(sums)))
    return Drawing(
        figures=tuple(figures),
        said=_said(name, found, row, scene) if seen[row] else _blind(name, row, found, scene),
        formula=_FORMULAS[name],
        notes=(sentence("three.note"),),
        findings=(check,),
        arrays=found,
        python=_python(scene),
    )


def _said(name: str, found: dict[str, Floats], row: int, scene: Scene) -> Sentence:
    return sentence(f"three.said_{name}", token=TOKENS[row], **_fields(found, row, scene))


def _blind(name: str, row: int, found: dict[str, Floats], scene: Scene) -> Sentence:
    """Say what becomes of a token that may look at nothing."""
    if name in ("softmax", "output"):
        return sentence("three.said_blind", token=TOKENS[row])
    return _said(name, found, row, scene)


def _visible(scene: Scene) -> NDArray[np.bool_]:
    visible = np.ones((3, 3), bool)
    if scene["causal"]:
        visible &= np.tril(visible)
    if scene["hide"] != "none":
        visible[:, TOKENS.index({"first": "我", "second": "爱", "third": "你"}[scene["hide"]])] = (
            False
        )
    return visible


def _fields(found: dict[str, Floats], row: int, scene: Scene) -> dict[str, str]:
    weights = found["weights"][row]
    most = int(weights.argmax())
    return {
        "scores": _numbers(found["scores"][row]),
        "scaled": _numbers(found["scaled"][row]),
        "weights": _numbers(weights),
        "output": _numbers(found["output"][row]),
        "most": TOKENS[most],
        "share": f"{weights[most]:.0%}",
        "divisor": f"{(np.sqrt(3) if scene['scaled'] else 1.0) * scene['temperature']:.3g}",
    }


def _numbers(values: Floats) -> str:
    return ", ".join(f"{one:.3g}" for one in values)


def _python(scene: Scene) -> str:
    scale = "3 ** -0.5" if scene["scaled"] else "1.0"
    allowed = _visible(scene).tolist()
    return f"""import torch

import attnreg

x = torch.tensor({scene["x"]}, dtype=torch.float64)
w_q = torch.tensor({scene["w_q"]}, dtype=torch.float64)
w_k = torch.tensor({scene["w_k"]}, dtype=torch.float64)
w_v = torch.tensor({scene["w_v"]}, dtype=torch.float64)
query, key, value = ((x @ w)[None, None] for w in (w_q, w_k, w_v))
attention = attnreg.create(
    "scaled_dot_product", num_heads=1, head_dim=3, scale={scale},
    temperature={scene["temperature"]}, dtype=torch.float64,
).eval()
mask = attnreg.Mask(allowed=torch.tensor({allowed})[None, None])
weights = attention.weights(query, key, mask)[0, 0]
print(weights)
print(attention(query, key, value, mask)[0, 0])
"""


_FORMULAS = {
    "x": r"X \in \mathbb{R}^{3 \times 4}",
    "qkv": r"Q = X W_Q,\quad K = X W_K,\quad V = X W_V",
    "scores": r"S = Q K^\top",
    "scale": r"S' = \frac{Q K^\top}{T \sqrt{d_k}}",
    "mask": r"S'_{ij} = -\infty \Rightarrow A_{ij} = 0",
    "softmax": r"A_{ij} = \frac{e^{S'_{ij}}}{\sum_{m} e^{S'_{im}}}",
    "output": r"y_i = \sum_j A_{ij} v_j",
}

_CELL: dict[str, Any] = {"low": -100.0, "high": 100.0, "step": 0.5}

PAGE = Page(
    "three",
    "three",
    (
        Control(
            "step",
            "slider",
            len(STAGES),
            low=1,
            high=len(STAGES),
            label="control.stage",
            noted=True,
        ),
        Control("row", "choice", "second", choices=PLACES, label="control.row"),
        Control("scaled", "check", True),
        Control("temperature", "slider", 1.0, low=0.05, high=5.0, step=0.05),
        Control("causal", "check", False),
        Control("hide", "choice", "none", choices=("none", *PLACES)),
        Control("x", "matrix", X, shape=(3, 4), **_CELL),
        Control("w_q", "matrix", W_Q, shape=(4, 3), **_CELL),
        Control("w_k", "matrix", W_K, shape=(4, 3), **_CELL),
        Control("w_v", "matrix", W_V, shape=(4, 3), **_CELL),
    ),
    draw,
    presets={
        "default": {},
        "sharp": {"temperature": 0.1},
        "uniform": {"w_q": [[0.0] * 3 for _ in range(4)]},
        "causal": {"causal": True},
        "swapped": {"x": [X[2], X[1], X[0]]},
    },
    wide=True,
)
