"""How is self-attention computed in parallel, and why does it train faster than an RNN?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Finding, Scene
from attnreg_playground.figures import bars
from attnreg_playground.measure import median_seconds
from attnreg_playground.questions.common import build, card, draw_heads
from attnreg_playground.texts import sentence

WIDTH = 32


def compute(scene: Scene) -> dict[str, Any]:
    """Return outputs of all queries at once and one by one, and the times, with a GRU's."""
    length = int(scene["size"])
    query, key, value = draw_heads(length, 1, WIDTH, scene["seed"])
    attention = build(scene.registry, "scaled_dot_product", 1, WIDTH)
    torch.manual_seed(scene["seed"])
    cell = nn.GRUCell(WIDTH, WIDTH)

    def at_once() -> Any:
        return attention(query, key, value)

    def one_by_one() -> Any:
        rows = [attention(query[:, :, [at]], key, value) for at in range(length)]
        return torch.cat(rows, dim=2)

    def recurrent() -> Any:
        state = torch.zeros(1, WIDTH)
        for at in range(length):
            state = cell(query[0, :, at], state)
        return state

    with torch.no_grad():
        found = {"at_once": at_once()[0, 0].numpy(), "one_by_one": one_by_one()[0, 0].numpy()}
        seconds = [median_seconds(call) for call in (at_once, one_by_one, recurrent)]
    return {**found, "seconds": np.array(seconds), "steps": np.array([1, length, length])}


def draw(scene: Scene) -> Drawing:
    """Show the three times, and that the order of work does not change the result."""
    found = compute(scene)
    apart = float(np.abs(found["at_once"] - found["one_by_one"]).max())
    names = [sentence(f"parallel.{name}") for name in ("at_once", "one_by_one", "gru")]
    times = [(name, (float(one) * 1e3,)) for name, one in zip(names, found["seconds"], strict=True)]
    steps = [(name, (float(one),)) for name, one in zip(names, found["steps"], strict=True)]
    good = apart < 1e-5
    return Drawing(
        figures=(
            bars("seconds", sentence("parallel.time"), times, unit="ms", log=True),
            bars("steps", sentence("parallel.steps"), steps, digits=0, log=True),
        ),
        said=sentence(
            "parallel.said",
            length=scene["size"],
            loop=f"{found['seconds'][1] / found['seconds'][0]:.0f}",
            gru=f"{found['seconds'][2] / found['seconds'][0]:.0f}",
        ),
        formula=r"Y = \operatorname{softmax}\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V,\quad "
        r"h_t = f(h_{t-1}, x_t)",
        notes=(sentence("note.timed", threads=torch.get_num_threads()),),
        findings=(
            Finding("good" if good else "bad", sentence("parallel.equal", apart=f"{apart:.1e}")),
        ),
        arrays=found,
    )


PAGE = card(
    "parallel",
    (Control("size", "choice", "256", choices=("64", "256", "512")), seed()),
    draw,
    measured=True,
)
