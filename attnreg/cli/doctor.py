"""``attnreg doctor``: what is installed, and what is wrong with it."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnreg._version import __version__
from attnreg.cli.output import console, duplicate_lines, print_json, reason, table

if TYPE_CHECKING:
    from attnreg.discovery import Plugin


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show versions and the state of every plugin.

    Exits 1 where something is broken: a plugin that cannot be loaded, a variant name that two
    distributions claim, or a torch that cannot be imported. A plugin that a variable disables and
    a warning are no fault.
    """
    report = examine()
    if as_json:
        print_json(report)
    else:
        _print(report)
    raise typer.Exit(0 if report["ok"] else 1)


def examine() -> dict[str, Any]:
    """Return what ``attnreg doctor`` reports, as plain data; nothing that is broken raises."""
    from attnreg.discovery import VARIABLES, installed

    report: dict[str, Any] = {
        "attnreg": __version__,
        "attnreg_installed": _installed_version(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "torch": None,
        "torch_error": None,
        "accelerator": None,
        "contract": None,
        "environment": {name: os.environ.get(name) for name in VARIABLES},
        "plugins": [],
        "duplicates": {},
        "warnings": [],
    }
    try:
        import torch
    except Exception as error:  # a torch that lacks a library raises OSError, and others others
        found = installed()
        untried = "not loaded: torch cannot be imported"
        report |= {
            "torch_error": reason(error),
            "plugins": [_plugin(replace(p, reason=p.reason or untried), []) for p in found.plugins],
            "warnings": list(found.warnings),
            "ok": False,
        }
        return report
    from attnreg.hookspecs import CONTRACT
    from attnreg.registry import Registry

    registry = Registry().discover(strict=False)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    variants: dict[str, list[str]] = {}
    for name in registry:
        variants.setdefault(registry.owner(name), []).append(name)
    report |= {
        "torch": str(torch.__version__),
        "accelerator": None if accelerator is None else accelerator.type,
        "contract": CONTRACT,
        "plugins": [_plugin(one, variants.get(one.distribution, [])) for one in registry.plugins],
        "duplicates": {name: list(owners) for name, owners in registry.duplicates.items()},
        "warnings": list(registry.warnings),
    }
    report["ok"] = not registry.broken and not registry.duplicates
    return report


def _installed_version() -> str | None:
    from importlib import metadata

    try:
        return metadata.version("attnreg")
    except metadata.PackageNotFoundError:  # run from a checkout
        return None


def _plugin(plugin: Plugin, variants: list[str]) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "module": plugin.module,
        "state": plugin.state,
        "variants": variants if plugin.state == "loaded" else [],
        "reason": plugin.reason or None,
        "where": None if plugin.error is None else _where(plugin.error),
        "seconds": round(plugin.seconds, 3),
        "warnings": list(plugin.warnings),
    }


def _where(error: BaseException) -> str | None:
    """Return file and line of the fault, or None where only the machinery of loading ran."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    import importlib

    import pluggy

    import attnreg

    machinery = tuple(os.path.dirname(m.__file__ or "") for m in (importlib, pluggy, attnreg))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if os.path.isabs(frame.filename) and os.path.dirname(frame.filename) not in machinery:
            if frame.filename.startswith(machinery[0] + os.sep):  # importlib.metadata
                continue
            return f"{frame.filename}:{frame.lineno}"
    return None


def _print(report: dict[str, Any]) -> None:
    out = console()
    installed = report["attnreg_installed"]
    version = report["attnreg"]
    if installed is None:
        version += " (not installed as a distribution)"
    elif installed != report["attnreg"]:
        version += f" (the installed metadata says {installed}: install it again)"
    facts = {
        "attnreg": version,
        "Python": f"{report['python']} ({report['executable']})",
        "torch": report["torch"] or f"cannot be imported: {report['torch_error']}",
        "accelerator": report["accelerator"] or "none",
        "contract": report["contract"] or "unknown without torch",
    }
    for name, value in report["environment"].items():
        facts[name] = "not set" if value is None else repr(value)
    for name, value in facts.items():
        out.print(f"{name:15} {value}")
    out.print()
    if report["plugins"]:
        plugins = table("plugin", "state", "distribution", "version", "variants")
        for one in report["plugins"]:
            plugins.add_row(
                one["name"],
                one["state"],
                one["distribution"],
                one["version"] or "unknown",
                ", ".join(one["variants"]),
            )
        out.print(plugins)
    else:
        out.print("No plugin is installed; pip install attnreg[all] brings those of the project.")
    out.print()
    for one in report["plugins"]:
        place = f" ({one['where']})" if one["where"] else ""
        if one["reason"]:
            out.print(f"{one['name']}: module {one['module']}{place}: {one['reason']}")
        for text in one["warnings"]:
            out.print(f"{one['name']}: warning: {text}")
    for text in report["warnings"]:
        out.print(f"warning: {text}")
    for line in duplicate_lines(report["duplicates"]):
        out.print(line)
    out.print("Everything works." if report["ok"] else "Something is broken.", style="bold")
