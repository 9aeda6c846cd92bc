"""A real browser, the playground served for it, and a window that notices what goes wrong."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import attnreg

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _serve(registry: attnreg.Registry | None = None) -> Any:
    import attnreg_playground

    return attnreg_playground.launch(open_browser=False, block=False, registry=registry)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    demo = _serve()
    yield demo.local_url
    demo.close(verbose=False)


@pytest.fixture(scope="module")
def fakes() -> Any:
    place = Path(__file__).parents[2] / "playground" / "tests" / "fakes.py"
    name = "attnreg_playground_fakes"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, place)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="module")
def hostile_address(fakes: Any) -> Iterator[str]:
    registry = fakes.registry()
    registry.add_plugin(fakes.Panels(fakes.__name__), name="panels", distribution="panels")
    demo = _serve(registry)
    yield demo.local_url
    demo.close(verbose=False)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield opened
        opened.close()


class Window:
    """One page with what went wrong in it."""

    def __init__(self, browser: Any, width: int = 1280, **settings: Any) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, **({"locale": "en-US"} | settings)
        )
        self.page = self.context.new_page()
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
        self.page.goto(address + query)
        self.page.wait_for_function("window.__drawn > 0")
        self.page.wait_for_selector("#at-form button, #at-form p")
        self.settle()
        return self

    def settle(self) -> None:
        """Wait until nothing has been drawn for a while."""
        before = -1
        while before != (now := self.page.evaluate("window.__drawn")):
            before = now
            self.page.wait_for_timeout(450)

    def after(self, act: Any) -> None:
        """Act, and wait for the redraw."""
        before = self.page.evaluate("window.__drawn")
        act()
        self.page.wait_for_function(f"window.__drawn > {before}")
        self.settle()

    def choose(self, name: str) -> None:
        field = self.page.locator("#at-variant input")
        if field.input_value() == name:
            return

        def act() -> None:
            field.click()
            self.page.get_by_role("option", name=name, exact=True).click()

        self.after(act)

    def text(self, selector: str) -> str:
        return " ".join(self.page.locator(f"{selector} >> visible=true").all_inner_texts())

    def coloured(self) -> int:
        """How many different colours the big map has."""
        found: int = self.page.evaluate(
            """() => { const map = document.querySelector(".hm-map");
            if (!map.width) return 0;
            const all = map.getContext("2d").getImageData(0, 0, map.width, map.height).data;
            const seen = new Set();
            for (let at = 0; at < all.length; at += 4)
                seen.add((all[at] << 16) + (all[at + 1] << 8) + all[at + 2]);
            return seen.size; }"""
        )
        return found

    def close(self) -> None:
        """Nothing was fetched from elsewhere, and nothing went wrong."""
        self.context.close()
        away = [
            url
            for url in self.requests
            if not url.startswith(("http://127.0.0.1:", "data:", "blob:http://127.0.0.1:"))
        ]
        assert not away
        assert not self.errors


@pytest.fixture(scope="module")
def open_window(browser: Any) -> Callable[..., Window]:
    """Open a window of some width, language and colour scheme."""

    def make(width: int = 1280, **settings: Any) -> Window:
        return Window(browser, width, **settings)

    return make


@pytest.fixture
def window(open_window: Callable[..., Window], address: str) -> Iterator[Window]:
    opened = open_window().open(address)
    yield opened
    opened.close()
