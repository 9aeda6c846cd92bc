"""The command line: ``attnreg list``, ``info``, ``check``, ``doctor``, ``compare``,
``bench``, ``new``, ``playground``.

A command is one file here and one line below. Each imports torch, rich and the registry only when
it runs, so that ``attnreg --help`` answers at once.
"""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from attnreg._version import __version__
from attnreg.cli import bench, check, compare, doctor, info, listing, new, playground
from attnreg.cli.output import sentence
from attnreg.errors import AttnregError


class Commands(TyperGroup):
    """The group of all commands: an ``AttnregError`` in any becomes a sentence and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except AttnregError as error:
            typer.echo(f"Error: {sentence(error)}", err=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    name="attnreg",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help needs no rich, and reads the same in a pipe
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnreg {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Attention variants: what is installed, what each can do, and how two of them differ."""
    for stream in (sys.stdout, sys.stderr):
        # A token that the terminal's encoding lacks is shown escaped; it must not end the command.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


app.command("list")(listing.list_variants)
app.command("info")(info.info)
app.command("doctor")(doctor.doctor)
app.command("check")(check.check)
app.command("compare")(compare.compare)
app.command("bench")(bench.bench)
app.command("new")(new.new)
app.command("playground")(playground.playground)
