"""How do Q, K and V take part when the output of 爱 in 我/爱/你 is computed?"""

from __future__ import annotations

from typing import Any

from attnreg_playground.controls import Control
from attnreg_playground.drawing import Drawing, Scene
from attnreg_playground.figures import mixing, table
from attnreg_playground.pages import three_tokens
from attnreg_playground.pages.three_tokens import PLACES, TOKENS, W_K, W_Q, W_V, X
from attnreg_playground.questions.common import card
from attnreg_playground.texts import sentence


def _scene(scene: Scene) -> Scene:
    fixed = {"x": X, "w_q": W_Q, "w_k": W_K, "w_v": W_V, "causal": False, "hide": "none"}
    asked = {name: scene[name] for name in ("scaled", "temperature")}
    return Scene(scene.registry, {**fixed, **asked})


def compute(scene: Scene) -> dict[str, Any]:
    """Return every matrix of the calculation (``pages.three_tokens``)."""
    return three_tokens.compute(_scene(scene))


def draw(scene: Scene) -> Drawing:
    """Show the calculation for one token, line by line."""
    found, row = compute(scene), PLACES.index(scene["row"])
    root = found["key"].shape[1] ** 0.5 if scene["scaled"] else 1.0
    divisor = root * scene["temperature"]
    lines = [
        (sentence("worked.project"), f"q = x W_Q = {_vector(found['query'][row])}"),
        *(
            (sentence("worked.score", token=token),
             f"q · {_vector(found['key'][at])} = {found['scores'][row, at]:.3g}")
            for at, token in enumerate(TOKENS)
        ),
        (sentence("worked.scale"), f"/ {divisor:.3g} = {_vector(found['scaled'][row])}"),
        (sentence("worked.softmax"), _vector(found["weights"][row])),
        (sentence("worked.output"), " + ".join(
            f"{weight:.3f} · {_vector(value)}"
            for weight, value in zip(found["weights"][row], found["value"], strict=True)
        ) + f" = {_vector(found['output'][row])}"),
    ]  # fmt: skip
    columns = [sentence("table.step"), sentence("table.numbers")]
    return Drawing(
        figures=(
            table("lines", sentence("worked.title", token=TOKENS[row]), columns, lines),
            mixing("mixing", sentence("three.mixing", token=TOKENS[row]), found["weights"][row],
                   found["value"], TOKENS, row, found["output"][row]),
        ),
        said=sentence(
            "worked.said",
            token=TOKENS[row],
            most=TOKENS[int(found["weights"][row].argmax())],
            share=f"{found['weights'][row].max():.0%}",
        ),
        formula=r"q_i = x_i W_Q,\quad s_{ij} = "
        + (r"\frac{q_i \cdot k_j}{T \sqrt{d_k}}" if scene["scaled"] else r"q_i \cdot k_j / T")
        + r",\quad \alpha_{ij} = \operatorname{softmax}_j(s_{ij}),\quad "
        r"y_i = \sum_j \alpha_{ij} v_j",
        notes=(sentence("worked.note"),),
        arrays=found,
    )  # fmt: skip


def _vector(values: Any) -> str:
    return "(" + ", ".join(f"{one:.3g}" for one in values) + ")"


PAGE = card(
    "worked",
    (
        Control("row", "choice", "second", choices=PLACES, label="control.row"),
        Control("scaled", "check", True),
        Control("temperature", "slider", 1.0, low=0.05, high=5.0, step=0.05),
    ),
    draw,
)
