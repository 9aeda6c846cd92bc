"""Fixtures of the playground's tests."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import attnreg
from attnreg_playground.drawing import Drawing
from attnreg_playground.texts import localise
from attnreg_playground.work import final

HERE = str(Path(__file__).parent)
FAKES = "playground_fakes:with_panels"
"""What a worker process imports: this folder is on its path, as on ours."""


def run_alone(what: Any) -> Any:
    """Run a coroutine in a thread: a browser test may have left a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, what).result()


@pytest.fixture(scope="session")
def fakes() -> ModuleType:
    """Third-party variants, good and bad."""
    if HERE not in sys.path:
        sys.path.append(HERE)
    import playground_fakes

    return playground_fakes


def _shown(page: str, registry: Any = None, **values: Any) -> Drawing:
    found = final(attnreg.default_registry() if registry is None else registry, page, values)
    assert found.problem is None, localise(found.problem, "en")
    return found


def _refused(page: str, registry: Any = None, **values: Any) -> dict[str, str]:
    found = final(attnreg.default_registry() if registry is None else registry, page, values)
    assert found.problem is not None
    told: dict[str, str] = localise(found.problem, "en")
    return told


@pytest.fixture
def shown() -> Any:
    """Draw a page to its end, and expect figures."""
    return _shown


@pytest.fixture
def refused() -> Any:
    """Draw a page, and expect a problem, in English."""
    return _refused
