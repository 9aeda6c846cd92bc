"""What a worker can be asked to do, by name; nothing else is ever run because of a request."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from attnreg import AttnregError, Registry, conformance
from attnreg import benchmark as measuring
from attnreg.conformance.report import plain
from attnreg_playground.controls import Wrong, read_all
from attnreg_playground.drawing import Drawing, Drawn, Page, Scene, Step
from attnreg_playground.pages.compare import differences
from attnreg_playground.pages.index import PAGES
from attnreg_playground.texts import localise, problem

Message = dict[str, Any]

MOST_LISTED = 200_000
"""Weights that one answer lists: as text each takes twenty characters."""


def drawing(registry: Registry, page: str, values: Any) -> Drawn:
    """Draw a page of plain values; raise ``Wrong`` for a page or a value that there is not."""
    found = _page(page)
    return found.draw(Scene(registry, read_all(found.controls, values)))


def draw(registry: Registry, page: str, values: Any, language: str) -> Iterator[Message]:
    """Yield how far a drawing is, what is known so far, and then the whole, for the browser."""
    try:
        made = drawing(registry, page, values)
        parts: Iterator[Drawing | Step] = iter((made,)) if isinstance(made, Drawing) else made
        last: Drawing | None = None
        for part in parts:
            if isinstance(part, Step):
                told = {"done": part.done, "total": part.total}
                yield {"step": {**told, "text": localise(part.text, language)}}
            else:
                if last is not None:
                    yield {"partial": last.to_json(language)}
                last = part
        assert last is not None  # for mypy: a page draws something
    except Wrong as error:
        last = Drawing(problem=error.problem)
    yield {"result": {**last.to_json(language), "python": python_of(page, values, last)}}


def export(registry: Registry, page: str, values: Any) -> Message:
    """Return the numbers of a page as the bytes of an npz file."""
    last = final(registry, page, values)
    if last.problem is not None:
        return {"problem": localise(last.problem, "en")}
    kept = io.BytesIO()
    np.savez(kept, **last.arrays)  # type: ignore[arg-type]  # arrays, by name
    return {"name": f"{page}.npz", "base64": base64.b64encode(kept.getvalue()).decode()}


def python_of(page: str, values: Any, shown: Drawing) -> str:
    """Return the page's own Python, or the call of ``draw`` that gives its numbers."""
    known = PAGES.get(page) if isinstance(page, str) else None
    if shown.python or known is None or known.started or not shown.arrays:
        return shown.python
    own = {one.name: one.default for one in known.controls}
    asked = {
        name: value
        for name, value in values.items()
        if name in own and value != own[name] and name != "head"
    }
    given = "".join(f", {name}={value!r}" for name, value in asked.items())
    return f"""from attnreg_playground import draw

found = draw({page!r}{given})
for name, numbers in found.items():
    print(name, numbers)
"""


def final(registry: Registry, page: str, values: Any) -> Drawing:
    """Return what a page shows in the end."""
    try:
        made = drawing(registry, page, values)
        if isinstance(made, Drawing):
            return made
        drawn = [part for part in made if isinstance(part, Drawing)]
        return drawn[-1]
    except Wrong as error:
        return Drawing(problem=error.problem)


def describe(registry: Registry, variant: str) -> Message:
    """Return all that a variant declares, and who brings it."""
    try:
        found = registry.variant(variant)
    except AttnregError as error:
        return {"error": str(error)}
    return {**found.describe(), "distribution": registry.owner(variant)}


def attend(registry: Registry, **values: Any) -> Message:
    """Return the weights of a variant on an input, as lists (heads, queries, keys)."""
    shown = final(registry, "explore", values)
    if shown.problem is not None:
        return _error(shown)
    weights = shown.arrays["weights"]
    if weights.size > MOST_LISTED:
        return {
            "error": f"{weights.size:,} weights are more than {MOST_LISTED:,}, which an answer may "
            "list: take fewer heads or a shorter input"
        }
    figure = shown.figures[0]
    return {
        "variant": values.get("variant", "scaled_dot_product"),
        "queries": figure["queries"],
        "keys": figure["keys"],
        "weights": weights.tolist(),
        "output": shown.arrays["output"].tolist(),
        "kind": registry[values.get("variant", "scaled_dot_product")].capabilities.weights,
        "notes": localise(list(shown.notes), "en"),
        "findings": [localise(one.sentence, "en") for one in shown.findings],
        "python": shown.python,
    }


def compare(registry: Registry, **values: Any) -> Message:
    """Return how far two variants are apart on the same input."""
    shown = final(registry, "compare", values)
    if shown.problem is not None:
        return _error(shown)
    if shown.arrays["a"].size > MOST_LISTED // 2:
        return {"error": "too many weights to list: take fewer heads or a shorter input"}
    verdict, a, b, _ = shown.figures
    weights, output, cosine = differences(shown.arrays)
    return {
        "a": values.get("variant", "scaled_dot_product"),
        "b": values.get("other", "linear"),
        "max_weight_difference": weights,
        "max_output_difference": output,
        "output_cosine": cosine,
        "weights_a": shown.arrays["a"].tolist(),
        "weights_b": shown.arrays["b"].tolist(),
        "queries": a["queries"],
        "keys": b["keys"],
        "verdict": [[one["label"], one["value"]] for one in localise(verdict["rows"], "en")],
        "python": shown.python,
    }


def benchmark(registry: Registry, variants: list[str], **asked: Any) -> Iterator[Message]:
    """Yield each measurement as it comes, and then the whole report."""
    try:
        events = measuring.run(variants, **asked)
        report: measuring.Report | None = None
        for event in events:
            if report is None and isinstance(event, measuring.Started):
                report = measuring.Report.of([event])
            elif report is not None:
                report.add(event)
                if isinstance(event, measuring.Measurement):
                    yield {"item": plain(vars(event))}
        assert report is not None  # for mypy: a run begins with Started
        yield {"result": plain(report.to_dict())}
    except (AttnregError, TypeError) as error:
        yield {"result": {"error": str(error)}}


def conform(registry: Registry, variant: str, profile: Any, checks: Any) -> Iterator[Message]:
    """Yield each result of the conformance suite as it comes, and then the whole report."""
    from attnreg.conformance.running import report_of

    try:
        results = conformance.stream(variant, profile=profile, checks=checks or None)
        collected = []
        for result in results:
            collected.append(result)
            kept = {"check": result.check, "status": result.status, "message": result.message}
            yield {"item": kept}
        yield {"result": plain(report_of(results, collected).to_dict())}
    except (AttnregError, TypeError) as error:
        yield {"result": {"error": str(error)}}


TASKS: Mapping[str, Callable[..., Any]] = {
    "draw": draw,
    "export": export,
    "describe": describe,
    "attend": attend,
    "compare": compare,
    "benchmark": benchmark,
    "conform": conform,
}


def _page(name: object) -> Page:
    found = PAGES.get(name) if isinstance(name, str) else None
    if found is None:
        raise Wrong(problem("page", page=repr(name)[:80]))
    return found


def _error(shown: Drawing) -> Message:
    told = localise(shown.problem, "en")
    return {"error": f"{told['title']}: {told['detail']}"}
