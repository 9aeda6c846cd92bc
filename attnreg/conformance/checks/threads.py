"""T: calls that overlap do not see each other, and nothing global is left changed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnreg import process
from attnreg.conformance.case import Case, Inputs
from attnreg.conformance.checks import Laws
from attnreg.conformance.measure import relative
from attnreg.conformance.recording import At, places
from attnreg.mask import Mask

LAWS = Laws()

THREADS = 8

Call = tuple[Tensor, Tensor, Tensor, Mask]


def _calls(case: Case) -> list[Call]:
    """Calls that differ in everything that may differ: values, lengths, batch, mask."""
    names = ["none", "causal", "padding", "allowed", "window", "bias"]
    suited = [s.mask for s in case.samples(masks=names, implementations=("auto",))]
    made: list[Call] = []
    for index in range(THREADS):
        length = 3 + index
        sizes = replace(
            case.sizes, batch=1 + index % 3, queries=length, keys=length + 2 * (index % 2)
        ).fit(case.able)
        call: Inputs = case.inputs(sizes, seed=index)
        made.append((*call, case.mask(suited[index % len(suited)], sizes)))
    return made


@LAWS.law("T-09")
def threads(case: Case) -> None:
    """Calls of one module from several threads give what they give one after another.

    First every call is stopped at many points of its computation while another thread makes a
    call of another size, mask and batch; then eight threads call at once. A mask, a score or a
    size that waits on the module for a later line is overwritten by then. No global flag, such as
    the default dtype or which kernels torch may use, is left changed.
    """
    before = process.read(process.FLAGS)
    attn, calls = case.build(), _calls(case)

    def run(call: Call) -> Tensor:
        with torch.no_grad():
            output: Tensor = attn(*call)
        return output

    with case.running("the call"):
        expected = [run(call) for call in calls]
        again = [run(call) for call in calls]
    _unchanged(case, before, "a call")
    if not case.able.deterministic and not all(map(torch.equal, expected, again)):
        case.skip("it draws random numbers in evaluation mode")
    _overlapping(case, run, calls, expected)
    _at_once(case, run, calls, expected)
    _unchanged(case, before, "calls from several threads")
    if case.able.differentiable:
        query, key, value = (t.clone().requires_grad_() for t in calls[0][:3])
        output = case.call(attn, query, key, value, calls[0][3])
        if output.requires_grad:
            output.sum().backward()
        _unchanged(case, before, "a backward pass")
    if case.able.weights != "none":
        with case.running("attn.weights"):
            attn.weights(calls[0][0], calls[0][1], calls[0][3])
        _unchanged(case, before, "weights")


def _unchanged(case: Case, before: dict[str, Any], what: str) -> None:
    changed = process.changed(before, process.read(process.FLAGS))
    case.holds(not changed, f"{what} left this changed: {', '.join(changed)}")


def _agree(case: Case, found: Tensor, expected: Tensor, what: str) -> None:
    same = tuple(found.shape) == tuple(expected.shape)
    error = relative(found, expected) if same else float("inf")
    case.holds(error <= case.same, f"{what}: off by {error:.2g}", measured=error, limit=case.same)


def _overlapping(
    case: Case, run: Callable[[Call], Tensor], calls: list[Call], expected: list[Tensor]
) -> None:
    """One call stopped in its middle while another thread makes another one."""
    count = 40 if case.full else 12
    for mine, other in ((0, 3), (1, 4), (2, 7)):
        with At() as counted, case.running("the call"):
            run(calls[mine])
        for place in places(counted.calls, count):
            faults: list[Exception] = []
            others: list[Tensor] = []
            blocked: list[bool] = []

            def aside(
                other: int = other,
                faults: list[Exception] = faults,
                others: list[Tensor] = others,
            ) -> None:
                try:
                    others.append(run(calls[other]))
                except Exception as error:  # told below, by the thread that checks
                    faults.append(error)

            worker = threading.Thread(target=aside, daemon=True)

            def meanwhile(worker: threading.Thread = worker, blocked: list[bool] = blocked) -> None:
                worker.start()
                worker.join(timeout=1.0)
                if worker.is_alive():
                    blocked.append(True)

            with case.running("a call that another thread's call interrupts"):
                with At(place, meanwhile):
                    found = run(calls[mine])
                if worker.ident is not None:
                    worker.join(timeout=5)
                for fault in faults:
                    raise fault
            _agree(case, found, expected[mine], "a call that another thread's call interrupts")
            for one in others:
                _agree(case, one, expected[other], "a call in the middle of another thread's call")
            if blocked:
                return  # it holds a lock while it computes: no call can come in between


def _at_once(
    case: Case, run: Callable[[Call], Tensor], calls: list[Call], expected: list[Tensor]
) -> None:
    """Eight threads at once, switched as often as can be."""
    rounds = 40 if case.full else 6
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(THREADS) as pool, case.running("a call among eight threads"):
            found = list(pool.map(lambda call: [run(call) for _ in range(rounds)], calls))
    finally:
        sys.setswitchinterval(interval)
    for outputs, right in zip(found, expected, strict=True):
        for output in outputs:
            _agree(case, output, right, "a call among eight threads")


def _note(seen: list[dict[str, Any]]) -> None:
    seen.append(process.read(process.OF_THE_PROCESS))


@LAWS.law("T-12", "quality")
def nothing_global_meanwhile(case: Case) -> None:
    """No flag of the whole process is changed even while a call runs.

    Seen by another thread at many points of a call: which kernels torch may use is a matter of
    the process, and another thread's call in that moment would run by them.
    """
    attn = case.build()
    calls = _calls(case)[:3]
    before = process.read(process.OF_THE_PROCESS)
    for call in calls:
        with At() as counted:
            case.call(attn, *call)
        for place in places(counted.calls, 40 if case.full else 12):
            seen: list[dict[str, Any]] = []
            with At(place, partial(_note, seen)):
                case.call(attn, *call)
            for during in seen:
                changed = process.changed(before, during)
                case.holds(not changed, f"changed during a call: {', '.join(changed)}")
