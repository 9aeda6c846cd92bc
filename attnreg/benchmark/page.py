"""A report as one HTML page that needs nothing else: no network, no script, light and dark."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

from attnreg.benchmark.budget import size
from attnreg.benchmark.plot import Point, Series, chart, key
from attnreg.benchmark.tables import MODE_NAMES, UNCHECKED, Table, seconds, tables
from attnreg.benchmark.timing import quartiles

if TYPE_CHECKING:
    from attnreg.benchmark.report import Report

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --paper: #ffffff;
  --line: #d8dee4; --band: #f6f8fa; --warn: #7a4b00; --warned: #fff4d6;
  --c0: #4b5563; --c1: #0067b1; --c2: #c2410c; --c3: #007a57; --c4: #a2337e;
  --c5: #8a6d00; --c6: #5b47c9; --c7: #0e7c86; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #a0a8b2; --paper: #14171b;
  --line: #343a42; --band: #1c2026; --warn: #ffd98a; --warned: #3a2d0c;
  --c0: #b6bec8; --c1: #5cb3ff; --c2: #ff9a66; --c3: #3fd6a4; --c4: #f08cc9;
  --c5: #e3c14d; --c6: #a99bff; --c7: #4fd0db; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.25rem 1rem 3rem; max-width: 72rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0 .75rem; } .soft { color: var(--soft); font-size: .9rem; }
.warning { background: var(--warned); color: var(--warn); padding: .6rem .8rem;
  border-radius: .4rem; font-weight: 600; }
.plots { display: grid; gap: 1rem 2rem; margin-bottom: 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); }
figure { margin: 0; min-width: 0; } figcaption { font-weight: 600; margin-bottom: .25rem; }
figure svg { width: 100%; height: auto; display: block; }
svg text { font: 13px system-ui, sans-serif; fill: var(--soft); }
.end { text-anchor: end; } .mid { text-anchor: middle; }
.grid { stroke: var(--line); stroke-width: 1; fill: none; }
.axis { stroke: var(--soft); fill: none; }
.line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; }
.spread { stroke: var(--c); stroke-width: 1.2; } circle, polygon { fill: var(--c); }
.dashed .line { stroke-dasharray: 5 4; }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
.legend { list-style: none; margin: .25rem 0 1rem; padding: 0; display: flex; flex-wrap: wrap;
  gap: .25rem 1.25rem; } .legend li { display: flex; align-items: center; gap: .4rem; }
.key { width: 30px; height: 12px; flex: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td { white-space: nowrap; } td.long { white-space: normal; min-width: 16rem; }
tbody tr:hover { background: var(--band); }
"""

LONG = 60
"""Characters from which on a cell may break into lines."""


def page(report: Report) -> str:
    """Return the whole page; every text is escaped."""
    settings = report.started.settings
    names = ", ".join(one.label for one in report.started.subjects)
    mask = "causal" if settings.causal else "no mask"
    shape = f"batch {settings.batch}, {settings.heads} heads of {settings.head_dim}"
    about = f"{shape}, {settings.dtype} on {settings.device}, {mask}"
    body = [f"<h1>attnreg bench: {escape(names)}</h1>", f"<p class=soft>{escape(about)}</p>"]
    if not report.checked:
        body.append(f'<p class="warning">{escape(UNCHECKED)}</p>')
    else:
        told = "; ".join(f"{one.variant}: {one.verdict}" for one in report.verdicts)
        told = escape(told or "nothing to check")
        body.append(f"<p>Conformance, fast profile, with the default options: {told}.</p>")
    body.append(_legend(report))
    for mode in settings.modes:
        body.append(_plots(report, mode))
    body += [_table(one) for one in tables(report)]
    title = escape(f"attnreg bench: {names}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _looks(report: Report) -> dict[str, int]:
    """Which look each subject has: grey is what the others are compared with."""
    labels = [one.label for one in report.started.subjects]
    against = report.started.against
    others = [label for label in labels if label != against]
    start = 0 if against is None else 1
    looks = {label: start + place for place, label in enumerate(others)}
    return looks if against is None else {against: 0, **looks}


def _legend(report: Report) -> str:
    items = "".join(
        f"<li>{key(index)}{escape(label)}</li>" for label, index in _looks(report).items()
    )
    return f'<ul class="legend">{items}</ul>'


def _plots(report: Report, mode: str) -> str:
    times: list[Series] = []
    memory: list[Series] = []
    for label, index in _looks(report).items():
        cells = [m for m in report.measurements if (m.subject, m.mode) == (label, mode)]
        spans = [(m.length, quartiles(m.samples)) for m in cells if m.samples]
        times.append(Series(label, index, [Point(n, q[1], q[0], q[2]) for n, q in spans]))
        peaks = [(m.length, float(m.peak_bytes)) for m in cells if m.peak_bytes]
        memory.append(Series(label, index, [Point(n, p, p, p) for n, p in peaks]))
    name = MODE_NAMES[mode]
    figures = [
        _figure(f"{name}: time against length", times, seconds, 10),
        _figure(f"{name}: peak memory against length", memory, size, 2),
    ]
    return f'<div class="plots">{"".join(figures)}</div>'


def _figure(title: str, series: list[Series], write: Callable[[float], str], base: int) -> str:
    drawn = chart([one for one in series if one.points], title, write, base)
    if not drawn:
        return ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawn}</figure>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in table.headers)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    note = f'<p class="soft">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<h2>{escape(table.title)}</h2>{note}<div class="scroll"><table><thead><tr>{head}</tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    kind = ' class="long"' if len(text) > LONG else ""
    return f"<td{kind}>{escape(text)}</td>"
