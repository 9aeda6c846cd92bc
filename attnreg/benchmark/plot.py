"""Draw lines on two logarithmic axes as inline SVG: no library, no script, no font."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 460, 320
LEFT, RIGHT, TOP, BOTTOM = 62, 26, 12, 46

MARKS = ("circle", "square", "triangle", "diamond")
COLOURS = 8
"""How many colours the page has, as classes c0, c1, …; after these, lines are dashed too."""


class Point(NamedTuple):
    """A value at a length, and between which values it spreads."""

    length: int
    value: float
    low: float
    high: float


class Series(NamedTuple):
    """A line with a label; ``look`` says how it is drawn."""

    label: str
    look: int
    points: Sequence[Point]


def chart(
    series: Sequence[Series], title: str, write: Callable[[float], str], base: int = 10
) -> str:
    """Return an ``<svg>`` of value against length, with ticks that ``write`` puts in words.

    Ticks are round in powers of ``base``, 10 or 2. Every point has a tooltip; a vertical stroke
    shows how far it spreads.
    """
    points = [point for one in series for point in one.points]
    if not points:
        return ""
    lengths = sorted({point.length for point in points})
    across = _scale(lengths[0], lengths[-1], LEFT, WIDTH - RIGHT)
    low, high = min(p.value for p in points), max(p.value for p in points)
    up = _scale(low / 1.15, high * 1.15, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
    ]
    for value in ticks(low, high, base):
        y = up(value)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="end">{escape(write(value))}</text>'
        )
    for length in _spaced(lengths, across):
        x = across(length)
        parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        y = HEIGHT - BOTTOM + 17
        parts.append(f'<text x="{x:.1f}" y="{y}" class="mid">{length}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" class="mid">length (logarithmic)</text>')
    for one in series:
        parts.append(_line(one, across, up, write))
    return "".join([*parts, "</svg>"])


def key(index: int) -> str:
    """Return a small ``<svg>`` that shows how a series looks, for a legend."""
    return (
        f'<svg class="key" viewBox="0 0 30 12" aria-hidden="true"><g class="{_look(index)}">'
        f'<path class="line" d="M1 6H29"/>{_mark(index, 15, 6)}</g></svg>'
    )


def ticks(low: float, high: float, base: int = 10) -> list[float]:
    """Return up to 8 round values between two positive ones, by powers of 10 or 2."""
    first, last = math.floor(math.log(low, base)), math.ceil(math.log(high, base))
    parts = {
        10: ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)),
        2: ((1,), (1, 1.25, 1.5, 1.75)),
    }
    for steps in parts[base]:
        found = [
            step * float(base) ** power
            for power in range(first, last + 1)
            for step in steps
            if low / 1.15 <= step * float(base) ** power <= high * 1.15
        ]
        if len(found) >= 3:
            break
    return found[:: max(1, math.ceil(len(found) / 8))]


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    bottom, span = math.log(low), math.log(high) - math.log(low)

    def place(value: float) -> float:
        part = (math.log(value) - bottom) / span if span > 0 else 0.5
        return start + part * (end - start)

    return place


def _spaced(lengths: Sequence[int], across: Callable[[float], float]) -> list[int]:
    """Leave out labels that would touch the one before; the last is always there."""
    kept = [lengths[-1]]
    for length in reversed(lengths[:-1]):
        room = 4.0 * (len(str(length)) + len(str(kept[-1]))) + 6.0
        if across(kept[-1]) - across(length) >= room:
            kept.append(length)
    return kept[::-1]


def _look(index: int) -> str:
    colour = 0 if index == 0 else 1 + (index - 1) % (COLOURS - 1)  # the first is like no other
    return f"c{colour}" + (" dashed" if index >= COLOURS else "")


def _line(
    one: Series,
    across: Callable[[float], float],
    up: Callable[[float], float],
    write: Callable[[float], str],
) -> str:
    places = [(across(p.length), up(p.value)) for p in one.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    parts = [f'<g class="{_look(one.look)}"><path class="line" d="{path}"/>']
    for point, (x, y) in zip(one.points, places, strict=True):
        if point.low < point.high:
            top, bottom = (
                min(max(up(v), TOP), HEIGHT - BOTTOM) for v in (point.high, max(point.low, 1e-12))
            )
            parts.append(f'<path class="spread" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>')
        said = f"{one.label}, length {point.length}: {write(point.value)}"
        parts.append(f"<g><title>{escape(said)}</title>{_mark(one.look, x, y)}</g>")
    return "".join([*parts, "</g>"])


def _mark(index: int, x: float, y: float) -> str:
    kind, r = MARKS[index % len(MARKS)], 3.6
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'
    corners = {
        "square": ((-r, -r), (r, -r), (r, r), (-r, r)),
        "triangle": ((0, -r - 1), (r + 0.6, r), (-r - 0.6, r)),
        "diamond": ((0, -r - 1), (r + 1, 0), (0, r + 1), (-r - 1, 0)),
    }[kind]
    text = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{text}"/>'
