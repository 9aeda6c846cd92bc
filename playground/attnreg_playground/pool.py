"""Worker processes: what runs plugin code, under limits of time and memory, killed and replaced.

The process that serves pages imports neither torch nor a plugin. A plugin that hangs, crashes or
exits costs the one request that met it.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attnreg.children import Child, Message
from attnreg_playground.texts import Problem, problem

log = logging.getLogger("attnreg.playground")

LONGEST_LOG = 2**20
"""Bytes of what a worker printed that are kept."""

START = 90.0
"""Seconds in which a worker must have imported torch and every plugin."""


@dataclass(frozen=True)
class Limits:
    """What one pool may use: so many workers, each with so much memory beyond what it starts with.

    ``waiting`` is how many jobs may wait for one; ``threads`` is for torch in each.
    """

    workers: int = 2
    waiting: int = 64
    memory: int = 4 * 2**30
    threads: int = 1


class Job:
    """One request to a worker: its newest message, and its end.

    ``what`` names the variants that it runs. ``news`` counts messages. ``result`` is what the task
    returned, or a ``Problem``.
    """

    def __init__(
        self, task: str, arguments: Mapping[str, Any], seconds: float, what: str = ""
    ) -> None:
        self.key = secrets.token_urlsafe(16)
        self.request = json.dumps({"task": task, "arguments": arguments, "seconds": seconds})
        self.seconds = seconds
        self.what = what or task
        self.ahead = 0
        self.started = self.asked = 0.0
        self.step: Message | None = None
        self.partial: Any = None
        self.items: list[Any] = []
        self.news = 0
        self.done = False
        self.result: Any = None
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], object]] = []

    def hear(self, message: Message) -> None:
        """Take in a message of the worker."""
        if "step" in message:
            self.step = message["step"]
        if "partial" in message:
            self.partial = message["partial"]
        if "item" in message:
            self.items.append(message["item"])
        self._tell()

    def finish(self, result: Any) -> None:
        """End the job, once."""
        if not self.done:
            self.result, self.done = result, True
            self._tell()

    def wait(self, seconds: float, beyond: int | None = None) -> bool:
        """Wait until it has ended, or has more news than ``beyond``; return whether it ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.done or (beyond is not None and self.news > beyond), seconds
            )
        return self.done

    def listen(self, heard: Callable[[], object]) -> Callable[[], None]:
        """Have a function called at every news, from another thread; return what ends that."""
        self._listeners.append(heard)
        return lambda: self._listeners.remove(heard)

    def _tell(self) -> None:
        with self._changed:
            self.news += 1
            self._changed.notify_all()
        for heard in tuple(self._listeners):
            heard()


class _Worker(Child):
    """A process with the job that it works on."""

    def __init__(self, pool: Pool) -> None:
        self.job: Job | None = None
        self.ready = False
        self.deadline = time.monotonic() + START
        super().__init__("attnreg_playground.worker", lambda said: pool.heard(self, said))
        self.say(pool.setup)

    def trim(self) -> None:
        """Empty what it printed, once that is much: nobody reads it while it works."""
        if os.fstat(self.log.fileno()).st_size > LONGEST_LOG:
            os.ftruncate(self.log.fileno(), 0)


class Pool:
    """Workers of one kind; ``submit`` gives them jobs, in order."""

    def __init__(self, registry: str | None, limits: Limits) -> None:
        self.limits = limits
        self.setup = json.dumps(
            {"registry": registry, "threads": limits.threads, "memory": limits.memory}
        )
        self.catalogue: dict[str, Any] | None = None
        self.fault = ""
        """Why the last worker that could not start did not."""
        self._lock = threading.RLock()
        self._workers: list[_Worker] = []
        self._queue: deque[Job] = deque()
        self._closed = False
        self._watched = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def start(self) -> Pool:
        """Start the workers now, not at the first job; return self."""
        with self._lock:
            while len(self._workers) < self.limits.workers:
                self._workers.append(_Worker(self))
        return self

    def wait_for_catalogue(self, seconds: float = START) -> dict[str, Any]:
        """Return what the first worker that is ready says of the variants; else ``OSError``."""
        deadline = time.monotonic() + seconds
        while self.catalogue is None:
            if self.fault or time.monotonic() > deadline:
                raise OSError(
                    "no worker process could load the plugins: "
                    f"{self.fault or 'it takes too long'}; `attnreg doctor` lists what is wrong, "
                    "and ATTNREG_DISABLE leaves a plugin out"
                )
            time.sleep(0.02)
        return self.catalogue

    def submit(
        self, task: str, arguments: Mapping[str, Any], seconds: float, what: str = ""
    ) -> Job:
        """Have a task done; where the queue is full, the job has ended already and says so."""
        job = Job(task, arguments, seconds, what)
        with self._lock:
            if self._closed or len(self._queue) >= self.limits.waiting:
                job.finish(problem("busy"))
                return job
            self._queue.append(job)
            self.start()
            self._dispatch()
        return job

    def cancel(self, job: Job) -> None:
        """End a job; where it runs, so does its process, and another takes its place."""
        with self._lock:
            if job in self._queue:
                self._queue.remove(job)
            job.finish(problem("stopped"))
            for worker in [one for one in self._workers if one.job is job]:
                self._replace(worker)

    def close(self) -> None:
        """End every process."""
        with self._lock:
            self._closed = True
            self._watched.set()
            for job in self._queue:
                job.finish(problem("stopped"))
            self._queue.clear()
            workers, self._workers = self._workers, []
        for worker in workers:
            if worker.job is not None:
                worker.job.finish(problem("stopped"))
            worker.close()

    def heard(self, worker: _Worker, message: Message | None) -> None:
        """Take in what a worker says; None is its end."""
        with self._lock:
            if worker not in self._workers:
                return  # the last words of one that was replaced
            if message is None:
                self._lost(worker, worker.close(0.5))
            elif "catalogue" in message:
                self.catalogue, worker.ready, self.fault = message["catalogue"], True, ""
                worker.deadline = float("inf")
                self._dispatch()
            elif worker.job is not None:
                if "result" in message or "failed" in message:
                    job, worker.job, worker.deadline = worker.job, None, float("inf")
                    worker.trim()
                    failed = message.get("failed")
                    wrong = problem("failed", failed, what=job.what) if failed else None
                    job.finish(wrong or message["result"])
                    self._dispatch()
                else:
                    worker.job.hear(message)

    def _dispatch(self) -> None:
        for worker in self._workers:
            if worker.ready and worker.job is None and self._queue:
                worker.job = self._queue.popleft()
                worker.job.started = time.monotonic()
                worker.deadline = worker.job.started + worker.job.seconds
                worker.say(worker.job.request)
        for place, job in enumerate(self._queue):
            job.ahead = place + 1

    def _lost(self, worker: _Worker, how: str) -> None:
        """Note that a worker ended or did not start; jobs wait while there is another."""
        log.warning("a worker ended: %s", how)
        if worker.job is not None:
            worker.job.finish(problem("crashed", what=worker.job.what, how=how))
        if worker.ready:
            self._replace(worker)
            return
        self._workers.remove(worker)  # the next would fail in the same way: none is started now
        threading.Thread(target=worker.close, daemon=True).start()
        self.fault = how
        while self._queue and not self._workers:
            job = self._queue.popleft()
            job.finish(problem("crashed", what=job.what, how=how))

    def _replace(self, worker: _Worker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            threading.Thread(target=worker.close, daemon=True).start()
            if not self._closed:
                self.start()

    def _watch(self) -> None:
        """Stop what takes too long."""
        while not self._watched.wait(0.1):
            now = time.monotonic()
            with self._lock:
                for worker in [one for one in self._workers if now > one.deadline]:
                    job = worker.job
                    if job is None:
                        self._lost(worker, f"it did not start within {START:g} s")
                    else:
                        job.finish(problem("slow", what=job.what, seconds=f"{job.seconds:g}"))
                        self._replace(worker)


def failed(result: Any) -> Problem | None:
    """Return the problem that a job ended with, if it did."""
    return result if isinstance(result, Problem) else None
