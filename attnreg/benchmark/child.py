"""The process that measures the memory of one subject: a request and lengths in, JSON lines out.

Each length is called twice: what happens only once, such as compiling, is not counted.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from attnreg.children import channel

SLACK = 2**29
"""Bytes that a process may take beyond the limit of a call: libraries loaded at the first one."""

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def main() -> None:
    """Read the request and then lengths from what was standard input; answer on output."""
    with channel() as (asked, say):
        _serve(json.loads(asked.readline()), asked, say)


def _serve(request: dict[str, Any], asked: IO[str], say: Callable[..., None]) -> None:
    import torch

    from attnreg.benchmark.cell import SDPA, Target
    from attnreg.benchmark.records import Settings
    from attnreg.conformance.transport import NotImportable, unpack
    from attnreg.errors import AttnregError
    from attnreg.registry import get_variant

    settings = Settings(**request["settings"])
    torch.set_num_threads(settings.threads)
    name = request["target"]
    try:
        if name == "sdpa":
            variant = SDPA
        else:
            variant = get_variant(name) if isinstance(name, str) else unpack(name)
    except (NotImportable, AttnregError) as error:
        say(refused=str(error))
        return
    target = Target(variant, request["implementation"], request["options"])
    square = torch.ones(256, 256)
    _ = square @ square  # the threads start now, and take their memory, not at the first call
    say(ready=True)
    own = os.getpid()
    for line in asked:
        # Should nobody be there any more to stop it, it ends itself.
        faulthandler.dump_traceback_later(request["patience"], exit=True)
        found = _measured(target, settings, request["mode"], int(line), say)
        faulthandler.cancel_dump_traceback_later()
        if os.getpid() != own:
            os._exit(0)  # the plugin forked, and this is the copy
        say(**found)


def _measured(
    target: Any, settings: Any, mode: str, length: int, say: Callable[..., None]
) -> dict[str, Any]:
    """Measure one length; say when the first call is done; return the message that ends it."""
    from attnreg.benchmark.cell import implementation_of, make_call, make_inputs
    from attnreg.benchmark.failing import failure

    try:
        module = target.build(settings, length)
        inputs = make_inputs(settings, mode, length)
        call = make_call(module, inputs, settings, mode)
        with _limited(settings):
            call()
            ran = implementation_of(module, inputs, settings, mode)
            say(first=True)
            gc.collect()
            peak, note, seconds = measure_peak(call, settings.device)
    except (Exception, SystemExit) as error:
        status, reason = failure(error)
        return {"length": length, "status": status, "reason": reason}
    return {
        "length": length,
        "status": "ok",
        "peak": peak,
        "note": note,
        "seconds": seconds,
        "implementation": ran,
    }


def measure_peak(call: Callable[[], Any], device: str) -> tuple[int | None, str, float]:
    """Return the bytes that a call adds at its peak, or None and why not, and its seconds.

    What it gives back counts, its inputs do not. On the CPU it is the resident memory of the
    process, so that libraries that allocate by themselves are seen too.
    """
    import torch

    from attnreg.benchmark.cell import wait

    kind = torch.device(device).type
    note, before = "", 0
    if kind == "cuda":
        wait(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    elif kind != "cpu":
        note = f"not measured: torch.{kind} does not tell the peak of its memory"
    else:
        try:
            before = _resident("VmRSS")
            CLEAR.write_text("5", encoding="ascii")  # the high-water mark falls to what is held
        except (OSError, LookupError) as error:
            note = f"not measured: {CLEAR} cannot be used here ({type(error).__name__})"
    start = time.perf_counter()
    kept = call()
    wait(device)
    seconds = time.perf_counter() - start
    if note:
        return None, note, seconds
    top = torch.cuda.max_memory_allocated(device) if kind == "cuda" else _resident("VmHWM")
    del kept  # only now: what the call gives back is a part of its peak
    return max(0, int(top) - int(before)), "", seconds


def _resident(key: str) -> int:
    found = re.search(rf"^{key}:\s*(\d+) kB$", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    if found is None:
        raise LookupError(f"{STATUS} does not tell {key}")
    return int(found[1]) * 1024


@contextmanager
def _limited(settings: Any) -> Iterator[None]:
    """Let a call take so much memory and no more."""
    import torch

    if torch.device(settings.device).type == "cuda":
        torch.cuda.empty_cache()
        whole = torch.cuda.get_device_properties(settings.device).total_memory
        taken = torch.cuda.memory_reserved(settings.device) + settings.memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, taken / whole), settings.device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, settings.device)
        return
    try:
        import resource

        size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError):  # not Linux: the limit of time is left
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = size * resource.getpagesize() + settings.memory + SLACK
    ceilings = [one for one in (wanted, soft, hard) if one != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(ceilings), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
