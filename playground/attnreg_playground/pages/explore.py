"""Explore: any variant, its options, an input, a mask, and the weights of every head."""

from __future__ import annotations

from attnreg_playground.attend import IMPORTS, Picture, attend, python_of
from attnreg_playground.controls import Control
from attnreg_playground.drawing import Drawing, Page, Scene
from attnreg_playground.given import (
    HEAD,
    INPUT,
    MASK,
    choose,
    gates,
    read_input,
    read_setting,
)
from attnreg_playground.heat import heat
from attnreg_playground.recent import Recent
from attnreg_playground.texts import Problem, sentence

_recent: Recent[Picture | Problem] = Recent(8)


def draw(scene: Scene) -> Drawing:
    """Show the weights of the variant that is chosen."""
    chosen = choose(scene.registry, scene["variant"], scene["options"])
    if isinstance(chosen, Problem):
        return Drawing(problem=chosen)
    closed = gates(chosen.variant)
    asked = {name: value for name, value in scene.values.items() if name != "head"}

    def look() -> Picture | Problem:
        given = read_input(scene)
        if isinstance(given, Problem):
            return given
        return attend(chosen.variant, chosen.plugin, given, read_setting(scene, chosen))

    shown = _recent.get(asked, look)
    if isinstance(shown, Problem):
        return Drawing(problem=shown, gates=closed)
    given = shown.given
    figure = heat(
        shown.weights,
        given.queries,
        given.keys,
        name="weights",
        title=sentence("map.title", variant=shown.variant),
        head=scene["head"],
        tag=sentence(f"map.{shown.kind}"),
        visible=shown.visible,
        key_valid=shown.key_valid,
        border=scene["border"],
        image=given.image,
    )
    query, key, value = shown.heads
    return Drawing(
        figures=(figure,),
        said=sentence(f"explore.{shown.kind}"),
        formula=chosen.variant.formula,
        notes=shown.notes,
        findings=shown.findings,
        arrays={
            "weights": shown.weights,
            "output": shown.output,
            "query": query,
            "key": key,
            "value": value,
        },
        python=f"{IMPORTS}{python_of(chosen.variant, given, shown.setting)}"
        "print(weights[0])  # (heads, queries, keys)\n",
        gates=closed,
    )


LONG = "注意力让每个字直接看见每个字，无论它们相距多远。 Attention lets every word see every word."

PAGE = Page(
    "explore",
    "explore",
    (
        Control("variant", "variant", "scaled_dot_product"),
        Control("options", "options", {}, of="variant"),
        *INPUT,
        *MASK,
        HEAD,
    ),
    draw,
    presets={
        "default": {},
        "window": {"variant": "sparse_window", "text": LONG, "options": {"left": 3, "right": 3}},
        "signed": {"variant": "performer", "text": LONG},
        "causal": {"text": LONG, "causal": True},
        "packed": {"text": LONG, "border": 22},
        "long": {"source": "chance", "length": 512, "heads": 12},
        "image": {"source": "digit", "variant": "cosine"},
        "sharp": {"text": LONG, "options": {"temperature": "0.1"}},
    },
)
