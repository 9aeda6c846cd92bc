"""The controls of an input and of a variant, and how pages read them: Explore and Compare share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from attnreg import AttnregError, Mask, Registry, Variant
from attnreg_playground import inputs
from attnreg_playground.attend import Setting, refusal
from attnreg_playground.controls import Control, seed
from attnreg_playground.drawing import Drawing, Scene, Step
from attnreg_playground.form import read_form
from attnreg_playground.inputs import Given
from attnreg_playground.real import digits, minilm
from attnreg_playground.texts import Problem, problem
from attnreg_playground.tokens import MAX_CHARACTERS, MAX_TOKENS

MAX_HEADS = 16

TEXT = "我爱你"
PASSAGE = "The animal didn't cross the street because it was too tired."

SOURCES = ("text", "chance", "digit", "real")

INPUT = (
    Control("source", "choice", "text", choices=SOURCES),
    Control("text", "text", TEXT, limit=MAX_CHARACTERS, when=("source", ("text",)), noted=True),
    Control("length", "slider", 64, low=1, high=MAX_TOKENS, when=("source", ("chance",))),
    Control("keys", "slider", 0, high=MAX_TOKENS, when=("source", ("chance",)), noted=True),
    Control("digit", "slider", 3, high=digits.COUNT - 1, when=("source", ("digit",)), noted=True),
    Control(
        "passage", "text", PASSAGE, limit=MAX_CHARACTERS, when=("source", ("real",)), noted=True
    ),
    Control("layer", "slider", 2, high=minilm.NUM_LAYERS - 1, when=("source", ("real",))),
    Control(
        "heads", "slider", 4, low=1, high=MAX_HEADS, when=("source", ("text", "chance", "digit"))
    ),
)

MASK = (
    Control("causal", "check", False),
    Control("padding", "slider", 0, high=64, noted=True),
    Control("window", "slider", 0, high=64, noted=True),
    Control("border", "slider", 0, high=64, noted=True),
    seed(),
)

HEAD = Control("head", "hidden", 0, low=-2, high=63)


class Chosen(NamedTuple):
    """A variant with the plugin that brings it and the options it is to have."""

    variant: Variant
    plugin: str
    options: Mapping[str, Any]


def choose(registry: Registry, name: str, form: Mapping[str, Any]) -> Chosen | Problem:
    """Return a variant by its exact name, with the options of its form."""
    if not len(registry):
        return problem("none")
    if name not in registry:
        try:
            registry.variant(name)
        except AttnregError as error:
            return problem("variant", str(error), control="variant")
        return problem("variant", f"{name!r} is not listed", control="variant")
    variant = registry[name]
    options, wrong = read_form(variant, form)
    return wrong[0] if wrong else Chosen(variant, registry.owner(name), options)


def watched(
    chosen: Chosen, steps: Iterator[Drawing | Step], other: Chosen | None = None
) -> Iterator[Drawing | Step]:
    """Pass on a training; what fails in it becomes a problem that names the plugins."""
    plugins = chosen.plugin if other is None else f"{chosen.plugin}, {other.plugin}"
    names = chosen.variant.name if other is None else f"{chosen.variant.name}, {other.variant.name}"
    try:
        yield from steps
    except AttnregError as error:
        yield Drawing(problem=problem("refused", str(error), variant=names))
    except (Exception, SystemExit) as error:
        told = f"{type(error).__name__}: {error}"[:1000]
        yield Drawing(problem=problem("plugin", plugin=plugins, variant=names, error=told))


def read_input(scene: Scene) -> Given | Problem:
    """Return the input that the controls ask for."""
    source = scene["source"]
    if source == "real":
        return inputs.from_model(scene["passage"], scene["layer"])
    if source == "chance":
        return inputs.random(scene["length"], scene["keys"], scene["heads"], scene["seed"])
    if source == "digit":
        return inputs.digit(scene["digit"], scene["heads"], scene["seed"])
    return inputs.embed(scene["text"], scene["heads"], scene["seed"])


def read_setting(scene: Scene, chosen: Chosen) -> Setting:
    """Return how the variant is to be run; one that needs a causal mask gets it."""
    return Setting(
        chosen.options,
        causal=scene["causal"] or not chosen.variant.capabilities.noncausal,
        padding=scene["padding"],
        window=scene["window"],
        border=scene["border"],
        seed=scene["seed"],
    )


def gates(variant: Variant) -> Mapping[str, Mapping[str, Any]]:
    """Return the mask controls that a variant closes, each with its own reason.

    ``forced`` is what a variant needs: it is set, and cannot be unset.
    """
    return _gates(variant)


@lru_cache(maxsize=64)
def _gates(variant: Variant) -> Mapping[str, Mapping[str, Any]]:
    able = variant.capabilities
    asked = {
        "causal": (able.causal, Mask(causal=True)),
        "padding": (able.key_valid, Mask(key_valid=torch.ones(1, 1, dtype=torch.bool))),
        "window": (able.window, Mask(window=(1, 1))),
        "border": (able.packed, Mask.packed([1])),
    }
    closed: dict[str, Mapping[str, Any]] = {
        name: {"reason": refusal(variant, mask)} for name, (can, mask) in asked.items() if not can
    }
    if not able.noncausal:
        closed["causal"] = {"reason": refusal(variant, Mask()), "forced": True}
    return closed
