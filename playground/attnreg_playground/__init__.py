"""attnreg_playground: see, compare, measure and verify every installed attention variant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["build", "draw", "launch"]


def launch(
    host: str = "127.0.0.1",
    port: int | None = None,
    open_browser: bool = True,
    *,
    auth: str | None = None,
    expose: bool = False,
    heavy: bool | None = None,
    allow_hosts: Iterable[str] = (),
    block: bool = True,
    registry: str | None = None,
) -> Any:
    """Serve the playground until it is interrupted; return its ``gr.Blocks`` with ``block=False``.

    ``port=None`` takes the first free one from 7860. Whoever reaches the address can run the
    installed variants, so a host other than this machine needs ``auth``, a file of accounts (see
    ``attnreg_playground.accounts``), or ``expose=True``; else it is a ``ValueError``. ``heavy``
    allows benchmark, conformance and training; by default it does where the host is this machine.
    ``allow_hosts`` are further names under which it may be asked for, as behind a proxy.
    ``registry`` is ``"module:function"``, which returns the registry to show; None is what is
    installed. Raises ``OSError`` where the port is taken or no plugin process starts.
    """
    from attnreg_playground import serving

    return serving.launch(
        host,
        port,
        open_browser,
        auth=auth,
        expose=expose,
        heavy=heavy,
        allow_hosts=allow_hosts,
        block=block,
        registry=registry,
    )


def build(registry: str | None = None, *, heavy: bool = True) -> Any:
    """Return the playground as ``gr.Blocks`` with its workers started; ``close()`` ends both.

    It is for an app of your own around it: ``launch`` adds what stands before the page, such as the
    checks of hosts and routes. The arguments are those of ``launch``.
    """
    from attnreg_playground import serving

    return serving.build(registry, heavy)


def draw(page: str, **values: Any) -> Mapping[str, NDArray[np.generic]]:
    """Return the numbers behind a page of the playground, by name: what its figures show.

    ``page`` and ``values`` are those of the address, such as ``draw("q_temperature",
    temperature=0.3)``; what is left out has its default. Raises ``ValueError`` where the page
    would show a problem.
    """
    from attnreg import default_registry
    from attnreg_playground.texts import localise
    from attnreg_playground.work import final

    shown = final(default_registry(), page, values)
    if shown.problem is not None:
        told = localise(shown.problem, "en")
        raise ValueError(f"{told['title']}: {told['detail']}")
    return shown.arrays
