"""``Registry``: a read-only mapping of the variants that installed plugins register.

Plugins load one at a time; one that fails is recorded with its reason and the rest goes on.
"""

from __future__ import annotations

import numbers
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from types import ModuleType
from typing import Any

import torch

from attnreg.attention import Dims
from attnreg.checked import CheckedAttention
from attnreg.errors import (
    BrokenPlugin,
    DtypeError,
    OptionError,
    UnknownVariant,
    UnsupportedOption,
    nearest,
)
from attnreg.hookspecs import PROJECT, Check, Panel, Position
from attnreg.loading import Plugin, Staged, load
from attnreg.options import validate
from attnreg.validation import check_dims
from attnreg.variant import Implementation, Variant

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
        self._claims: dict[str, dict[str, Variant]] = {}
        self._plugins: list[Plugin] = []
        self._implementations: list[tuple[str, str, Implementation]] = []
        self.checks: dict[str, Check] = {}
        self.positions: dict[str, Position] = {}
        self.panels: dict[str, Panel] = {}

    def __getitem__(self, name: str) -> Variant:
        claims = self._claims.get(name, {})
        if len(claims) == 1:
            return self._extended(next(iter(claims.values())))
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(name for name, claims in self._claims.items() if len(claims) == 1))

    def __len__(self) -> int:
        return sum(len(claims) == 1 for claims in self._claims.values())

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """Every plugin found, loaded or broken."""
        return tuple(self._plugins)

    @property
    def broken(self) -> Mapping[str, Plugin]:
        """The plugins that could not be loaded, by entry-point name."""
        return {plugin.name: plugin for plugin in self._plugins if plugin.error is not None}

    @property
    def duplicates(self) -> Mapping[str, tuple[str, ...]]:
        """Variant names claimed by several distributions, and which."""
        return {n: tuple(sorted(c)) for n, c in sorted(self._claims.items()) if len(c) > 1}

    def owner(self, name: str) -> str:
        """Return the distribution that registered a variant; raises as ``variant`` does."""
        self.variant(name)
        owner, _, short = name.rpartition("/")
        claims = self._claims[short]
        return next(who for who in claims if not owner or _same_name(who, owner))

    def discover(self, *, strict: bool | None = None) -> Registry:
        """Load every entry point of group ``attnreg``, each by itself; return the registry.

        With ``strict`` (None: where ``ATTNREG_STRICT`` is set) a plugin that fails raises
        ``BrokenPlugin`` instead of being recorded.
        """
        found = sorted(metadata.entry_points(group=PROJECT), key=lambda one: (one.name, one.value))
        known = {(plugin.name, plugin.module) for plugin in self._plugins}
        for entry in found:
            if (entry.name, entry.value) in known:
                continue
            owner = entry.dist
            self.add_plugin(
                entry.load,
                name=entry.name,
                # A damaged installation may lack its name or version.
                distribution=(owner.name if owner else None) or "unknown",
                version=(owner.version if owner else None) or "",
                module=entry.value,
                strict=strict,
            )
        for name, distribution, one in self._implementations:
            self._check_implementation(name, distribution, one, strict)
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
        distribution = distribution or name
        error: BaseException | None = None
        try:
            loaded = plugin() if callable(plugin) else plugin
            staged = load(loaded, name)
            self._commit(staged, distribution)
        except KeyboardInterrupt:
            raise
        except BaseException as caught:  # a plugin may even call sys.exit while it is imported
            error = caught
        self._plugins.append(Plugin(name, distribution, version, module, error))
        if error is not None and _is_strict(strict):
            raise BrokenPlugin(_broken_message(self._plugins[-1])) from error

    def variant(self, name: str) -> Variant:
        """Return a variant by name or as ``"distribution/name"``.

        Raises ``UnknownVariant`` with the nearest name, ``BrokenPlugin`` where its plugin failed
        to load, and ``OptionError`` where two distributions claim the name.
        """
        if not isinstance(name, str):
            raise UnknownVariant(f"a variant is asked for by its name, got {name!r}")
        owner, _, short = name.rpartition("/")
        claims = self._claims.get(short, {})
        if owner:
            picked = {who: v for who, v in claims.items() if _same_name(who, owner)}
            if picked:
                return self._extended(next(iter(picked.values())))
        elif len(claims) == 1:
            return self._extended(next(iter(claims.values())))
        elif claims:
            choices = " or ".join(f"{who}/{short}" for who in sorted(claims))
            raise OptionError(
                f"{short!r} is registered by {len(claims)} distributions; say which: {choices}"
            )
        for plugin in self._plugins:
            if plugin.error is not None and short in (plugin.name, plugin.module):
                raise BrokenPlugin(_broken_message(plugin)) from plugin.error
        hint = nearest(name, self)
        if short in KNOWN_PLUGINS:
            hint += (
                f" It comes with: pip install {KNOWN_PLUGINS[short]} "
                f"(from a clone of the project: pip install ./plugins/{short})."
            )
        raise UnknownVariant(
            f"no installed plugin registers {name!r}.{hint} Registered: {', '.join(self) or 'none'}"
        )

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

    def _extended(self, variant: Variant) -> Variant:
        """Add what other plugins register for this variant, but for names that are taken."""
        extra = {one.name: one for name, _, one in self._implementations if name == variant.name}
        for own in variant.implementations:
            extra.pop(own.name, None)
        if not extra:
            return variant
        return replace(variant, implementations=(*variant.implementations, *extra.values()))

    def _check_implementation(
        self, name: str, distribution: str, one: Implementation, strict: bool | None
    ) -> None:
        """Record an implementation that can never run as a fault of the plugin that brings it."""
        claims = self._claims.get(name, {}).values()
        taken = any(one.name == own.name for variant in claims for own in variant.implementations)
        if claims and not taken:
            return
        why = "exists already" if taken else f"is for {name!r}, which nobody registers"
        fault = OptionError(f"implementation {one.name!r} of {distribution} {why}")
        if _is_strict(strict):
            raise BrokenPlugin(str(fault)) from fault
        self._plugins = [
            replace(plugin, error=fault) if plugin.distribution == distribution else plugin
            for plugin in self._plugins
        ]

    def _commit(self, staged: Staged, distribution: str) -> None:
        for variant in staged.variants:
            if distribution in self._claims.get(variant.name, {}):
                raise OptionError(f"{distribution} registers the variant {variant.name!r} twice")
        tables: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
            (self.checks, staged.checks, "check"),
            (self.positions, staged.positions, "position"),
            (self.panels, staged.panels, "panel"),
        )
        for known, new, what in tables:
            for key in new:
                if key in known:
                    raise OptionError(f"the {what} {key!r} is already registered")
        for name, one in staged.extra:
            for target, owner, other in self._implementations:
                if (target, other.name) == (name, one.name):
                    raise OptionError(
                        f"implementation {one.name!r} of {name!r} is already registered by {owner}"
                    )
        for variant in staged.variants:
            self._claims.setdefault(variant.name, {})[distribution] = variant
        for known, new, _ in tables:
            known.update(new)
        self._implementations += [(name, distribution, one) for name, one in staged.extra]


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


def _is_strict(strict: bool | None) -> bool:
    return os.environ.get("ATTNREG_STRICT", "") not in ("", "0") if strict is None else strict


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _broken_message(plugin: Plugin) -> str:
    try:
        reason = f"{type(plugin.error).__name__}: {plugin.error}"
    except Exception:  # an error of a stranger's may even fail to print
        reason = type(plugin.error).__name__
    return (
        f"plugin {plugin.name!r} of {plugin.distribution} could not be loaded: {reason}; "
        "`attnreg doctor` lists every fault"
    )


def _same_name(a: str, b: str) -> bool:
    return a.replace("_", "-").lower() == b.replace("_", "-").lower()


_default: Registry | None = None


def default_registry() -> Registry:
    """Return the registry of everything installed, loaded at the first call."""
    global _default  # noqa: PLW0603  # one cache, filled lazily so that importing stays cheap
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
