"""attnreg_playground: every installed attention variant, to look at in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import gradio as gr

    from attnreg import Registry

__all__ = ["build", "launch"]


def build(registry: Registry | None = None) -> gr.Blocks:
    """Return the playground as ``gr.Blocks``, of the given registry or of what is installed."""
    from attnreg_playground import app  # Gradio takes seconds to import

    return app.build(registry)


def launch(
    host: str = "127.0.0.1",
    port: int | None = None,
    open_browser: bool = True,
    *,
    expose: bool = False,
    block: bool = True,
    registry: Registry | None = None,
) -> gr.Blocks:
    """Serve the playground until it is interrupted; return at once with ``block=False``.

    ``port=None`` takes the first free one from 7860. Whoever reaches the address can run the
    installed variants, so a host other than this machine needs ``expose=True``; else it is a
    ``ValueError``.
    """
    from attnreg_playground import app

    return app.launch(host, port, open_browser, expose=expose, block=block, registry=registry)
