"""The process that runs the laws on a variant: a request and ids in, lines of JSON out."""

from __future__ import annotations

import faulthandler
import json
import os
from typing import IO, Any


def main() -> None:
    """Read the request and then ids of checks from what was standard input; answer on output."""
    with (
        os.fdopen(os.dup(0), encoding="utf-8") as asked,
        os.fdopen(os.dup(1), "w", encoding="utf-8") as out,
        open(os.devnull, encoding="utf-8") as nothing,
    ):
        os.dup2(nothing.fileno(), 0)  # a plugin that reads from its input finds nothing
        os.dup2(2, 1)  # what a plugin prints goes to the log, not among the messages
        _serve(json.loads(asked.readline()), asked, out)


def _serve(request: dict[str, Any], asked: IO[str], out: IO[str]) -> None:
    def say(**message: Any) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    import torch

    torch.set_num_threads(request["threads"])
    from attnreg.conformance.case import Case
    from attnreg.conformance.checks import known_checks
    from attnreg.conformance.judging import judge
    from attnreg.conformance.transport import NotImportable, unpack
    from attnreg.registry import get_variant

    try:
        target = request["target"]
        variant = get_variant(target) if isinstance(target, str) else unpack(target)
    except NotImportable as error:
        say(refused=str(error))
        return
    if request["device"] == "cpu":  # an accelerator reserves addresses far beyond its memory
        _limit_memory(request["memory"])
    dtypes = request["dtypes"]
    try:
        case = Case(
            variant,
            device=request["device"],
            dtypes=None if dtypes is None else [getattr(torch, name) for name in dtypes],
            full=request["full"],
        )
    except Exception as error:
        say(broken=f"{type(error).__name__}: {error}")
        return
    known = known_checks()
    say(ready=True)
    for line in asked:
        # Should nobody be there any more to stop it, it ends itself, and says where it was.
        faulthandler.dump_traceback_later(request["seconds"] + 30.0, exit=True)
        result = judge(case, known[line.strip()], request["waived"])
        say(result=vars(result))


def _limit_memory(extra: int) -> None:
    try:
        import resource
    except ImportError:  # Windows has none; the limit of time is left
        return
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            held = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:  # no such file outside Linux
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = held + extra if hard == resource.RLIM_INFINITY else min(held + extra, hard)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
