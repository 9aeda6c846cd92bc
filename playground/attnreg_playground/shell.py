"""What the tabs share: the app they are built in, the registry, the language, small components."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import gradio as gr

from attnreg import Registry
from attnreg_playground.texts import choose_language

Translation = Callable[[str], Any]
"""From a language code to a component's new value, or to a ``gr.update``."""


@dataclass
class Shell:
    """The app around a tab. A tab adds its components and says how each is translated."""

    demo: gr.Blocks
    registry: Registry
    language: gr.Radio
    translations: list[tuple[Any, Translation]] = field(default_factory=list)

    def translate(self, component: Any, make: Translation) -> None:
        """Give a component a new value or update whenever the language is chosen."""
        self.translations.append((component, make))

    @staticmethod
    def first_language(request: gr.Request) -> str:
        """Return the language of ``?lang=``, else of the browser, else English."""
        return choose_language(
            request.query_params.get("lang"), request.headers.get("accept-language")
        )


def blocks(value: dict[str, Any], **settings: Any) -> gr.HTML:
    """Return a component that shows plain blocks of text (``about.Blocks``)."""
    # The template is constant: Gradio evaluates what is put into one as code.
    return gr.HTML(
        value,
        html_template="",
        js_on_load=read_asset("blocks.js"),
        apply_default_css=False,
        **settings,
    )


def heatmap(value: dict[str, Any], **settings: Any) -> gr.HTML:
    """Return the component that draws a payload of ``heatmap.payload``."""
    return gr.HTML(
        value,
        html_template=read_asset("heatmap.html"),
        css_template=read_asset("heatmap.css"),
        js_on_load=read_asset("heatmap.js"),
        apply_default_css=False,
        **settings,
    )


def plain(text: str) -> str:
    """Take the links out of a text for ``info``, where Gradio escapes HTML but makes links.

    What it lets through as an address may still run a script, and the text may be a plugin's.
    """
    shown = "".join(sign if sign.isprintable() else " " for sign in text)
    return " ".join(shown.split()).replace("](", "]\u2060(")


def read_asset(name: str) -> str:
    """Return the text of a file in ``assets``."""
    return (resources.files("attnreg_playground") / "assets" / name).read_text(encoding="utf-8")
