"""Say what a variant is in plain data, so that a process of its own can check it: no pickle."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from types import ModuleType
from typing import Any

from attnreg.variant import EAGER, Capabilities, Complexity, Implementation, Variant

_DEFAULTS = {f.name: f.default for f in fields(Variant)}


class NotImportable(Exception):
    """Something that the variant is made of has no name that another process could import."""


def find(variant: Variant) -> tuple[str, str] | None:
    """Return module and name under which a variant can be imported, or None."""
    places = [getattr(variant.factory, "__module__", None)]
    places += [place.rpartition(".")[0] for place in places if place]
    for place in places:
        module = sys.modules.get(place or "")
        if place == "__main__" or not isinstance(module, ModuleType):
            continue
        for name, value in vars(module).items():
            if value is variant:
                return str(place), name
    return None


def pack(variant: Variant) -> dict[str, Any]:
    """Return a variant as data for JSON; raise ``NotImportable`` where that cannot be."""
    found = find(variant)
    if found is not None:
        return {"module": found[0], "name": found[1], "like": _likeness(variant)}
    declared = variant.complexity is not _DEFAULTS["complexity"]
    return {
        "variant": variant.name,
        "factory": _name_of(variant.factory),
        "texts": {k: getattr(variant, k) for k in ("summary", "formula", "paper")},
        "capabilities": asdict(variant.capabilities),
        "complexity": asdict(variant.complexity) if declared else None,
        "reference": None if variant.reference is None else _name_of(variant.reference),
        "projection": None if variant.projection is None else _name_of(variant.projection),
        "approximates": None if variant.approximates is None else list(variant.approximates),
        "known_failures": dict(variant.known_failures),
        "implementations": [
            {
                "name": one.name,
                "forward": _name_of(one.forward),
                "why_not": _name_of(one.why_not),
                "rank": one.rank,
                "packed": one.packed,
            }
            for one in variant.implementations
            if one is not EAGER
        ],
    }


def unpack(data: Mapping[str, Any]) -> Variant:
    """Return the variant that ``pack`` described; raise ``NotImportable`` where it is not there."""
    if "module" in data:
        found = _load([data["module"], data["name"]])
        if not isinstance(found, Variant):
            raise NotImportable(f"{data['module']}.{data['name']} is no Variant")
        if _likeness(found) != data["like"]:  # rebound at run time, in the other process alone
            raise NotImportable(f"{data['module']}.{data['name']} is another Variant")
        return found
    able: dict[str, Any] = dict(data["capabilities"])
    able["dtypes"] = tuple(able["dtypes"])
    optional: dict[str, Any] = {}
    if data["complexity"] is not None:  # left out, it counts as not declared
        optional["complexity"] = Complexity(**data["complexity"])
    return Variant(
        data["variant"],
        _load(data["factory"]),
        **data["texts"],
        capabilities=Capabilities(**able),
        **optional,
        reference=None if data["reference"] is None else _load(data["reference"]),
        projection=None if data["projection"] is None else _load(data["projection"]),
        approximates=None if data["approximates"] is None else tuple(data["approximates"]),
        known_failures=data["known_failures"],
        implementations=tuple(
            Implementation(
                one["name"],
                _load(one["forward"]),
                _load(one["why_not"]),
                one["rank"],
                one["packed"],
            )
            for one in data["implementations"]
        )
        or (EAGER,),
    )


def _likeness(variant: Variant) -> dict[str, Any]:
    """What tells a variant from another that was put in its place."""
    factory = variant.factory
    return {
        **variant.describe(),
        "factory": [getattr(factory, key, None) for key in ("__module__", "__qualname__")],
    }


def _name_of(function: Callable[..., Any]) -> list[str]:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__":
        raise NotImportable(f"{function!r} has no module of its own")
    if _load([module, name]) is not function:
        raise NotImportable(f"{module}.{name} is another object")
    return [module, name]


def _load(place: list[str]) -> Any:
    try:
        found: Any = importlib.import_module(place[0])
        for part in place[1].split("."):
            found = getattr(found, part)
    except Exception as error:
        raise NotImportable(f"{place[0]}.{place[1]} cannot be imported: {error}") from error
    return found
