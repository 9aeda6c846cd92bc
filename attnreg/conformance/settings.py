"""Settings of a variant to be checked, generated from the types of its options."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attnreg.options import Option
from attnreg.variant import Variant

GROUPS = 3
"""How many settings the options are spread over where they are moved together."""

AFFORDABLE = 64
"""The largest integer tried: a bound above it may stand for gigabytes."""


@dataclass(frozen=True)
class Setting:
    """Options to build a variant with; ``edge`` where one of them stands at its bound."""

    options: Mapping[str, Any]
    edge: bool = False


@dataclass(frozen=True)
class Settings:
    """All settings of a variant, the defaults first, and the options that could not be moved."""

    all: tuple[Setting, ...]
    each: tuple[Setting, ...]
    """The defaults, and every value that is tried of every option alone, in either profile."""
    few: tuple[Setting, ...]
    """The defaults, and every option moved once, several together: for what is tried often."""
    stuck: tuple[str, ...] = ()


def generate(variant: Variant, builds: Callable[[Mapping[str, Any]], bool], full: bool) -> Settings:
    """Move every option at least once, bounds included, and then several together.

    ``builds`` says whether the constructor takes a combination: one that it refuses with a typed
    error is drawn again, with other options moved along.
    """
    settings = [Setting({})]
    stuck: list[str] = []
    draw = random.Random(5)
    table = {option.name: candidates(option) for option in variant.options}
    choices = {option.name for option in variant.options if option.choices}
    alone = [
        Setting({name: value}, edge)
        for name, values in table.items()
        for value, edge in values
        if builds({name: value})
    ]
    for name, values in table.items():
        moved = False
        enough = None if full or name in choices else 1 if len(table) > 4 else 2
        for value, edge in values[:enough]:
            tried: Mapping[str, Any] = {name: value}
            for attempt in range(12):
                if builds(tried):
                    settings.append(Setting(tried, edge))
                    moved = True
                    break
                if attempt == 0 and moved:
                    break  # another value of this option does it
                tried = {name: value} | _drawn(draw, {k: v for k, v in table.items() if k != name})
        if values and not moved:
            stuck.append(name)
    for _ in range(6 if full else 2):
        together = _drawn(draw, table)
        if len(together) > 1 and builds(together):
            settings.append(Setting(together, edge=True))
    unique = {repr(sorted(s.options.items(), key=str)): s for s in reversed(settings)}
    every = tuple(reversed(unique.values()))
    each = (every[0], *alone)
    return Settings(every, each, (every[0], *_merged(every, table, builds)), tuple(stuck))


def _merged(
    settings: tuple[Setting, ...],
    table: Mapping[str, Any],
    builds: Callable[[Mapping[str, Any]], bool],
) -> list[Setting]:
    """Move every option off its default in as few settings as there are groups of options."""
    firsts = [
        next((s for s in settings if name in s.options and not s.edge), None) for name in table
    ]
    single = [s for s in firsts if s is not None]
    merged: list[Setting] = []
    for start in range(min(GROUPS, len(single))):
        group = single[start::GROUPS]
        together: dict[str, Any] = {}
        for setting in group:
            together |= setting.options
        merged += [Setting(together)] if builds(together) else group
    return merged


def _drawn(draw: random.Random, table: Mapping[str, list[tuple[Any, bool]]]) -> dict[str, Any]:
    return {k: draw.choice(v)[0] for k, v in table.items() if v and draw.random() < 0.6}


def candidates(option: Option) -> list[tuple[Any, bool]]:
    """Values of an option other than its default, the plainest first, each with "at a bound"."""
    found: list[tuple[Any, bool]] = []
    if option.choices:
        found += [(choice, False) for choice in option.choices]
    elif bool in option.kinds:
        found += [(True, False), (False, False)]
    elif int in option.kinds:
        found += [(v, _at_bound(option, v)) for v in _integers(option)]
    elif float in option.kinds:
        found += [(v, _at_bound(option, v)) for v in _numbers(option)]
    if tuple in option.kinds:
        found += [((3,), False), ((0, 2), True)]
    if type(None) in option.kinds:
        found.append((None, False))
    default = option.default
    other = [c for c in found if not (type(c[0]) is type(default) and c[0] == default)]
    return [c for c in other if _allowed(option, c[0])]


def _integers(option: Option) -> list[int]:
    start = option.default if type(option.default) is int else 4
    low = None if option.minimum is None else int(option.minimum) + option.open_minimum
    high = None if option.maximum is None else int(option.maximum) - option.open_maximum
    wanted = [3, start + 1, low, high, start // 2, 2 * start]
    return list(dict.fromkeys(v for v in wanted if v is not None and abs(v) <= AFFORDABLE))


def _numbers(option: Option) -> list[float]:
    start = float(option.default) if isinstance(option.default, (int, float)) else 1.0
    low = None if option.open_minimum else option.minimum
    high = None if option.open_maximum else option.maximum
    wanted = [0.6 * start if start else 0.5, low, 1.7 * start if start else 0.25, high]
    if option.minimum is not None and option.maximum is not None:
        wanted.insert(1, (option.minimum + option.maximum) / 2)
    return list(dict.fromkeys(float(v) for v in wanted if v is not None))


def _at_bound(option: Option, value: float) -> bool:
    return value in (option.minimum, option.maximum)


def _allowed(option: Option, value: Any) -> bool:
    try:
        option.check(value)
    except ValueError:
        return False
    return True
