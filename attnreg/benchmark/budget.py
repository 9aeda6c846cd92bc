"""What a call may take: hold it against the limits, and foresee what would exceed them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from attnreg.benchmark.records import Settings, Status
from attnreg.benchmark.timing import CALLS


class Probe(NamedTuple):
    """What the process found at one length."""

    length: int
    status: Status
    reason: str = ""
    peak: int | None = None
    note: str = ""
    seconds: float | None = None
    implementation: str = ""


class Budget(NamedTuple):
    """What one call may take."""

    seconds: float
    memory: int

    @classmethod
    def here(cls, settings: Settings) -> Budget:
        """What a call may take where it is timed: its part of the budget of a cell."""
        return cls(settings.seconds / CALLS, settings.memory)

    @classmethod
    def apart(cls, settings: Settings) -> Budget:
        """What a call may take where its memory is measured.

        Memory that is given back at once is slow: the time there stops what has no end, and says
        nothing else.
        """
        return cls(settings.seconds, settings.memory)


def judged(found: Probe, budget: Budget) -> Probe:
    """Hold what was measured against the limits."""
    if found.status != "ok":
        return found
    if found.peak is not None and found.peak > budget.memory:
        text = f"a call takes {size(found.peak)}, allowed are {size(budget.memory)}"
        return found._replace(status="memory", reason=text)
    if found.seconds is not None and found.seconds > budget.seconds:
        return found._replace(status="time", reason=too_slow(found.seconds, budget))
    return found


def too_slow(seconds: float, budget: Budget) -> str:
    """Say that a call takes too long."""
    return f"a call takes {seconds:.3g} s, allowed are {budget.seconds:.3g} s"


def foreseen(known: Sequence[Probe], length: int, budget: Budget) -> Probe | None:
    """Return what a longer length would give, where that is beyond doubt; None: try it.

    Time and memory are continued with the slope of the last two lengths; only twice the limit is
    beyond doubt. Where a length failed for time or memory, or ended the process, longer ones are
    left out.
    """
    if not known:
        return None
    last = known[-1]
    if last.status in ("time", "memory") or last.note == "ended":
        why = last.reason
        if not why.startswith("not tried"):
            why = f"not tried: length {last.length} failed already"
        return Probe(length, last.status, why, note=last.note)
    fine = [one for one in known if one.status == "ok"]
    quantities = (
        ("time", [(one.length, one.seconds) for one in fine], budget.seconds),
        ("memory", [(one.length, one.peak) for one in fine], float(budget.memory)),
    )
    for status, points, limit in quantities:
        expected = continued(points, length)
        if expected is not None and expected > 2.0 * limit:
            shown = f"{expected:.3g} s" if status == "time" else size(expected)
            allowed = f"{limit:.3g} s" if status == "time" else size(limit)
            text = (
                f"not tried: going by shorter lengths a call takes about {shown}, "
                f"allowed are {allowed}"
            )
            return Probe(length, "time" if status == "time" else "memory", text)
    return None


def continued(points: Sequence[tuple[int, float | None]], length: int) -> float | None:
    """Continue positive quantities to a length, by the power law through the last two."""
    real = [(at, value) for at, value in points if value]
    if len(real) < 2:
        return None
    (shorter, less), (longer, more) = real[-2:]
    power = math.log(more / less) / math.log(longer / shorter)
    return float(more * (length / longer) ** min(max(power, 0.0), 3.0))


def size(count: float) -> str:
    """Write a number of bytes for people."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if count < 1024:
            break
        count, unit = count / 1024, larger
    return f"{count:.3g} {unit}"
