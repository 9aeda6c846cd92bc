"""How fast the playground is, and how it bears many users: ``python -m tests.browser.load``.

It is no test: a clock judges nothing here. It prints how long it takes to start, from a moved
slider to the new picture, and after a burst of twenty users; and what is held after 100 and 1000
requests.
"""

from __future__ import annotations

import base64
import json
import statistics
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from tests.browser.conftest import BROWSER, FLAGS

MOVES, USERS, EVENTS, SOAK = 60, 20, 10, 1000


def main() -> None:
    """Serve, measure, print."""
    import attnreg_playground

    begun = time.perf_counter()
    demo = attnreg_playground.launch(open_browser=False, block=False)
    print(f"served after {time.perf_counter() - begun:.1f} s")
    try:
        browse(demo.local_url)
        component = find_component(demo.local_url)
        burst(demo.local_url, component)
        soak(demo, component)
    finally:
        demo.close(verbose=False)


def browse(address: str) -> None:
    """Move a slider in a browser, and time each picture."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        begun = time.perf_counter()
        page.goto(address)
        page.wait_for_function("window.__drawn > 0")
        print(f"first page, to its first picture: {time.perf_counter() - begun:.2f} s")
        for length in (64, 512):
            page.goto(f"{address}?tab=explore&source=chance&length={length}&heads=12")
            page.wait_for_function("window.__drawn > 0")
            taken = page.evaluate(
                """async (moves) => { const taken = [];
                const slider = document.querySelector("[data-name=seed] input[type=range]");
                for (let value = 1; value <= moves; value++) {
                    const before = window.__drawn, begun = performance.now();
                    slider.value = value; slider.dispatchEvent(new Event("input"));
                    while (window.__drawn === before) await new Promise(requestAnimationFrame);
                    taken.push(performance.now() - begun); }
                return taken; }""",
                MOVES,
            )
            ordered = sorted(taken)
            print(
                f"slider to picture, 12 heads of L={length}: median {statistics.median(taken):.0f} "
                f"ms, p95 {ordered[int(0.95 * len(ordered))]:.0f} ms of {len(ordered)}"
            )
        browser.close()


def find_component(address: str) -> int:
    """Return the id of the component that answers."""
    with urllib.request.urlopen(f"{address}config", timeout=30) as answer:
        config = json.load(answer)
    parts = [one for one in config["components"] if one["props"].get("elem_id") == "at-header"]
    return int(parts[0]["id"])


def ask(address: str, component: int, seed: int, **values: Any) -> dict[str, Any]:
    """Draw as the page does, and follow the job to its end."""
    asked: dict[str, Any] = {
        "do": "draw",
        "page": "explore",
        "values": {"source": "chance", "length": 64, "seed": seed, **values},
    }
    while True:
        body = {"data": asked, "component_id": component, "fn_name": "call", "session_hash": "s"}
        request = urllib.request.Request(
            f"{address}gradio_api/component_server/",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        if "job" not in found:
            return found
        asked = {"do": "more", "job": found["job"], "news": found["news"]}


def burst(address: str, component: int) -> None:
    """Let twenty users move a slider ten times; each asks for its newest value, as pages do."""
    from attnreg_playground import draw

    finished: dict[int, tuple[float, bool]] = {}
    last_seeds = [number * 100 + EVENTS for number in range(USERS)]
    expected = {
        seed: draw("explore", source="chance", length=64, seed=seed)["weights"][0]
        for seed in last_seeds  # here, as one thread at a time may draw
    }

    def user(number: int) -> None:
        newest, last = [0], threading.Event()

        def move() -> None:
            for event in range(1, EVENTS + 1):
                newest[0] = number * 100 + event
                time.sleep(0.03)
            last.set()

        threading.Thread(target=move).start()
        done = 0
        while not (last.is_set() and done == newest[0]):
            done = newest[0]
            found = ask(address, component, done)
        exact = np.frombuffer(base64.b64decode(found["result"]["figures"][0]["exact"]), "<f4")
        right = done in expected and np.array_equal(exact, expected[done].ravel())
        finished[number] = (time.perf_counter() - begun, right)

    begun = time.perf_counter()
    users = [threading.Thread(target=user, args=(number,)) for number in range(USERS)]
    for one in users:
        one.start()
    for one in users:
        one.join()
    slowest = max(seconds for seconds, _ in finished.values())
    right = sum(good for _, good in finished.values())
    print(f"{USERS} users, {EVENTS} moves each: {right} end right, the last after {slowest:.1f} s")


def soak(demo: Any, component: int) -> None:
    """Ask a thousand times, and compare what is held after 100 and at the end."""
    held: dict[int, int] = {}
    begun = time.perf_counter()
    for count in range(1, SOAK + 1):
        ask(demo.local_url, component, count % 50, variant=("linear", "cosine")[count % 2])
        if count in (100, SOAK):
            held[count] = resident()
    rate = SOAK / (time.perf_counter() - begun)
    first, last = held[100] / 2**20, held[SOAK] / 2**20
    print(
        f"memory of the server and its workers: {first:.0f} MiB after 100 requests, {last:.0f} MiB "
        f"after {SOAK} ({last / first - 1:+.1%}), at {rate:.0f} requests per second; "
        f"{threading.active_count()} threads, {len(list(Path('/proc/self/fd').iterdir()))} files"
    )


def resident() -> int:
    """Return the resident bytes of this process and its children."""
    own = Path("/proc/self")
    pages = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text(encoding="ascii")
        except OSError:  # it has just ended
            continue
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        mine = own.resolve().name in (fields["PPid"].strip(), status.parent.name)
        pages += int(fields.get("VmRSS", "0 kB").split()[0]) if mine else 0
    return pages * 1024


if __name__ == "__main__":
    main()
