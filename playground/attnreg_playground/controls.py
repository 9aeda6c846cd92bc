"""The controls of the Explore tab, and the component of each field of a variant's form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from attnreg_playground import models
from attnreg_playground.explore import DEFAULT_PASSAGE, DEFAULT_TEXT, MAX_HEADS, MAX_PADDING
from attnreg_playground.form import Field, help_of
from attnreg_playground.shell import Shell, blocks, plain
from attnreg_playground.texts import say
from attnreg_playground.tokens import MAX_CHARACTERS, MAX_TOKENS


@dataclass(frozen=True)
class Rail:
    """The controls beside the picture; ``place`` is where the form of the variant goes."""

    variant: gr.Dropdown
    options: gr.State
    place: gr.Column
    message: gr.HTML
    source: gr.Radio
    text: gr.Textbox
    passage: gr.Textbox
    layer: gr.Slider
    heads: gr.Slider
    causal: gr.Checkbox
    padding: gr.Slider
    seed: gr.Number

    @property
    def drawn(self) -> list[Any]:
        """The components that ``explore.Controls`` is made of, in its order."""
        return [
            self.variant, self.options, self.source, self.text, self.passage,
            self.layer, self.heads, self.causal, self.padding, self.seed,
        ]  # fmt: skip


def rail(shell: Shell) -> Rail:
    """Add the controls and say how they are translated."""
    names = list(shell.registry)
    first = "scaled_dot_product" if "scaled_dot_product" in names else next(iter(names), None)
    # Four groups, which a narrow screen shows around the picture: see app.css.
    with gr.Column(elem_id="at-rail-variant"):
        variant = gr.Dropdown(names, value=first, elem_id="at-variant", filterable=True)
    shell.translate(variant, _label("control.variant"))
    with gr.Column(elem_id="at-rail-options"):
        place = gr.Column(elem_id="at-form")
        message = blocks({}, elem_id="at-message")
    with gr.Column(elem_id="at-rail-input"):
        source, text, passage, layer, heads = _input(shell)
    with gr.Column(elem_id="at-rail-mask"):
        causal = gr.Checkbox(False, elem_id="at-causal")
        padding = _slider(0, MAX_PADDING, 0, "at-padding")
        seed = gr.Number(0, precision=0, step=1, elem_id="at-seed")
    shell.translate(causal, _label("control.causal"))
    shell.translate(padding, _label("control.padding"))
    shell.translate(seed, _label("control.seed", "control.seed_info"))
    options = gr.State({})
    return Rail(
        variant, options, place, message, source, text, passage, layer, heads, causal, padding, seed
    )


def _input(shell: Shell) -> tuple[gr.Radio, gr.Textbox, gr.Textbox, gr.Slider, gr.Slider]:
    source = gr.Radio(_sources("en"), value="text", elem_id="at-source")
    shell.translate(
        source, lambda code: gr.update(choices=_sources(code), label=say("control.input", code))
    )
    text = gr.Textbox(
        DEFAULT_TEXT, lines=2, max_lines=4, max_length=MAX_CHARACTERS, elem_id="at-text"
    )
    shell.translate(text, _label("control.text", "control.text_info", limit=MAX_TOKENS))
    passage = gr.Textbox(
        DEFAULT_PASSAGE,
        lines=2,
        max_lines=4,
        max_length=MAX_CHARACTERS,
        visible=False,
        elem_id="at-passage",
    )
    shell.translate(passage, _label("control.passage", "control.passage_info", limit=MAX_TOKENS))
    layer = _slider(0, models.NUM_LAYERS - 1, 2, "at-layer", visible=False)
    shell.translate(layer, _label("control.layer"))
    heads = _slider(1, MAX_HEADS, 4, "at-heads")
    shell.translate(heads, _label("control.heads"))
    return source, text, passage, layer, heads


def widget(variant: str, field: Field, value: Any, language: str) -> Any:
    """Return the component of a field, its label the option's name."""
    common: dict[str, Any] = {
        "value": value,
        "label": field.name,
        "info": plain(help_of(field.option, language)) or None,
        "key": (variant, field.name),
        "elem_id": f"at-option-{field.name}",
        "interactive": True,
    }
    if field.widget == "check":
        return gr.Checkbox(**common)
    if field.widget == "choice":
        return gr.Dropdown(list(field.choices), **common)
    if field.widget == "slider":
        low, high = field.option.minimum or 0, field.option.maximum or 0  # a slider has both
        return gr.Slider(low, high, step=field.step, buttons=[], **common)
    return gr.Textbox(lines=1, max_lines=1, max_length=200, **common)


def changed(component: Any) -> Any:
    """Return the trigger of a person's change. That of a text misses pasting and input methods."""
    typed = isinstance(component, (gr.Textbox, gr.Number))
    return component.change if typed else component.input


def _slider(low: int, high: int, value: int, name: str, visible: bool = True) -> gr.Slider:
    return gr.Slider(low, high, value, step=1, buttons=[], visible=visible, elem_id=name)


def _sources(language: str) -> list[tuple[str, str]]:
    return [(say("control.sentence", language), "text"), (say("control.real", language), "real")]


def _label(key: str, info: str = "", **fields: Any) -> Callable[[str], Any]:
    def update(language: str) -> Any:
        more: dict[str, Any] = {"info": say(info, language, **fields)} if info else {}
        return gr.update(label=say(key, language), **more)

    return update
