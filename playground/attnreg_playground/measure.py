"""Time and memory of one call on the CPU, quickly, as a picture needs them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def median_seconds(call: Callable[[], Any], budget: float = 0.12) -> float:
    """Return the median seconds of a call without gradients: at least 3, at most 30 repetitions."""
    with torch.no_grad():
        call()
        taken: list[float] = []
        begun = time.perf_counter()
        while len(taken) < 3 or (len(taken) < 30 and time.perf_counter() - begun < budget):
            before = time.perf_counter()
            call()
            taken.append(time.perf_counter() - before)
    return statistics.median(taken)


def peak(call: Callable[[], Any]) -> float:
    """Return the most bytes that a call held at a time, its output included.

    The profiler tells what each operation keeps and what is given back between them; the running
    sum has its highest point where the call held most. What one operation takes and gives back
    inside is left out.
    """
    with torch.no_grad():
        call()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            kept = call()
    held = most = 0
    for event in sorted(seen.events() or (), key=lambda one: one.time_range.start):
        held += event.self_cpu_memory_usage
        most = max(most, held)
    del kept  # only now: what the call gives back is a part of its peak
    return float(most)
