"""Capabilities: what every variant declares, and what the conformance suite finds of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np

from attnreg import Registry, Variant
from attnreg import conformance as suite
from attnreg_playground.controls import Control
from attnreg_playground.drawing import Drawing, Page, Scene, Step
from attnreg_playground.figures import table
from attnreg_playground.texts import sentence

FIELDS = (
    "causal", "key_valid", "allowed", "bias", "window", "packed", "cross", "grouped", "value_dim",
    "dropout", "decode", "weights", "normalized", "differentiable", "compile",
)  # fmt: skip
REFUSALS = "R-00"
"""The check that what is not declared is refused, and what is declared is taken."""

_verified: dict[str, dict[str, str]] = {}
"""By variant, the status of each check that was run: it costs seconds, and does not change."""


def draw(scene: Scene) -> Iterator[Drawing | Step]:
    """Show the table; where it is asked for, run the checks behind each declaration."""
    chosen = [
        variant for variant in scene.registry.values()
        if scene["need"] == "any" or declares(variant, scene["need"])
    ]  # fmt: skip
    yield _drawing(scene.registry, chosen, scene["need"])
    if not scene["verify"]:
        return
    for place, variant in enumerate(chosen):
        if variant.name not in _verified:
            yield from _verify(scene.registry, variant, place, len(chosen))
            yield _drawing(scene.registry, chosen, scene["need"])


def declares(variant: Variant, field: str) -> bool:
    """Whether a variant declares a capability."""
    return getattr(variant.capabilities, field) not in (False, "none")


def behind(field: str) -> list[str]:
    """Return the checks of the fast profile that need a capability, and the one of refusals."""
    known = suite.known_checks().values()
    return [REFUSALS, *(one.id for one in known if field in one.needs and not one.full)]


def _verify(
    registry: Registry, variant: Variant, place: int, total: int
) -> Iterator[Drawing | Step]:
    wanted = list(dict.fromkeys(check for field in FIELDS for check in behind(field)))
    found: dict[str, str] = {}
    results = suite.stream(variant, profile="fast", checks=wanted)
    with closing(results):
        for result in results:
            found[result.check] = result.status
            told = sentence("capabilities.step", variant=variant.name, check=result.check)
            yield Step(place * 100 + 100 * len(found) / max(results.total, 1), total * 100, told)
    _verified[variant.name] = found


def status(variant: Variant, field: str) -> str:
    """Return "", "verified" or "wrong" for what was found of a declaration."""
    found = _verified.get(variant.name)
    if found is None:
        return ""
    wanted = behind(field) if declares(variant, field) else [REFUSALS]
    seen = [found[check] for check in wanted if check in found]
    if any(one in ("fail", "error") for one in seen):
        return "wrong"
    return "verified" if "pass" in seen else ""


def _drawing(registry: Registry, chosen: list[Variant], need: str) -> Drawing:
    rows, tones = [], []
    for variant in chosen:
        cells: list[Any] = [variant.name]
        tone = [""]
        for field in FIELDS:
            value = getattr(variant.capabilities, field)
            found = status(variant, field)
            shown: Any = {True: "●", False: "–", "none": "–"}.get(value)
            if shown is None:
                shown = sentence(f"capability.{value}")
            mark = {"verified": " ✓", "wrong": " ✗", "": ""}[found]
            cells.append(sentence("capabilities.cell", value=shown, mark=mark))
            tone.append({"verified": "good", "wrong": "bad", "": ""}[found])
        rows.append(cells)
        tones.append(tone)
    columns = [
        sentence("capabilities.variant"),
        *(sentence(f"can.{field}") for field in FIELDS),
    ]
    wrong = sum(one == "bad" for row in tones for one in row)
    count = sum(variant.name in _verified for variant in chosen)
    return Drawing(
        figures=(
            table("capabilities", sentence("capabilities.title"), columns, rows, tones=tones),
        ),
        said=sentence(
            "capabilities.said", count=len(chosen), total=len(registry), verified=count, wrong=wrong
        ),
        notes=(sentence("capabilities.legend"),),
        arrays={
            "declared": np.array([[declares(one, field) for field in FIELDS] for one in chosen]),
            "variants": np.array([one.name for one in chosen]),
            "fields": np.array(FIELDS),
        },
    )


PAGE = Page(
    "capabilities",
    "capabilities",
    (
        Control("need", "choice", "any", choices=("any", *FIELDS)),
        Control("verify", "check", False, noted=True),
    ),
    draw,
    presets={"can_decode": {"need": "decode"}, "can_pack": {"need": "packed"}},
    seconds=900.0,
    heavy="verify",
    wide=True,
)
