"""What importing a plugin changed for everything else in the process.

A plugin only registers. One that sets the default dtype, seeds a generator or replaces a function
of torch changes the results of code that never asked for it: that is reported, and never undone,
since something may already rest on it. Other threads are seen too: what they change meanwhile is
put down to the plugin.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from attnreg import process


class Snapshot(NamedTuple):
    """The global state that a plugin has to leave alone, at one moment."""

    values: Mapping[str, object]
    functions: Mapping[str, object]
    path: list[str]
    filters: list[Any]
    environment: Mapping[str, str]


def snapshot() -> Snapshot:
    """Look at everything that is watched: under a millisecond."""
    functions = {f"torch.{name}": getattr(torch, name) for name in _OF_TORCH}
    functions |= {f"torch.nn.functional.{k}": v for k, v in vars(functional).items() if callable(v)}
    values = process.read({**process.FLAGS, **process.DRAWS})
    return Snapshot(values, functions, sys.path.copy(), list(warnings.filters), dict(os.environ))


def changes(before: Snapshot) -> list[str]:
    """Name what differs from an earlier snapshot.

    Only what was there before counts: a module imported since brings state of its own, a folder
    appended to ``sys.path`` hides nothing, and a filter for one message, one module or a category
    of a library's own silences nobody else.
    """
    now = snapshot()
    found = process.changed(before.values, now.values)
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


_OF_COMPILERS = ("TORCHINDUCTOR_", "TRITON_")
"""Variables that torch sets itself where it first compiles, as a decorator at import may."""

_OF_TORCH = ("softmax", "matmul", "bmm", "baddbmm", "einsum")
