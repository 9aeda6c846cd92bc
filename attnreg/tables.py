"""What the loaded plugins registered, by kind; a plugin's share goes in whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from attnreg.errors import OptionError
from attnreg.hookspecs import Check, Panel, Position
from attnreg.loading import Staged
from attnreg.variant import Implementation, Variant


class Tables:
    """The variants by name and distribution, and all else by its id."""

    def __init__(self) -> None:
        self.claims: dict[str, dict[str, Variant]] = {}
        self.checks: dict[str, Check] = {}
        self.positions: dict[str, Position] = {}
        self.panels: dict[str, Panel] = {}
        self._extra: list[tuple[str, str, Implementation]] = []

    def add(self, share: Staged, distribution: str) -> None:
        """Add what one plugin registers; raise ``OptionError`` before anything is added."""
        for variant in share.variants:
            if distribution in self.claims.get(variant.name, {}):
                raise OptionError(f"{distribution} registers the variant {variant.name!r} twice")
        for known, new, what in self._keyed(share):
            for key in new:
                if key in known:
                    raise OptionError(f"the {what} {key!r} is already registered")
        for name, one in share.extra:
            for target, owner, other in self._extra:
                if (target, other.name) == (name, one.name):
                    raise OptionError(
                        f"implementation {one.name!r} of {name!r} is already registered by {owner}"
                    )
        for variant in share.variants:
            self.claims.setdefault(variant.name, {})[distribution] = variant
        for known, new, _ in self._keyed(share):
            known.update(new)
        self._extra += [(name, distribution, one) for name, one in share.extra]

    def remove(self, share: Staged, distribution: str) -> None:
        """Take back what ``add`` added."""
        for variant in share.variants:
            del self.claims[variant.name][distribution]
            if not self.claims[variant.name]:
                del self.claims[variant.name]
        for known, new, _ in self._keyed(share):
            for key in new:
                del known[key]
        self._extra = [one for one in self._extra if (one[0], one[2]) not in share.extra]

    def extended(self, variant: Variant) -> Variant:
        """Return a variant with what other plugins register for it, but for names it has."""
        extra = {one.name: one for name, _, one in self._extra if name == variant.name}
        for own in variant.implementations:
            extra.pop(own.name, None)
        if not extra:
            return variant
        return replace(variant, implementations=(*variant.implementations, *extra.values()))

    def unreachable(self, share: Staged, distribution: str) -> Iterator[tuple[str, bool]]:
        """Yield each implementation that never runs, and whether that is for want of a variant."""
        for name, one in share.extra:
            claims = self.claims.get(name, {}).values()
            if any(one.name == own.name for variant in claims for own in variant.implementations):
                yield f"implementation {one.name!r} of {distribution} exists already", False
            elif not claims:
                yield (
                    f"implementation {one.name!r} of {distribution} is for {name!r}, "
                    "which nobody registers",
                    True,
                )

    def _keyed(self, share: Staged) -> tuple[tuple[dict[str, Any], dict[str, Any], str], ...]:
        return (
            (self.checks, share.checks, "check"),
            (self.positions, share.positions, "position"),
            (self.panels, share.panels, "panel"),
        )
