"""How commands print: tables for a terminal, plain text for a pipe, JSON for a program."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from attnreg.errors import reason as reason
from attnreg.errors import sentence as sentence

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from attnreg.discovery import Plugin
    from attnreg.registry import Registry

PIPE_WIDTH = 10_000
"""Columns where nobody looks: a row stays on one line, for ``grep`` and the like."""


def console(stderr: bool = False) -> Console:
    """Return the console of stdout: colours only in a terminal, natural width in a pipe.

    Plugins and users write much of what is printed, so nothing of it is read as markup.
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    piped = not stream.isatty() and "COLUMNS" not in os.environ
    width = PIPE_WIDTH if piped else None
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, width=width)


def table(*headers: str, title: str | None = None) -> Table:
    """Return an empty table whose cells fold where the terminal is narrow; no column is lost."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(
        title=None if title is None else Text(title),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    for header in headers:
        made.add_column(header, overflow="fold")
    return made


def print_json(data: Any) -> None:
    """Print plain data as JSON, indented; escaped to ASCII where stdout is not Unicode."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    typer.echo(json.dumps(data, indent=2, ensure_ascii=not unicode, default=str))


def print_markdown(headers: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print a table in Markdown; a ``|`` or a line break inside a cell stays inside it."""
    heads = list(headers)
    for cells in (heads, ["---"] * len(heads), *rows):
        safe = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
        typer.echo(f"| {' | '.join(safe)} |")


def source(registry: Registry, name: str) -> tuple[str, str]:
    """Return the distribution that registered a variant, and its version."""
    distribution = registry.owner(name)
    versions = (p.version for p in registry.plugins if p.distribution == distribution)
    return distribution, next(versions, "") or "unknown"


def broken_lines(plugins: Iterable[Plugin]) -> list[str]:
    """Say of each broken plugin whose it is, and why it is broken."""
    return [_line(one) for one in plugins if one.error is not None]


def disabled_lines(plugins: Iterable[Plugin]) -> list[str]:
    """Say of each disabled plugin whose it is, and which variable disables it."""
    return [_line(one) for one in plugins if one.state == "disabled"]


def warning_lines(registry: Registry) -> list[str]:
    """Say what is odd about the plugins, which work, and about the installation."""
    own = [f"{one.name}: {text}" for one in registry.plugins for text in one.warnings]
    return [*own, *registry.warnings]


def _line(plugin: Plugin) -> str:
    return (
        f"{plugin.name} ({plugin.distribution} {plugin.version or 'of unknown version'}, "
        f"module {plugin.module}): {plugin.reason}"
    )


def duplicate_lines(duplicates: Mapping[str, Iterable[str]]) -> list[str]:
    """Say of each variant name claimed twice by whom, and how to pick one."""
    return [
        f"{name}: claimed by {' and '.join(owners)}; "
        f"use {' or '.join(f'{owner}/{name}' for owner in owners)}"
        for name, owners in duplicates.items()
    ]
