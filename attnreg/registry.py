"""``Registry``: a read-only mapping of the variants that installed plugins register.

Plugins load one at a time; one that fails is recorded with its reason and the rest goes on.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from attnreg.attention import Dims
from attnreg.checked import CheckedAttention
from attnreg.discovery import DISABLE, PLUGINS, Plugin, fold, installed, is_strict
from attnreg.errors import (
    AttnregError,
    BrokenPlugin,
    DtypeError,
    OptionError,
    UnknownVariant,
    UnsupportedOption,
    nearest,
)
from attnreg.hookspecs import Check, Panel, Position
from attnreg.loading import LOADING, Staged, alone, attempt, import_plugin
from attnreg.options import validate
from attnreg.tables import Tables
from attnreg.validation import check_dims
from attnreg.variant import Variant

KNOWN_PLUGINS: Mapping[str, str] = {
    name: "attnreg-" + name.replace("_", "-")
    for name in (
        "scaled_dot_product",
        "additive",
        "cosine",
        "euclidean",
        "shared_qkv",
        "linear",
        "linformer",
        "performer",
        "sparse_window",
    )
}
"""The variants of this project and their distributions: the only ones we suggest installing."""


class Registry(Mapping[str, Variant]):
    """The variants at hand, by name. ``Registry()`` is empty; ``discover()`` loads plugins.

    A name claimed by two distributions is in neither's hands: it is missing from the mapping,
    ``variant(name)`` raises and says who claims it, and ``"distribution/name"`` picks one.
    """

    def __init__(self) -> None:
        self._tables = Tables()
        self._records: list[tuple[Plugin, Staged | None]] = []
        self._warnings: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Variant:
        claims = self._tables.claims.get(name, {})
        if len(claims) == 1:
            return self._tables.extended(next(iter(claims.values())))
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        claims = self._tables.claims
        return iter(sorted(name for name, owners in claims.items() if len(owners) == 1))

    def __len__(self) -> int:
        return sum(len(owners) == 1 for owners in self._tables.claims.values())

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """Every plugin found, whatever its state."""
        return tuple(plugin for plugin, _ in self._records)

    @property
    def broken(self) -> Mapping[str, Plugin]:
        """The plugins that could not be loaded, by entry-point name.

        Where two share that name the second is under ``"distribution/name"``.
        """
        found: dict[str, Plugin] = {}
        for one in self.plugins:
            if one.error is not None:
                found[f"{one.distribution}/{one.name}" if one.name in found else one.name] = one
        return found

    @property
    def duplicates(self) -> Mapping[str, tuple[str, ...]]:
        """Variant names claimed by several distributions, and which."""
        claims = sorted(self._tables.claims.items())
        return {name: tuple(sorted(owners)) for name, owners in claims if len(owners) > 1}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is odd about the installation or the variables, in sentences; no plugin's own."""
        return self._warnings

    @property
    def checks(self) -> Mapping[str, Check]:
        """The conformance checks that plugins register, by id."""
        return MappingProxyType(self._tables.checks)

    @property
    def positions(self) -> Mapping[str, Position]:
        """The positions that plugins register, by name."""
        return MappingProxyType(self._tables.positions)

    @property
    def panels(self) -> Mapping[str, Panel]:
        """The tabs of the playground that plugins register, by id."""
        return MappingProxyType(self._tables.panels)

    def owner(self, name: str) -> str:
        """Return the distribution that registered a variant; raises as ``variant`` does."""
        self.variant(name)
        owner, _, short = name.rpartition("/")
        claims = self._tables.claims[short]
        return next(who for who in claims if not owner or fold(who) == fold(owner))

    def discover(self, *, strict: bool | None = None) -> Registry:
        """Load every installed plugin that no variable disables, each by itself; return self.

        ``attnreg.discovery`` says what the variables do. With ``strict`` (None: where
        ``ATTNREG_STRICT`` is set) a plugin that fails raises ``BrokenPlugin`` after it is recorded.
        """
        found = installed()
        self._warnings = found.warnings
        known = {(one.distribution, one.name, one.module) for one in self.plugins}
        with alone():
            for plugin in found.plugins:
                if (plugin.distribution, plugin.name, plugin.module) in known:
                    continue
                if plugin.entry is None or plugin.state == "disabled":
                    self._records.append((plugin, None))
                else:
                    self._load(plugin, partial(import_plugin, plugin.entry), strict)
        self._check_implementations()
        if is_strict(strict):
            for plugin in self.broken.values():
                raise BrokenPlugin(_broken_message(plugin)) from plugin.error
        return self

    def add_plugin(
        self,
        plugin: ModuleType | object | Callable[[], object],
        *,
        name: str,
        distribution: str | None = None,
        version: str = "",
        module: str = "",
        strict: bool | None = None,
    ) -> None:
        """Load one plugin: a module, an object with hooks, or a callable that imports it.

        It registers wholly or not at all. What fails is recorded in ``broken``, and raised as
        ``BrokenPlugin`` where ``strict`` is True (None: where ``ATTNREG_STRICT`` is set).
        """
        self._load(Plugin(name, distribution or name, version, module), plugin, strict)

    def variant(self, name: str) -> Variant:
        """Return a variant by name or as ``"distribution/name"``.

        Raises ``UnknownVariant`` with the nearest name or the variable that disables its plugin,
        ``BrokenPlugin`` where its plugin failed to load, and ``OptionError`` where two
        distributions claim the name.
        """
        if not isinstance(name, str):
            raise UnknownVariant(f"a variant is asked for by its name, got {name!r}")
        owner, _, short = name.rpartition("/")
        claims = self._tables.claims.get(short, {})
        if owner:
            picked = {who: v for who, v in claims.items() if fold(who) == fold(owner)}
            if picked:
                return self._tables.extended(next(iter(picked.values())))
        elif len(claims) == 1:
            return self._tables.extended(next(iter(claims.values())))
        elif claims:
            choices = " or ".join(f"{who}/{short}" for who in sorted(claims))
            raise OptionError(
                f"{short!r} is registered by {len(claims)} distributions; say which: {choices}"
            )
        raise self._why_not(name, short)

    def create(
        self,
        name: str | Variant,
        *,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int | None = None,
        value_dim: int | None = None,
        max_length: int | None = None,
        implementation: str = "auto",
        dropout: float = 0.0,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> CheckedAttention:
        """Build an attention module by name; see ``attnreg.create``."""
        variant = name if isinstance(name, Variant) else self.variant(name)
        dims = Dims(
            num_heads,
            head_dim,
            num_heads if num_kv_heads is None else num_kv_heads,
            head_dim if value_dim is None else value_dim,
            max_length,
        )
        check_dims(variant, dims)
        arguments = validate(variant.name, variant.options, options)
        arguments |= _common_arguments(variant, dropout, scale)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise DtypeError(f"dtype must be a floating torch.dtype, got {dtype!r}")
        module = variant.factory(dims, **arguments)
        attn = CheckedAttention(variant, module, dims, implementation)
        return attn if device is None and dtype is None else attn.to(device=device, dtype=dtype)

    def _why_not(self, name: str, short: str) -> AttnregError:
        """Return the error for a variant that is not here."""
        for plugin in self.plugins:
            if short not in (plugin.name, plugin.module):
                continue
            if plugin.error is not None:
                broken = BrokenPlugin(_broken_message(plugin))
                broken.__cause__ = plugin.error
                return broken
            if plugin.state == "disabled":
                return UnknownVariant(
                    f"{name!r} is not loaded: plugin {plugin.name!r} of {plugin.distribution} is "
                    f"disabled ({plugin.reason}); change the variable and start Python again"
                )
        hint = nearest(name, self)
        if short in KNOWN_PLUGINS:
            hint += (
                f" It comes with: pip install {KNOWN_PLUGINS[short]} "
                f"(from a clone of the project: pip install ./plugins/{short})."
            )
        text = f"no installed plugin registers {name!r}.{hint}"
        text += f" Registered: {', '.join(self) or 'none'}"
        if disabled := [plugin.name for plugin in self.plugins if plugin.state == "disabled"]:
            text += f". Disabled by {PLUGINS} or {DISABLE}: {', '.join(disabled)}"
        return UnknownVariant(text)

    def _load(self, plugin: Plugin, source: object, strict: bool | None) -> None:
        plugin, staged = attempt(plugin, source, is_strict(strict))
        if staged is not None:
            try:
                self._tables.add(staged, plugin.distribution)
            except OptionError as error:
                plugin, staged = plugin.because(error), None
        self._records.append((plugin, staged))
        if plugin.error is not None and is_strict(strict):
            raise BrokenPlugin(_broken_message(plugin)) from plugin.error

    def _check_implementations(self) -> None:
        """Record an implementation that can never run as a fault of the plugin that brings it.

        That plugin's share is taken back, which may leave others without their variant: so again,
        in rounds whose result does not depend on the order of the plugins.
        """
        left_out = any(plugin.state == "disabled" for plugin in self.plugins)
        while faulty := [
            (index, text)
            for index, (plugin, share) in enumerate(self._records)
            if share is not None
            for text, orphaned in self._tables.unreachable(share, plugin.distribution)
            if not (orphaned and left_out)  # its variant may be among those
        ]:
            for index, text in faulty:
                plugin, share = self._records[index]
                if share is not None:
                    self._tables.remove(share, plugin.distribution)
                    self._records[index] = plugin.because(OptionError(text)), None


def _common_arguments(variant: Variant, dropout: float, scale: float | None) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if not _is_number(dropout) or not 0.0 <= dropout < 1.0:
        raise OptionError(f"dropout must be at least 0 and below 1, got {dropout!r}")
    if dropout > 0.0 and not ("dropout" in variant.common and variant.capabilities.dropout):
        raise UnsupportedOption(
            f"{variant.name} has no dropout: it never forms the weights that dropout acts on"
        )
    if "dropout" in variant.common:
        arguments["dropout"] = float(dropout)
    if scale is not None:
        if "scale" not in variant.common:
            raise UnsupportedOption(f"{variant.name} has no scale; leave it out")
        if not _is_number(scale) or not float("-inf") < scale < float("inf"):
            raise OptionError(f"scale must be a finite number or None, got {scale!r}")
        arguments["scale"] = float(scale)
    return arguments


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _broken_message(plugin: Plugin) -> str:
    return (
        f"plugin {plugin.name!r} of {plugin.distribution} could not be loaded: {plugin.reason}; "
        "`attnreg doctor` lists every fault"
    )


_default: Registry | None = None


def default_registry() -> Registry:
    """Return the registry of everything installed, loaded at the first call by one thread."""
    global _default  # noqa: PLW0603  # one cache, filled lazily so that importing stays cheap
    if _default is None:
        with LOADING:
            if _default is None:
                _default = Registry().discover()
    return _default


def list_variants() -> list[str]:
    """Return the names of the registered variants, sorted."""
    return list(default_registry())


def get_variant(name: str) -> Variant:
    """Return a registered variant by name, or as ``"distribution/name"``.

    Raises ``UnknownVariant``, ``BrokenPlugin``, or ``OptionError`` for a name claimed twice.
    """
    return default_registry().variant(name)


def create(
    name: str | Variant,
    *,
    num_heads: int,
    head_dim: int,
    num_kv_heads: int | None = None,
    value_dim: int | None = None,
    max_length: int | None = None,
    implementation: str = "auto",
    dropout: float = 0.0,
    scale: float | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> CheckedAttention:
    """Build the attention module of a registered variant.

    ``num_kv_heads`` defaults to ``num_heads``, ``value_dim`` to ``head_dim``; ``max_length`` is
    the largest number of keys, needed by variants of fixed length. ``implementation="auto"`` is
    the fastest that accepts each call; naming one that cannot run a call is an error then.
    ``scale=None`` means the variant's own default. ``options`` are the variant's own
    (``attnreg.get_variant(name).options``).

    Raises ``UnknownVariant``, ``OptionError``, ``ShapeError``, ``LengthError``,
    ``UnsupportedFeature``, or ``UnsupportedOption`` for a scale or dropout that it does not have.
    """
    return default_registry().create(
        name,
        num_heads=num_heads,
        head_dim=head_dim,
        num_kv_heads=num_kv_heads,
        value_dim=value_dim,
        max_length=max_length,
        implementation=implementation,
        dropout=dropout,
        scale=scale,
        device=device,
        dtype=dtype,
        **options,
    )
