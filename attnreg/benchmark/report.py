"""``Report``: everything that a run found, what follows from it, and ways to write it down."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from attnreg.benchmark.growth import Crossover, Growth, crossover, fit
from attnreg.benchmark.ratio import Fastest, Ratio, compare
from attnreg.benchmark.records import (
    Event,
    Limits,
    Machine,
    Measurement,
    Settings,
    Started,
    Subject,
    Verdict,
)
from attnreg.benchmark.work import share
from attnreg.errors import OptionError

USUAL = "scaled_dot_product"
"""Crossovers are told against this one too, where it was measured."""

FORMAT = 1
"""The version of what ``to_json`` writes."""


@dataclass
class Report:
    """What a run found. ``add`` takes its events one by one, ``Report.of`` all of them.

    What follows from the measurements (``ratios``, ``growths``, ``crossovers``, shares) is computed
    when it is asked for, so that a report is complete at any moment of a run.
    """

    started: Started
    verdicts: list[Verdict] = field(default_factory=list)
    limits: Limits | None = None
    measurements: list[Measurement] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Report:
        """Collect what ``run`` yields, to its end."""
        left = iter(events)
        first = next(left, None)
        if not isinstance(first, Started):
            raise OptionError("a run yields Started first; this is not one, or not its beginning")
        report = cls(first)
        for event in left:
            report.add(event)
        return report

    def add(self, event: Event) -> None:
        """Take one event; a ``Step`` leaves nothing behind."""
        if isinstance(event, Verdict):
            self.verdicts.append(event)
        elif isinstance(event, Limits):
            self.limits = event
        elif isinstance(event, Measurement):
            self.measurements.append(event)

    @property
    def checked(self) -> bool:
        """Whether the conformance suite was asked about every variant."""
        return not self.started.settings.unchecked

    @property
    def ok(self) -> bool:
        """Whether no variant was left out for its verdict."""
        return not self.checked or all(one.ok for one in self.verdicts)

    def ratios(self) -> list[Ratio]:
        """Every measurement against that of ``started.against``, pair by pair."""
        by_cell = {(m.subject, m.mode, m.length): m for m in self.measurements}
        found: list[Ratio] = []
        for one in self.measurements:
            other = by_cell.get((self.started.against or "", one.mode, one.length))
            if other is None or other is one:
                continue
            ratio = compare(one, other)
            if ratio is not None:
                found.append(ratio)
        return found

    def growths(self) -> list[Growth]:
        """How time and memory of each subject and mode grow, fitted on the longer half."""
        found: list[Growth] = []
        kinds: tuple[Literal["time", "memory"], ...] = ("time", "memory")
        for subject in self.started.subjects:
            for mode in self.started.settings.modes:
                for quantity in kinds:
                    points = {
                        m.length: float(value)
                        for m in self._of(subject.label, mode)
                        if (value := m.median if quantity == "time" else _above_noise(m.peak_bytes))
                    }
                    declared = subject.time if quantity == "time" else subject.memory
                    growth = fit(subject.label, mode, quantity, points, declared)
                    found += [] if growth is None else [growth]
        return found

    def fastest(self) -> list[Fastest]:
        """Who takes the least time at each mode and length, where two were timed."""
        found: list[Fastest] = []
        for mode in self.started.settings.modes:
            for length in self.started.settings.lengths:
                timed = [
                    m
                    for m in self.measurements
                    if (m.mode, m.length) == (mode, length) and m.median is not None
                ]
                timed.sort(key=lambda m: m.median or 0.0)
                if len(timed) > 1:
                    next_one = compare(timed[1], timed[0])
                    found.append(Fastest(mode, length, timed[0].subject, next_one))
        return found

    def crossovers(self) -> list[Crossover]:
        """From which length on each subject is faster than ``against`` and scaled_dot_product."""
        labels = [subject.label for subject in self.started.subjects]
        others = [n for n in dict.fromkeys((self.started.against, USUAL)) if n in labels]
        found: list[Crossover] = []
        for against in others:
            for label in labels:
                for mode in self.started.settings.modes if label != against else ():
                    theirs = {m.length: m for m in self._of(against or "", mode)}
                    pairs = {
                        m.length: ratio
                        for m in self._of(label, mode)
                        if m.length in theirs and (ratio := compare(m, theirs[m.length]))
                    }
                    ratios = {length: one.ratio for length, one in pairs.items()}
                    sure = {length: one.conclusive for length, one in pairs.items()}
                    found.append(crossover(label, against or "", mode, ratios, sure))
        return found

    def share(self, found: Measurement) -> tuple[float, str] | None:
        """Which part of the machine's limit a measurement attains, and of which limit."""
        return None if self.limits is None else share(found, self.limits)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: what was found, and what follows from it."""
        return {
            "format": FORMAT,
            "checked": self.checked,
            "started": asdict(self.started),
            "verdicts": [asdict(one) for one in self.verdicts],
            "limits": None if self.limits is None else asdict(self.limits),
            "measurements": [asdict(one) for one in self.measurements],
            "ratios": [{**asdict(one), "verdict": one.verdict} for one in self.ratios()],
            "growths": [{**asdict(one), "verdict": one.verdict} for one in self.growths()],
            "crossovers": [asdict(one) for one in self.crossovers()],
            "shares": [
                {"subject": m.subject, "mode": m.mode, "length": m.length, "share": s, "limit": of}
                for m in self.measurements
                for s, of in [self.share(m) or (None, None)]
                if s is not None
            ],
        }

    def to_json(self) -> str:
        """Return JSON, which ``from_json`` reads back."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read what ``to_json`` wrote; raises ``OptionError`` for anything else."""
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise OptionError(f"format {data['format']!r} is not {FORMAT}")
            told = data["started"]
            settings = told["settings"]
            for name in ("lengths", "modes"):
                settings[name] = tuple(settings[name])
            started = Started(
                Settings(**settings),
                Machine(**told["machine"]),
                tuple(Subject(**one) for one in told["subjects"]),
                told["against"],
                told["cells"],
            )
            return cls(
                started,
                [Verdict(**{**one, "failed": tuple(one["failed"])}) for one in data["verdicts"]],
                None if data["limits"] is None else Limits(**data["limits"]),
                [
                    Measurement(**{**one, "samples": tuple(one["samples"])})
                    for one in data["measurements"]
                ],
            )
        except (ValueError, TypeError, KeyError) as error:
            raise OptionError(f"this is no report of a benchmark: {error}") from error

    def to_csv(self) -> str:
        """Return one row per measurement, with its ratio and its share."""
        settings = self.started.settings
        subjects = {one.label: one for one in self.started.subjects}
        ratios = {(r.subject, r.mode, r.length): r for r in self.ratios()}
        out = io.StringIO()
        rows = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        rows.writeheader()
        for m in self.measurements:
            ratio, part = ratios.get((m.subject, m.mode, m.length)), self.share(m)
            row: dict[str, Any] = {
                "subject": m.subject,
                "variant": subjects[m.subject].variant,
                "implementation": m.implementation,
                "mode": m.mode,
                "length": m.length,
                "causal": settings.causal,
                "batch": settings.batch,
                "heads": settings.heads,
                "head_dim": settings.head_dim,
                "dtype": settings.dtype,
                "device": settings.device,
                "checked": self.checked,
                "status": m.status,
                "reason": m.reason,
                "median_seconds": m.median,
                "spread_seconds": m.spread,
                "repetitions": len(m.samples),
                "peak_bytes": m.peak_bytes,
                "flops": m.flops,
            }
            if part is not None:
                row |= {"share": part[0], "limit": part[1]}
            if ratio is not None:
                row |= {
                    "against": ratio.against,
                    "ratio": ratio.ratio,
                    "ratio_low": ratio.low,
                    "ratio_high": ratio.high,
                    "verdict": ratio.verdict,
                    "memory_ratio": ratio.memory,
                }
            rows.writerow(row)
        return out.getvalue()

    def to_html(self) -> str:
        """Return one page that needs nothing else: plots, tables, settings, verdicts."""
        from attnreg.benchmark.page import page

        return page(self)

    def lines(self) -> list[str]:
        """Return the tables as lines of text."""
        from attnreg.benchmark.tables import text

        return text(self)

    def _of(self, label: str, mode: str) -> list[Measurement]:
        return [m for m in self.measurements if (m.subject, m.mode) == (label, mode)]


def _above_noise(peak: int | None) -> int | None:
    return None if peak is None or peak < RESOLUTION else peak


RESOLUTION = 2**20
"""Bytes below which a peak is too rough to be fitted: the system counts pages in batches."""

COLUMNS = (
    "subject",
    "variant",
    "implementation",
    "mode",
    "length",
    "causal",
    "batch",
    "heads",
    "head_dim",
    "dtype",
    "device",
    "checked",
    "status",
    "reason",
    "median_seconds",
    "spread_seconds",
    "repetitions",
    "peak_bytes",
    "flops",
    "share",
    "limit",
    "against",
    "ratio",
    "ratio_low",
    "ratio_high",
    "verdict",
    "memory_ratio",
)
"""What ``Report.to_csv`` writes of each measurement."""
