"""``attnreg info NAME``: everything that a variant declares."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from attnreg.cli.output import console, print_json, source, table

if TYPE_CHECKING:
    from attnreg.variant import Variant


def info(
    name: Annotated[
        str, typer.Argument(help="A variant, or distribution/variant where two claim the name.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show all that a variant declares.

    Its formula, paper, complexity, capabilities, options and implementations, and who brings it.
    """
    from attnreg.registry import default_registry

    registry = default_registry()
    variant = registry.variant(name)
    distribution, version = source(registry, name)
    if as_json:
        common = sorted(variant.common)
        origin = {"distribution": distribution, "version": version}
        print_json({**variant.describe(), "common_options": common, **origin})
        return
    from rich.table import Table

    out = console()
    out.print(f"{variant.name}: {variant.summary}", style="bold")
    facts = Table.grid(padding=(0, 2))
    facts.add_column(min_width=15)  # the longest label: only the facts fold
    facts.add_column(overflow="fold")
    for label, text in _facts(variant):
        facts.add_row(label, text)
    facts.add_row("distribution", f"{distribution} {version}")
    out.print(facts)
    if not variant.options:
        out.print("\nIt has no options of its own.")
        return
    options = table("option", "default", "allowed", "meaning", title="Options")
    for option in variant.options:
        options.add_row(option.name, repr(option.default), option.allowed, option.doc)
    out.print()
    out.print(options)


def _facts(variant: Variant) -> list[tuple[str, str]]:
    able = asdict(variant.capabilities)
    yes = [field for field, value in able.items() if value is True]
    no = [field for field, value in able.items() if value is False]
    facts = [
        ("formula", variant.formula or "none given"),
        ("paper", variant.paper or "none given"),
        ("complexity", f"time {variant.complexity.time}, memory {variant.complexity.memory}"),
        ("declares", ", ".join(yes) or "nothing"),
        ("declares not", ", ".join(no) or "nothing"),
        ("decode", able["decode"]),
        ("weights", able["weights"]),
        ("dtypes", ", ".join(able["dtypes"])),
        ("implementations", ", ".join(one.name for one in variant.implementations)),
        ("common options", ", ".join(sorted(variant.common)) or "none"),
    ]
    if variant.approximates is not None:
        other, option, law = variant.approximates
        facts.append(("approximates", f"{other}, tightened by {option}: {law}"))
    return facts
