"""The suite itself is checked: wrong variants are caught by the laws that are about them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from attnreg.conformance import Case, shrinking
from attnreg.conformance.checks import built_in
from attnreg.conformance.judging import judge

FILES = sorted(
    path.stem
    for path in (Path(__file__).parent / "mutants").glob("*.py")
    if path.stem not in ("mutant", "__main__")
)
MUTANTS = [
    mutant for name in FILES for mutant in importlib.import_module(f"tests.mutants.{name}").MUTANTS
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed_by_the_checks_that_are_about_it(mutant, monkeypatch):
    monkeypatch.setattr(shrinking, "SECONDS", 0.0)  # that it fails is what is asked, not how small
    with mutant.patch():
        case = Case(mutant.variant, full=False)
        found = {
            name: judge(case, built_in()[name], {}) for name in (*mutant.kills, *mutant.spares)
        }
    for name in mutant.kills:
        assert found[name].status == "fail", f"{name}: {found[name]}"
    for name in mutant.spares:
        assert found[name].status in ("pass", "skip"), f"{name}: {found[name]}"


def test_every_check_has_a_mutant():
    killed = {name for mutant in MUTANTS for name in mutant.kills}
    assert killed >= {
        name for name, check in built_in().items() if "accelerator" not in check.needs
    }


def test_mutants_have_names_of_their_own():
    names = [mutant.name for mutant in MUTANTS]
    assert sorted(set(names)) == sorted(names)
