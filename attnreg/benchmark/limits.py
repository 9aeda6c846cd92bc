"""What the machine attains at its best, measured in the run that refers to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from attnreg.benchmark.cell import wait
from attnreg.benchmark.records import Limits, Settings
from attnreg.benchmark.timing import seconds_of

SIZES = {"cpu": (256, 512, 1024, 2048), "other": (1024, 2048, 4096, 8192)}
"""Sides of the square products that are tried: which one is the fastest differs."""

SECONDS = 0.25
"""How long each product, and the copy, is repeated."""

LONGEST = 0.2
"""Seconds of a product after which larger ones are not tried."""

COPIED = 2**27
"""Bytes of the tensor that is copied: more than caches hold."""


def measure(settings: Settings) -> Limits:
    """Measure the rate of products in the dtype of the run, and the bandwidth of memory.

    The fastest repetition counts: a limit is what can be attained, whoever else is at work.
    """
    device, dtype = settings.device, getattr(torch, settings.dtype)
    kind = "cpu" if torch.device(device).type == "cpu" else "other"
    rate, product = 0.0, ""
    for side in SIZES[kind]:
        left, right = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
        taken = _fastest(partial(torch.matmul, left, right), device)
        if 2.0 * side**3 / taken > rate:
            rate, product = 2.0 * side**3 / taken, f"{side} x {side} x {side}"
        if taken > LONGEST:
            break
    source = torch.ones(COPIED // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    copied = _fastest(partial(target.copy_, source), device)
    return Limits(rate, product, 2.0 * COPIED / copied)


def _fastest(call: Callable[[], Any], device: str) -> float:
    def ready() -> None:
        wait(device)

    best = min(seconds_of(call, ready) for _ in range(2))
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        best = min(best, seconds_of(call, ready))
    return max(best, 1e-9)
