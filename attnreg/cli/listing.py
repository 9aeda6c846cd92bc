"""``attnreg list``: the variants that are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnreg.cli.output import (
    PIPE_WIDTH,
    broken_lines,
    console,
    disabled_lines,
    duplicate_lines,
    print_json,
    print_markdown,
    source,
    table,
    warning_lines,
)

if TYPE_CHECKING:
    from rich.console import Console

    from attnreg.discovery import Plugin
    from attnreg.registry import Registry
    from attnreg.variant import Variant

_HEADERS = (
    "name",
    "summary",
    "time",
    "memory",
    "causal",
    "masks",
    "decode",
    "weights",
    "distribution",
    "version",
)


def list_variants(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a Markdown table.")
    ] = False,
) -> None:
    """List the registered variants and what each can do.

    Plugins that could not be loaded or are disabled, names claimed by two distributions, and
    warnings such as of a slow import follow below.
    """
    if as_json and as_markdown:
        raise typer.BadParameter("give --json or --markdown, not both")
    from attnreg.registry import default_registry

    registry = default_registry()
    if as_json:
        print_json(_data(registry))
        return
    rows = [_row(registry, registry.variant(name)) for name in registry]
    notes = (
        ("Broken plugins", broken_lines(registry.plugins)),
        ("Names claimed twice", duplicate_lines(registry.duplicates)),
        ("Disabled plugins", disabled_lines(registry.plugins)),
        ("Warnings", warning_lines(registry)),
    )
    if as_markdown:
        print_markdown(_HEADERS, rows)
        for title, lines in notes:
            if lines:
                typer.echo("\n".join([f"\n{title}:\n", *(f"- {line}" for line in lines)]))
        return
    out = console()
    if rows:
        _print_rows(out, rows)
    else:
        text = "No variant is registered."
        if not registry.plugins:
            text += " pip install attnreg[all] brings those of the project."
        out.print(text)
    for title, lines in notes:
        if lines:
            out.print(f"\n{title} (attnreg doctor says more):", style="bold")
            for line in lines:
                out.print(f"  {line}")


def _print_rows(out: Console, rows: list[list[str]]) -> None:
    """Print a table whose summary folds, or a paragraph per variant where even that is too wide."""
    from rich.padding import Padding

    listing = table(*_HEADERS)
    for row in rows:
        listing.add_row(*row)
    for column, header in zip(listing.columns, _HEADERS, strict=True):
        cells = [cell for cell in column.cells if isinstance(cell, str)]
        column.min_width = 24 if header == "summary" else max(map(len, (header, *cells)))
    if out.measure(listing, options=out.options.update_width(PIPE_WIDTH)).minimum <= out.width:
        out.print(listing)
        return
    for row in rows:
        cell = dict(zip(_HEADERS, row, strict=True))
        out.print(f"{cell.pop('name')}: {cell.pop('summary')}")
        out.print(Padding("; ".join(f"{key} {text}" for key, text in cell.items()), (0, 0, 1, 4)))


def _data(registry: Registry) -> dict[str, Any]:
    variants = []
    for name in registry:
        distribution, version = source(registry, name)
        described = registry.variant(name).describe()
        variants.append({**described, "distribution": distribution, "version": version})
    return {
        "variants": variants,
        "broken": [_plugin(one) for one in registry.plugins if one.error is not None],
        "disabled": [_plugin(one) for one in registry.plugins if one.state == "disabled"],
        "duplicates": {name: list(owners) for name, owners in registry.duplicates.items()},
        "warnings": warning_lines(registry),
    }


def _plugin(plugin: Plugin) -> dict[str, str]:
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "module": plugin.module,
        "state": plugin.state,
        "reason": plugin.reason,
    }


def _row(registry: Registry, variant: Variant) -> list[str]:
    from attnreg.mask import MASK_FIELDS

    able = variant.capabilities
    fields = [field for field in MASK_FIELDS if field != "causal"]
    masks = [field for field in fields if getattr(able, field)]
    return [
        variant.name,
        variant.summary,
        variant.complexity.time,
        variant.complexity.memory,
        ("yes" if able.noncausal else "only") if able.causal else "no",
        "all" if masks == fields else ", ".join(masks) or "none",
        able.decode,
        able.weights,
        *source(registry, variant.name),
    ]
