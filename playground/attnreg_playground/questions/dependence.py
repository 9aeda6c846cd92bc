"""Why does self-attention see the whole sequence, and what is its advantage over an RNN?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnreg import AttentionLayer
from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Scene, Step, array
from attnreg_playground.figures import bars, facts
from attnreg_playground.inputs import sinusoids
from attnreg_playground.questions.common import Steps, card
from attnreg_playground.texts import sentence

SYMBOLS, WIDTH, BATCH, ROUNDS = 4, 32, 64, 120


class Recurrent(nn.Module):
    """A GRU whose last state names the first symbol."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, WIDTH) to (B, SYMBOLS)."""
        states, _ = self.gru(x)
        named: Tensor = self.head(states[:, -1])
        return named


class Attending(nn.Module):
    """One attention layer whose last output names the first symbol."""

    def __init__(self, variant: Any) -> None:
        super().__init__()
        self.layer = AttentionLayer(WIDTH, 1, variant)
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, WIDTH) to (B, SYMBOLS)."""
        named: Tensor = self.head(self.layer(x[:, -1:], x)[:, 0])
        return named


def batch(length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw sequences of symbols with their positions (B, L, WIDTH), and the first symbols (B,)."""
    symbols = torch.randint(SYMBOLS, (BATCH, length), generator=generator)
    codes = F.one_hot(symbols, SYMBOLS).float() @ torch.eye(SYMBOLS, WIDTH) * 3.0
    return codes + sinusoids(length, WIDTH).roll(SYMBOLS, dims=-1), symbols[:, 0]


def train(scene: Scene, kind: str) -> Any:
    """Train one of the two; yield how far it is, then the module."""
    torch.manual_seed(scene["seed"])
    variant = scene.registry["scaled_dot_product"]
    model: nn.Module = Recurrent() if kind == "gru" else Attending(variant)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(scene["seed"])
    for done in range(ROUNDS):
        x, first = batch(scene["length"], generator)
        loss = F.cross_entropy(model(x), first)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if done % 10 == 0:
            yield done
    yield model


def gradients(model: nn.Module, x: Tensor) -> Tensor:
    """Return the mean size of the gradient of the last output with respect to each input, (L,)."""
    x = x.clone().requires_grad_(True)
    model(x).norm(dim=-1).sum().backward()
    assert x.grad is not None  # for mypy: backward has filled it
    sizes: Tensor = x.grad.norm(dim=-1)
    return sizes.mean(dim=0)


def draw(scene: Scene) -> Steps:
    """Train both, and show how strongly the last output depends on each input."""
    length = scene["length"]
    found: dict[str, Any] = {}
    right: dict[str, float] = {}
    for place, kind in enumerate(("gru", "attention")):
        for got in train(scene, kind):
            if isinstance(got, int):
                yield Step(place * ROUNDS + got, 2 * ROUNDS, sentence(f"dependence.{kind}"))
        x, first = batch(length, torch.Generator().manual_seed(scene["seed"] + 1))
        with torch.no_grad():
            right[kind] = float((got(x).argmax(dim=-1) == first).float().mean())
        found[kind] = array(gradients(got, x))
    yield _drawing(length, found, right)


def _drawing(length: int, found: dict[str, Any], right: dict[str, float]) -> Drawing:
    rows = [
        (str(place + 1), (float(found["gru"][place]), float(found["attention"][place])))
        for place in range(length)
    ]
    series = (sentence("dependence.gru"), sentence("dependence.attention"))
    told = [
        (sentence("dependence.path"), f"{length - 1} : 1"),
        (sentence("dependence.right"), f"{right['gru']:.0%} : {right['attention']:.0%}"),
        (
            sentence("dependence.ratio"),
            f"{found['gru'][0] / max(found['gru'][-1], 1e-12):.2g} : "
            f"{found['attention'][0] / max(found['attention'][-1], 1e-12):.2g}",
        ),
    ]
    return Drawing(
        figures=(
            facts("facts", sentence("dependence.facts"), told),
            bars("gradients", sentence("dependence.title"), rows, series, digits=4, log=True),
        ),
        said=sentence("dependence.said", length=length),
        formula=r"\frac{\partial h_L}{\partial x_1} = \prod_{t=2}^{L} "
        r"\frac{\partial h_t}{\partial h_{t-1}} \cdot \frac{\partial h_1}{\partial x_1}",
        notes=(sentence("dependence.note", rounds=ROUNDS),),
        arrays={**found, "right": array(list(right.values()))},
    )


PAGE = card(
    "dependence", (Control("length", "slider", 16, low=4, high=32), seed()), draw, seconds=60.0
)
