"""Conformance: the laws of a variant as tiles that fill while they run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Literal

import numpy as np

from attnreg import Variant
from attnreg import conformance as suite
from attnreg.conformance.report import plain
from attnreg.conformance.running import report_of
from attnreg_playground.controls import Control
from attnreg_playground.drawing import Drawing, Finding, Page, Scene, Step
from attnreg_playground.figures import tiles
from attnreg_playground.given import Chosen, choose
from attnreg_playground.texts import Problem, sentence

EVERY = 0.3
"""Seconds between two pictures."""

LONGEST = 4000
"""Characters that are shown of one piece of evidence."""


def draw(scene: Scene) -> Iterator[Drawing | Step]:
    """Run the suite on a variant, in processes of its own, and show every result as it comes."""
    chosen = choose(scene.registry, scene["variant"], {})
    if isinstance(chosen, Problem):
        yield Drawing(problem=chosen)
        return
    profile: Literal["full", "fast"] = "full" if scene["profile"] == "full" else "fast"
    families = None if scene["family"] == "all" else [scene["family"]]
    results = suite.stream(_target(chosen), profile=profile, checks=families)
    known = suite.known_checks()
    wanted = [
        one for one in known.values()
        if (profile == "full" or not one.full)
        and (families is None or one.id.startswith(f"{families[0]}-"))
    ]  # fmt: skip
    tile_of: dict[str, dict[str, Any]] = {
        one.id: {"id": one.id, "status": "waiting", "level": one.level, "law": one.summary}
        for one in wanted
    }
    shown = 0.0
    yield _drawing(chosen.variant, profile, families, tile_of)
    collected: list[suite.Result] = []
    with closing(results):
        for result in results:
            collected.append(result)
            tile_of[result.check] = tile(result)
            yield Step(
                len(collected), results.total, sentence("conformance.step", check=result.check)
            )
            if time.monotonic() - shown > EVERY:
                shown = time.monotonic()
                yield _drawing(chosen.variant, profile, families, tile_of)
    yield _drawing(chosen.variant, profile, families, tile_of, report_of(results, collected))


def _target(chosen: Chosen) -> str | Variant:
    from attnreg import default_registry

    own = default_registry().get(chosen.variant.name)
    return chosen.variant.name if own is chosen.variant else chosen.variant


def tile(result: suite.Result) -> dict[str, Any]:
    """Return a result as what one tile shows, and what it shows when it is opened."""
    seen: Mapping[str, Any] = result.evidence if result.status != "pass" else {}
    return {
        "id": result.check,
        "status": result.status,
        "level": result.level,
        "law": result.summary,
        "seconds": result.seconds,
        "message": _text(seen.get("message", "")),
        "call": _text(seen.get("call", "")),
        "expected": _text(seen.get("expected", "")),
        "actual": _text(seen.get("actual", "")),
        "snippet": _text(seen.get("snippet", "")),
    }


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value[:LONGEST]
    return "" if value in (None, "") else json.dumps(plain(value), ensure_ascii=False)[:LONGEST]


def _drawing(
    variant: Variant,
    profile: str,
    families: list[str] | None,
    tile_of: Mapping[str, Mapping[str, Any]],
    report: suite.Report | None = None,
) -> Drawing:
    found = list(tile_of.values())
    counts = {
        status: sum(one["status"] == status for one in found)
        for status in ("pass", "fail", "xfail", "skip", "error", "waiting")
    }
    checks = "" if families is None else f", checks={families}"
    return Drawing(
        figures=(tiles("laws", sentence("conformance.title", variant=variant.name), found),),
        said=sentence("conformance.said", **counts),
        notes=(
            sentence("conformance.profile", profile=sentence(f"choice.{profile}")),
            *(() if report is None or report.contained else (sentence("conformance.here"),)),
        ),
        findings=() if report is None else (_verdict(report, families),),
        arrays={"counts": np.array(list(counts.values()))},
        python=f"from attnreg import conformance\n\n"
        f"print(conformance.run({variant.name!r}, profile={profile!r}{checks}))\n",
    )


def _verdict(report: suite.Report, families: list[str] | None) -> Finding:
    """Say what the suite says; of one family it says whether that holds, and no more."""
    bad = sum(result.bad for result in report)
    if bad:
        return Finding("bad", sentence("conformance.bad", variant=report.variant, count=bad))
    if families is None and report.ok:
        return Finding("good", sentence("conformance.good", variant=report.variant))
    return Finding("plain", sentence("conformance.part", variant=report.variant))


PAGE = Page(
    "conformance",
    "conformance",
    (
        Control("variant", "variant", "linear"),
        Control("profile", "choice", "fast", choices=("fast", "full")),
        Control(
            "family", "choice", "all",
            choices=("all", "R", "N", "G", "C", "M", "I", "S", "X", "P", "L", "T", "W", "A", "Q"),
            noted=True,
        ),
    ),
    draw,
    presets={"masks": {"family": "M"}, "gradients": {"family": "G"}},
    started=True,
    heavy=True,
    seconds=900.0,
    wide=True,
)  # fmt: skip
