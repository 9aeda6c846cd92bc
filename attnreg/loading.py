"""Load one plugin: check its contract and its hooks, and stage what it registers."""

from __future__ import annotations

from dataclasses import dataclass

import pluggy

from attnreg import hookspecs
from attnreg.errors import AttnregError, OptionError
from attnreg.hookspecs import CONTRACT, PROJECT, Check, Panel, Position
from attnreg.variant import Implementation, Variant


@dataclass(frozen=True)
class Plugin:
    """An installed plugin: its entry point, its distribution, and why it is broken, if it is."""

    name: str
    distribution: str
    version: str
    module: str
    error: BaseException | None = None


class Staged:
    """What one plugin registers, kept apart until all of it is known to be right."""

    def __init__(self) -> None:
        self.variants: list[Variant] = []
        self.extra: list[tuple[str, Implementation]] = []
        self.checks: dict[str, Check] = {}
        self.positions: dict[str, Position] = {}
        self.panels: dict[str, Panel] = {}

    def register_variant(self, variant: Variant) -> None:
        _expect(variant, Variant)
        if any(variant.name == other.name for other in self.variants):
            raise OptionError(f"the variant {variant.name!r} is registered twice")
        self.variants.append(variant)

    def register_implementation(self, name: str, implementation: Implementation) -> None:
        _expect(implementation, Implementation)
        self.extra.append((name, implementation))

    def register_check(self, check: Check) -> None:
        _expect(check, Check)
        self.checks[check.id] = check

    def register_position(self, position: Position) -> None:
        _expect(position, Position)
        self.positions[position.name] = position

    def register_panel(self, panel: Panel) -> None:
        _expect(panel, Panel)
        self.panels[panel.id] = panel


def load(plugin: object, name: str) -> Staged:
    """Call every hook of a plugin; raise where its contract or a hook's name is wrong."""
    version = getattr(plugin, "ATTNREG_CONTRACT", None)
    if type(version) is not int or version != CONTRACT:
        raise AttnregError(
            f"plugin {name!r} was built for contract {version!r}, this attnreg has {CONTRACT}; "
            f"its module must set ATTNREG_CONTRACT = {CONTRACT}, or install a matching version"
        )
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, name)
    manager.check_pending()  # a misspelt hook fails here instead of being silent
    staged = Staged()
    hook = manager.hook
    hook.attnreg_register_variants(register=staged.register_variant)
    hook.attnreg_register_implementations(register=staged.register_implementation)
    hook.attnreg_register_checks(register=staged.register_check)
    hook.attnreg_register_positions(register=staged.register_position)
    hook.attnreg_register_panels(register=staged.register_panel)
    return staged


def _expect(value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise OptionError(f"register takes {kind.__name__}, got {type(value).__name__}")
