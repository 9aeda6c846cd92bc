"""Most tokens are padding: how are they left out efficiently?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from attnreg import Mask
from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Finding, Scene
from attnreg_playground.figures import bars, facts
from attnreg_playground.measure import median_seconds
from attnreg_playground.questions.common import build, card
from attnreg_playground.texts import sentence

HEADS, WIDTH, BATCH = 4, 32, 8


def lengths_of(longest: int, share: float) -> list[int]:
    """Return lengths of a batch whose padding is about a share of it; the first is the longest."""
    short = max(1, round(longest * (BATCH * (1 - share) - 1) / (BATCH - 1)))
    return [longest] + [min(longest, short)] * (BATCH - 1)


def compute(scene: Scene) -> dict[str, Any]:
    """Return the outputs of the real tokens and the times, padded and packed."""
    lengths = lengths_of(int(scene["size"]), scene["share"] / 100)
    generator = torch.Generator().manual_seed(scene["seed"])
    total = sum(lengths)
    packed = [torch.randn(1, HEADS, total, WIDTH, generator=generator) for _ in range(3)]
    padded = [_pad(one, lengths) for one in packed]
    attention = build(scene.registry, "scaled_dot_product", HEADS, WIDTH)
    keep, ends = Mask.from_lengths(lengths), Mask.packed(lengths)
    calls: dict[str, Callable[[], Any]] = {
        "unmasked": lambda: attention(*padded),
        "padded": lambda: attention(*padded, keep),
        "packed": lambda: attention(*packed, ends),
    }
    with torch.no_grad():
        outputs = {name: call() for name, call in calls.items()}
        seconds = [median_seconds(call) for call in calls.values()]
    real = {
        name: one[0].numpy() if name == "packed" else _unpad(one, lengths)
        for name, one in outputs.items()
    }
    return {**real, "seconds": np.array(seconds), "lengths": np.array(lengths)}


def draw(scene: Scene) -> Drawing:
    """Show the times, and that packed and masked give the same; without a mask padding leaks."""
    found = compute(scene)
    lengths = found["lengths"]
    share = 1 - lengths.sum() / (len(lengths) * lengths.max())
    apart = float(np.abs(found["padded"] - found["packed"]).max())
    leak = float(np.abs(found["unmasked"] - found["packed"]).max())
    names = ("unmasked", "padded", "packed")
    rows = [
        (sentence(f"padding.{name}"), (float(one) * 1e3,))
        for name, one in zip(names, found["seconds"], strict=True)
    ]
    told = [
        (sentence("padding.share"), f"{share:.0%}"),
        (sentence("padding.tokens"), f"{lengths.sum()} / {len(lengths) * lengths.max()}"),
        (sentence("padding.leak"), f"{leak:.3g}"),
    ]
    good = apart < 1e-4
    return Drawing(
        figures=(
            facts("facts", sentence("padding.facts"), told),
            bars("seconds", sentence("padding.time"), rows, unit="ms"),
        ),
        said=sentence(
            "padding.said",
            share=f"{share:.0%}",
            part=f"{found['seconds'][2] / found['seconds'][1]:.0%}",
        ),
        formula=r"s_{ij} = -\infty \Rightarrow A_{ij} = 0",
        notes=(sentence("note.timed", threads=torch.get_num_threads()),),
        findings=(
            Finding("good" if good else "bad", sentence("padding.equal", apart=f"{apart:.1e}")),
            Finding("plain", sentence("padding.wrong", leak=f"{leak:.2g}")),
        ),
        arrays=found,
    )


def _pad(packed: Any, lengths: list[int]) -> Any:
    padded = torch.zeros(len(lengths), packed.shape[1], max(lengths), packed.shape[3])
    for place, part in enumerate(packed[0].split(lengths, dim=1)):
        padded[place, :, : part.shape[1]] = part
    return padded


def _unpad(padded: Any, lengths: list[int]) -> Any:
    parts = [padded[place, :, :length] for place, length in enumerate(lengths)]
    return torch.cat(parts, dim=1).numpy()


PAGE = card(
    "padding",
    (
        Control("share", "slider", 80, high=85, noted=True),
        Control("size", "choice", "256", choices=("64", "256", "512")),
        seed(),
    ),
    draw,
    measured=True,
)
