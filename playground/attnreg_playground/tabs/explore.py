"""The Explore tab: any variant, its options, an input, and the weights of every head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from attnreg_playground import about, controls
from attnreg_playground.controls import Rail
from attnreg_playground.explore import Controls, View, causal_gate, look, padding_gate
from attnreg_playground.form import fields_of
from attnreg_playground.heatmap import payload
from attnreg_playground.shell import Shell, blocks, heatmap, plain
from attnreg_playground.texts import say

# Every listener is private (no entry in the API), and those that draw run one after the other:
# a picture never overtakes a newer one, and torch's generator is used by one at a time.
_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
_DRAW: dict[str, Any] = {**_QUIET, "concurrency_id": "attend", "concurrency_limit": 1}
_TYPED: dict[str, Any] = {**_DRAW, "trigger_mode": "always_last"}


def build(shell: Shell) -> None:
    """Add the tab's components and listeners."""
    with gr.Row(elem_id="at-explore"):
        with gr.Column(scale=4, min_width=300, elem_id="at-rail"):
            rail = controls.rail(shell)
        with gr.Column(scale=9, min_width=340, elem_id="at-stage"):
            heat = heatmap({}, elem_id="at-heatmap")
        with gr.Column(scale=4, min_width=280, elem_id="at-sheet"):
            sheet = _sheet(shell, rail.variant)
    view, head = gr.State(None), gr.State(0)
    stage = _Stage(shell, rail, view, head, heat)
    _listen(stage, sheet)
    with rail.place:
        _form(stage)


@dataclass(frozen=True)
class _Stage:
    """The picture with everything that makes it."""

    shell: Shell
    rail: Rail
    view: gr.State
    head: gr.State
    heat: gr.HTML

    @property
    def inputs(self) -> list[Any]:
        return [self.shell.language, self.head, *self.rail.drawn]

    @property
    def outputs(self) -> list[Any]:
        return [self.view, self.heat, self.rail.message, self.rail.causal, self.rail.padding]

    def draw(self, language: str, head: int, *state: Any) -> list[Any]:
        """Return a new value for each of ``outputs``."""
        now = Controls(*state)
        view = look(self.shell.registry, now)
        return [
            view,
            payload(view.shown, head, language),
            about.form_message(list(view.wrong), language),
            *self.gates(now, language),
        ]

    def gates(self, state: Controls, language: str) -> list[Any]:
        """Return updates that close the controls which the variant does not declare."""
        variant = self.shell.registry.get(state.variant)
        if variant is None:
            return [gr.update(), gr.update()]
        causal = causal_gate(variant, bool(state.causal))
        padding = padding_gate(variant, int(state.padding or 0))
        settings: dict[str, Any] = {"value": True} if causal.forced else {}
        return [
            gr.update(interactive=causal.open, info=plain(causal.reason), **settings),
            gr.update(
                interactive=padding.open,
                info=plain(padding.reason) or say("control.padding_info", language),
            ),
        ]


def _sheet(shell: Shell, variant: gr.Dropdown) -> tuple[list[Any], Callable[[Any, str], list[Any]]]:
    """Add what stands beside the picture; return its components and what fills them."""
    parts = [
        blocks({}, elem_id="at-heading"),
        gr.Markdown(
            "",
            elem_id="at-formula",
            latex_delimiters=[{"left": "$$", "right": "$$", "display": True}],
        ),
        blocks({}, elem_id="at-details"),
    ]

    def fill(name: Any, code: str) -> list[Any]:
        found = shell.registry.get(name) if isinstance(name, str) else None
        if found is None:
            return [{}, "", {}]
        heading = about.heading(found, shell.registry.owner(found.name), code)
        return [heading, about.formula(found, code), about.details(found, code)]

    return parts, fill


def _listen(stage: _Stage, sheet: tuple[list[Any], Callable[[Any, str], list[Any]]]) -> None:
    shell, rail = stage.shell, stage.rail
    parts, fill = sheet

    def start(request: gr.Request, _: str, head: int, *state: Any) -> list[Any]:
        code = shell.first_language(request)
        return [*stage.draw(code, head, *state), *fill(state[0], code)]

    def choose(language: str, head: int, *state: Any) -> list[Any]:
        return [*stage.draw(language, head, *state), *fill(state[0], language)]

    def switch(source: str, *values: Any) -> list[Any]:
        real = source == "real"
        return [
            gr.update(visible=not real),
            gr.update(visible=real),
            gr.update(visible=real),
            gr.update(visible=not real),
            *stage.draw(*values),
        ]

    def pick(view: View | None, language: str, event: gr.EventData) -> tuple[Any, Any]:
        head = getattr(event, "head", 0)
        if view is None or not isinstance(head, int) or head < 0:
            return gr.skip(), gr.skip()
        return head, payload(view.shown, head, language)

    def translate(language: str, view: View | None, head: int, name: Any, *rest: Any) -> list[Any]:
        if view is None:
            return [gr.skip()] * (4 + len(parts))
        message = about.form_message(list(view.wrong), language)
        _, padding = stage.gates(Controls(name, *rest), language)
        return [payload(view.shown, head, language), message, padding, *fill(name, language)]

    everything = [*stage.outputs, *parts]
    shell.demo.load(start, stage.inputs, everything, **_DRAW)
    rail.variant.change(choose, stage.inputs, everything, **_TYPED)
    shapes = [rail.text, rail.passage, rail.layer, rail.heads]
    rail.source.input(switch, [rail.source, *stage.inputs], [*shapes, *stage.outputs], **_TYPED)
    changed = [*shapes, rail.causal, rail.padding, rail.seed]
    triggers = [controls.changed(one) for one in changed]
    gr.on(triggers, stage.draw, stage.inputs, stage.outputs, **_TYPED)
    stage.heat.click(pick, [stage.view, shell.language], [stage.head, stage.heat], **_DRAW)
    shell.language.change(
        translate,
        [shell.language, stage.view, stage.head, *rail.drawn],
        [stage.heat, rail.message, rail.padding, *parts],
        **_DRAW,
    )


def _form(stage: _Stage) -> None:
    """Add the form of the chosen variant; what it holds is kept by variant in ``rail.options``."""
    shell, rail = stage.shell, stage.rail

    @gr.render(
        inputs=[rail.variant, shell.language, rail.options],
        triggers=[shell.demo.load, rail.variant.change, shell.language.change],
        show_progress="hidden",
    )  # type: ignore[untyped-decorator]  # gr.render has no types
    def form(name: Any, language: str, held: dict[str, dict[str, Any]]) -> None:
        variant = shell.registry.get(name) if isinstance(name, str) else None
        if variant is None:
            return
        fields = fields_of(variant)
        title = "control.options" if fields else "control.no_options"
        gr.Markdown(f"**{say(title, language, variant=f'`{name}`')}**")
        if not fields:
            return
        raw = held.get(name, {})
        widgets = [
            controls.widget(name, one, raw.get(one.name, one.initial), language) for one in fields
        ]
        back = gr.Button(say("control.defaults", language), size="sm", key=(name, "defaults"))

        def typed(*given: Any) -> list[Any]:
            rest, values = given[: -len(fields)], given[-len(fields) :]
            language, head, chosen, held = rest[:4]
            if chosen != name:  # the form of a variant that is no longer shown
                return [gr.skip()] * (1 + len(stage.outputs))
            held = {**held, name: {f.name: v for f, v in zip(fields, values, strict=True)}}
            return [held, *stage.draw(language, head, chosen, held, *rest[4:])]

        def reset(*given: Any) -> list[Any]:
            language, head, chosen, held = given[:4]
            held = {one: values for one, values in held.items() if one != name}
            drawn = stage.draw(language, head, chosen, held, *given[4:])
            return [*(one.initial for one in fields), held, *drawn]

        outputs = [rail.options, *stage.outputs]
        gr.on(
            [controls.changed(one) for one in widgets],
            typed,
            [*stage.inputs, *widgets],
            outputs,
            key=(name, "typed"),
            **_TYPED,
        )
        back.click(reset, stage.inputs, [*widgets, *outputs], key=(name, "reset"), **_DRAW)
