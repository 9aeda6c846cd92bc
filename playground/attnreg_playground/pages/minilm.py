"""MiniLM on an English sentence: its own attention beside another variant in the same place."""

from __future__ import annotations

from attnreg import CheckedAttention
from attnreg_playground.controls import Control
from attnreg_playground.drawing import Drawing, Page, Scene
from attnreg_playground.figures import facts
from attnreg_playground.given import HEAD, PASSAGE
from attnreg_playground.pages.swapping import (
    VARIANT,
    instead,
    original,
    two_maps,
    weights_of,
    with_variant,
)
from attnreg_playground.real import minilm
from attnreg_playground.real.missing import Failed, Missing
from attnreg_playground.texts import problem, sentence

SECOND = "The tired creature stayed on its side of the road."
THIRD = "Interest rates were left unchanged by the bank."


def draw(scene: Scene) -> Drawing:
    """Show a layer's weights with both, and how far the sentence embedding moves."""
    texts = [scene["passage"], scene["second"]]
    if not all(text.strip() for text in texts):
        return Drawing(problem=problem("empty", control="passage"))
    try:
        passages = [minilm.read(text) for text in texts]
        plain = [minilm.embedding(text) for text in texts]
    except (Missing, Failed) as error:
        return Drawing(problem=error.problem())
    length = max(len(one.tokens) for one in passages)

    def show(attention: CheckedAttention) -> Drawing:
        replace, layer, name = instead(scene, attention), scene["layer"], attention.variant.name
        changed = [minilm.embedding(text, replace) for text in texts]
        before = original(plain[0][1][layer])
        after = weights_of(attention, changed[0][1][layer])
        similar = [float(pair[0][0] @ pair[1][0]) for pair in (plain, changed)]
        kept = float(plain[0][0] @ changed[0][0])
        told = [
            (sentence("minilm.similar"), f"{similar[0]:.3f} → {similar[1]:.3f}"),
            (sentence("minilm.kept"), f"{kept:.3f}"),
        ]
        unknown = sum(one.unknown for one in passages)
        return Drawing(
            figures=(
                facts("facts", sentence("swap.facts", variant=name), told),
                *two_maps(before, after, passages[0].tokens, scene["head"], name),
            ),
            said=sentence("minilm.said", variant=name, kept=f"{kept:.3f}"),
            notes=(
                sentence("note.trained_with"),
                *((sentence("note.unknown", count=unknown),) if unknown else ()),
                sentence("about.caution"),
            ),
            formula=attention.variant.formula,
            arrays={
                "own": before.numpy(),
                **({} if after is None else {"swapped": after.numpy()}),
                "embedding": plain[0][0].numpy(),
                "swapped_embedding": changed[0][0].numpy(),
            },
        )

    return with_variant(scene, minilm.NUM_HEADS, minilm.HEAD_DIM, length, show)


PAGE = Page(
    "minilm",
    "models",
    (
        Control("passage", "text", PASSAGE, limit=1000, noted=True),
        Control("second", "text", SECOND, limit=1000, label="control.other_passage", noted=True),
        *VARIANT,
        Control("layers", "choice", "one", choices=("one", "all")),
        Control("layer", "slider", 2, high=minilm.NUM_LAYERS - 1),
        HEAD,
    ),
    draw,
    presets={
        "default": {},
        "every_layer": {"layers": "all"},
        "unrelated": {"second": THIRD, "layers": "all"},
        "window": {"variant": "sparse_window", "layers": "all"},
    },
    seconds=40.0,
)
