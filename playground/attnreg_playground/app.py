"""The playground as a Gradio app: the header, the tabs, the panels of plugins, the endpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module, resources
from typing import Any

# Before Gradio is imported: no telemetry, no look-ups of newer versions, no model hub.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000000000")  # a table of every event
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import gradio as gr

from attnreg_playground.api import Endpoints
from attnreg_playground.calls import Calls
from attnreg_playground.pool import Pool
from attnreg_playground.texts import LANGUAGES, TEXTS, choose_language, say

TABS = (
    "three", "explore", "compare", "questions", "benchmark", "conformance", "capabilities",
    "models", "plugins",
)  # fmt: skip
FIRST = "explore"

SCRIPTS = ("core", "heat", "plots", "numbers", "widgets", "page")
"""The scripts of ``assets``, in the order in which they build on each other."""

_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


@dataclass(frozen=True)
class Service:
    """What answers the page: quick jobs, long ones one at a time, and what is installed."""

    quick: Pool
    slow: Pool
    calls: Calls
    endpoints: Endpoints
    catalogue: Mapping[str, Any]

    def close(self) -> None:
        """End every process."""
        self.calls.close()
        self.quick.close()
        self.slow.close()


def build(service: Service) -> gr.Blocks:
    """Return the app around a service."""
    demo = gr.Blocks(title="attnreg playground", analytics_enabled=False)
    faults: list[dict[str, str]] = []
    labels: list[tuple[Any, Callable[[str], str]]] = []
    with demo:
        head = _html("header", {}, service)
        with gr.Tabs(selected=FIRST, elem_id="at-tabs") as tabs:
            for name in TABS:
                with gr.Tab(say(f"tab.{name}", "en"), id=name) as tab:
                    _html("tab", {"tab": name}, service)
                labels.append((tab, _tab_title(name)))
                tab.select(None, None, None, js=_chosen(name), **_QUIET)
            for panel in service.catalogue["panels"]:
                _add(panel, labels, faults)
        head.value = {
            "catalogue": {**service.catalogue, "faults": faults},
            "texts": {key: list(texts) for key, texts in TEXTS.items()},
            "languages": dict(LANGUAGES),
            "tabs": list(TABS),
            "first": FIRST,
            "heavy": service.calls.heavy,
        }
        _listen(demo, head, tabs, labels)
        for endpoint in service.endpoints.all():
            gr.api(endpoint, api_name=endpoint.__name__, concurrency_limit=4)  # type: ignore[attr-defined]  # it is documented
    return demo


def read_asset(name: str) -> str:
    """Return the text of a file in ``assets``."""
    return (resources.files("attnreg_playground") / "assets" / name).read_text(encoding="utf-8")


def _html(part: str, value: dict[str, Any], service: Service) -> gr.HTML:
    """Return a component that the scripts fill; its template is empty, as Gradio runs templates."""
    library = "\n".join(read_asset(f"{name}.js") for name in SCRIPTS) if part == "header" else ""
    script = f"{library}\n{read_asset(f'{part}.js')}"

    async def call(asked: dict[str, Any]) -> dict[str, Any]:  # Gradio marks it: no method will do
        return await service.calls.call(asked)

    return gr.HTML(
        value,
        html_template="",
        js_on_load=script,
        apply_default_css=False,
        elem_id=f"at-{part}" if part == "header" else f"at-tab-{value['tab']}",
        server_functions=[call] if part == "header" else None,
    )


def _listen(
    demo: gr.Blocks, head: gr.HTML, tabs: gr.Tabs, labels: list[tuple[Any, Callable[[str], str]]]
) -> None:
    """Label the tabs in the language that is chosen, and open the tab of the address."""

    def named(code: str) -> list[Any]:
        return [gr.update(label=title(code)) for _, title in labels]

    def start(request: gr.Request) -> list[Any]:
        asked = request.query_params.get("lang"), request.headers.get("accept-language")
        first = request.query_params.get("tab")
        known = [one.id for one, _ in labels]
        chosen = first if first in known else FIRST
        return [gr.Tabs(selected=chosen), *named(choose_language(*asked))]

    def choose(event: gr.EventData) -> list[Any]:
        code, tab = getattr(event, "language", ""), getattr(event, "tab", "")
        labelled = named(code) if code in LANGUAGES else [gr.skip() for _ in labels]
        known = [one.id for one, _ in labels]
        return [gr.Tabs(selected=tab) if tab in known else gr.skip(), *labelled]

    outputs = [tabs, *(tab for tab, _ in labels)]
    demo.load(start, None, outputs, **_QUIET)
    head.select(choose, None, outputs, **_QUIET)


def _add(
    panel: Mapping[str, Any],
    labels: list[tuple[Any, Callable[[str], str]]],
    faults: list[dict[str, str]],
) -> None:
    """Add a plugin's panel as a tab, or note why it cannot be built."""
    made = None
    try:
        module, _, name = panel["build"].partition(":")
        make = getattr(import_module(module), name)
        with gr.Tab(_panel_title(panel, "en"), id=f"panel-{panel['id']}") as made:
            make()
    except (Exception, SystemExit) as error:
        if made is not None:
            made.visible = False  # what it added before it failed is of no use
        faults.append({"panel": panel["id"], "reason": f"{type(error).__name__}: {error}"})
        return
    made.select(None, None, None, js=_chosen(f"panel-{panel['id']}"), **_QUIET)
    labels.append((made, lambda code: _panel_title(panel, code)))


def _chosen(name: str) -> str:
    """Return the script that notes in the address which tab is shown."""
    plain = "".join(sign for sign in name if sign.isalnum() or sign in "-_")
    return f"() => window.attnreg && window.attnreg.tabChosen('{plain}')"


def _tab_title(name: str) -> Callable[[str], str]:
    return lambda code: say(f"tab.{name}", code)


def _panel_title(panel: Mapping[str, Any], language: str) -> str:
    title = panel["title"]
    return str(title.get(language) or title.get("en") or panel["id"])
