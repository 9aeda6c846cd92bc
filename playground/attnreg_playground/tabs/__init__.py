"""``TABS``: the playground's own tabs, in the order they are shown. A new one is one file here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attnreg_playground.shell import Shell
from attnreg_playground.tabs import explore


@dataclass(frozen=True)
class Tab:
    """A tab: its title is the text ``tab.<id>``; ``build`` adds its components inside it."""

    id: str
    build: Callable[[Shell], None]


TABS: tuple[Tab, ...] = (Tab("explore", explore.build),)
