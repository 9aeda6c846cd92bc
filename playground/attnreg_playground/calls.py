"""What the page in the browser may ask: to draw, for more, to stop, for a file. Nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
import time
from collections.abc import Mapping
from typing import Any

from attnreg_playground.pool import Job, Pool, failed
from attnreg_playground.texts import LANGUAGES, Problem, localise, problem

PATIENCE = 0.8
"""Seconds after which a job that is still running is told of, so that it can be stopped."""

SWEEP, FORGOTTEN, KEPT = 2.0, 20.0, 300.0
"""Seconds between two looks; after which a running job that nobody asks for is stopped; and after
which a result that nobody fetched is dropped."""

MOST_JOBS, MOST_EXPORTS = 256, 4
LARGEST = 200_000
"""Characters of one request."""


class Calls:
    """The server's side of ``assets/core.js``: jobs by keys that nobody can guess."""

    def __init__(self, quick: Pool, slow: Pool, pages: Mapping[str, Any], heavy: bool) -> None:
        self.quick = quick
        self.slow = slow
        self.pages = pages
        self.heavy = heavy
        self._jobs: dict[str, tuple[Job, Pool]] = {}
        self._exports = 0
        self._closed = threading.Event()
        threading.Thread(target=self._sweep, daemon=True).start()

    async def call(self, asked: Any) -> dict[str, Any]:
        """Answer one request of the page; whatever it is, the answer is plain data."""
        if not isinstance(asked, Mapping):
            return _told(problem("state"), "en")
        given = asked.get("language")
        language = given if isinstance(given, str) and given in LANGUAGES else "en"
        do = asked.get("do")
        if do == "draw":
            return await self._draw(asked, language)
        if do == "more":
            return await self._more(asked, language)
        if do == "stop":
            return self._stop(asked)
        if do == "export":
            return await self._export(asked, language)
        return _told(problem("state"), language)

    def close(self) -> None:
        """Forget every job."""
        self._closed.set()
        self._jobs.clear()

    async def _draw(self, asked: Mapping[str, Any], language: str) -> dict[str, Any]:
        page = asked.get("page")
        known = self.pages.get(page) if isinstance(page, str) else None
        if known is None:
            return _told(problem("page", page=repr(page)[:80]), language)
        values = asked.get("values")
        if not _is_plain(values):
            return _told(problem("state"), language)
        heavy = _is_heavy(known, values)
        if heavy and not self.heavy:
            return _told(problem("light"), language)
        pool = self.slow if heavy else self.quick
        arguments = {"page": page, "values": values, "language": language}
        job = pool.submit("draw", arguments, known["seconds"], _variants(known, values))
        await _settled(job, PATIENCE, None)
        if job.done:
            return _answer(job, language)
        self._keep(job, pool)
        return _running(job)

    async def _more(self, asked: Mapping[str, Any], language: str) -> dict[str, Any]:
        key, seen = asked.get("job"), asked.get("news")
        held = self._jobs.get(key) if isinstance(key, str) else None
        if held is None:
            return _told(problem("gone"), language)
        job = held[0]
        await _settled(job, PATIENCE, seen if isinstance(seen, int) else 0)
        if not job.done:
            return _running(job)
        self._jobs.pop(job.key, None)
        return _answer(job, language)

    def _stop(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        key = asked.get("job")
        held = self._jobs.pop(key, None) if isinstance(key, str) else None
        if held is not None:
            job, pool = held
            pool.cancel(job)
        return {"stopped": held is not None}

    async def _export(self, asked: Mapping[str, Any], language: str) -> dict[str, Any]:
        page = asked.get("page")
        known = self.pages.get(page) if isinstance(page, str) else None
        if known is None or not _is_plain(asked.get("values")):
            return _told(problem("state"), language)
        if not known["exports"]:
            return _told(problem("no_export"), language)
        if self._exports >= MOST_EXPORTS:
            return _told(problem("busy"), language)
        self._exports += 1
        try:
            arguments = {"page": page, "values": asked.get("values")}
            job = self.quick.submit("export", arguments, known["seconds"])
            await _settled(job, known["seconds"] + 5.0, None)
            if not job.done:  # it waited for a worker all that time
                self.quick.cancel(job)
            return _answer(job, language)
        finally:
            self._exports -= 1

    def _keep(self, job: Job, pool: Pool) -> None:
        while len(self._jobs) >= MOST_JOBS:
            old, held_by = self._jobs.pop(next(iter(self._jobs)))
            held_by.cancel(old)
        self._jobs[job.key] = (job, pool)

    def _sweep(self) -> None:
        """End the jobs of pages that are gone: nobody asks for them any more."""
        while not self._closed.wait(SWEEP):
            now = time.monotonic()
            for key, (job, pool) in list(self._jobs.items()):
                if now - job.asked > (KEPT if job.done else FORGOTTEN):
                    self._jobs.pop(key, None)
                    pool.cancel(job)


async def _settled(job: Job, seconds: float, beyond: int | None) -> None:
    """Wait until a job has ended or has more news than ``beyond``, without holding a thread."""
    job.asked = time.monotonic()
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    forget = job.listen(lambda: loop.call_soon_threadsafe(event.set))
    try:
        end = time.monotonic() + seconds
        while True:
            event.clear()  # before looking, so that no news is lost in between
            left = end - time.monotonic()
            if job.done or left <= 0 or (beyond is not None and job.news > beyond):
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), left)
    finally:
        forget()


def _is_plain(values: Any) -> bool:
    """Whether values can be sent on: not too many, not too deep."""
    try:
        return len(json.dumps(values)) <= LARGEST
    except (RecursionError, TypeError, ValueError):
        return False


def _is_heavy(page: Mapping[str, Any], values: Any) -> bool:
    """Whether what is asked of a page belongs to the long jobs."""
    ticked = page["heavy"]
    if isinstance(ticked, str):
        return isinstance(values, Mapping) and values.get(ticked) is True
    return bool(ticked)


def _variants(page: Mapping[str, Any], values: Any) -> str:
    """Name the variants that a page is asked to run, for a message about one that fails."""
    if not isinstance(values, Mapping):
        return ""
    named = [
        values.get(one["name"], one["default"])
        for one in page["controls"]
        if one["kind"] in ("variant", "variants")
    ]
    flat = [name for one in named for name in (one if isinstance(one, list) else [one])]
    return ", ".join(str(name)[:80] for name in flat[:12])


def _answer(job: Job, language: str) -> dict[str, Any]:
    wrong = failed(job.result)
    if wrong is not None:
        return {**_told(wrong, language), "partial": job.partial}
    return {"result": job.result}


def _running(job: Job) -> dict[str, Any]:
    """Say how far a job is: what is done, and how many seconds are left."""
    step = job.step or {"done": 0, "total": 0, "text": ""}
    left = None
    if job.started and step["done"] and step["total"]:
        spent = time.monotonic() - job.started
        left = math.ceil(spent * (step["total"] - step["done"]) / step["done"])
    return {
        "job": job.key,
        "news": job.news,
        "ahead": 0 if job.started else job.ahead,
        "step": step,
        "left": left,
        "partial": job.partial,
    }


def _told(found: Problem, language: str) -> dict[str, Any]:
    return {"problem": localise(found, language)}
