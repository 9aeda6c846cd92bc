"""Processes that run plugin code: spoken to in lines of JSON, and ended with all they started.

The parent's side is ``Child``; a child's ``main`` opens its side with ``channel``. Nothing is
pickled, and what a plugin prints or reads meets neither the messages nor the terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

Message = dict[str, Any]

LAST_WORDS = 2000
"""How many bytes of what a process printed are read when it has ended."""


class Child:
    """A process of ours; ``hear`` gets each of its messages, and None when it says no more."""

    def __init__(
        self,
        module: str,
        hear: Callable[[Message | None], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        self._speaking, self._closing = threading.Lock(), threading.Lock()
        self._ended: str | None = None
        path = os.pathsep.join(p or "." for p in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {module} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**os.environ, **(environment or {}), "PYTHONPATH": path},
            start_new_session=os.name == "posix",  # so that its own children end with it
        )
        threading.Thread(target=self._read, args=(hear,), daemon=True).start()

    def say(self, line: str) -> None:
        """Write a line to its input; one that has died is found out by its silence."""
        assert self.process.stdin is not None  # for mypy: it is a pipe
        with self._speaking, contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def close(self, patience: float = 0.0) -> str:
        """End it and all it started, after so many seconds; return how it ended (``last_words``).

        With patience one that has ended by itself keeps the exit code that it had to tell. A second
        call says the same again.
        """
        with self._closing:
            if self._ended is None:
                self._ended = self._end(patience)
            return self._ended

    def _end(self, patience: float) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None  # for mypy: it is a pipe
        # Only now: whoever is still writing to it has been let go by the end of its reader.
        with self._speaking, contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        said = self.last_words(3)
        self.log.close()
        return said

    def last_words(self, lines: int) -> str:
        """Say with which code or signal it ended, and what it printed last."""
        code = self.process.poll()
        how = f"exit code {code}"
        if code is not None and code < 0:
            known = {one.value: one.name for one in signal.Signals}
            how = f"signal {known.get(-code, -code)}"
        self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - LAST_WORDS))
        last = self.log.read().decode(errors="replace").strip().splitlines()[-lines:]
        return how + (f"; it said last: {' / '.join(last)}" if last else "")

    def _read(self, hear: Callable[[Message | None], None]) -> None:
        assert self.process.stdout is not None  # for mypy: it is a pipe
        with self.process.stdout as stream:
            for line in stream:
                try:
                    message = json.loads(line)
                except ValueError:  # half a line, of a process that was killed
                    continue
                if isinstance(message, dict):
                    hear(message)
        hear(None)


@contextlib.contextmanager
def channel() -> Iterator[tuple[IO[str], Callable[..., None]]]:
    """Open the child's side: the lines it is asked, and ``say(**message)``."""
    with (
        os.fdopen(os.dup(0), encoding="utf-8") as asked,
        os.fdopen(os.dup(1), "w", encoding="utf-8") as out,
        open(os.devnull, encoding="utf-8") as nothing,
    ):
        os.dup2(nothing.fileno(), 0)  # a plugin that reads from its input finds nothing
        os.dup2(2, 1)  # what a plugin prints goes to the log, not among the messages

        def say(**message: Any) -> None:
            out.write(json.dumps(message) + "\n")
            out.flush()

        yield asked, say


def limit_memory(extra: int) -> None:
    """Let this process take so many bytes beyond what it holds; without effect on Windows."""
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
