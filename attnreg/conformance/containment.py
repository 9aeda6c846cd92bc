"""Run the laws in processes of their own, under limits of time and memory."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from attnreg.conformance.report import Result
from attnreg.hookspecs import Check

GRACE = 90.0
"""Seconds in which a process must have imported the plugin."""

HANGS, CRASHES = 2, 4
"""After so many, what is left is not tried."""

MEMORY = 8 * 2**30
"""Bytes beyond what a process holds when it starts."""

JOBS = max(1, min(4, os.cpu_count() or 1))
"""How many processes share the checks of a variant."""

Inbox = queue.Queue[tuple["_Worker", dict[str, Any] | None]]


class Uncontained(Exception):
    """A process could not import the variant."""


class _Worker:
    """A process that asks for one check after the other; its messages go to a common inbox."""

    def __init__(self, request: str, inbox: Inbox) -> None:
        self.check: Check | None = None
        self.deadline = time.monotonic() + GRACE
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from attnreg.conformance.child import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment,
            start_new_session=os.name == "posix",  # so that its own children end with it
        )
        threading.Thread(target=self._read, args=(inbox,), daemon=True).start()
        self._say(request)

    def give(self, check: Check, seconds: float) -> None:
        """Hand it a check, to be done within so many seconds."""
        self.check = check
        self.deadline = time.monotonic() + seconds
        self._say(check.id)

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None  # for mypy: it is a pipe
        with contextlib.suppress(BrokenPipeError):  # it died, and the inbox will say so
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def _read(self, inbox: Inbox) -> None:
        assert self.process.stdout is not None  # for mypy: it is a pipe
        with self.process.stdout as stream:
            for line in stream:
                with contextlib.suppress(ValueError):  # half a line, of a process that was killed
                    message = json.loads(line)
                    if isinstance(message, dict):
                        inbox.put((self, message))
        inbox.put((self, None))

    def close(self) -> str:
        """End the process and all it started; return how it ended and what it said last."""
        assert self.process.stdin is not None  # for mypy: it is a pipe
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.2)  # one that ended by itself has a code to tell
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        code = self.process.wait()
        self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - 2000))
        last = self.log.read().decode(errors="replace").strip().splitlines()[-3:]
        self.log.close()
        how = f"exit code {code}"
        if code < 0:
            known = {one.value: one.name for one in signal.Signals}
            how = f"signal {known.get(-code, -code)}"
        return how + (f"; it said last: {' / '.join(last)}" if last else "")


def contained(
    request: Mapping[str, Any], checks: Sequence[Check], seconds: float, jobs: int = JOBS
) -> Iterator[Result]:
    """Yield the result of each check, as they come, from processes that are replaced when they die.

    Raises ``Uncontained`` where a process cannot import the variant.
    """
    left = deque(checks)
    inbox: Inbox = queue.Queue()
    jobs = max(1, min(jobs, len(checks)))
    threads = max(1, (os.cpu_count() or 1) // jobs)
    limits = {"memory": MEMORY, "seconds": seconds, "threads": threads}
    asked = json.dumps({**request, **limits, "checks": [check.id for check in checks]})
    workers: list[_Worker] = []
    hangs = crashes = 0
    begun = False  # whether any process could import the variant
    try:
        for _ in range(jobs):
            workers.append(_Worker(asked, inbox))
        while workers:
            wait = min(worker.deadline for worker in workers) - time.monotonic()
            worker, message, fault = None, None, None
            try:
                worker, message = inbox.get(timeout=max(0.0, wait))
            except queue.Empty:
                worker = min(workers, key=lambda one: one.deadline)
                limit = seconds if worker.check else GRACE
                ended = worker.process.poll()  # a child of its own may hold the pipe open
                fault = f"the process ended: exit code {ended}" if ended is not None else None
                fault = (
                    fault
                    or f"it did not end within {limit:g} s and was stopped (seconds= allows more)"
                )
                hangs += ended is None
            if worker not in workers:
                continue  # the last words of one that was stopped
            if message is not None and "refused" in message:
                if not begun:
                    raise Uncontained(message["refused"])
                message = {"broken": message["refused"]}
            if message is not None and "broken" not in message:
                begun = True
                if "result" in message:
                    if worker.check is None or message["result"]["check"] != worker.check.id:
                        continue  # an answer to no question, from a process that forked
                    worker.check = None
                    yield Result(**message["result"])
                if left:
                    worker.give(left.popleft(), seconds)
                    continue
                workers.remove(worker)
                worker.close()
                continue
            workers.remove(worker)
            how = worker.close()
            if message is not None:
                fault = message["broken"]
            elif fault is None:
                fault = f"the process ended: {how}"
            crashes += "did not end" not in fault
            if worker.check is None:
                fault = f"before any check began: {fault}"
            broken = worker.check or (left.popleft() if left else None)
            if broken is not None:
                yield _error(broken, fault)
            if hangs >= HANGS or crashes >= CRASHES:
                for check in left:
                    yield _error(check, f"not tried, as earlier checks hung or crashed: {fault}")
                left.clear()
            elif len(workers) < min(jobs, len(left)):
                workers.append(_Worker(asked, inbox))
    finally:
        for worker in workers:
            worker.close()


def _error(check: Check, message: str) -> Result:
    return Result(check.id, "error", check.level, check.summary, 0.0, {"message": message})
