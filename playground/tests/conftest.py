"""Fixtures of the playground's tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import attnreg
from attnreg_playground.attend import Picture
from attnreg_playground.explore import DEFAULT_PASSAGE, DEFAULT_TEXT, Controls, look
from attnreg_playground.inputs import Problem
from attnreg_playground.wording import word_problem

REGISTRY = attnreg.default_registry()


def load_fakes() -> ModuleType:
    """Import ``fakes.py`` from beside this file, under a name that others can import too."""
    name = "attnreg_playground_fakes"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("fakes.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def fakes() -> ModuleType:
    """Third-party variants, good and bad."""
    return load_fakes()


def _controls(name: str, **changes: Any) -> Controls:
    given: dict[str, Any] = {
        "variant": name,
        "options": {},
        "source": "text",
        "text": DEFAULT_TEXT,
        "passage": DEFAULT_PASSAGE,
        "layer": 2,
        "heads": 4,
        "causal": False,
        "padding": 0,
        "seed": 0,
    }
    return Controls(**(given | changes))


def _picture(name: str, registry: attnreg.Registry = REGISTRY, **changes: Any) -> Picture:
    shown = look(registry, _controls(name, **changes)).shown
    assert isinstance(shown, Picture), shown
    return shown


def _problem(name: str, registry: attnreg.Registry = REGISTRY, **changes: Any) -> dict[str, str]:
    shown = look(registry, _controls(name, **changes)).shown
    assert isinstance(shown, Problem), shown
    return word_problem(shown, "en")


@pytest.fixture
def controls() -> Any:
    """The controls of the tab at their defaults, some of them changed."""
    return _controls


@pytest.fixture
def picture() -> Any:
    """Look at a variant and expect a picture."""
    return _picture


@pytest.fixture
def problem() -> Any:
    """Look at a variant and expect a problem, in English."""
    return _problem
