"""What is installed, from metadata alone: no plugin is imported, and torch is not needed.

Three variables choose what is loaded, and change no result: ``ATTNREG_PLUGINS`` (names, or
``none``) loads only these, ``ATTNREG_DISABLE`` (names) leaves these out, and ``ATTNREG_STRICT=1``
turns a recorded fault into an error. A name is that of the entry point or of the distribution.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Literal, NamedTuple

from attnreg import errors

STRICT, PLUGINS, DISABLE = VARIABLES = ("ATTNREG_STRICT", "ATTNREG_PLUGINS", "ATTNREG_DISABLE")

GROUP = "attnreg"
"""The group of entry points in which plugins are found."""

State = Literal["discovered", "loaded", "failed", "incompatible", "disabled"]


@dataclass(frozen=True)
class Plugin:
    """An installed plugin: its entry point, its distribution, its state and the reason for it.

    ``error`` is what was raised where the state is "failed" or "incompatible"; such a plugin has
    registered nothing. ``seconds`` is how long its import took, ``warnings`` what else it did.
    """

    name: str
    distribution: str
    version: str
    module: str
    error: BaseException | None = None
    state: State = "discovered"
    reason: str = ""
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    entry: metadata.EntryPoint | None = field(default=None, compare=False, repr=False)

    def because(self, error: BaseException, state: State = "failed") -> Plugin:
        """Return it in a state that an error explains."""
        return replace(self, state=state, error=error, reason=errors.reason(error))

    def matches(self, name: str) -> bool:
        """Return whether a name, in any spelling, is that of the plugin or its distribution."""
        return fold(name) in (fold(self.name), fold(self.distribution))


class Installed(NamedTuple):
    """The plugins that are installed, sorted, and what is odd about metadata and variables."""

    plugins: tuple[Plugin, ...]
    warnings: tuple[str, ...]


def installed() -> Installed:
    """List every plugin, "discovered" or "disabled"; broken metadata costs only its own."""
    warnings: list[str] = []
    found: dict[tuple[str, str], list[Plugin]] = {}
    for distribution in _distributions(warnings):
        try:
            plugins = list(_plugins_of(distribution))
        except Exception as error:  # whatever a damaged installation makes the parsers raise
            warnings.append(
                f"the metadata of {_label(distribution)} cannot be read "
                f"({errors.reason(error)}): install it again, or remove it"
            )
            continue
        if plugins:
            name, module = plugins[0].distribution, plugins[0].module
            # What lies first on the path is what an import finds; a nameless one stands alone.
            found.setdefault((fold(name), module if name == UNKNOWN else ""), plugins)
    every = sorted(
        (plugin for plugins in found.values() for plugin in plugins),
        key=lambda one: (one.name, one.module, one.distribution),
    )
    warnings += [
        f"{one.name} (module {one.module}): its distribution has no name: install it again"
        for one in every
        if one.distribution == UNKNOWN
    ]
    chosen = _choose(every, os.environ, warnings)
    return Installed(tuple(chosen), tuple(warnings))


def replaced(plugin: Plugin) -> bool:
    """Return whether the installation that a plugin was found in is there no longer."""
    distribution = None if plugin.entry is None else plugin.entry.dist
    try:
        return distribution is not None and _facts(distribution) != (
            plugin.distribution,
            plugin.version,
        )
    except Exception:  # it could be read when the plugin was found
        return True


def is_strict(strict: bool | None) -> bool:
    """Return the given answer, or that of ``ATTNREG_STRICT`` where there is none."""
    return os.environ.get(STRICT, "") not in ("", "0") if strict is None else strict


def fold(name: str) -> str:
    """Return a name as package indexes compare it: one case, one separator."""
    return re.sub(r"[-_.]+", "-", name).casefold()


UNKNOWN = "unknown"
"""The distribution of a plugin whose metadata lacks a name."""


def _distributions(warnings: list[str]) -> Iterator[metadata.Distribution]:
    try:
        yield from metadata.distributions()
    except Exception as error:  # a finder of a stranger's on sys.meta_path
        warnings.append(f"the list of what is installed ends early: {errors.reason(error)}")


def _plugins_of(distribution: metadata.Distribution) -> Iterator[Plugin]:
    # Looking at the text first spares the other distributions from being parsed. We do not ask
    # metadata.entry_points: there an empty folder left by an upgrade hides the distribution.
    if GROUP not in (distribution.read_text("entry_points.txt") or ""):
        return
    entries = [one for one in distribution.entry_points if one.group == GROUP]
    if entries:
        name, version = _facts(distribution)
        yield from (Plugin(one.name, name, version, one.value, entry=one) for one in entries)


def _facts(distribution: metadata.Distribution) -> tuple[str, str]:
    facts = distribution.metadata
    return facts["Name"] or UNKNOWN, facts["Version"] or ""


def _label(distribution: metadata.Distribution) -> str:
    try:
        return str(distribution.metadata["Name"] or f"{distribution.locate_file('')}")
    except Exception:  # its name is what cannot be read
        return f"a distribution in {distribution.locate_file('')}"


def _choose(
    plugins: list[Plugin], environment: Mapping[str, str], warnings: list[str]
) -> list[Plugin]:
    """Disable what the variables leave out; warn of a name in them that is nobody's."""
    only, without = (_names(environment.get(name, "")) for name in (PLUGINS, DISABLE))
    nothing = only == ["none"]
    for variable, names in ((PLUGINS, [] if nothing else only), (DISABLE, without)):
        for name in names:
            if not any(plugin.matches(name) for plugin in plugins):
                hint = errors.nearest(name, [one.name for one in plugins])
                warnings.append(f"{variable} names {name!r}, which no plugin is called.{hint}")

    def left_out(plugin: Plugin) -> str:
        if any(plugin.matches(name) for name in without):
            return f"{DISABLE} names it"
        if nothing:
            return f"{PLUGINS}=none loads nothing"
        if only and not any(plugin.matches(name) for name in only):
            return f"{PLUGINS} does not name it"
        return ""

    reasons = [left_out(plugin) for plugin in plugins]
    return [
        replace(plugin, state="disabled", reason=reason) if reason else plugin
        for plugin, reason in zip(plugins, reasons, strict=True)
    ]


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]
