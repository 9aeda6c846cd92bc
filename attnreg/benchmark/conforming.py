"""Ask the conformance suite before anything is timed: wrong results are fast."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

from attnreg.benchmark.records import Step, Verdict
from attnreg.registry import list_variants
from attnreg.variant import Variant

SHOWN = 5
"""How many failed checks a refusal names."""


def judge(variant: str | Variant, label: str, device: str) -> Iterator[Step | Verdict]:
    """Run the fast profile on a variant; yield a ``Step`` per check, and the ``Verdict`` last."""
    from attnreg.conformance.running import report_of, stream

    started = time.perf_counter()
    results = stream(variant, profile="fast", device=device)
    collected = []
    with closing(results):
        yield Step("conformance", label, 0, results.total)
        for result in results:
            collected.append(result)
            yield Step("conformance", label, len(collected), results.total)
    report = report_of(results, collected)
    failed = tuple(one.check for one in report.results if one.bad)
    seconds = time.perf_counter() - started
    yield Verdict(label, report.verdict, report.ok, failed, seconds)


def refusal(verdict: Verdict) -> str:
    """Say why a variant is not timed."""
    named = ", ".join(verdict.failed[:SHOWN])
    more = f" and {len(verdict.failed) - SHOWN} more" if len(verdict.failed) > SHOWN else ""
    failing = f": {named}{more}" if named else ""
    shows = f"attnreg check {verdict.variant} --profile fast"
    if verdict.variant not in list_variants():
        shows = "attnreg.conformance.run(variant)"
    return (
        f"not timed: {verdict.variant} is {verdict.verdict}{failing} ({shows} shows it); "
        "--unchecked, in Python unchecked=True, times it all the same"
    )
