"""A report as tables of text: for the terminal, for a page, for lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from attnreg.benchmark.budget import Budget, size
from attnreg.benchmark.growth import Growth
from attnreg.benchmark.ratio import Ratio
from attnreg.benchmark.records import Measurement

if TYPE_CHECKING:
    from attnreg.benchmark.report import Report

MODE_NAMES = {"forward": "Forward", "backward": "Forward and backward"}

UNCHECKED = "Not checked: nothing says that these results are right (--unchecked)."


class Table(NamedTuple):
    """A title, what the columns are called, and rows of text."""

    title: str
    headers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def tables(report: Report) -> list[Table]:
    """Return what there is to say; a table without rows is left out."""
    every = [
        *(_times(report, mode) for mode in report.started.settings.modes),
        _fastest(report),
        _growths(report),
        _crossovers(report),
        _failures(report),
        _verdicts(report),
        settings(report),
    ]
    return [one for one in every if one.rows]


def _times(report: Report, mode: str) -> Table:
    against = report.started.against
    ratios = {(r.subject, r.mode, r.length): r for r in report.ratios()}
    versus = () if against is None else ("time ratio", "memory ratio")
    headers = (
        "length",
        "variant",
        "runs",
        "time",
        "spread",
        *versus,
        "peak memory",
        "of the limit",
    )
    rows: list[tuple[str, ...]] = []
    timed = {m.subject for m in report.measurements if m.mode == mode and m.median is not None}
    for m in report.measurements:
        if m.mode != mode or m.subject not in timed:
            continue  # what was never timed is told below, once
        ratio = ratios.get((m.subject, m.mode, m.length))
        compared = () if against is None else (_ratio(ratio), _memory_ratio(ratio))
        rows.append(
            (
                str(m.length),
                m.subject,
                m.implementation,
                m.status if m.median is None else seconds(m.median),
                "" if m.spread is None else seconds(m.spread),
                *compared,
                _peak(m),
                _share(report, m),
            )
        )
    over = "" if against is None else f"Ratios are over {against}: "
    note = (
        f"Medians; the spread is the distance between the quartiles. {over}medians over pairs that "
        "ran in one round, with their quartiles (extremes, of fewer than 8). Peak memory is what a "
        "call adds: scratch, output, gradients; below 1 MiB it is rough. Of the limit: its "
        "operations per second over those of the fastest matrix product, or its bytes per second "
        "over those of copying, whichever is nearer to it."
    )
    return Table(f"{MODE_NAMES[mode]}: time and memory", headers, rows, note)


def _fastest(report: Report) -> Table:
    rows: list[tuple[str, ...]] = []
    for one in report.fastest():
        if one.next is None:
            continue
        doubt = "" if one.next.conclusive else ", inconclusive"
        behind = f"{one.next.subject} takes {one.next.ratio:.3g} times as long{doubt}"
        rows.append((str(one.length), one.mode, one.subject, behind))
    return Table("Fastest", ("length", "mode", "variant", "the next one"), rows)


def _growths(report: Report) -> Table:
    found = {(g.subject, g.mode, g.quantity): g for g in report.growths()}
    rows: list[tuple[str, ...]] = []
    for subject in report.started.subjects:
        for mode in report.started.settings.modes:
            time = found.get((subject.label, mode, "time"))
            memory = found.get((subject.label, mode, "memory"))
            if time is not None or memory is not None:
                over = ", ".join(map(str, (time or memory).lengths))  # type: ignore[union-attr]  # one of them is there
                rows.append((subject.label, mode, *_growth(time), *_growth(memory), over))
    headers = (
        "variant",
        "mode",
        "time grows as",
        "declared",
        "memory grows as",
        "declared",
        "over",
    )
    note = (
        "Fitted on the longer half of the lengths; fewer than three give no verdict. Above: it "
        "grows faster than declared; below: more slowly, as where a fixed cost still counts. "
        "Declared is how a forward call of the usual implementation grows; its memory is what it "
        "needs beyond its output, which grows as L and is a part of the peak."
    )
    return Table("Growth with the length L", headers, rows, note)


def _crossovers(report: Report) -> Table:
    rows = [(c.subject, c.mode, c.against, c.text) for c in report.crossovers()]
    return Table("Crossover", ("variant", "mode", "against", "faster from which length"), rows)


def _failures(report: Report) -> Table:
    rows: list[tuple[str, ...]] = []
    merged: dict[tuple[str, str, str, str], list[int]] = {}
    for m in report.measurements:
        if m.status != "ok":
            merged.setdefault((m.subject, m.mode, m.status, m.reason), []).append(m.length)
    for (subject, mode, status, reason), lengths in merged.items():
        rows.append((subject, mode, ", ".join(map(str, lengths)), status, reason))
    notes: dict[tuple[str, str, str], list[int]] = {}
    for m in report.measurements:
        if m.status == "ok" and m.peak_note:
            notes.setdefault((m.subject, m.mode, m.peak_note), []).append(m.length)
    for (subject, mode, note), lengths in notes.items():
        rows.append((subject, mode, ", ".join(map(str, lengths)), "no peak", note))
    return Table("Not measured", ("variant", "mode", "lengths", "why", "reason"), rows)


def _verdicts(report: Report) -> Table:
    rows = [(v.variant, v.verdict, ", ".join(v.failed)) for v in report.verdicts]
    headers = ("variant", "verdict", "failed")
    return Table("Conformance, fast profile, with the default options", headers, rows)


def settings(report: Report) -> Table:
    """Return the settings, the machine and its limits."""
    s, machine, limits = report.started.settings, report.started.machine, report.limits
    rows = [
        ("lengths", ", ".join(map(str, s.lengths))),
        ("batch, heads, head dimension", f"{s.batch}, {s.heads}, {s.head_dim}"),
        ("mask", "causal" if s.causal else "none"),
        ("dtype", s.dtype),
        ("device", f"{s.device} {machine.accelerator}".strip()),
        ("repetitions", f"at most {s.repeat}, in {s.seconds:g} s"),
        ("a call may take", f"{Budget.here(s).seconds:.3g} s, {size(s.memory)}"),
        ("seed", str(s.seed)),
        ("processor", f"{machine.processor}, {machine.cores} cores, {s.threads} threads used"),
        ("torch", machine.torch),
        ("attnreg", machine.attnreg),
        ("Python", f"{machine.python} on {machine.platform}"),
    ]
    for subject in report.started.subjects:
        if subject.options:
            text = ", ".join(f"{key}={value}" for key, value in subject.options.items())
            rows.append((f"options of {subject.label}", text))
    if limits is not None:
        rate = limits.flops_per_second / 1e9
        rows.append(("limit of products", f"{rate:.4g} GFLOP/s ({limits.product}, {s.dtype})"))
        rows.append(("limit of memory", f"{limits.bytes_per_second / 1e9:.3g} GB/s (copying)"))
    return Table("Settings and machine", ("what", "value"), rows)


def text(report: Report) -> list[str]:
    """Return the tables as lines, columns aligned."""
    lines: list[str] = [] if report.checked else [UNCHECKED, ""]
    for table in tables(report):
        lines += [table.title, *_aligned(table), ""]
        lines += [table.note, ""] if table.note else []
    return lines[:-1]


def _aligned(table: Table) -> Iterator[str]:
    rows = [table.headers, *table.rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(table.headers))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def seconds(value: float) -> str:
    """Write a time for people."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if value * factor >= 1.0:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio.ratio:.3g} ({ratio.low:.3g} to {ratio.high:.3g}), {ratio.verdict}"


def _memory_ratio(ratio: Ratio | None) -> str:
    return "" if ratio is None or ratio.memory is None else f"{ratio.memory:.3g}"


def _peak(found: Measurement) -> str:
    if found.peak_bytes is not None:
        return size(found.peak_bytes)
    return "not measured" if found.status == "ok" else ""


def _share(report: Report, found: Measurement) -> str:
    part = report.share(found)
    return "" if part is None else f"{100.0 * part[0]:.3g} % of {part[1]}"


def _growth(found: Growth | None) -> tuple[str, str]:
    if found is None:
        return "", ""
    declared = f"{found.declared}: {found.verdict}" if found.verdict else found.declared
    return f"L^{found.exponent:.2f}", declared
