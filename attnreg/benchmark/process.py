"""A process that measures the memory of one subject, and may crash, hang or be stopped."""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from attnreg.benchmark.budget import Probe
from attnreg.benchmark.records import Settings
from attnreg.children import Child, Message

GRACE = 90.0
"""Seconds in which a process must have imported the plugin."""

ONCE = 60.0
"""Seconds beyond the budget that the first call may take: compiling happens once."""

TICK = 0.5
"""Seconds after which whoever waits is told that the wait goes on."""

ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "0",
    "MALLOC_TOP_PAD_": "0",
}
"""What makes glibc give memory back at once, so that a peak is that of one call alone."""


class Waiting(NamedTuple):
    """The process is still at it."""

    length: int
    what: str


class Uncontained(Exception):
    """A process of its own could not import the variant."""


class Prober(Child):
    """A process that measures one length after the other."""

    def __init__(self, request: str) -> None:
        self.silent = False  # it has closed its end of the pipe, and will say no more
        self.inbox: queue.Queue[Message | None] = queue.Queue()
        super().__init__("attnreg.benchmark.child", self.inbox.put, ALLOCATOR)
        self.say(request)

    def begin(self, length: int) -> Iterator[Waiting]:
        """Wait until it has imported the variant; raise ``Uncontained`` where it cannot."""
        for message in self._messages(GRACE):
            if message is None:
                yield Waiting(length, "starting")
            elif "refused" in message:
                raise Uncontained(message["refused"])
            elif "ready" in message:
                return
        raise Uncontained(f"its process did not start: {self.last_words(2)}")

    def measure(self, length: int, settings: Settings) -> Iterator[Probe | Waiting]:
        """Have it measure one length; the last that is yielded is a ``Probe``."""
        self.say(str(length))
        what, limit = "the first call", settings.seconds + ONCE
        while True:
            for message in self._messages(limit):
                if message is None:
                    yield Waiting(length, what)
                elif message.get("first"):
                    # One that has an end may tell by how much it is too slow.
                    what, limit = "the second call", 2.0 * settings.seconds + 2.0
                    break
                elif message.get("length") == length:
                    yield _probe_of(message)
                    return
            else:
                yield self._broken(length, what, limit)
                return

    def _messages(self, seconds: float) -> Iterator[Mapping[str, Any] | None]:
        """Yield what it says within so many seconds, None now and then, until it has ended."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                message = self.inbox.get(timeout=min(TICK, left))
            except queue.Empty:
                yield None
                continue
            if message is None:
                self.silent = True
                return
            yield message

    def _broken(self, length: int, what: str, limit: float) -> Probe:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5.0 if self.silent else 0.2)  # for the code it has to tell
        code = self.process.poll()
        if code is None and not self.silent:
            return Probe(length, "time", f"{what} did not end within {limit:g} s", note="ended")
        said = self.last_words(2)
        if "bad_alloc" in said or code == -signal.SIGKILL:
            return Probe(length, "memory", f"its process was ended: {said}", note="ended")
        return Probe(length, "error", f"its process ended: {said}", note="ended")


def _probe_of(message: Mapping[str, Any]) -> Probe:
    known = {key: value for key, value in message.items() if key in Probe._fields}
    return Probe(**known)
