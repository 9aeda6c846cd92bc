"""What the Explore tab shows for the state of its controls; no Gradio here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnreg import AttnregError, Mask, Registry, Variant
from attnreg_playground import models
from attnreg_playground.attend import Picture, Setting, attend, refusal
from attnreg_playground.form import read_form
from attnreg_playground.inputs import Embedded, Problem, Projected, Sentence, embed, from_model

MAX_HEADS = 16
MAX_PADDING = 32
MAX_SEED = 9999

DEFAULT_TEXT = "我爱你"
DEFAULT_PASSAGE = "The animal didn't cross the street because it was too tired."


@dataclass(frozen=True)
class Controls:
    """The state of every control of the tab, as it comes from the browser."""

    variant: str
    options: Mapping[str, Mapping[str, Any]]
    """By variant: what its form holds, so that no variant ever sees another's values."""
    source: str
    text: str
    passage: str
    layer: Any
    heads: Any
    causal: Any
    padding: Any
    seed: Any


@dataclass(frozen=True)
class View:
    """What to show: the picture or why there is none, and what is wrong in the form."""

    shown: Picture | Problem
    wrong: tuple[Problem, ...] = ()


def look(registry: Registry, controls: Controls) -> View:
    """Check the controls, run the variant, and return what there is to show."""
    if not len(registry):
        return View(Problem(Sentence("problem.none"), Sentence("problem.none_detail")))
    try:
        variant = registry.variant(controls.variant)
        plugin = registry.owner(controls.variant)
    except (AttnregError, TypeError, AttributeError) as error:
        return View(Problem(Sentence("problem.variant"), str(error)))
    options, wrong = read_form(variant, controls.options.get(variant.name, {}))
    if wrong:
        return View(wrong[0], tuple(wrong))
    numbers = _numbers(controls)
    if isinstance(numbers, Problem):
        return View(numbers)
    inputs: Embedded | Projected | Problem
    if controls.source == "real":
        inputs = from_model(str(controls.passage or ""), numbers["layer"])
    else:
        inputs = embed(str(controls.text or ""), numbers["heads"], numbers["seed"])
    if isinstance(inputs, Problem):
        return View(inputs)
    setting = Setting(
        scale=options.pop("scale", None) if "scale" in variant.common else None,
        options=options,
        causal=bool(controls.causal) or not variant.capabilities.noncausal,
        padding=numbers["padding"],
        seed=numbers["seed"],
    )
    shown = attend(variant, plugin, inputs, setting)
    wrong_here = isinstance(shown, Problem) and shown.control
    return View(shown, (shown,) if wrong_here and isinstance(shown, Problem) else ())


@dataclass(frozen=True)
class Gate:
    """Whether a control can be used with a variant, and if not, the variant's own reason."""

    open: bool
    reason: str = ""
    forced: bool = False
    """The variant needs it: it is set, and cannot be unset."""


def causal_gate(variant: Variant, ticked: bool) -> Gate:
    """Say whether the causal control is usable; a ticked one can always be unticked again."""
    if not variant.capabilities.noncausal:
        return Gate(False, refusal_of_noncausal(variant), forced=True)
    if variant.capabilities.causal:
        return Gate(True)
    return Gate(ticked, refusal(variant, Mask(causal=True)))


def padding_gate(variant: Variant, count: int) -> Gate:
    """Say whether the padding control is usable; one that is set can always be set back."""
    if variant.capabilities.key_valid:
        return Gate(True)
    return Gate(count > 0, refusal(variant, Mask(key_valid=torch.ones(1, 1, dtype=torch.bool))))


def refusal_of_noncausal(variant: Variant) -> str:
    """Return the variant's typed refusal of a call that is not causal."""
    return refusal(variant, Mask())


def _numbers(controls: Controls) -> dict[str, int] | Problem:
    limits = {
        "heads": (1, MAX_HEADS),
        "layer": (0, models.NUM_LAYERS - 1),
        "padding": (0, MAX_PADDING),
        "seed": (0, MAX_SEED),
    }
    found: dict[str, int] = {}
    for name, (low, high) in limits.items():
        raw = getattr(controls, name)
        number = isinstance(raw, (int, float)) and not isinstance(raw, bool)
        if not number or not low <= raw <= high or raw != int(raw):
            fields = {"name": name, "low": low, "high": high, "value": repr(raw)[:80]}
            return Problem(Sentence("problem.control"), Sentence("problem.control_detail", fields))
        found[name] = int(raw)
    return found
