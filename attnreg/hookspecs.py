"""The hooks a plugin may implement, and the frozen values it registers through them.

A plugin is a module named by an entry point in group ``attnreg``. It sets ``ATTNREG_CONTRACT = 1``
and implements any of these hooks; a hook gets a ``register`` callable and only registers: nothing
is activated, patched or downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pluggy

from attnreg.errors import OptionError

if TYPE_CHECKING:
    from attnreg.variant import Implementation, Variant

CONTRACT = 1
"""The version of the contract that a plugin names in ``ATTNREG_CONTRACT``."""

PROJECT = "attnreg"

LEVELS = ("required", "claimed", "quality")

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True)
class Panel:
    """A tab of the playground: ``title`` by language, ``build`` named as ``"module:function"``.

    ``build`` is imported when the playground starts and called inside its ``gr.Blocks``.
    """

    id: str
    title: Mapping[str, str]
    build: str


@dataclass(frozen=True)
class Position:
    """A way to tell an ``AttentionLayer`` the order of its input.

    ``factory(dims)`` returns an ``nn.Module`` with ``place(x, position)`` and
    ``bias(query_position, key_position)``, as ``attnreg.positions`` describes.
    """

    name: str
    factory: Callable[..., Any]
    summary: str


@dataclass(frozen=True)
class Check:
    """One law of the conformance suite: ``law(case)`` is silent where it holds, else raises.

    ``case`` is an ``attnreg.conformance.Case``. ``level`` is "required", "claimed" (what a
    capability promises) or "quality" (graded, and never blocks). ``needs`` names what must be
    there for the law to apply: a field of ``Capabilities`` that the variant must declare, or a
    word of ``attnreg.conformance.needs``. ``summary`` is the law in a sentence, by default the
    first line of its docstring. ``variants`` lists the variants it is about, empty for all; a
    check with ``full`` set is left out of the fast profile. An id of one letter and two digits is
    kept for attnreg's own checks.
    """

    id: str
    law: Callable[[Any], None]
    level: str = "required"
    summary: str = ""
    needs: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    full: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id or not callable(self.law):
            raise OptionError(f"a Check takes an id and a function, got {self.id!r}, {self.law!r}")
        if not self.summary:
            first = (self.law.__doc__ or "").strip().partition("\n")[0]
            object.__setattr__(self, "summary", first)
        if self.level not in LEVELS:
            raise OptionError(f"level must be one of {', '.join(LEVELS)}, got {self.level!r}")
        for name in ("needs", "variants"):
            if isinstance(getattr(self, name), str):
                raise OptionError(f"{name} of check {self.id} must be a tuple, got a text")


@hookspec
def attnreg_register_variants(register: Callable[[Variant], None]) -> None:
    """Register attention variants: ``register(Variant(...))``."""


@hookspec
def attnreg_register_implementations(register: Callable[[str, Implementation], None]) -> None:
    """Register a faster way to compute a variant: ``register("linear", Implementation(...))``."""


@hookspec
def attnreg_register_checks(register: Callable[[Check], None]) -> None:
    """Register conformance checks: ``register(Check(...))``."""


@hookspec
def attnreg_register_positions(register: Callable[[Position], None]) -> None:
    """Register positions for ``AttentionLayer``: ``register(Position(...))``."""


@hookspec
def attnreg_register_panels(register: Callable[[Panel], None]) -> None:
    """Register tabs of the playground: ``register(Panel(...))``."""
