"""Which implementation runs a call, and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from attnreg.call import Call
from attnreg.errors import UnsupportedImplementation
from attnreg.variant import Implementation, Variant


class Explanation(NamedTuple):
    """Which implementation a call runs, and why the others do not."""

    chosen: str | None
    refused: Mapping[str, list[str]]


def choose(variant: Variant, asked: str, call: Call) -> Implementation:
    """Return the implementation of the highest rank that can run a call; ``asked`` may name one.

    Raises ``UnsupportedImplementation`` where the one that was asked for cannot.
    """
    for one in variant.implementations:
        if asked in ("auto", one.name) and not one.why_not(call):
            return one
    reasons = explain(variant, asked, call).refused.get(asked, [])
    raise UnsupportedImplementation(
        f"{variant.name}: implementation {asked!r} cannot run this call: "
        f"{'; '.join(reasons)}. Use implementation='auto' for one that can"
    )


def explain(variant: Variant, asked: str, call: Call) -> Explanation:
    """Say what ``choose`` would return, and why not the others."""
    chosen: str | None = None
    refused: dict[str, list[str]] = {}
    for one in variant.implementations:
        if chosen is not None:
            reasons = [f"{chosen!r} ranks higher"]
        elif asked not in ("auto", one.name):
            reasons = [f"implementation={asked!r} was asked for"]
        else:
            reasons = one.why_not(call)
        if reasons:
            refused[one.name] = reasons
        else:
            chosen = one.name
    return Explanation(chosen, refused)
