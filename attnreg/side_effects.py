"""What importing a plugin changed for everything else in the process.

A plugin only registers. One that sets the default dtype, seeds a generator or replaces a function
of torch changes the results of code that never asked for it: that is reported, and never undone,
since something may already rest on it. Other threads are seen too: what they change meanwhile is
put down to the plugin.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import functional


class Snapshot(NamedTuple):
    """The global state that a plugin has to leave alone, at one moment."""

    values: Mapping[str, object]
    functions: Mapping[str, object]
    path: list[str]
    filters: list[Any]
    environment: Mapping[str, str]


def snapshot() -> Snapshot:
    """Look at everything that is watched: under a millisecond."""
    values: dict[str, object] = {}
    for what, look in _VALUES.items():
        try:
            values[what] = look()
        except Exception:  # what this torch or platform cannot tell is not compared
            continue
    functions = {f"torch.{name}": getattr(torch, name) for name in _OF_TORCH}
    functions |= {f"torch.nn.functional.{k}": v for k, v in vars(functional).items() if callable(v)}
    return Snapshot(values, functions, sys.path.copy(), list(warnings.filters), dict(os.environ))


def changes(before: Snapshot) -> list[str]:
    """Name what differs from an earlier snapshot.

    Only what was there before counts: a module imported since brings state of its own, a folder
    appended to ``sys.path`` hides nothing, and a filter for one message, one module or a category
    of a library's own silences nobody else.
    """
    now = snapshot()
    found = [what for what, old in before.values.items() if now.values.get(what, old) != old]
    found += [what for what, old in before.functions.items() if now.functions.get(what) is not old]
    if now.path[: len(before.path)] != before.path:
        found.append("sys.path")
    lost = any(one not in now.filters for one in before.filters)
    if lost or _general(now.filters) != _general(before.filters):
        found.append("warnings.filters")
    both = before.environment.keys() | now.environment.keys()
    found += [
        f"os.environ[{name!r}]"  # never the value, which may be secret
        for name in sorted(both)
        if before.environment.get(name) != now.environment.get(name)
        and not name.startswith(_OF_COMPILERS)
    ]
    return found


def _general(filters: list[Any]) -> list[Any]:
    """Return the filters that hold for what every module may say, in order."""
    return [
        (action, category)
        for action, message, category, module, _ in filters
        if message is None and module is None and category.__module__ == "builtins"
    ]


def _numpy_state() -> object:
    numpy_random = sys.modules["numpy.random"]  # never imported for this
    kind, keys, *rest = numpy_random.get_state()
    return kind, keys.tobytes(), *rest


_OF_COMPILERS = ("TORCHINDUCTOR_", "TRITON_")
"""Variables that torch sets itself where it first compiles, as a decorator at import may."""

_OF_TORCH = ("softmax", "matmul", "bmm", "baddbmm", "einsum")

_VALUES: Mapping[str, Callable[[], object]] = {
    "torch's default dtype": torch.get_default_dtype,
    "torch's default device": torch.get_default_device,
    "torch's random state": lambda: torch.get_rng_state().numpy().tobytes(),
    "torch's grad mode": torch.is_grad_enabled,
    "torch's inference mode": torch.is_inference_mode_enabled,
    "torch's number of threads": torch.get_num_threads,
    "torch's deterministic algorithms": lambda: (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    ),
    "torch.backends.fp32_precision": lambda: getattr(torch.backends, "fp32_precision"),  # noqa: B009  # torch does not declare it to mypy
    "torch.backends.cuda.matmul.fp32_precision": lambda: torch.backends.cuda.matmul.fp32_precision,
    "torch.backends.cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
    "torch.backends.cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
    "the kernels that torch's scaled_dot_product_attention may use": lambda: (
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.cudnn_sdp_enabled(),
    ),
    "the state of random": random.getstate,
    "the state of numpy.random": _numpy_state,
    "logging.root": lambda: (logging.root.level, tuple(logging.root.handlers)),
    "the handler of SIGINT": lambda: signal.getsignal(signal.SIGINT),
    "the handler of SIGTERM": lambda: signal.getsignal(signal.SIGTERM),
}
"""What to compare, by the words in which a change is reported."""
