"""The laws as pytest tests: one per check that applies to a variant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from attnreg.conformance.case import Case
from attnreg.conformance.checks import known_checks
from attnreg.conformance.judging import judge, select, stale_waivers
from attnreg.conformance.needs import lacking
from attnreg.conformance.running import Profile
from attnreg.hookspecs import Check
from attnreg.registry import get_variant
from attnreg.variant import Variant


def pytest_suite(
    variant: str | Variant, *, profile: Profile = "fast", device: str = "cpu"
) -> Callable[..., Any]:
    """Return a test function with one test per check: ``test_conformance = pytest_suite(VARIANT)``.

    A check that does not apply, as the variant does not declare what it is about, has no test.
    The tests run in pytest's own process; ``attnreg check`` contains what crashes or hangs.
    """
    chosen = get_variant(variant) if isinstance(variant, str) else variant
    case = Case(chosen, device=device, full=profile == "full")
    known = known_checks()
    applying = [c for c in select(known, None, profile == "full") if lacking(case, c) is None]
    unknown = stale_waivers(chosen.known_failures, known)

    @pytest.mark.parametrize("check", [pytest.param(c, id=c.id) for c in applying])
    def test_conformance(check: Check) -> None:
        for result in unknown:
            pytest.fail(result.message, pytrace=False)
        result = judge(case, check)
        if result.status == "skip":
            pytest.skip(result.message)
        if result.status == "xfail":
            pytest.xfail(str(result.evidence.get("reason")))
        if result.status == "fail" and not result.bad:
            pytest.xfail(f"{check.id} is a grade, and not reached: {result.message}")
        if result.bad:
            lines = [f"{check.id} {result.status}: {result.message}", check.summary]
            for name in ("call", "actual", "expected"):
                if name in result.evidence:
                    lines.append(f"{name}: {result.evidence[name]}")
            if "snippet" in result.evidence:
                lines += ["", str(result.evidence["snippet"])]
            pytest.fail("\n".join(lines), pytrace=False)

    return test_conformance
