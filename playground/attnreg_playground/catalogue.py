"""What is installed, and every page of the playground, as plain data for the browser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnreg import Registry, Variant
from attnreg_playground import about, form
from attnreg_playground.formula import tree
from attnreg_playground.pages.index import PAGES
from attnreg_playground.texts import LANGUAGES, localise


def catalogue(registry: Registry) -> dict[str, Any]:
    """Return the variants with their forms, the pages, the panels, and what could not be loaded."""
    return {
        "variants": {name: _variant(registry, variant) for name, variant in registry.items()},
        "pages": [page.describe() for page in PAGES.values()],
        "panels": [
            {"id": panel.id, "title": dict(panel.title), "build": panel.build}
            for panel in registry.panels.values()
        ],
        "broken": broken(registry),
        "duplicates": {name: list(owners) for name, owners in registry.duplicates.items()},
        "plugins": plugins(registry),
    }


def broken(registry: Registry) -> list[dict[str, str]]:
    """Return the plugins that could not be loaded, each with its reason."""
    return [
        {
            "plugin": f"{one.name} ({one.distribution})",
            "reason": f"{type(one.error).__name__}: {one.error}",
        }
        for one in registry.broken.values()
    ]


def plugins(registry: Registry) -> list[dict[str, Any]]:
    """Return every plugin that was found, whatever its state."""
    return [
        {
            "name": one.name,
            "distribution": one.distribution,
            "version": one.version,
            "module": one.module,
            "state": one.state,
            "reason": one.reason,
            "seconds": one.seconds,
            "warnings": list(one.warnings),
        }
        for one in registry.plugins
    ]


def _variant(registry: Registry, variant: Variant) -> Mapping[str, Any]:
    owner = registry.owner(variant.name)
    versions = (one.version for one in registry.plugins if one.distribution == owner)
    return {
        "name": variant.name,
        "summary": variant.summary,
        "plugin": owner,
        "version": next(versions, ""),
        "formula": tree(variant.formula),
        "options": form.describe(variant),
        "about": {code: localise(list(about.details(variant)), code) for code in LANGUAGES},
    }
