"""Compare two subjects pair by pair: repetitions that ran in the same round."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnreg.benchmark.records import Measurement
from attnreg.benchmark.timing import quartiles

FEW = 8
"""Pairs whose quartiles are worth something."""


@dataclass(frozen=True)
class Ratio:
    """A subject's time over another's at one length and mode, from pairs of repetitions."""

    subject: str
    against: str
    mode: str
    length: int
    ratio: float
    """The median over the pairs; above 1 the subject is slower."""
    low: float
    high: float
    """The quartiles over the pairs; of fewer than ``FEW`` the extremes, as their quartiles tell
    little."""
    memory: float | None = None
    """The subject's peak over the other's."""

    @property
    def conclusive(self) -> bool:
        """Whether the difference is larger than the spread; both are factors.

        The same whichever of the two is called the subject.
        """
        return abs(math.log(self.ratio)) > math.log(self.high / self.low)

    @property
    def verdict(self) -> str:
        """Return "faster", "slower" or "inconclusive"."""
        if not self.conclusive:
            return "inconclusive"
        return "slower" if self.ratio > 1.0 else "faster"


@dataclass(frozen=True)
class Fastest:
    """The subject of the least time at one mode and length."""

    mode: str
    length: int
    subject: str
    next: Ratio | None
    """The second one over it."""


def compare(one: Measurement, other: Measurement) -> Ratio | None:
    """Return how two measurements of one mode and length compare; None where one has no time."""
    pairs = list(zip(one.samples, other.samples, strict=False))
    if not pairs:
        return None
    ratios = [a / b for a, b in pairs]
    low, middle, high = quartiles(ratios)
    if len(ratios) < FEW:
        low, high = min(ratios), max(ratios)
    peak, base = one.peak_bytes, other.peak_bytes
    memory = peak / base if peak is not None and base else None
    return Ratio(one.subject, other.subject, one.mode, one.length, middle, low, high, memory)
