"""Load one plugin: import it, check its contract and its hooks, and stage what it registers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import replace
from importlib.metadata import EntryPoint
from threading import RLock, current_thread, main_thread
from time import perf_counter
from types import ModuleType
from typing import Any

import pluggy

from attnreg import hookspecs
from attnreg.discovery import Plugin, replaced
from attnreg.errors import AttnregError, OptionError
from attnreg.hookspecs import CONTRACT, PROJECT, Check, Panel, Position
from attnreg.side_effects import changes, snapshot
from attnreg.variant import Implementation, Variant

SLOW_IMPORT = 1.0
"""Seconds beyond which an import is reported: everybody who asks for any variant waits for it."""


LOADING = RLock()
"""Held by the one thread that loads plugins."""

_loading = False


class Staged:
    """What one plugin registers, kept apart until all of it is known to be right."""

    def __init__(self) -> None:
        self.variants: list[Variant] = []
        self.extra: list[tuple[str, Implementation]] = []
        self.checks: dict[str, Check] = {}
        self.positions: dict[str, Position] = {}
        self.panels: dict[str, Panel] = {}
        self.closed = False

    def register_variant(self, variant: Variant) -> None:
        self._expect(variant, Variant)
        if any(variant.name == other.name for other in self.variants):
            raise OptionError(f"the variant {variant.name!r} is registered twice")
        self.variants.append(variant)

    def register_implementation(self, name: str, implementation: Implementation) -> None:
        self._expect(name, str)
        self._expect(implementation, Implementation)
        if any((name, implementation.name) == (n, other.name) for n, other in self.extra):
            raise OptionError(
                f"the implementation {implementation.name!r} of {name!r} is registered twice"
            )
        self.extra.append((name, implementation))

    def register_check(self, check: Check) -> None:
        self._expect(check, Check)
        if re.fullmatch(r"[A-Z]-[0-9]{2}", check.id):
            raise OptionError(
                f"check {check.id!r} has an id of attnreg's own form; choose another, such as "
                f"'my_variant-{check.id[-2:]}'"
            )
        self._put(self.checks, check.id, check, "check")

    def register_position(self, position: Position) -> None:
        self._expect(position, Position)
        self._put(self.positions, position.name, position, "position")

    def register_panel(self, panel: Panel) -> None:
        self._expect(panel, Panel)
        self._put(self.panels, panel.id, panel, "panel")

    def __bool__(self) -> bool:
        return any((self.variants, self.extra, self.checks, self.positions, self.panels))

    def _put(self, table: dict[str, Any], key: str, value: object, what: str) -> None:
        self._expect(key, str)
        if key in table:
            raise OptionError(f"the {what} {key!r} is registered twice")
        table[key] = value

    def _expect(self, value: object, kind: type) -> None:
        if self.closed:
            raise AttnregError(
                "registration is closed: register works only while the hook that got it runs; "
                "call it there, and keep no reference to it"
            )
        if not isinstance(value, kind):
            raise OptionError(f"register takes {kind.__name__}, got {type(value).__name__}")


@contextmanager
def alone() -> Iterator[None]:
    """Let one thread at a time load plugins, and none of these plugins ask for the others."""
    global _loading  # noqa: PLW0603  # guarded by the lock, which its own thread passes
    with LOADING:
        if _loading:
            raise AttnregError(
                "a plugin asks for variants while it is loaded, when not all are known: "
                "ask where they are used"
            )
        _loading = True
        try:
            yield
        finally:
            _loading = False


def attempt(
    plugin: Plugin, source: object | Callable[[], object], strict: bool
) -> tuple[Plugin, Staged | None]:
    """Load a plugin; return it in its new state, and what it registers where it is "loaded".

    ``source`` is the plugin, or a callable that imports it. Whatever it raises becomes its reason;
    only Ctrl-C passes. With ``strict`` a change of global state is a fault too.
    """
    before, start = snapshot(), perf_counter()
    staged: Staged | None = None
    warnings: list[str] = []
    try:
        with _stdout_to_stderr():
            try:
                loaded = source() if callable(source) else source
            finally:
                plugin = replace(plugin, seconds=perf_counter() - start)
            if fault := contract_fault(loaded, plugin.name):
                plugin = plugin.because(AttnregError(fault), "incompatible")
            else:
                staged = call_hooks(loaded, plugin.name)
                plugin = replace(plugin, state="loaded")
                warnings += _unregistered(loaded, staged)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may even call sys.exit while it is imported
        plugin = plugin.because(error)
    if replaced(plugin):
        gone = AttnregError(
            f"{plugin.distribution} {plugin.version} was removed or replaced while it was loaded: "
            "start Python again, or install it again"
        )
        gone.__cause__ = plugin.error
        plugin = plugin.because(gone)
    if plugin.seconds > SLOW_IMPORT:
        warnings.append(f"its import took {plugin.seconds:.1f} s: import what is large when used")
    if changed := changes(before):
        changed_text = f"its import changed {', '.join(changed)}: a plugin must only register"
        warnings.append(changed_text)
        if strict and plugin.error is None:
            plugin = plugin.because(AttnregError(changed_text))
    plugin = replace(plugin, warnings=tuple(warnings))
    return plugin, staged if plugin.state == "loaded" else None


def import_plugin(entry: EntryPoint) -> object:
    """Import what an entry point names, with a reason for a user where that cannot be."""
    if entry.pattern.match(entry.value) is None:
        raise OptionError(
            f"the entry point {entry.name} = {entry.value!r} must be written as module or "
            "module:attribute"
        )
    try:
        return entry.load()
    except ModuleNotFoundError as error:
        if error.name is None or not f"{entry.module}.".startswith(f"{error.name}."):
            raise  # not the plugin itself but something that it needs
        raise ModuleNotFoundError(
            f"{error}, though its distribution is installed: install it again", name=error.name
        ) from error


def contract_fault(plugin: object, name: str) -> str:
    """Say why a plugin's contract is not ours, and what to do; "" where it is."""
    missing = object()
    version = getattr(plugin, "ATTNREG_CONTRACT", missing)
    if type(version) is int and version == CONTRACT:
        return ""
    if version is missing:
        what = "a module" if isinstance(plugin, ModuleType) else f"of type {type(plugin).__name__}"
        return (
            f"plugin {name!r} is {what} without ATTNREG_CONTRACT; its entry point must name a "
            f"module that sets ATTNREG_CONTRACT = {CONTRACT}"
        )
    if type(version) is not int:
        advice = f"its module must set ATTNREG_CONTRACT = {CONTRACT}, a plain int"
    elif version > CONTRACT:
        advice = "install a newer attnreg, or an older version of the plugin"
    else:
        advice = "install a newer version of the plugin, or an older attnreg"
    return (
        f"plugin {name!r} was built for contract {version!r}, this attnreg has {CONTRACT}; {advice}"
    )


def call_hooks(plugin: object, name: str) -> Staged:
    """Call every hook of a plugin; raise where one raises, or is none of ours."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, name)
    try:
        manager.check_pending()  # a misspelt hook fails here instead of being silent
    except pluggy.PluginValidationError as error:
        raise OptionError(f"{error}; there are: {', '.join(_HOOKS)}") from error
    staged = Staged()
    hook = manager.hook
    try:
        hook.attnreg_register_variants(register=staged.register_variant)
        hook.attnreg_register_implementations(register=staged.register_implementation)
        hook.attnreg_register_checks(register=staged.register_check)
        hook.attnreg_register_positions(register=staged.register_position)
        hook.attnreg_register_panels(register=staged.register_panel)
    finally:
        staged.closed = True
    return staged


_HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("attnreg_register_"))


def _unregistered(plugin: object, staged: Staged) -> list[str]:
    """Warn of a function that looks like a hook and is none, or of a plugin without any."""
    manager = pluggy.PluginManager(PROJECT)
    forgotten = [
        name
        for name in _HOOKS
        if hasattr(plugin, name) and manager.parse_hookimpl_opts(plugin, name) is None
    ]
    if forgotten:
        return [f"{', '.join(forgotten)} is not marked with @attnreg.hookimpl, so nobody calls it"]
    return [] if staged else ["it registers nothing"]


def _stdout_to_stderr() -> AbstractContextManager[object]:
    """Keep what a plugin prints out of ``attnreg list --json``.

    Only in the main thread, where commands run: ``sys.stdout`` is shared by all threads.
    """
    return redirect_stdout(sys.stderr) if current_thread() is main_thread() else nullcontext()
