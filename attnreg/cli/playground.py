"""``attnreg playground``: the browser app, a distribution of its own."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from attnreg.cli.output import sentence

_INSTALL = (
    "pip install 'attnreg[playground]' (from a clone of the project: pip install ./playground)"
)


def playground(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The port to listen on; without it, a free one."),
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Do not open a browser.")
    ] = False,
    auth: Annotated[
        str | None,
        typer.Option(help="A file of accounts; only they are let in.", metavar="FILE"),
    ] = None,
    expose: Annotated[
        bool, typer.Option("--expose", help="Allow an address that others on the network reach.")
    ] = False,
    heavy: Annotated[
        bool | None,
        typer.Option(
            "--heavy/--light",
            help="Allow benchmark, conformance and training, or not; by default on this machine "
            "alone.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A further name of the host, as behind a proxy.", metavar="NAME"),
    ] = None,
) -> None:
    """Look at attention in the browser."""
    try:
        # By name: the core never depends on the playground.
        app = import_module("attnreg_playground")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "attnreg_playground":
            text = f"the playground is not installed; {_INSTALL}"
        elif missing == "gradio":
            text = f"the playground needs gradio, which is not installed; {_INSTALL}"
        else:
            raise
        typer.echo(f"Error: {text}", err=True)
        raise typer.Exit(2) from error
    try:
        app.launch(
            host=host,
            port=port,
            open_browser=not no_browser,
            auth=auth,
            expose=expose,
            heavy=heavy,
            allow_hosts=allow_host or (),
        )
    except (OSError, ValueError) as error:  # no port, no worker, an address not to be exposed
        typer.echo(f"Error: {sentence(error)}", err=True)
        raise typer.Exit(2) from error
