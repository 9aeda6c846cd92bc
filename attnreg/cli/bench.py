"""``attnreg bench VARIANT...``: time, memory and growth of variants beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnreg.cli.compare import Dtype, parse_options
from attnreg.cli.output import console, table

if TYPE_CHECKING:
    from rich.console import Console

    from attnreg.benchmark import Event, Report

FILE = "FILE"


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VARIANT...]",
            help="Variants, variant:implementation, or sdpa for torch's own.",
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Measure every installed variant.")] = False,
    lengths: Annotated[
        str, typer.Option(help="512:65536 (doubling, both ends included) or 512,1000,4096.")
    ] = "512:8192",
    mode: Annotated[
        str, typer.Option(help="forward; backward, which is forward and backward; or both.")
    ] = "forward",
    against: Annotated[
        str,
        typer.Option(
            help="What ratios are over: a variant, sdpa, none, or auto (scaled_dot_product)."
        ),
    ] = "auto",
    implementation: Annotated[
        list[str] | None,
        typer.Option(help="Time this implementation; all for every one; repeatable."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[VARIANT.]KEY=VALUE",
            help="An option of every variant that has it; repeatable.",
        ),
    ] = None,
    causal: Annotated[bool, typer.Option("--causal", help="Hide later keys.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 1,
    heads: Annotated[int, typer.Option(min=1, help="Heads.")] = 8,
    head_dim: Annotated[int, typer.Option(min=1, help="Size of a head.")] = 64,
    dtype: Annotated[Dtype, typer.Option(help="Of input and parameters.")] = Dtype.float32,
    device: Annotated[str, typer.Option(help="A device of torch.")] = "cpu",
    repeat: Annotated[int, typer.Option(min=3, help="The most repetitions of a cell.")] = 20,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.01, help="Budget of the repetitions of one cell; one call may take a fifth."
        ),
    ] = 10.0,
    memory: Annotated[
        str | None,
        typer.Option(help="Limit of one call, as 4GiB; by default half of what is free."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of input and parameters.")] = 0,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Time what nobody checked; the report says so.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar=FILE, help="Write JSON (- for standard output)."),
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar=FILE, help="Write one row per measurement.")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar=FILE, help="Write a page with plots.")
    ] = None,
) -> None:
    """Measure how fast variants are, how much memory they take, and how both grow.

    A variant that fails the fast profile of the conformance suite is not timed; asking takes some
    15 seconds per variant, and --unchecked leaves it out. A length that needs more than --seconds
    or --memory allow is recorded as such. Exits 0 where every variant could be timed or was
    recorded so; 1 where one failed conformance.
    """
    from attnreg.benchmark import Report, run
    from attnreg.registry import list_variants

    chosen = [*(names or []), *(n for n in list_variants() if every and n not in (names or []))]
    if not chosen:
        raise typer.BadParameter("name a variant, or give --all", param_hint="VARIANT")
    for file in (json_file, csv_file, html_file):
        if file is not None and not file.absolute().parent.is_dir():
            raise typer.BadParameter(f"there is no folder {file.parent} to write {file.name} into")
    out = console(stderr=Path("-") in (json_file, csv_file, html_file))
    events = run(
        chosen,
        lengths=lengths,
        modes=mode,
        against=None if against == "none" else against,
        implementations=implementation or ["auto"],
        options=_options(chosen, against, option or []),
        causal=causal,
        batch=batch,
        heads=heads,
        head_dim=head_dim,
        dtype=dtype.value,
        device=device,
        repeat=repeat,
        seconds=seconds,
        memory=memory,
        seed=seed,
        unchecked=unchecked,
    )
    with closing(events), _progress(out) as show:
        report = Report.of(_shown(events, show))
    _print(out, report)
    for file, write in (
        (json_file, report.to_json),
        (csv_file, report.to_csv),
        (html_file, report.to_html),
    ):
        if file is not None:
            _write(file, write())
    raise typer.Exit(0 if report.ok else 1)


def _options(names: list[str], against: str, pairs: list[str]) -> dict[str, Any]:
    """Read each pair by the options of every variant that it is meant for."""
    from attnreg.benchmark.plan import takes
    from attnreg.errors import AttnregError
    from attnreg.registry import get_variant

    found: dict[str, Any] = {}
    for pair in pairs:
        start, _, rest = pair.partition("=")
        owner, _, key = start.rpartition(".")
        text = f"{key}={rest}" if "=" in pair else pair
        meant = False
        for name in [*names, against]:
            plain = name.partition(":")[0]
            if plain in ("sdpa", "none", "auto"):
                continue
            try:
                variant = get_variant(plain)
            except AttnregError:  # said better by the run itself
                continue
            if owner in ("", variant.name) and (key in takes(variant) or "=" not in pair):
                value = parse_options(variant, "--option", [text])[key]
                found[f"{variant.name}.{key}"] = value
                meant = True
        if not meant:
            found[start] = rest  # nobody's: the run says so, and names the nearest
    return found


def _shown(events: Iterator[Event], show: Any) -> Iterator[Event]:
    for event in events:
        show(event)
        yield event


@contextmanager
def _progress(out: Console) -> Iterator[Any]:
    """Show a bar in a terminal, nothing in a pipe.

    It draws when something is told and never by itself: a thread that draws would be timed too.
    """
    if not out.is_terminal:
        yield lambda event: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from attnreg.benchmark import Step

    texts = [TextColumn(c) for c in ("{task.description}", "{task.fields[at]}")]
    with Progress(
        *texts,
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=out,
        transient=True,
        auto_refresh=False,
    ) as bar:
        task = bar.add_task("", at="")

        def show(event: Event) -> None:
            if isinstance(event, Step):
                bar.update(
                    task,
                    description=event.phase,
                    at=event.text,
                    completed=event.done,
                    total=event.total,
                    refresh=True,
                )

        yield show


def _print(out: Console, report: Report) -> None:
    from attnreg.benchmark.tables import UNCHECKED, tables

    if not report.checked:
        out.print(UNCHECKED, style="bold")
        out.print()
    for place, one in enumerate(tables(report)):
        if place:
            out.print()
        out.print(one.title, style="bold")
        shown = table(*one.headers)
        for row in one.rows:
            shown.add_row(*row)
        out.print(shown)
        if one.note:
            out.print(one.note)


def _write(file: Path, text: str) -> None:
    if file == Path("-"):
        typer.echo(text)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot write {file}: {error.strerror}") from error
