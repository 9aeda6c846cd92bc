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
    expose: Annotated[
        bool, typer.Option("--expose", help="Allow an address that others on the network reach.")
    ] = False,
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
        app.launch(host=host, port=port, open_browser=not no_browser, expose=expose)
    except OSError as error:
        where = "no free port" if port is None else f"port {port} is in use or not allowed"
        typer.echo(f"Error: {where}; choose another with --port", err=True)
        raise typer.Exit(2) from error
    except ValueError as error:  # an address not to be exposed
        typer.echo(f"Error: {sentence(error)}", err=True)
        raise typer.Exit(2) from error
