"""What ``attnreg compare`` computes: two modules on one input, their differences and costs."""

from __future__ import annotations

import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnreg.checked import CheckedAttention
from attnreg.cli.inputs import Inputs
from attnreg.mask import Mask

WARM_UP = 2
REPETITIONS = (7, 50)
"""The fewest and the most timed repetitions of each module."""
SECONDS = 1.0
"""About how long timing both modules may take, within ``REPETITIONS``."""
MOST_SHOWN = 16
"""The longest text, in tokens, whose weights are printed."""
MOST_WEIGHTS = 2**25
"""The most weights compared: more would take more memory than what is being compared."""


def measure(
    modules: tuple[CheckedAttention, CheckedAttention], inputs: Inputs, mask: Mask
) -> dict[str, Any]:
    """Return as plain data how two modules differ on an input, and what each costs.

    Run it under ``torch.no_grad()``. Raises what the modules raise for a call that they refuse.
    """
    query, key, value = inputs.query, inputs.key, inputs.value
    device = query.device
    outputs = [module(query, key, value, mask) for module in modules]
    notes = [
        f"{module.variant.name} brings a projection of its own, which is not used: both get the "
        "same query, key and value"
        for module in dict.fromkeys(modules)
        if module.variant.projection is not None
    ]
    if not all(bool(output.isfinite().all()) for output in outputs):
        notes.append("an output holds inf or NaN, so that some differences are not numbers")
    weights, why = _weights(modules, inputs, mask)
    if why:
        notes.append(why)
    calls = [partial(module, query, key, value, mask) for module in modules]
    times = time_both(calls[0], calls[1], device)
    names = f"A ({modules[0].variant.name})", f"B ({modules[1].variant.name})"
    report: dict[str, Any] = {}
    for side, module, call, timing in zip(("a", "b"), modules, calls, times, strict=True):
        peak, report["memory_method"] = peak_memory(call, device)
        report[side] = {
            "variant": module.variant.name,
            "implementation": module.explain(query, key, value, mask).chosen,
            "seconds": asdict(timing),
            "peak_extra_bytes": peak,
        }
    report["output"] = output_difference(outputs[0], outputs[1])
    report["weights"] = None if weights is None else weights_difference(*weights)
    report["time_verdict"] = verdict(names, times)
    report["notes"] = list(dict.fromkeys(notes))
    if weights is not None and 0 < len(inputs.tokens) <= MOST_SHOWN:
        shown = (matrix[0, 0].tolist() for matrix in weights)
        report["head_0_weights"] = dict(zip(("a", "b"), shown, strict=True))
    return report


def _weights(
    modules: tuple[CheckedAttention, CheckedAttention], inputs: Inputs, mask: Mask
) -> tuple[tuple[Tensor, Tensor] | None, str]:
    """Return both modules' weights and a note about them, or None and why not."""
    kinds = {module.variant.name: module.variant.capabilities.weights for module in modules}
    without = [name for name, kind in kinds.items() if kind == "none"]
    if without:
        return None, f"weights are not compared: {' and '.join(without)} has none to show"
    heads, length = inputs.query.shape[1:3]
    if heads * length * length > MOST_WEIGHTS:
        longest = int((MOST_WEIGHTS / heads) ** 0.5)
        return None, (
            f"weights are not compared: {heads} x {length} x {length} of them are too many; "
            f"with {heads} heads they are up to --length {longest}"
        )
    implied = [name for name, kind in kinds.items() if kind == "implied"]
    note = (
        f"the weights of {' and '.join(implied)} are implied: the linear map from the values to "
        "the output, which may be signed and need not sum to 1"
        if implied
        else ""
    )
    first, second = (module.weights(inputs.query, inputs.key, mask) for module in modules)
    return (first, second), note


def output_difference(a: Tensor, b: Tensor) -> dict[str, float | None]:
    """Return max abs, RMS relative to ``a``, and cosine; None where a number is not finite."""
    a, b = a.cpu().double().flatten(), b.cpu().double().flatten()
    cosine = _ratio(a @ b, a.norm() * b.norm())
    return {
        "max_abs": _finite((a - b).abs().max()),
        "relative_rms": _ratio((a - b).norm(), a.norm()),
        "cosine": None if cosine is None else max(-1.0, min(1.0, cosine)),
    }


def weights_difference(a: Tensor, b: Tensor) -> dict[str, float | None]:
    """Return max abs, and half the absolute difference of a row summed, averaged over rows.

    The second is the total variation where both rows are distributions.
    """
    difference = (a.cpu().double() - b.cpu().double()).abs()
    return {
        "max_abs": _finite(difference.max()),
        "mean_total_variation": _finite(difference.sum(-1).mean() / 2),
    }


def _ratio(above: Tensor, below: Tensor) -> float | None:
    return _finite(above / below) if below > 0 else None


def _finite(value: Tensor) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median, and the spread (the distance between the quartiles)."""

    median: float
    spread: float
    repetitions: int


def time_both(
    first: Callable[[], Tensor], second: Callable[[], Tensor], device: torch.device
) -> tuple[Timing, Timing]:
    """Time two calls in turn, A B A B, so that a busy machine hits both alike."""

    def seconds(call: Callable[[], Tensor]) -> float:
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        return time.perf_counter() - start

    for _ in range(WARM_UP):
        pair = seconds(first) + seconds(second)
    fewest, most = REPETITIONS
    count = max(fewest, min(most, int(SECONDS / max(pair, 1e-9))))
    samples = [(seconds(first), seconds(second)) for _ in range(count)]
    made = []
    for taken in zip(*samples, strict=True):
        low, median, high = statistics.quantiles(taken, n=4)
        made.append(Timing(median, high - low, count))
    return made[0], made[1]


def verdict(names: tuple[str, str], times: tuple[Timing, Timing]) -> str:
    """Say which is faster, or that these measurements cannot tell."""
    a, b = times
    if abs(a.median - b.median) <= max(a.spread, b.spread):
        return "inconclusive: the medians differ by less than the spread"
    slow, fast = (0, 1) if a.median > b.median else (1, 0)
    factor = times[slow].median / times[fast].median
    return f"{names[slow]} takes {factor:.3g} times as long as {names[fast]}"


def peak_memory(call: Callable[[], Tensor], device: torch.device) -> tuple[int | None, str]:
    """Return the bytes of tensors that a call adds at its peak, and how that was measured.

    None where it cannot be measured. The output counts, the inputs do not.
    """
    if device.type == "cuda":
        _wait(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        _wait(device)
        return torch.cuda.max_memory_allocated(device) - before, "torch.cuda.max_memory_allocated"
    if device.type == "cpu":
        return _traced_peak(call), "tensors allocated, traced by torch.profiler"
    return None, f"not measured: no counter of allocations for {device.type}"


def _traced_peak(call: Callable[[], Tensor]) -> int | None:
    # The profiler writes two lines to stderr at each start, unless told not to before its first.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced:
        kept = call()
    with tempfile.TemporaryDirectory() as folder:
        # The exported trace is the public way to each allocation in the order of time.
        path = Path(folder, "trace.json")
        traced.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_bytes())["traceEvents"]
    del kept  # only now: releasing the output is no part of the call
    events = [event for event in events if event.get("name") == "[memory]"]
    held, peak = 0, 0
    for event in sorted(events, key=lambda event: float(event["ts"])):
        held += int(event["args"]["Bytes"])
        peak = max(peak, held)
    return peak if events else None


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
