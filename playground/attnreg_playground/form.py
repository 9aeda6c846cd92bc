"""The form of a variant, read from its options: which widget each gets, and what a person typed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from attnreg import Option, OptionError, Variant
from attnreg_playground.texts import LANGUAGES, Problem, Sentence, localise, problem, sentence

Widget = Literal["check", "choice", "slider", "text"]

SCALE = Option("scale", None, (float, type(None)))
"""The scale that every variant may share, shown as one more option where the variant takes it."""

_NONE = "None"


@dataclass(frozen=True)
class Field:
    """One row of the form: an option, its widget, and the value the widget starts with.

    ``choices`` are pairs (label, value) of a choice; ``step`` is that of a slider.
    """

    option: Option
    widget: Widget
    initial: Any
    choices: tuple[tuple[str, str], ...] = ()
    step: float = 1.0

    @property
    def name(self) -> str:
        """The option's name."""
        return self.option.name

    def read(self, raw: Any) -> Any:
        """Return the option's value from what the widget holds; raise ``OptionError``."""
        if self.widget == "choice":
            values = _choices(self.option)
            labels = [value for _, value in self.choices]
            if raw not in labels:
                raise OptionError(f"{self.name} must be {self.option.allowed}, got {raw!r}")
            return values[labels.index(raw)]
        if isinstance(raw, str):
            return self.option.parse(raw)
        if self.widget == "slider" and int in self.option.kinds and _whole(raw):
            raw = int(raw)  # a browser knows one kind of number
        return self.option.check(raw)


def fields_of(variant: Variant) -> tuple[Field, ...]:
    """Return the form of a variant: its scale, where it takes one, then its own options."""
    own = tuple(_field(option) for option in variant.options)
    return (*own, _field(SCALE)) if "scale" in variant.common else own


def read_form(variant: Variant, raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the values of a form, with those left out at their defaults, and what is wrong."""
    values: dict[str, Any] = {}
    wrong: list[Problem] = []
    for field in fields_of(variant):
        if field.name not in raw or raw[field.name] == field.initial:
            continue
        try:
            values[field.name] = field.read(raw[field.name])
        except (OptionError, ValueError, TypeError, OverflowError):
            fields = {"name": field.name, "allowed": allowed(field.option)}
            fields["value"] = repr(raw[field.name])[:80]
            wrong.append(problem("option", control=field.name, **fields))
    return values, wrong


def allowed(option: Option) -> Sentence:
    """Say which values an option takes."""
    words: list[Sentence] = []
    if option.choices:
        listed = ", ".join(str(choice) for choice in option.choices)
        words.append(sentence("allowed.choices", choices=listed))
    names = {bool: "check", int: "int", float: "float", str: "str", tuple: "tuple"}
    for kind in option.kinds:
        if kind in names and not (option.choices and kind is not tuple):
            words.append(sentence(f"allowed.{names[kind]}"))
    if type(None) in option.kinds:
        words.append(sentence("allowed.none"))
    told = words[0]
    for word in words[1:]:
        told = sentence("allowed.or", one=told, other=word)
    if option.minimum is not None:
        key = "allowed.above" if option.open_minimum else "allowed.at_least"
        told = sentence(key, one=told, bound=_bound(option.minimum))
    if option.maximum is not None:
        key = "allowed.below" if option.open_maximum else "allowed.at_most"
        told = sentence(key, one=told, bound=_bound(option.maximum))
    return told


def help_of(option: Option) -> Sentence | str:
    """Return the line under a field: the plugin's own help, then which values are taken."""
    if option is SCALE:
        return sentence("control.scale_help", allowed=allowed(option))
    if option.choices or set(option.kinds) <= {bool}:
        return option.doc
    if option.doc:
        return sentence("control.option_help", doc=option.doc, allowed=allowed(option))
    return allowed(option)


def describe(variant: Variant) -> list[dict[str, Any]]:
    """Return the form of a variant as plain data for the browser, its help in each language."""
    return [
        {
            "name": field.name,
            "widget": field.widget,
            "initial": field.initial,
            "choices": [value for _, value in field.choices],
            "low": field.option.minimum,
            "high": field.option.maximum,
            "step": field.step,
            "help": {code: localise(help_of(field.option), code) for code in LANGUAGES},
        }
        for field in fields_of(variant)
    ]


def _field(option: Option) -> Field:
    kinds = set(option.kinds)
    if option.choices or (bool in kinds and len(kinds) > 1 and kinds <= {bool, type(None)}):
        values = _choices(option)
        labels = _labels(values)
        initial = next(
            (
                label
                for label, value in zip(labels, values, strict=True)
                if _same(value, option.default)
            ),
            labels[0],
        )
        return Field(option, "choice", initial, tuple((label, label) for label in labels))
    if kinds == {bool}:
        return Field(option, "check", bool(option.default))
    step = _step(option)
    if step:
        return Field(option, "slider", option.default, step=step)
    return Field(option, "text", show(option.default))


def show(value: Any) -> str:
    """Write a value the way ``Option.parse`` reads it."""
    if isinstance(value, (tuple, list)):
        return ",".join(str(part) for part in value) + ("," if len(value) == 1 else "")
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _bound(value: float) -> str:
    return f"{int(value)}" if float(value).is_integer() else f"{value:g}"


def _choices(option: Option) -> tuple[Any, ...]:
    values = option.choices or ((True, False) if bool in option.kinds else ())
    return (*values, None) if type(None) in option.kinds and None not in values else values


def _labels(values: tuple[Any, ...]) -> list[str]:
    """Name each value in its own way: ``1`` and ``"1"`` may both be choices."""
    plain = [_NONE if value is None else str(value) for value in values]
    clash = len(set(plain)) < len(plain)
    return [repr(value) for value in values] if clash else plain


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _whole(raw: Any) -> bool:
    return isinstance(raw, (int, float)) and not isinstance(raw, bool) and float(raw).is_integer()


def _step(option: Option) -> float:
    """The step of a slider, or 0 where a text field serves better: open-ended or wide ranges."""
    low, high = option.minimum, option.maximum
    kinds = set(option.kinds)
    if low is None or high is None or not kinds <= {int, float} or option.default is None:
        return 0.0
    if kinds == {int}:
        return (
            1.0
            if 0 < high - low <= 512 and not (option.open_minimum or option.open_maximum)
            else 0.0
        )
    if not 0 < high - low <= 1000:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(high - low)) - 2)
    ticks = (option.default - low) / step
    return step if math.isclose(ticks, round(ticks), abs_tol=1e-9) else 0.0
