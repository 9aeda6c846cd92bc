"""``Mutant``: a wrong attention, and the checks that must notice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from attnreg import Variant


@dataclass(frozen=True)
class Mutant:
    """One way in which a plausible plugin is wrong.

    ``kills`` are the checks that must fail (not merely break); ``spares`` some that must not, so
    that a mutant which breaks everything proves nothing. ``patch`` makes the core itself wrong for
    the time of the check, for laws that the core keeps for every variant.
    """

    name: str
    variant: Variant
    kills: tuple[str, ...]
    spares: tuple[str, ...] = ("R-00",)
    patch: Callable[[], AbstractContextManager[object]] = nullcontext


def wrong(variant: Variant, factory: Callable[..., object], **changes: object) -> Variant:
    """Return a variant that claims to be another one and is built by another factory.

    Its implementations are the factory's own, so that a wrong ``forward`` is what runs.
    """
    return replace(
        variant,
        factory=factory,
        implementations=getattr(factory, "implementations", ()),
        **{"capabilities": variant.capabilities, **changes},
    )
