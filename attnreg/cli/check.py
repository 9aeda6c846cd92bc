"""``attnreg check NAME...``: run the conformance suite on installed variants."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnreg.cli.output import console, sentence, table

if TYPE_CHECKING:
    from rich.console import Console

    from attnreg.conformance import Report, Result


class Profile(StrEnum):
    """How thoroughly to check."""

    fast = "fast"
    full = "full"


def check(
    names: Annotated[
        list[str] | None, typer.Argument(help="Variants, or distribution/variant.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Check every installed variant.")] = False,
    profile: Annotated[
        Profile, typer.Option(help="fast: seconds; full: more settings, export, processes.")
    ] = Profile.full,
    device: Annotated[str, typer.Option(help="A device of torch.")] = "cpu",
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="A check such as N-01, or a family such as N; repeatable."),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write JSON (- for standard output)."),
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")
    ] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write Markdown.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, help="Limit for one check (60 fast, 180 full)."),
    ] = None,
    laws: Annotated[bool, typer.Option("--laws", help="List the checks and end.")] = False,
) -> None:
    """Check variants against the laws that every attention must keep.

    Each runs in a process of its own, under limits of time and memory. Exits 0 only where no check
    failed or broke; a failed check of level "quality" is a grade and does not count.

    For several variants the JSON is a list of reports.
    """
    if laws:
        _print_laws()
        return
    import torch

    from attnreg.conformance import junit, stream
    from attnreg.conformance.running import report_of
    from attnreg.registry import list_variants

    chosen = [*(names or []), *(n for n in list_variants() if every and n not in (names or []))]
    if not chosen:
        raise typer.BadParameter("name a variant, or give --all", param_hint="NAME")
    try:
        torch.device(device)
    except RuntimeError as error:
        raise typer.BadParameter(sentence(error), param_hint="--device") from error
    out = console(stderr=Path("-") in (json_file, junit_file, markdown_file))
    runs = [
        stream(n, device=device, checks=only, profile=profile.value, seconds=seconds)
        for n in chosen
    ]
    reports: list[Report] = []
    for name, results in zip(chosen, runs, strict=True):
        started = time.perf_counter()
        with _progress(out, name, results.total) as advance:
            collected = []
            with closing(results):
                for result in results:
                    collected.append(result)
                    advance(result)
        reports.append(report_of(results, collected))
        _print(out, reports[-1], time.perf_counter() - started)
    _write(json_file, _json(reports))
    _write(junit_file, junit(reports))
    _write(markdown_file, "\n".join(report.to_markdown() for report in reports))
    fine = [report.ok or (only and report.verdict == "incomplete") for report in reports]
    raise typer.Exit(0 if all(fine) else 1)


def _json(reports: list[Report]) -> str:
    if len(reports) == 1:
        return reports[0].to_json() + "\n"
    whole = [json.loads(report.to_json()) for report in reports]
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _write(file: Path | None, text: str) -> None:
    if file is None:
        return
    if file == Path("-"):
        typer.echo(text, nl=False)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot write {file}: {error.strerror}") from error


@contextmanager
def _progress(out: Console, name: str, total: int) -> Iterator[Any]:
    """Show a bar in a terminal, nothing in a pipe."""
    if not out.is_terminal:
        yield lambda result: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = ("[progress.description]{task.description}", "{task.fields[check]}")
    texts = [TextColumn(column) for column in columns]
    with Progress(
        *texts, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=out, transient=True
    ) as bar:
        task = bar.add_task(name, total=total, check="")

        def advance(result: Result) -> None:
            bar.update(task, advance=1, check=result.check)

        yield advance


def _print(out: Console, report: Report, seconds: float) -> None:
    counts = ", ".join(f"{number} {status}" for status, number in sorted(report.counts.items()))
    out.print(f"{report.variant}: {report.verdict} ({counts}; {seconds:.1f} s)", style="bold")
    if not report.contained:
        out.print("  not contained: the checks ran in this process")
    shown = [r for r in report.results if r.status in ("fail", "error", "xfail")]
    for place, result in enumerate(shown):
        grade = " (quality: does not count)" if result.level == "quality" else ""
        out.print(f"\n  {result.check} {result.status}{grade}: {result.summary}")
        out.print(f"    {sentence(Exception(result.message))}")
        if "call" in result.evidence:
            call = result.evidence["call"]
            out.print("    smallest call: " + ", ".join(f"{k}={v}" for k, v in call.items()))
        if place == 0 and result.status == "fail" and "snippet" in result.evidence:
            # The first is the one to start with; a page for each would hide it. All are in --json.
            out.print("    paste this to see it:")
            for line in str(result.evidence["snippet"]).splitlines():
                out.print(f"      {line}", soft_wrap=True)


def _print_laws() -> None:
    from attnreg.conformance import NEVER_WAIVED, known_checks

    laws = table("check", "level", "needs", "law")
    for one in known_checks().values():
        needs = ", ".join(one.needs) + (" (full profile)" if one.full else "")
        mark = "*" if one.id in NEVER_WAIVED else ""
        laws.add_row(one.id + mark, one.level, needs.strip(), one.summary)
    out = console()
    out.print(laws)
    out.print("* can never be waived. A capability in needs must be declared; else it is refused.")
