"""How time and memory grow, and from which length on one is faster than another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

SLACK = 0.25
"""How far a fitted exponent may lie from the declared one: caches fill up, overheads shrink."""

POINTS = 3
"""Fewer fitted lengths give no verdict."""


@dataclass(frozen=True)
class Growth:
    """How a quantity grows with the length: as length ** exponent over ``lengths``."""

    subject: str
    mode: str
    quantity: Literal["time", "memory"]
    exponent: float
    lengths: tuple[int, ...]
    """Those that were fitted: the longer half."""
    declared: str = ""
    expected: float | None = None
    """The exponent that the declared law has over these lengths."""

    @property
    def verdict(self) -> str:
        """Return "as declared", "above" or "below" what is declared; "" where nothing tells.

        Through two points there is always a line: they say nothing.
        """
        if self.expected is None or len(self.lengths) < POINTS:
            return ""
        if abs(self.exponent - self.expected) <= SLACK:
            return "as declared"
        return "above" if self.exponent > self.expected else "below"


@dataclass(frozen=True)
class Crossover:
    """From which length on a subject is faster than another."""

    subject: str
    against: str
    mode: str
    length: float | None
    """Interpolated; None where there is none between the lengths that were measured."""
    text: str


def longer_half(points: Mapping[int, float]) -> list[tuple[int, float]]:
    """Return the longer half of the points, one more where their number is odd, at least three."""
    real = sorted((at, value) for at, value in points.items() if value > 0)
    return real[min(len(real) // 2, max(len(real) - POINTS, 0)) :]


def slope(points: Sequence[tuple[int, float]]) -> float | None:
    """Fit value = c * length ** slope by least squares of the logarithms; None for one length."""
    if len({at for at, _ in points}) < 2:
        return None
    xs = [math.log(at) for at, _ in points]
    ys = [math.log(value) for _, value in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    across = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    return across / sum((a - x) ** 2 for a in xs)


def expected_slope(declared: str, first: int, last: int) -> float | None:
    """Return the exponent between two lengths of a law such as "L log L"; None: not readable."""
    from attnreg.conformance.checks.complexity import growth
    from attnreg.conformance.measure import Failure

    if not declared or first == last:
        return None
    try:
        law = growth(declared)
    except Failure:
        return None
    return math.log(law(last) / law(first)) / math.log(last / first)


def fit(
    subject: str,
    mode: str,
    quantity: Literal["time", "memory"],
    points: Mapping[int, float],
    declared: str,
) -> Growth | None:
    """Fit the longer half of what was measured; None where fewer than two lengths are left."""
    chosen = longer_half(points)
    found = slope(chosen)
    if found is None:
        return None
    lengths = tuple(at for at, _ in chosen)
    expected = expected_slope(declared, lengths[0], lengths[-1])
    if expected is not None and quantity == "memory":
        expected = max(expected, 1.0)  # what a call gives back counts, and grows with the length
    return Growth(subject, mode, quantity, found, lengths, declared, expected)


def crossover(
    subject: str, against: str, mode: str, ratios: Mapping[int, float], sure: Mapping[int, bool]
) -> Crossover:
    """Find from which length on a subject is faster, from its time over the other's by length.

    ``sure`` tells at which lengths the ratio is conclusive. Between two lengths the logarithm of
    the ratio is taken for a straight line over that of the length.
    """

    def found(length: float | None, text: str) -> Crossover:
        return Crossover(subject, against, mode, length, text)

    at = sorted(ratios)
    if not at:
        return found(None, "no length was measured for both")
    longest = f"at {at[-1]}, the longest that was measured for both"
    if not sure[at[-1]]:
        return found(None, f"inconclusive {longest}")
    if ratios[at[-1]] >= 1.0:
        return found(None, f"not faster {longest}")
    slower = [length for length in at if ratios[length] >= 1.0]
    if not slower:
        doubt = "" if all(sure[length] for length in at) else "; some ratios are inconclusive"
        return found(None, f"faster from {at[0]}, the shortest, on{doubt}")
    low = slower[-1]
    high = at[at.index(low) + 1]
    before, after = math.log(ratios[low]), math.log(ratios[high])
    part = before / (before - after)
    length = low * (high / low) ** part
    beside = at[at.index(low) :]
    doubt = "" if all(sure[length] for length in beside) else "; some ratios are inconclusive"
    return found(length, f"faster from about {length:.0f} on, between {low} and {high}{doubt}")
