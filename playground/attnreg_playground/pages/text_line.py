"""A line of Chinese, typed or drawn: what the recogniser reads, where it looks, and with what."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch

from attnreg import CheckedAttention
from attnreg_playground.controls import Control
from attnreg_playground.drawing import Drawing, Page, Scene
from attnreg_playground.figures import facts
from attnreg_playground.given import HEAD
from attnreg_playground.pages.swapping import (
    VARIANT,
    original,
    two_maps,
    weights_of,
    with_variant,
)
from attnreg_playground.real import text_line
from attnreg_playground.real.missing import Failed, Missing
from attnreg_playground.real.swap import Heads
from attnreg_playground.real.text_line import HEIGHT, NUM_HEADS, NUM_LAYERS, STEPS, WIDTH
from attnreg_playground.texts import problem, sentence


def draw(scene: Scene) -> Drawing:
    """Show what is read with the model's attention and with another, laid over the image."""
    if not scene["pixels"]:
        return Drawing(problem=problem("no_pixels", control="line"))
    held = np.frombuffer(base64.b64decode(scene["pixels"]), np.uint8)
    pixels = held.reshape(HEIGHT, WIDTH) / 255.0
    try:
        plain = text_line.read(pixels)
    except (Missing, Failed) as error:
        return Drawing(problem=error.problem())

    def show(attention: CheckedAttention) -> Drawing:
        layer, name = scene["layer"], attention.variant.name

        def replace(number: int, query: Any, key: Any, value: Any) -> Any:
            if scene["layers"] == "all" or number == layer:
                return attention(*_tensors(query, key, value)).numpy()
            return text_line.softmax(query, key, value)

        changed = text_line.read(pixels, replace)
        before = original(_tensors(*plain.heads[layer]))
        after = weights_of(attention, _tensors(*changed.heads[layer]))
        told = [
            (sentence("text_line.read"), plain.text or "–"),
            (sentence("text_line.swapped", variant=name), changed.text or "–"),
            (sentence("text_line.sure"), f"{plain.sure:.1%} → {changed.sure:.1%}"),
        ]
        tokens = [one or "·" for one in plain.steps]
        image = {"pixels": pixels, "rows": 1, "columns": STEPS}
        key = (
            "text_line.said_same"
            if _letters(plain.text) == _letters(changed.text)
            else "text_line.said_differ"
        )
        return Drawing(
            figures=(
                facts("facts", sentence("swap.facts", variant=name), told),
                *two_maps(before, after, tokens, scene["head"], name, image),
            ),
            said=sentence(key, variant=name),
            notes=(sentence("note.trained_with_softmax"), sentence("text_line.note")),
            formula=attention.variant.formula,
            arrays={
                "own": before.numpy(),
                **({} if after is None else {"swapped": after.numpy()}),
                "pixels": pixels,
            },
        )

    return with_variant(scene, NUM_HEADS, plain.heads[0][0].shape[-1], STEPS, show)


def _letters(text: str) -> str:
    """Leave out spaces, of which a recogniser is never sure."""
    return "".join(text.split())


def _tensors(query: Any, key: Any, value: Any) -> Heads:
    """Return heads whose query is not scaled yet: the model's own scale is in its query."""
    scaled = torch.from_numpy(query) * query.shape[-1] ** 0.5
    return Heads(scaled, torch.from_numpy(key), torch.from_numpy(value))


PAGE = Page(
    "text_line",
    "models",
    (
        Control("line", "text", "我爱你 自注意力", limit=24, noted=True, rows=1),
        Control("strokes", "strokes", "", label="control.drawing"),
        Control("pixels", "pixels", "", shape=(HEIGHT, WIDTH)),
        *VARIANT,
        Control("layers", "choice", "one", choices=("one", "all")),
        Control("layer", "slider", 1, high=NUM_LAYERS - 1),
        Control("head", "hidden", 3, low=HEAD.low, high=HEAD.high),
    ),
    draw,
    presets={
        "default": {},
        "every_layer": {"layers": "all"},
        "linear": {"variant": "linear", "layers": "all"},
        "euclidean": {"variant": "euclidean", "layers": "all"},
    },
    seconds=40.0,
)
