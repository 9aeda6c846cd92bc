"""The process that runs the laws on a variant: a request and ids in, lines of JSON out."""

from __future__ import annotations

import faulthandler
import json
import os
from collections.abc import Callable
from typing import IO, Any

from attnreg.children import channel, limit_memory


def main() -> None:
    """Read the request and then ids of checks from what was standard input; answer on output."""
    with channel() as (asked, say):
        _serve(json.loads(asked.readline()), asked, say)


def _serve(request: dict[str, Any], asked: IO[str], say: Callable[..., None]) -> None:
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
        limit_memory(request["memory"])
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
