"""A real browser, the playground served for it, and a window that notices what goes wrong."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
EVERYTHING = os.environ.get("ATTNREG_BROWSER") == "all"
"""Whether all browser tests run, as in CI, or the subset of ``make test``."""

SCREENSHOTS = os.environ.get("ATTNREG_SCREENSHOTS")
"""A folder for pictures of every tab, to be looked at."""

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _serve(**settings: Any) -> Any:
    import attnreg_playground

    return attnreg_playground.launch(open_browser=False, block=False, **settings)


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    demo = _serve()
    yield demo.local_url
    demo.close(verbose=False)


@pytest.fixture(scope="session")
def fakes() -> Any:
    place = str(Path(__file__).parents[2] / "playground" / "tests")
    if place not in sys.path:
        sys.path.append(place)
    import playground_fakes

    return playground_fakes


@pytest.fixture(scope="session")
def hostile_address(fakes: Any) -> Iterator[str]:
    demo = _serve(registry=f"{fakes.__name__}:with_panels")
    yield demo.local_url
    demo.close(verbose=False)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield opened
        opened.close()


class Window:
    """One page with what went wrong in it."""

    def __init__(self, context: Any) -> None:
        self.page = context.new_page()
        self.page.set_default_timeout(30_000)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console",
            lambda said: self.errors.append(said.text) if said.type == "error" else None,
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, address: str, query: str = "") -> Window:
        if self.requests:
            self.page.wait_for_timeout(200)  # what Gradio still asks for when a page opens
        self.page.goto(address + query)
        self.page.wait_for_selector(".at-page >> visible=true")
        return self

    @property
    def tab(self) -> Any:
        """The tab that is shown."""
        return self.page.locator(".at-page >> visible=true").first

    def drawn(self) -> Window:
        """Wait for the first picture of the tab."""
        self.page.wait_for_function("window.__drawn > 0")
        self.page.wait_for_selector(".at-page[data-state=idle] >> visible=true")
        return self

    def after(self, act: Any, seconds: float = 30.0) -> None:
        """Act, and wait for the redraw."""
        before = self.page.evaluate("window.__drawn || 0")
        act()
        self.page.wait_for_function(f"window.__drawn > {before}", timeout=seconds * 1000)
        self.page.wait_for_selector(".at-page[data-state=idle] >> visible=true")

    def control(self, name: str) -> Any:
        """The control of a name, in the tab that is shown."""
        return self.tab.locator(f".at-control[data-name={name}]")

    def slide(self, name: str, value: object) -> None:
        """Type a number beside a slider."""
        box = self.control(name).locator("input[type=number]")

        def act() -> None:
            box.fill(str(value))
            box.press("Enter")

        self.after(act)

    def choose(self, name: str, control: str = "variant") -> None:
        """Choose a variant, or another value of a list."""
        field = self.control(control).locator("select")
        if field.input_value() != name:
            self.after(lambda: field.select_option(name))

    def text(self, selector: str) -> str:
        return " ".join(self.page.locator(f"{selector} >> visible=true").all_inner_texts())

    def query(self) -> dict[str, str]:
        """The address, once it has been written."""
        self.page.wait_for_timeout(400)
        found: dict[str, str] = self.page.evaluate(
            "Object.fromEntries(new URLSearchParams(location.search))"
        )
        return found

    def coloured(self, selector: str = ".hm-map") -> int:
        """How many different colours a canvas has."""
        found: int = self.page.evaluate(
            """(selector) => { const map = [...document.querySelectorAll(selector)]
                .find((one) => one.offsetParent);
            if (!map || !map.width) return 0;
            const all = map.getContext("2d").getImageData(0, 0, map.width, map.height).data;
            const seen = new Set();
            for (let at = 0; at < all.length; at += 4)
                seen.add((all[at] << 16) + (all[at + 1] << 8) + all[at + 2]);
            return seen.size; }""",
            selector,
        )
        return found

    def wide(self) -> int:
        """How wide the page is; more than the window is an overflow."""
        found: int = self.page.evaluate(
            "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
        )
        return found

    def picture(self, name: str) -> None:
        """Keep a screenshot, where somebody wants to look."""
        if SCREENSHOTS:
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=True)

    def close(self) -> None:
        """Nothing was fetched from elsewhere, and nothing went wrong."""
        self.page.wait_for_timeout(200)  # what Gradio still asks for when a page opens
        self.page.close()
        own = ("http://127.0.0.1:", "data:", "blob:http://127.0.0.1:")
        away = [url for url in self.requests if not url.startswith(own)]
        assert not away
        assert not self.errors


@pytest.fixture(scope="session")
def open_window(browser: Any) -> Iterator[Callable[..., Window]]:
    """Open a window of some width, language and colour scheme; alike ones share a cache."""
    contexts: dict[str, Any] = {}

    def make(width: int = 1280, **settings: Any) -> Window:
        key = f"{width} {sorted(settings.items())}"
        if key not in contexts:
            contexts[key] = browser.new_context(
                viewport={"width": width, "height": 900},
                accept_downloads=True,
                **({"locale": "en-US"} | settings),
            )
        return Window(contexts[key])

    yield make
    for context in contexts.values():
        context.close()


@pytest.fixture
def window(open_window: Callable[..., Window]) -> Iterator[Window]:
    opened = open_window()
    yield opened
    opened.close()
