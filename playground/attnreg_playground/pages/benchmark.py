"""Benchmark: time and memory of variants over the length, measured while one watches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Literal

import numpy as np

from attnreg import AttnregError, Variant
from attnreg import benchmark as measuring
from attnreg_playground.controls import Control
from attnreg_playground.drawing import Drawing, Finding, Page, Scene, Step
from attnreg_playground.figures import curves, table
from attnreg_playground.texts import Sentence, problem, sentence

LENGTHS = {"short": "128:1024", "middle": "256:4096", "long": "1024:16384"}
MEMORY = "2GiB"
"""What one call may need."""


def draw(scene: Scene) -> Iterator[Drawing | Step]:
    """Run the benchmark, and show what is known after every cell."""
    unknown = [name for name in scene["variants"] if name not in scene.registry]
    if unknown:
        yield Drawing(problem=problem("variant", f"{unknown[0]!r} is not listed"))
        return
    chosen = [scene.registry[name] for name in scene["variants"]]
    try:
        events = measuring.run(
            [_named(one) for one in chosen],
            lengths=LENGTHS[scene["lengths"]],
            modes=scene["mode"],
            against="sdpa" if scene["against_sdpa"] else None,
            causal=scene["causal"],
            heads=scene["heads"],
            head_dim=int(scene["head_dim"]),
            seconds=scene["seconds"],
            repeat=20,
            memory=MEMORY,
            seed=0,
            unchecked=not scene["verified"],
        )
    except AttnregError as error:
        yield Drawing(problem=problem("benchmark", str(error)))
        return
    report: measuring.Report | None = None
    with closing(events):
        for event in events:
            if report is None and isinstance(event, measuring.Started):
                report = measuring.Report.of([event])
            elif isinstance(event, measuring.Step):
                told = sentence(f"benchmark.phase_{event.phase}", text=event.text)
                yield Step(event.done, max(event.total, 1), told)
            elif report is not None:
                report.add(event)
                if isinstance(event, (measuring.Measurement, measuring.Verdict)):
                    yield shown(report)
    if report is not None:
        yield shown(report)


def _named(variant: Variant) -> str | Variant:
    """Name what is installed, so that other processes find it by its name."""
    from attnreg import default_registry

    return variant.name if default_registry().get(variant.name) is variant else variant


def shown(report: measuring.Report) -> Drawing:
    """Return the curves and the table of a report, finished or not."""
    growths = {(one.subject, one.quantity): one for one in report.growths()}
    lines: dict[str, list[dict[str, Any]]] = {"time": [], "memory": []}
    rows: list[list[Any]] = []
    tones: list[list[str]] = []
    settings = report.started.settings
    for subject in report.started.subjects:
        cells = [one for one in report.measurements if one.subject == subject.label]
        good = [one for one in cells if one.median is not None]
        series: tuple[tuple[Literal["time", "memory"], list[tuple[int, float]]], ...] = (
            ("time", [(one.length, (one.median or 0.0) * 1e3) for one in good]),
            ("memory", [(one.length, one.peak_bytes / 2**20) for one in good if one.peak_bytes]),
        )
        for measure, values in series:
            growth = growths.get((subject.label, measure))
            if values:
                lines[measure].append(
                    {
                        "name": subject.label,
                        "x": [length for length, _ in values],
                        "y": [value for _, value in values],
                        "slope": None if growth is None else growth.exponent,
                    }
                )
        for one in cells:
            rows.append(
                [
                    one.subject,
                    one.length,
                    "–" if one.median is None else f"{one.median * 1e3:.3g}",
                    "–" if one.spread is None else f"{one.spread * 1e3:.2g}",
                    "–" if one.peak_bytes is None else f"{one.peak_bytes / 2**20:.3g}",
                    one.implementation or "–",
                    one.reason or one.status,
                ]
            )
            tones.append(["", "", "", "", "", "", "" if one.status == "ok" else "bad"])
    limit = (sentence("benchmark.limit"), settings.memory / 2**20)
    columns = ("variant", "length", "ms", "spread", "mib", "implementation", "status")
    return Drawing(
        figures=(
            curves("time", sentence("benchmark.time"), lines["time"],
                   x=sentence("axis.length"), y=sentence("axis.milliseconds")),
            curves("memory", sentence("benchmark.memory"), lines["memory"],
                   x=sentence("axis.length"), y=sentence("axis.mebibytes"), limit=limit),
            table("cells", sentence("benchmark.cells"),
                  [sentence(f"benchmark.{one}") for one in columns], rows, tones=tones),
        ),
        said=sentence("benchmark.said"),
        notes=(*_notes(report),),
        findings=_findings(report),
        arrays=_arrays(report),
        python=_python(report),
    )  # fmt: skip


def _notes(report: measuring.Report) -> list[Sentence]:
    machine, settings = report.started.machine, report.started.settings
    notes = [
        sentence(
            "benchmark.machine",
            processor=machine.processor,
            cores=machine.cores,
            threads=settings.threads,
            torch=machine.torch,
        )
    ]
    if settings.unchecked:
        notes.append(sentence("benchmark.unchecked"))
    return notes


def _findings(report: measuring.Report) -> tuple[Finding, ...]:
    found: list[Finding] = []
    for verdict in report.verdicts if report.checked else ():
        tone: Any = "good" if verdict.ok else "bad"
        told = sentence("benchmark.verdict", variant=verdict.variant, verdict=verdict.verdict)
        found.append(Finding(tone, told))
    for growth in report.growths():
        if len(growth.lengths) > 1:
            told = sentence(
                "benchmark.growth",
                subject=growth.subject,
                measure=sentence(f"benchmark.{growth.quantity}"),
                slope=f"{growth.exponent:.2f}",
                verdict=growth.verdict or "–",
            )
            found.append(Finding("plain", told))
    for ratio in report.ratios():
        if not ratio.conclusive:
            told = sentence("benchmark.inconclusive", subject=ratio.subject, length=ratio.length)
            found.append(Finding("plain", told))
    return tuple(found)


def _arrays(report: measuring.Report) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for subject in report.started.subjects:
        good = [
            one for one in report.measurements
            if one.subject == subject.label and one.median is not None
        ]  # fmt: skip
        name = subject.label.replace(":", "_")
        arrays[f"{name}_lengths"] = np.array([one.length for one in good])
        arrays[f"{name}_seconds"] = np.array([one.median for one in good])
        arrays[f"{name}_bytes"] = np.array([one.peak_bytes or np.nan for one in good])
    return arrays


def _python(report: measuring.Report) -> str:
    settings = report.started.settings
    names = [one.label for one in report.started.subjects if one.label != "sdpa"]
    against = any(one.label == "sdpa" for one in report.started.subjects)
    return f"""from attnreg import benchmark

events = benchmark.run(
    {names}, lengths={list(settings.lengths)}, modes={list(settings.modes)},
    causal={settings.causal}, against={"'sdpa'" if against else None},
    heads={settings.heads}, head_dim={settings.head_dim},
    seconds={settings.seconds}, memory={settings.memory}, unchecked={settings.unchecked},
)
print("\\n".join(benchmark.Report.of(events).lines()))
"""


PAGE = Page(
    "benchmark",
    "benchmark",
    (
        Control(
            "variants", "variants", ["scaled_dot_product", "linear", "sparse_window"], limit=12
        ),
        Control("lengths", "choice", "short", choices=tuple(LENGTHS)),
        Control("mode", "choice", "forward", choices=("forward", "backward")),
        Control("causal", "check", False),
        Control("heads", "slider", 4, low=1, high=16),
        Control("head_dim", "choice", "32", choices=("16", "32", "64", "128")),
        Control("seconds", "slider", 1.0, low=0.2, high=10.0, step=0.1, noted=True),
        Control("against_sdpa", "check", False),
        Control("verified", "check", False, noted=True),
    ),
    draw,
    presets={
        "softmax_linear": {"variants": ["scaled_dot_product", "linear"]},
        "every_linear": {"variants": ["linear", "linformer", "performer", "sparse_window"]},
        "causal": {"variants": ["scaled_dot_product", "linear", "performer"], "causal": True},
    },
    started=True,
    heavy=True,
    seconds=600.0,
    wide=True,
)
