"""Start the workers, build the app, and serve it: to this machine alone unless it is asked for."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterable
from typing import Any

from attnreg_playground.accounts import Accounts
from attnreg_playground.guard import Guard
from attnreg_playground.pool import Limits, Pool

FONT = ("system-ui", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", "sans-serif")
MONO = ("ui-monospace", "Consolas", "monospace")


def check_address(host: str, auth: str | None, expose: bool) -> None:
    """Raise ``ValueError`` for an address that others reach and nothing guards."""
    if not (auth or expose or is_loopback(host)):
        raise ValueError(
            f"host {host!r} can be reached from other machines, and whoever reaches the playground "
            "can run the installed variants; give auth=FILE (--auth) with accounts, or expose=True "
            "(--expose) if everybody may"
        )


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def hosts_of(host: str, more: Iterable[str]) -> set[str]:
    """Return the names under which the app may be asked for: no other site's name leads here."""
    known = {"127.0.0.1", "localhost", "::1", host, *more}
    if not is_loopback(host):
        known |= {socket.gethostname(), socket.getfqdn()}
        with contextlib.suppress(OSError):
            known |= {str(one[4][0]) for one in socket.getaddrinfo(socket.gethostname(), None)}
    return known


def pools(registry: str | None) -> tuple[Pool, Pool]:
    """Return the workers: two for what is quick, started now, and one for long jobs, later.

    A long job may time variants, so it has as many threads as there are cores.
    """
    cores = os.cpu_count() or 1
    quick = Pool(registry, Limits(workers=max(2, min(4, cores)), waiting=64)).start()
    slow = Pool(registry, Limits(workers=1, waiting=4, memory=8 * 2**30, threads=cores))
    return quick, slow


def build(registry: str | None, heavy: bool) -> Any:
    """Start the workers and return the app around them; its ``close`` ends both."""
    quick, slow = pools(registry)  # these import torch while this process imports Gradio
    try:
        from attnreg_playground import app
        from attnreg_playground.api import Endpoints
        from attnreg_playground.calls import Calls

        catalogue = quick.wait_for_catalogue()
        pages = {page["id"]: page for page in catalogue["pages"]}
        service = app.Service(
            quick,
            slow,
            Calls(quick, slow, pages, heavy),
            Endpoints(quick, slow, catalogue["variants"], heavy),
            catalogue,
        )
        demo = app.build(service)
    except BaseException:
        quick.close()
        slow.close()
        raise
    _close_together(demo, service)
    return demo


def launch(
    host: str,
    port: int | None,
    open_browser: bool,
    *,
    auth: str | None,
    expose: bool,
    heavy: bool | None,
    allow_hosts: Iterable[str],
    block: bool,
    registry: str | None,
) -> object:
    """Serve the app; see ``attnreg_playground.launch``."""
    check_address(host, auth, expose)
    accounts = Accounts.read(auth) if auth else None
    demo = build(registry, is_loopback(host) if heavy is None else heavy)
    try:
        from starlette.middleware import Middleware

        from attnreg_playground.app import read_asset

        demo.queue(max_size=64, default_concurrency_limit=4, api_open=False)
        _launch(
            demo,
            server_name=host,
            server_port=port,
            inbrowser=open_browser,
            auth=accounts,
            share=False,
            ssr_mode=False,
            mcp_server=False,
            pwa=False,
            enable_monitoring=False,
            show_error=False,
            run_history=False,
            footer_links=[],
            allowed_paths=[],
            blocked_paths=[os.getcwd()],
            max_file_size=1,
            strict_cors=True,
            prevent_thread_lock=True,
            theme=theme(),
            css=read_asset("app.css"),
            quiet=True,  # its own greeting offers a public link, which this app does not
            app_kwargs={"middleware": [Middleware(Guard, hosts=hosts_of(host, allow_hosts))]},
        )
    except BaseException:
        demo.close(verbose=False)
        raise
    if block:
        print(f"attnreg playground: {demo.local_url} (Ctrl+C stops it)", flush=True)
        try:
            demo.block_thread()
        finally:
            demo.close(verbose=False)
    return demo


def _launch(demo: Any, *, server_port: int | None, **settings: Any) -> None:
    try:
        demo.launch(server_port=server_port, **settings)
    except OSError as error:
        where = "no free port" if server_port is None else f"port {server_port} is not to be had"
        raise OSError(f"{where}; choose another with --port ({error})") from error


def _close_together(demo: object, service: object) -> None:
    """Have the app's ``close`` end the workers too."""
    close = demo.close  # type: ignore[attr-defined]  # a gr.Blocks, whose module is imported late

    def both(*arguments: object, **named: object) -> None:
        service.close()  # type: ignore[attr-defined]  # an app.Service, for the same reason
        close(*arguments, **named)

    demo.close = both  # type: ignore[attr-defined]  # so that tests and notebooks end both at once


def theme() -> Any:
    """Return Gradio's Soft theme with plain labels: the picture is what is coloured here."""
    import gradio as gr

    made = gr.themes.Soft(primary_hue="teal", neutral_hue="zinc", font=FONT, font_mono=MONO)
    for shade in ("", "_dark"):
        made.set(
            **{
                f"body_text_color_subdued{shade}": "*neutral_400" if shade else "*neutral_600",
                f"input_border_color{shade}": "*neutral_600" if shade else "*neutral_300",
            },
            block_border_width="0px",
            block_shadow="none",
        )
    return made
