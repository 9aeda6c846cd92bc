"""Options of a variant, read from its constructor: the signature is the configuration.

An option is a keyword-only parameter with a default, typed with ``Annotated``: an ``Interval``
gives its range, ``Doc`` its help. Validation, help, forms and generated configurations all read
these.
"""

from __future__ import annotations

import inspect
import math
import numbers
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import annotated_types
from annotated_doc import Doc

from attnreg.errors import OptionError, nearest

COMMON = ("scale", "dropout")
"""Constructor parameters that every variant may share; ``create`` passes them by name."""


@dataclass(frozen=True)
class Option:
    """One option of a variant: its name, its default, and the values it takes.

    ``kinds`` are the accepted types among ``bool, int, float, str, tuple`` (a tuple of integers)
    and ``type(None)``; ``choices`` lists the values of a ``Literal``; a bound is None where there
    is none, and ``open_minimum`` or ``open_maximum`` say that the bound itself is excluded.
    """

    name: str
    default: Any
    kinds: tuple[type, ...]
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    open_minimum: bool = False
    open_maximum: bool = False
    doc: str = ""

    @property
    def allowed(self) -> str:
        """Say in words which values the option takes."""
        words: list[str] = []
        if self.choices:
            words.append("one of " + ", ".join(repr(choice) for choice in self.choices))
        names = {bool: "True or False", int: "an integer", float: "a number", str: "a text"}
        words += [names[kind] for kind in self.kinds if kind in names and not self.choices]
        if tuple in self.kinds:
            words.append("a tuple of integers")
        if type(None) in self.kinds:
            words.append("None")
        text = " or ".join(words)
        if self.minimum is not None:
            text += f", {'above' if self.open_minimum else 'at least'} {self.minimum:g}"
        if self.maximum is not None:
            text += f", {'below' if self.open_maximum else 'at most'} {self.maximum:g}"
        return text

    def check(self, value: Any) -> Any:
        """Return the value as the constructor takes it, or raise ``OptionError``."""
        try:
            return self._checked(value)
        except (OverflowError, TypeError, ValueError) as error:
            if isinstance(error, OptionError):
                raise
            raise OptionError(f"{self.name} must be {self.allowed}, got {value!r}") from error

    def _checked(self, value: Any) -> Any:
        if value is None and type(None) in self.kinds:
            return None
        if self.choices:
            if any(value == choice and type(value) is type(choice) for choice in self.choices):
                return value
        elif isinstance(value, bool):
            if bool in self.kinds:
                return value
        elif isinstance(value, numbers.Integral) and {int, float} & set(self.kinds):
            number = int(value) if int in self.kinds else float(value)
            if self._in_range(number):
                return number
        elif isinstance(value, numbers.Real) and float in self.kinds:
            if math.isfinite(value) and self._in_range(float(value)):
                return float(value)
        elif isinstance(value, str) and str in self.kinds:
            return value
        elif isinstance(value, (tuple, list)) and tuple in self.kinds:
            whole = all(
                isinstance(v, numbers.Integral) and not isinstance(v, bool) and self._in_range(v)
                for v in value
            )
            if whole:
                return tuple(int(v) for v in value)
        raise OptionError(f"{self.name} must be {self.allowed}, got {value!r}")

    def parse(self, text: str) -> Any:
        """Read a value typed by a person, such as ``0.5``, ``true``, ``none`` or ``0,3``."""
        text = text.strip()
        if type(None) in self.kinds and text.lower() in ("", "none"):
            return None
        if text in self.choices:
            return text
        if bool in self.kinds and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if tuple in self.kinds and ("," in text or int not in self.kinds):
            parts = [part.strip() for part in text.split(",") if part.strip()]
            if all(part.lstrip("+-").isdecimal() for part in parts):
                return self.check(tuple(int(part) for part in parts))
        elif {int, float} & set(self.kinds):
            for kind in (int, float):
                if kind in self.kinds:
                    try:
                        return self.check(kind(text))
                    except OptionError:
                        raise
                    except ValueError:  # not such a number; perhaps the other kind
                        continue
        return self.check(text)

    def _in_range(self, value: Any) -> bool:
        if self.minimum is not None and (
            value < self.minimum or (self.open_minimum and value == self.minimum)
        ):
            return False
        return not (
            self.maximum is not None
            and (value > self.maximum or (self.open_maximum and value == self.maximum))
        )


def parameters_of(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the keyword-only parameters of a factory, those behind ``**common`` included."""
    found: dict[str, inspect.Parameter] = {}
    for function in _constructors(factory):
        parameters = inspect.signature(function).parameters.values()
        for parameter in parameters:
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                found.setdefault(parameter.name, _resolved(parameter, function))
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return found


def options_of(factory: Callable[..., Any]) -> tuple[Option, ...]:
    """Read the options of a factory from its signature, without the common parameters.

    Raises ``OptionError`` where an option has no default or a type that cannot be validated.
    """
    return tuple(
        _option(parameter)
        for name, parameter in parameters_of(factory).items()
        if name not in COMMON
    )


def validate(name: str, options: tuple[Option, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options, checked; raise ``OptionError`` for one that is not known."""
    known = {option.name: option for option in options}
    for key in given:
        if key not in known:
            listed = ", ".join(known) if known else "none"
            raise OptionError(
                f"{name} has no option {key!r}.{nearest(key, known)} Its options: {listed}"
            )
    try:
        return {key: known[key].check(value) for key, value in given.items()}
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from None


def _constructors(factory: Callable[..., Any]) -> list[Callable[..., Any]]:
    if isinstance(factory, type):
        return [cls.__dict__["__init__"] for cls in factory.__mro__ if "__init__" in vars(cls)]
    return [factory]


def _resolved(parameter: inspect.Parameter, function: Callable[..., Any]) -> inspect.Parameter:
    # One annotation at a time: others may name what is imported for type checkers only.
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    scope = getattr(function, "__globals__", {})
    hints = get_type_hints(holder, globalns=scope, include_extras=True)
    return parameter.replace(annotation=hints[parameter.name])


def _option(parameter: inspect.Parameter) -> Option:
    hint = parameter.annotation
    if parameter.default is inspect.Parameter.empty:
        raise OptionError(f"option {parameter.name!r} has no default; every option needs one")
    doc = ""
    bounds: dict[str, Any] = {}
    if get_origin(hint) is Annotated:
        hint, *notes = get_args(hint)
        for note in notes:
            if isinstance(note, Doc):
                doc = note.documentation
            bounds |= _bounds(note)
    kinds, choices = _kinds(parameter.name, hint)
    return Option(parameter.name, parameter.default, kinds, choices, doc=doc, **bounds)


def _bounds(note: Any) -> dict[str, Any]:
    if isinstance(note, (annotated_types.Interval, annotated_types.GroupedMetadata)):
        merged: dict[str, Any] = {}
        for part in note:
            merged |= _bounds(part)
        return merged
    if isinstance(note, annotated_types.Gt):
        return {"minimum": note.gt, "open_minimum": True}
    if isinstance(note, annotated_types.Ge):
        return {"minimum": note.ge}
    if isinstance(note, annotated_types.Lt):
        return {"maximum": note.lt, "open_maximum": True}
    if isinstance(note, annotated_types.Le):
        return {"maximum": note.le}
    return {}


def _kinds(name: str, hint: Any) -> tuple[tuple[type, ...], tuple[Any, ...]]:
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return tuple(dict.fromkeys(type(choice) for choice in choices)), choices
    if get_origin(hint) in (Union, types.UnionType):
        kinds: tuple[type, ...] = ()
        picked: tuple[Any, ...] = ()
        for part in get_args(hint):
            more, some = _kinds(name, part)
            kinds, picked = kinds + more, picked + some
        return kinds, picked
    if get_origin(hint) is tuple and set(get_args(hint)) <= {int, ...}:
        hint = tuple
    if hint in (bool, int, float, str, tuple, type(None)):
        return (hint,), ()
    raise OptionError(
        f"option {name!r} is typed {hint!r}; allowed are bool, int, float, str, Literal, "
        "tuple[int, ...] and None among them"
    )
