"""How does attention differ between images and text, and why does a ViT want more data?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Scene, Step
from attnreg_playground.figures import bars, curves
from attnreg_playground.questions.common import Steps, card
from attnreg_playground.real import digits
from attnreg_playground.real.digits import VisionTransformer
from attnreg_playground.real.missing import Missing
from attnreg_playground.texts import Sentence, sentence

TRAINED = (50, 200, 1000)
HELD_OUT = 500
BATCH = 50


def convolutional() -> nn.Module:
    """Return a small CNN of about as many parameters as the ViT."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, 36, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(36, 108, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(108 * 4, 10),
    )  # fmt: skip


def train(model: nn.Module, images: Any, labels: Any, rounds: int, seed: int) -> Any:
    """Train with AdamW on batches drawn by the seed; yield after each round."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    generator = torch.Generator().manual_seed(seed)
    for done in range(rounds):
        model.train()
        picked = torch.randint(len(images), (BATCH,), generator=generator)
        loss = F.cross_entropy(model(images[picked]), labels[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield done


def right(model: nn.Module, images: Any, labels: Any) -> float:
    """Return the share of images that a model names rightly."""
    model.eval()
    with torch.no_grad():
        return float((model(images).argmax(dim=-1) == labels).float().mean())


def draw(scene: Scene) -> Steps:
    """Train both on 50, 200 and 1000 images, and show how they do on images held out."""
    try:
        images, labels = digits.load()
    except Missing as error:
        yield Drawing(problem=error.problem())
        return
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(scene["seed"]))
    images, labels = images[order], labels[order]
    held = images[-HELD_OUT:], labels[-HELD_OUT:]
    rounds = scene["rounds"]
    found: dict[str, list[float]] = {"vit": [], "cnn": []}
    kinds = [(count, kind) for count in TRAINED for kind in ("cnn", "vit")]
    for place, (count, kind) in enumerate(kinds):
        torch.manual_seed(scene["seed"])
        model = (
            convolutional()
            if kind == "cnn"
            else VisionTransformer(scene.registry["scaled_dot_product"])
        )
        for done in train(model, images[:count], labels[:count], rounds, scene["seed"]):
            if done % 10 == 0:
                named = sentence("vision.step", kind=sentence(f"vision.{kind}"), count=count)
                yield Step(place * rounds + done, len(kinds) * rounds, named)
        found[kind].append(right(model, *held))
        yield _drawing(found, rounds)


def _drawing(found: dict[str, list[float]], rounds: int) -> Drawing:
    lines = [
        {"name": sentence(f"vision.{kind}"), "x": list(TRAINED[: len(got)]), "y": got}
        for kind, got in found.items()
    ]
    rows = [
        (str(count), tuple(got[at] if at < len(got) else None for got in found.values()))
        for at, count in enumerate(TRAINED)
    ]
    names = tuple(sentence(f"vision.{kind}") for kind in found)
    gap = [cnn - vit for cnn, vit in zip(found["cnn"], found["vit"], strict=False)]
    told = _said(gap)
    return Drawing(
        figures=(
            bars("right", sentence("vision.title"), rows, names, most=1.0),
            curves("curve", sentence("vision.curve"), lines, x=sentence("axis.images"),
                   y=sentence("axis.right")),
        ),
        said=told,
        formula=r"\mathbb{R}^{8 \times 8} \to \mathbb{R}^{16 \times 4} \to X \in "
        r"\mathbb{R}^{16 \times d}",
        notes=(sentence("vision.note", rounds=rounds, held=HELD_OUT),),
        arrays={kind: np.array(got) for kind, got in found.items()},
    )  # fmt: skip


def _said(gap: list[float]) -> Sentence | None:
    """Say by how much the CNN leads, in the words that fit the numbers."""
    if not gap:
        return None
    first, last = f"{gap[0]:+.0%}", f"{gap[-1]:+.0%}"
    closing = len(gap) > 1 and gap[0] > 0 and gap[-1] < gap[0]
    return sentence("vision.said" if closing else "vision.said_open", first=first, last=last)


PAGE = card(
    "vision",
    (Control("rounds", "slider", 150, low=20, high=600, step=10, noted=True), seed()),
    draw,
    started=True,
    heavy=True,
    seconds=180.0,
)
