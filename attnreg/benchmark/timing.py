"""Time several calls beside each other, so that a busy machine slows all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

FEWEST = 3
"""Repetitions that a median and a spread need at least."""

CALLS = 2 + FEWEST
"""How often a cell calls at least, with two to warm up: a call may take this part of its time."""

SHORTEST = 1e-2
"""Seconds of one sample: a shorter call is repeated within it, which drowns a cold start."""

Clock = Callable[[], float]


def order(names: list[str], round_: int) -> list[str]:
    """Return who runs when in a round: a zigzag through all, rotated by one name each time.

    Every other turn goes backwards. So each comes at every place equally often, and right behind
    every other one: whoever ran before leaves caches warm or cold (Williams 1949, Experimental
    designs balanced for the estimation of residual effects of treatments).
    """
    count = len(names)
    turn, at = divmod(round_, max(1, count))
    zigzag = [place // 2 if place % 2 == 0 else count - 1 - place // 2 for place in range(count)]
    turned = [names[(place + at) % count] for place in zigzag]
    return turned[::-1] if turn % 2 else turned


def quartiles(samples: list[float] | tuple[float, ...]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile; one sample is all three."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high


def seconds_of(
    call: Callable[[], Any],
    ready: Callable[[], None],
    inner: int = 1,
    clock: Clock = time.perf_counter,
) -> float:
    """Return the seconds of one call, the mean of ``inner`` in a row; ``ready`` synchronises."""
    ready()
    start = clock()
    for _ in range(inner):
        call()
    ready()
    return (clock() - start) / inner


class TooSlow(Exception):
    """A call takes so many seconds, too many for its budget."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"a call takes {seconds:.3g} s")
        self.seconds = seconds


class Race:
    """The repetitions of one mode and length: ``enter`` each call, then ``rounds()``."""

    def __init__(
        self,
        ready: Callable[[], None],
        *,
        repeat: int,
        seconds: float,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.ready = ready
        self.repeat = repeat
        self.seconds = seconds
        self.clock = clock
        self.calls: dict[str, Callable[[], Any]] = {}
        self.expected: dict[str, float] = {}
        self.samples: dict[str, list[float]] = {}
        self.fallen: dict[str, BaseException] = {}

    def enter(self, name: str, call: Callable[[], Any]) -> None:
        """Warm a call up: twice, and the second tells how long it takes.

        Raises what it raises, and ``TooSlow`` where it is not done often enough within the budget:
        then a third call must have been as slow, for one alone may have been disturbed.
        """
        seconds_of(call, self.ready, clock=self.clock)
        taken = seconds_of(call, self.ready, clock=self.clock)
        if taken > self.seconds / CALLS:
            taken = min(taken, seconds_of(call, self.ready, clock=self.clock))
        if taken > self.seconds / CALLS:
            raise TooSlow(taken)
        self.expected[name] = max(taken, 1e-9)
        self.calls[name], self.samples[name] = call, []

    @property
    def count(self) -> int:
        """How many rounds there will be: as many as the slowest has time for."""
        slowest = max([SHORTEST, *self.expected.values()])
        return max(FEWEST, min(self.repeat, int(self.seconds / slowest) - 2))

    def rounds(self) -> Iterator[int]:
        """Run the rounds, and yield the number of each when it is done.

        A call that fails, though its warm-up had worked, is in ``fallen`` and has no samples.
        """
        for index in range(self.count if self.samples else 0):
            for name in order(list(self.samples), index):
                inner = max(1, int(SHORTEST / self.expected[name]))
                try:
                    taken = seconds_of(self.calls[name], self.ready, inner, self.clock)
                except (Exception, SystemExit) as error:
                    self.fallen[name] = error
                    del self.samples[name]
                else:
                    self.samples[name].append(taken)
            yield index + 1
