"""Run the laws in processes of their own, under limits of time and memory."""

from __future__ import annotations

import json
import os
import queue
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnreg.children import Child
from attnreg.conformance.report import Result
from attnreg.hookspecs import Check

GRACE = 90.0
"""Seconds in which a process must have imported the plugin."""

HANGS, CRASHES = 2, 4
"""After so many, what is left is not tried."""

PATIENCE = 0.2
"""Seconds in which a process that says no more may end by itself, and tell its exit code."""

MEMORY = 8 * 2**30
"""Bytes beyond what a process holds when it starts."""

JOBS = max(1, min(4, os.cpu_count() or 1))
"""How many processes share the checks of a variant."""

Inbox = queue.Queue[tuple["_Worker", dict[str, Any] | None]]


class Uncontained(Exception):
    """A process could not import the variant."""


class _Worker(Child):
    """A process that asks for one check after the other; its messages go to a common inbox."""

    def __init__(self, request: str, inbox: Inbox) -> None:
        self.check: Check | None = None
        self.deadline = time.monotonic() + GRACE
        super().__init__("attnreg.conformance.child", lambda message: inbox.put((self, message)))
        self.say(request)

    def give(self, check: Check, seconds: float) -> None:
        """Hand it a check, to be done within so many seconds."""
        self.check = check
        self.deadline = time.monotonic() + seconds
        self.say(check.id)


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
            how = worker.close(PATIENCE)
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
