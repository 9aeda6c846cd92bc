"""Workers: a plugin that hangs, crashes, exits, prints or asks for too much costs one request."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from attnreg_playground.calls import Calls
from attnreg_playground.pool import Job, Limits, Pool, failed
from attnreg_playground.texts import localise

from .conftest import FAKES, run_alone


@pytest.fixture(scope="module")
def pool(fakes):
    made = Pool(FAKES, Limits(workers=2, waiting=8, memory=2 * 2**30)).start()
    made.wait_for_catalogue()
    yield made
    made.close()


def draw(pool: Pool, page: str = "explore", seconds: float = 20.0, **values: object) -> Job:
    arguments = {"page": page, "values": values, "language": "en"}
    return pool.submit("draw", arguments, seconds)


def finished(job: Job, seconds: float = 40.0) -> object:
    assert job.wait(seconds)
    wrong = failed(job.result)
    return localise(wrong, "en")["title"] if wrong else job.result


def settled(pool: Pool) -> None:
    """Wait until every worker is there and has nothing to do."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if sum(one.ready and one.job is None for one in pool._workers) == pool.limits.workers:
            return
        time.sleep(0.05)
    raise AssertionError("the workers did not come back")


def works(pool: Pool) -> None:
    found = finished(draw(pool, variant="odd"))
    assert found["figures"][0]["queries"] == ["我", "爱", "你"]


def test_the_catalogue_is_what_the_registry_holds(pool, fakes):
    assert set(pool.catalogue["variants"]) == set(fakes.with_panels())
    assert {one["id"] for one in pool.catalogue["panels"]} == {"bad", "good"}
    assert list(pool.catalogue["duplicates"]) == ["twin"]
    assert "broken-distribution" in pool.catalogue["broken"][0]["plugin"]
    json.dumps(pool.catalogue, allow_nan=False)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hangs", "It took too long"),
        ("crashes", "The process that ran it ended"),
        ("greedy", "Too much memory"),
        ("quits", "The plugin fakes-distribution failed"),
        ("raises", "The plugin fakes-distribution failed"),
    ],
)
def test_a_bad_plugin_becomes_a_message_and_the_rest_goes_on(name, said, pool):
    job = draw(pool, seconds=2.0, variant=name)
    works(pool)  # beside it
    begun = time.monotonic()
    result = finished(job)
    title = result if isinstance(result, str) else result["problem"]["title"]
    assert title == said
    assert time.monotonic() - begun < 4.0
    works(pool)
    works(pool)


def test_what_a_plugin_prints_reaches_nobody(pool, capfd):
    result = finished(draw(pool, variant="prints"))
    assert result["problem"] is None
    works(pool)
    assert "not mine" not in "".join(capfd.readouterr())


def test_a_full_queue_says_so_and_empties(pool):
    settled(pool)
    jobs = [draw(pool, seconds=1.0, variant="hangs") for _ in range(2)]
    time.sleep(0.2)
    jobs += [draw(pool, variant="odd") for _ in range(8)]
    assert finished(draw(pool, variant="odd"), 0.0) == "The playground is busy"
    assert [one.ahead for one in jobs[2:]] == list(range(1, 9))
    assert all(isinstance(finished(one), dict) for one in jobs[2:])


def test_a_stopped_job_frees_its_place_at_once(pool):
    settled(pool)
    jobs = [draw(pool, seconds=60.0, variant="hangs") for _ in range(2)]
    time.sleep(0.3)
    waiting = draw(pool, variant="odd")
    for job in jobs:
        pool.cancel(job)
        assert finished(job, 0.0) == "Stopped"
    assert isinstance(finished(waiting), dict)
    queued = [draw(pool, seconds=60.0, variant="hangs") for _ in range(3)]
    pool.cancel(queued[2])
    assert finished(queued[2], 0.0) == "Stopped"
    for job in queued:
        pool.cancel(job)
    works(pool)


def test_killed_workers_are_replaced(pool):
    for _ in range(2):
        old = list(pool._workers)
        for worker in old:
            os.kill(worker.process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and set(old) & set(pool._workers):
            time.sleep(0.05)
        works(pool)


def test_workers_leave_no_threads_or_files_behind(pool):
    settled(pool)

    def held() -> tuple[int, int]:
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    before = held()
    for _ in range(3):
        finished(draw(pool, seconds=5.0, variant="crashes"))
    settled(pool)
    time.sleep(0.5)
    after = held()
    assert after[0] <= before[0] + 1
    assert after[1] <= before[1] + 2


def test_a_registry_that_cannot_be_loaded_is_an_error_with_its_reason():
    broken = Pool("no_such_module:registry", Limits(workers=1)).start()
    try:
        with pytest.raises(OSError, match=r"no_such_module.*attnreg doctor"):
            broken.wait_for_catalogue(60.0)
        job = draw(broken)
        assert job.wait(60.0)
    finally:
        broken.close()


DEEP: list = []
for _ in range(5000):
    DEEP = [DEEP]


def ask(calls: Calls, **asked: object) -> dict:
    return run_alone(calls.call(asked))


@pytest.fixture
def calls(pool):
    pages = {page["id"]: page for page in pool.catalogue["pages"]}
    made = Calls(pool, pool, pages, True)
    yield made
    made.close()


def test_a_page_is_drawn_followed_and_stopped(calls):
    found = ask(calls, do="draw", page="explore", values={"variant": "odd"}, language="zh")
    assert found["result"]["findings"][0]["text"].startswith("每行之和为 1")
    running = ask(calls, do="draw", page="explore", values={"variant": "hangs"})
    assert running["step"]["text"] == ""
    again = ask(calls, do="more", job=running["job"], news=running["news"])
    assert again["job"] == running["job"]
    assert ask(calls, do="stop", job=running["job"]) == {"stopped": True}
    gone = ask(calls, do="more", job=running["job"], news=0)
    assert gone["problem"]["title"] == "This job is gone"
    assert ask(calls, do="stop", job=running["job"]) == {"stopped": False}


def test_long_drawings_tell_how_far_they_are(calls):
    values = {"longest": "2048", "variants": ["scaled_dot_product"]}
    seen = [ask(calls, do="draw", page="q_bottleneck", values=values)]
    while "job" in seen[-1]:
        seen.append(ask(calls, do="more", job=seen[-1]["job"], news=seen[-1]["news"]))
    assert len(seen) > 2
    steps = [one["step"]["done"] for one in seen if "job" in one]
    assert steps == sorted(steps)
    assert any(one.get("left") for one in seen)
    assert any(one.get("partial") for one in seen)
    lines = seen[-1]["result"]["figures"][0]["series"]
    assert lines[0]["x"] == [128, 256, 512, 1024, 2048]


@pytest.mark.parametrize(
    "asked",
    [
        None, [], "x", 3, {}, {"do": "draw"}, {"do": "draw", "page": "no"}, {"do": "eval"},
        {"do": "draw", "page": ["explore"]}, {"do": "draw", "page": "explore", "values": []},
        {"do": "draw", "page": "../explore", "values": {}}, {"do": "more"}, {"do": "stop"},
        {"do": "more", "job": {"a": 1}}, {"do": "export", "page": ["explore"]},
        {"do": "export", "page": "benchmark"}, {"do": "export", "page": "q_bottleneck"},
        {"do": "export", "page": "explore", "values": {"text": "x" * 10**6}},
        {"do": "draw", "page": "explore", "values": {"text": DEEP}},
        {"do": "draw", "language": ["zh"]},
        {"do": "draw", "page": "explore", "values": {"text": "x" * 10**6}},
    ],
)  # fmt: skip
def test_odd_requests_are_answered_by_sentences(asked, calls):
    begun = time.monotonic()
    found = run_alone(calls.call(asked))
    assert time.monotonic() - begun < 2.0
    if found != {"stopped": False}:
        told = found.get("problem") or found["result"]["problem"]
        assert told["title"]
        assert "Traceback" not in json.dumps(found)


def test_numbers_are_exported(calls):
    import base64
    import io

    import numpy as np

    found = ask(calls, do="export", page="explore", values={"variant": "odd", "heads": 2})["result"]
    held = np.load(io.BytesIO(base64.b64decode(found["base64"])), allow_pickle=False)
    assert held["weights"].shape == (2, 3, 3)


def test_exports_at_once_are_few(calls):
    async def many() -> list:
        values = {"variant": "hangs"}
        asked = [
            calls.call({"do": "export", "page": "explore", "values": values}) for _ in range(9)
        ]
        waiting = [asyncio.ensure_future(one) for one in asked]
        done, left = await asyncio.wait(waiting, timeout=1.0)
        for one in left:
            one.cancel()
        return [one.result() for one in done]

    refused = run_alone(many())
    assert len(refused) == 5
    assert all(one["problem"]["title"] == "The playground is busy" for one in refused)
    for worker in list(calls.quick._workers):
        if worker.job is not None:
            calls.quick.cancel(worker.job)
    for job in list(calls.quick._queue):
        calls.quick.cancel(job)


def test_long_jobs_can_be_switched_off(pool):
    pages = {page["id"]: page for page in pool.catalogue["pages"]}
    light = Calls(pool, pool, pages, False)
    settled(pool)
    for page in ("benchmark", "conformance", "digits", "recall", "q_vision"):
        found = ask(light, do="draw", page=page, values={})
        assert found["problem"]["title"] == "Switched off here"
    found = ask(light, do="draw", page="capabilities", values={"verify": True})
    assert found["problem"]["title"] == "Switched off here"
    for page, values in (("explore", {"variant": "odd"}), ("capabilities", {})):
        assert "result" in ask(light, do="draw", page=page, values=values)
    light.close()


def test_jobs_of_pages_that_are_gone_are_stopped(calls, monkeypatch):
    from attnreg_playground import calls as module

    monkeypatch.setattr(module, "FORGOTTEN", 0.5)
    running = ask(calls, do="draw", page="explore", values={"variant": "hangs"})
    assert "job" in running
    deadline = time.monotonic() + 10
    while calls._jobs and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not calls._jobs
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(one.job for one in calls.quick._workers):
        time.sleep(0.05)
    assert not any(one.job for one in calls.quick._workers)  # its process was ended too
