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
    from attnreg.errors import AttnregError, reason
    from attnreg.registry import get_variant

    try:
        target = request["target"]
        variant = get_variant(target) if isinstance(target, str) else unpack(target)
        known = known_checks()
        missing = [name for name in request["checks"] if name not in known]
        if missing:  # registered at run time, in the other process alone
            raise NotImportable(f"there is no check {missing[0]!r} in a process of its own")
    except (NotImportable, AttnregError) as error:
        say(refused=str(error))
        return
    if (
        torch.device(request["device"]).type == "cpu"
    ):  # an accelerator reserves addresses far beyond its memory
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
        say(broken=reason(error))
        return
    say(ready=True)
    own = os.getpid()
    for line in asked:
        # Should nobody be there any more to stop it, it ends itself, and says where it was.
        faulthandler.dump_traceback_later(request["seconds"] + 30.0, exit=True)
        result = judge(case, known[line.rstrip("\n")], request["waived"])
        faulthandler.cancel_dump_traceback_later()
        if os.getpid() != own:
            os._exit(0)  # the plugin forked, and this is the copy
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
