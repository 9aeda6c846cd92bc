"""The process that runs variants for the playground: requests in, results out, as lines of JSON."""

from __future__ import annotations

import faulthandler
import json
import math
import os
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import IO, Any

from attnreg.children import channel, limit_memory

PATIENCE = 30.0
"""Seconds beyond the limit of a job after which a process that nobody stops ends itself."""


LARGEST_FILE = 2**28


def main() -> None:
    """Read how to work, then requests, from what was standard input; answer on output."""
    with channel() as (asked, say):
        _serve(json.loads(asked.readline()), asked, say)


def _serve(setup: dict[str, Any], asked: IO[str], say: Callable[..., None]) -> None:
    import torch

    torch.set_num_threads(setup["threads"])
    from attnreg_playground.catalogue import catalogue
    from attnreg_playground.work import TASKS

    registry = load(setup["registry"])
    limit_memory(setup["memory"])
    limit_files()
    say(catalogue=catalogue(registry))
    own = os.getpid()
    for line in asked:
        request = json.loads(line)
        faulthandler.dump_traceback_later(request["seconds"] + PATIENCE, exit=True)
        try:
            done = TASKS[request["task"]](registry, **request["arguments"])
            result = _follow(done, say) if isinstance(done, Iterator) else done
            answer = {"result": finite(result)}
        except (Exception, SystemExit) as error:
            answer = {"failed": f"{type(error).__name__}: {error}"[:1000]}
        faulthandler.cancel_dump_traceback_later()
        if os.getpid() != own:
            os._exit(0)  # the plugin forked, and this is the copy
        say(**answer)


def load(registry: str | None) -> Any:
    """Return what is installed, or the registry that ``"module:function"`` makes."""
    import attnreg

    if registry is None:
        return attnreg.default_registry()
    module, _, name = registry.partition(":")
    return getattr(import_module(module), name)()


def limit_files() -> None:
    """Let no file that this process writes, its log among them, grow beyond ``LARGEST_FILE``."""
    try:
        import resource
    except ImportError:  # Windows has none; the limit of time is left
        return
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = LARGEST_FILE if hard == resource.RLIM_INFINITY else min(LARGEST_FILE, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))


def _follow(steps: Iterator[Any], say: Callable[..., None]) -> Any:
    """Pass on what a task yields as it goes; return the last ``result``."""
    result: Any = None
    for message in steps:
        if "result" in message:
            result = message["result"]
        else:
            say(**finite(message))
    return result


def finite(value: Any) -> Any:
    """Return plain data without NaN and infinities, which JSON does not have: they become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    if hasattr(value, "tolist"):
        return finite(value.tolist())
    return value
