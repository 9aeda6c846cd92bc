"""Run one law on one variant and say what came of it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from attnreg import process
from attnreg.conformance.case import Case
from attnreg.conformance.measure import CannotJudge, DoesNotApply, Failure
from attnreg.conformance.needs import lacking
from attnreg.conformance.report import Result, Status, plain
from attnreg.errors import OptionError, nearest, reason
from attnreg.hookspecs import Check

NEVER_WAIVED = frozenset({"R-00", "R-02", "N-01", "C-01", "C-02", "M-01", "M-04", "I-01"})
"""Checks that no variant may list in ``known_failures``."""

EVIDENCE_ENTRIES = 64
"""The most entries of a tensor that evidence shows."""


def select(
    known: Mapping[str, Check], wanted: Iterable[str] | None, full: bool
) -> tuple[Check, ...]:
    """Return the checks to run: those named, by id or family letter, or those of the profile."""
    if wanted is None:
        return tuple(c for c in known.values() if full or not c.full)
    if isinstance(wanted, str):
        raise OptionError(f"checks must be a list of ids, got the text {wanted!r}")
    chosen: dict[str, Check] = {}
    for name in wanted:
        family = {k: c for k, c in known.items() if k == name or k.startswith(f"{name}-")}
        if not family:
            families = dict.fromkeys(key.partition("-")[0] for key in known)
            raise OptionError(
                f"there is no check {name!r}.{nearest(name, known)} Families: "
                f"{', '.join(families)}; `attnreg check --laws` lists the checks"
            )
        chosen |= family
    return tuple(chosen.values())


def judge(case: Case, check: Check, waived: Mapping[str, str] | None = None) -> Result:
    """Run a check, and say what it gave; nothing but an interrupt passes through."""
    waived = case.variant.known_failures if waived is None else waived
    started = time.perf_counter()
    status, evidence = _run(case, check)
    if check.id in waived:
        status, evidence = _waive(check, str(waived[check.id]), status, evidence)
    return Result(
        check.id,
        status,
        check.level,
        check.summary,
        round(time.perf_counter() - started, 4),
        _plain_evidence(evidence),
    )


def stale_waivers(
    known_failures: Mapping[str, str], known: Mapping[str, Check]
) -> Sequence[Result]:
    """Return an error for every declared known failure that names no check."""
    return [
        Result(
            name,
            "error",
            "required",
            "",
            0.0,
            {"message": f"known_failures names {name!r}, which is no check.{nearest(name, known)}"},
        )
        for name in known_failures
        if name not in known
    ]


def _run(case: Case, check: Check) -> tuple[Status, dict[str, Any]]:
    case.start(check.id)
    try:
        why = lacking(case, check)
        if why is not None:
            return "skip", {"message": why}
        with untouched(), torch.enable_grad():
            check.law(case)
    except DoesNotApply as why_not:
        return "skip", {"message": str(why_not)}
    except Failure as failure:
        return "fail", {"compared": case.compared, **case.notes, **failure.evidence}
    except AssertionError as failure:
        return "fail", {"message": str(failure) or f"the law of {check.id} does not hold"}
    except CannotJudge as why_not:
        return "error", {"message": str(why_not)}
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an author's code may even call sys.exit
        return "error", {"message": reason(error)}
    if not case.compared and check.law.__module__.startswith("attnreg.conformance"):
        if case.tried:
            return "skip", {"message": "no call had a result that could be compared"}
        return "error", {"message": "nothing was compared: no call suited the variant"}
    measured = {"measured": case.worst, "limit": 1.0} if case.worst else {}
    return "pass", {"compared": case.compared, **measured, **case.notes}


def _waive(
    check: Check, given: str, status: Status, evidence: dict[str, Any]
) -> tuple[Status, dict[str, Any]]:
    """Turn a declared failure into "xfail"; an unexpected pass stands against it."""
    if check.id in NEVER_WAIVED:
        return "fail", {
            **evidence,
            "message": f"{check.id} can never be waived ({given}): remove it",
        }
    if status == "fail":
        return "xfail", {**evidence, "reason": given}
    if status != "pass":  # it broke, or does not apply here, where perhaps no such device is
        return status, evidence
    message = f"{check.id} is declared as a known failure ({given}) and passes: remove it"
    # A failed quality check blocks nothing; a declaration that is no longer true does.
    return "error" if check.level == "quality" else "fail", {**evidence, "message": message}


def _plain_evidence(evidence: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _shown(evidence)
    except Exception as error:  # a law of a plugin's may give anything as evidence
        message = plain(evidence.get("message", ""))
        return {"message": message, "evidence": f"cannot be shown: {reason(error)}"}


def _shown(evidence: Mapping[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, value in evidence.items():
        if not isinstance(value, torch.Tensor):
            shown[name] = plain(value)
        elif value.numel() <= EVIDENCE_ENTRIES:
            shown[name] = plain(value.detach().cpu())
        else:
            shown[f"{name}_shape"] = list(value.shape)
            shown[name] = plain(value.detach().reshape(-1)[:EVIDENCE_ENTRIES].cpu())
    return shown


@contextmanager
def untouched() -> Iterator[None]:
    """Restore what a law or a variant may change: settings, random generators, warnings."""
    with process.restored(), warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")  # a plugin's or torch's own; a law about one records it
        yield
