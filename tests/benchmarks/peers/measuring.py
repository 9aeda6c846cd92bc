"""Time side by side: every round calls each implementation once, in another order.

What else a machine does then meets all of them: a ratio is taken within each round, and its median
over the rounds is told with its quartiles. It does not hurt all of them alike: threads that wait
for each other often lose most. So the share of the machine that others used is told as well.
"""

from __future__ import annotations

import operator
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tests.benchmarks.peers.setting import Core

STAT = Path("/proc/stat")
MODES = ("forward", "forward + backward")
SHORTEST = 0.01
"""Seconds of one sample; quicker calls are repeated within it."""
FEWEST, FEW, MOST = 3, 5, 40
"""Rounds: the fewest where one of them takes all the time there is."""


class Spread(NamedTuple):
    """The median of the rounds, and their quartiles."""

    median: float
    low: float
    high: float
    elsewhere: float = 0.0
    """The share of the machine that other processes used meanwhile."""

    @staticmethod
    def of(values: list[float], elsewhere: float = 0.0) -> Spread:
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(median, low, high, elsewhere)


class Times(NamedTuple):
    """Seconds of a call in each round, by name."""

    seconds: dict[str, list[float]]
    elsewhere: float = 0.0

    def within(self, combine: Callable[[float, float], float], one: str, other: str) -> Spread:
        """Combine two in each round."""
        pairs = zip(self.seconds[one], self.seconds[other], strict=True)
        return Spread.of([combine(*pair) for pair in pairs], self.elsewhere)


def ratio(times: Times, numerator: str, denominator: str) -> Spread:
    """Divide within each round."""
    return times.within(operator.truediv, numerator, denominator)


def difference(times: Times, slower: str, faster: str) -> Spread:
    """Subtract within each round."""
    return times.within(operator.sub, slower, faster)


def interleave(calls: Mapping[str, Callable[[], object]], seconds: float) -> Times:
    """Time each call in each of 3 to 40 rounds, in about ``seconds`` where calls allow it."""
    once: dict[str, float] = {}
    for name, call in calls.items():
        call()  # compiles, fills caches
        once[name] = _time(call, 1)
    repeats = {name: max(1, int(SHORTEST / took)) for name, took in once.items()}
    round_takes = sum(once[name] * repeats[name] for name in calls)
    least = FEW if round_takes < seconds else FEWEST
    rounds = max(least, min(MOST, int(seconds / round_takes)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    start = _clocks()
    for _ in range(rounds):
        order = order[1:] + order[:1]
        for name in order:
            times[name].append(_time(calls[name], repeats[name]))
    wall, busy, own = (now - then for now, then in zip(_clocks(), start, strict=True))
    return Times(times, max(0.0, busy - own) / (wall * (os.cpu_count() or 1)))


def _clocks() -> tuple[float, float, float]:
    """Seconds that passed, that all processors worked, and that this process had them."""
    own = time.process_time()
    if not STAT.exists():
        return time.perf_counter(), own, own
    user, nice, system, _, _, irq, softirq, steal, *_ = map(
        int, STAT.read_text(encoding="ascii").splitlines()[0].split()[1:]
    )
    ticks = user + nice + system + irq + softirq + steal
    return time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK"), own


def _time(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def call(core: Core, inputs: list[Tensor], mode: str) -> Callable[[], object]:
    """Bind a core to query, key, value and the gradient of the output, for one mode.

    Gradients are those of query, key and value: a peer's core has no parameters.
    """
    *qkv, gradient = inputs
    if mode == "forward":
        return lambda: _without_grad(core, qkv)
    leaves = [t.detach().requires_grad_() for t in qkv]
    return lambda: torch.autograd.grad(core(*leaves), leaves, gradient, allow_unused=True)


@torch.no_grad()
def _without_grad(core: Core, qkv: list[Tensor]) -> Tensor:
    return core(*qkv)


@torch.no_grad()
def apart(core: Core, other: Core, inputs: list[Tensor]) -> float:
    """The largest difference of two outputs, relative to the largest entry."""
    first, second = (one(*inputs[:3]).double() for one in (core, other))
    return float((first - second).abs().max() / second.abs().max())
