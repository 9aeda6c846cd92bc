"""Throw-away distributions: a folder with modules and metadata, as pip would leave them."""

from __future__ import annotations

import contextlib
import importlib
import sys
from importlib import metadata
from pathlib import Path

from attnreg import Registry

GOOD = """
import attnreg

ATTNREG_CONTRACT = 1


class Toy(attnreg.DotProductAttention):
    pass


@attnreg.hookimpl
def attnreg_register_variants(register):
    for name in {names!r}:
        register(attnreg.Variant(name=name, factory=Toy, summary="a toy"))
"""

EVERYTHING = """
@attnreg.hookimpl
def attnreg_register_implementations(register):
    register("{name}", attnreg.Implementation("fast", print))


@attnreg.hookimpl
def attnreg_register_checks(register):
    register(attnreg.Check("{name}.law", print))


@attnreg.hookimpl
def attnreg_register_positions(register):
    register(attnreg.Position("{name}", Toy, "none"))


@attnreg.hookimpl
def attnreg_register_panels(register):
    register(attnreg.Panel("{name}", {{"en": "A"}}, "{name}:build"))
"""


def good(*names):
    """Return the source of a plugin that registers variants of these names."""
    return GOOD.format(names=names)


def install(
    folder, distribution, source=None, *, version="1.0", entries=None, module=None, facts=None
):
    """Put a distribution on a folder; return its folder of metadata.

    ``entries`` are the lines of its entry points and ``facts`` the text of METADATA ("" for none).
    """
    module = module or distribution.replace("-", "_")
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    if facts is None:
        facts = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    if facts:
        (info / "METADATA").write_text(facts, encoding="utf-8")
    entries = (f"{module} = {module}",) if entries is None else entries
    text = "\n".join(["[attnreg]", *entries, ""])
    (info / "entry_points.txt").write_text(text, encoding="utf-8")
    if source is not None:
        path = folder / Path(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return info


class Site:
    """The only place where distributions are seen; what it brings is named ``acme...``."""

    def __init__(self, folder):
        self.folder = folder
        self.paths = [str(folder)]

    def add(self, distribution, source=None, **how):
        return install(self.folder, distribution, source, **how)

    def discover(self, *, strict=False):
        importlib.invalidate_caches()  # a folder written twice within the clock's grain
        return Registry().discover(strict=strict)


@contextlib.contextmanager
def isolated(folder, monkeypatch):
    """Hide what is really installed behind an empty site, and forget its modules afterwards."""
    folder.mkdir(exist_ok=True)
    site = Site(folder)
    distributions = metadata.distributions
    monkeypatch.setattr(metadata, "distributions", lambda: distributions(path=site.paths))
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr("attnreg.registry._default", None)
    # A loaded machine takes seconds over any import: only a test of that says what is slow.
    monkeypatch.setattr("attnreg.loading.SLOW_IMPORT", float("inf"))
    for variable in ("ATTNREG_STRICT", "ATTNREG_PLUGINS", "ATTNREG_DISABLE"):
        monkeypatch.delenv(variable, raising=False)
    yield site
    for name in [name for name in sys.modules if name.startswith("acme")]:
        del sys.modules[name]
