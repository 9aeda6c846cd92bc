"""The playground as a Gradio app: the header, the tabs, the notice, and how it is served."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

# Before Gradio is imported: no telemetry, no look-ups of newer versions, no model hub.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000000000")  # a table of every event
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import gradio as gr

import attnreg
from attnreg import Panel, Registry
from attnreg_playground.about import notice
from attnreg_playground.shell import Shell, blocks, read_asset
from attnreg_playground.tabs import TABS
from attnreg_playground.texts import LANGUAGES, say

_FONT = ("system-ui", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", "sans-serif")
_MONO = ("ui-monospace", "Consolas", "monospace")


def build(registry: Registry | None = None) -> gr.Blocks:
    """Return the app, of the given registry or of everything installed."""
    registry = attnreg.default_registry() if registry is None else registry
    demo = gr.Blocks(title="attnreg playground", analytics_enabled=False)
    with demo:
        with gr.Row(elem_id="at-header"):
            title = gr.Markdown(_title("en"))
            language = gr.Radio(
                [(name, code) for code, name in LANGUAGES.items()],
                value="en",
                label=say("page.language", "en"),
                show_label=False,
                container=False,
                elem_id="at-language",
            )
        shell = Shell(demo, registry, language)
        shell.translate(title, lambda code: gr.update(value=_title(code)))
        for tab in TABS:
            with gr.Tab(say(f"tab.{tab.id}", "en"), id=tab.id) as made:
                tab.build(shell)
            shell.translate(made, _tab_title(tab.id))
        faults = [fault for panel in registry.panels.values() if (fault := _add(panel, shell))]
        foot = blocks({}, elem_id="at-notice")
        shell.translate(
            foot,
            lambda code: notice(
                registry, [say("panel.broken", code, panel=p, reason=r) for p, r in faults], code
            ),
        )
        _listen(shell)
    return demo


def launch(
    host: str,
    port: int | None,
    open_browser: bool,
    *,
    expose: bool = False,
    block: bool = True,
    registry: Registry | None = None,
) -> gr.Blocks:
    """Serve the app; see ``attnreg_playground.launch``."""
    if not (expose or _is_loopback(host)):
        raise ValueError(
            f"host {host!r} can be reached from other machines, and whoever reaches the playground "
            "can run the installed variants; pass expose=True (--expose) if that is meant"
        )
    demo = build(registry)
    demo.queue(max_size=64)
    demo.launch(
        server_name=host,
        server_port=port,
        inbrowser=open_browser,
        share=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        enable_monitoring=False,
        show_error=False,
        run_history=False,
        footer_links=[],
        allowed_paths=[],
        prevent_thread_lock=True,
        theme=_theme(),
        css=read_asset("app.css"),
        quiet=True,  # its own greeting offers a public link, which this app does not
    )
    if block:
        print(f"attnreg playground: {demo.local_url} (Ctrl+C stops it)", flush=True)
        demo.block_thread()
    return demo


def _listen(shell: Shell) -> None:
    """Translate everything when the language changes; choose it first from URL and browser."""
    outputs = [component for component, _ in shell.translations]

    def translate(code: str) -> list[object]:
        return [make(code if code in LANGUAGES else "en") for _, make in shell.translations]

    def start(request: gr.Request) -> list[object]:
        code = shell.first_language(request)
        return [code, *translate(code)]

    shell.language.input(
        translate, shell.language, outputs, show_progress="hidden", api_visibility="private"
    )
    shell.demo.load(
        start, None, [shell.language, *outputs], show_progress="hidden", api_visibility="private"
    )


def _add(panel: Panel, shell: Shell) -> tuple[str, str] | None:
    """Add a plugin's panel as a tab; return its id and the reason where it cannot be built."""
    made = None
    try:
        module, _, name = panel.build.partition(":")
        make = getattr(import_module(module), name)
        with gr.Tab(_panel_title(panel, "en"), id=f"panel-{panel.id}") as made:
            make()
    except (Exception, SystemExit) as error:
        if made is not None:
            made.visible = False  # what it added before it failed is of no use
        return panel.id, f"{type(error).__name__}: {error}"
    shell.translate(made, lambda code: gr.update(label=_panel_title(panel, code)))
    return None


def _tab_title(name: str) -> Callable[[str], Any]:
    return lambda code: gr.update(label=say(f"tab.{name}", code))


def _panel_title(panel: Panel, language: str) -> str:
    return panel.title.get(language) or panel.title.get("en") or panel.id


def _title(language: str) -> str:
    return f"# {say('page.title', language)}\n{say('page.tagline', language)}"


def _theme() -> gr.themes.Base:
    theme = gr.themes.Soft(primary_hue="teal", neutral_hue="zinc", font=_FONT, font_mono=_MONO)
    for shade in ("", "_dark"):  # plain labels: the picture is what is coloured here
        theme.set(
            **{
                f"block_title_background_fill{shade}": "transparent",
                f"block_title_text_color{shade}": "*body_text_color",
                f"body_text_color_subdued{shade}": "*neutral_400" if shade else "*neutral_500",
                f"block_info_text_color{shade}": "*neutral_400" if shade else "*neutral_500",
                f"input_border_color{shade}": "*neutral_600" if shade else "*neutral_300",
                f"checkbox_border_color{shade}": "*neutral_500" if shade else "*neutral_400",
            },
            block_border_width="1px",
            block_shadow="none",
            input_border_width="1px",
            input_shadow="none",
            checkbox_border_width="1px",
            block_title_padding="0",
            block_title_text_weight="600",
        )
    return theme


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
