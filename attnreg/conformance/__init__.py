"""The conformance suite: laws that every attention variant must keep, and ways to run them.

>>> from attnreg import conformance
>>> conformance.run("linear", profile="fast").ok  # doctest: +SKIP
True

A law is a plain function in ``checks/``, with a level: "required", "claimed" (what a capability
promises; what is not declared must be refused) or "quality" (graded, never blocking). They run
through ``run``, the command ``attnreg check``, ``pytest_suite`` and ``stream``.
"""

from __future__ import annotations

from typing import Any

from attnreg.conformance.case import Case as Case
from attnreg.conformance.case import Sample as Sample
from attnreg.conformance.case import Trial as Trial
from attnreg.conformance.checks import known_checks as known_checks
from attnreg.conformance.judging import NEVER_WAIVED as NEVER_WAIVED
from attnreg.conformance.measure import Failure as Failure
from attnreg.conformance.report import Report as Report
from attnreg.conformance.report import Result as Result
from attnreg.conformance.report import junit as junit
from attnreg.conformance.running import run as run
from attnreg.conformance.running import stream as stream
from attnreg.hookspecs import Check as Check


def __getattr__(name: str) -> Any:
    if name == "pytest_suite":  # needs pytest, which only those who ask for it have
        from attnreg.conformance.in_pytest import pytest_suite

        return pytest_suite
    raise AttributeError(f"module 'attnreg.conformance' has no attribute {name!r}")
