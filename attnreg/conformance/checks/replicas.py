"""L, continued: a module in data-parallel training, replicated in several processes."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from attnreg.checked import CheckedAttention
from attnreg.conformance.case import Case
from attnreg.conformance.checks import Laws
from attnreg.conformance.measure import LIMITS, Failure, relative
from attnreg.conformance.transport import NotImportable, pack, unpack
from attnreg.errors import AttnregError

LAWS = Laws()

WORLD = 2
SECONDS = 60.0


@LAWS.law("L-09", "required", needs=("parameters", "differentiable", "cpu"), full=True)
def data_parallel(case: Case) -> None:
    """``DistributedDataParallel`` trains it: equal gradients, and equal replicas.

    Two processes over gloo, built from different seeds, two steps without
    ``find_unused_parameters``: the gradients are the mean of those of the bare module on both
    batches, and after wrapping, which hands parameters and buffers on, both give one output. In
    one process where the variant cannot be imported by another, or in the fast profile. A
    parameter that gets no gradient, or a draw outside the buffers, shows here.
    """
    if not dist.is_available() or not dist.is_gloo_available() or dist.is_initialized():
        case.skip("torch.distributed has no gloo here, or a process group is open already")
    answers = None
    if case.full:
        with suppress(NotImportable, subprocess.TimeoutExpired):
            answers = _two_processes(case)
    case.notes["processes"] = 1 if answers is None else WORLD
    if answers is None:
        store = dist.HashStore()  # type: ignore[attr-defined]  # documented; torch.distributed does not list it
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            for setting in case.usual if case.full else case.usual[:3]:
                _judge(case, [train(case, 0, 1, setting.options)])
        finally:
            dist.destroy_process_group()
        return
    _judge(case, answers)


def _judge(case: Case, answers: list[dict[str, Any]]) -> None:
    for rank, answer in enumerate(answers):
        if "failed" in answer:
            raise Failure(f"rank {rank}: {answer['failed']}")
        if "refused" in answer:
            continue
        for name, error in answer["gradients"].items():
            case.holds(
                error <= 20 * LIMITS[case.dtype],
                f"rank {rank}: the gradient of {name} is not the mean of both batches",
                measured=error,
            )
        here, there = (torch.tensor(a["output"]) for a in (answer, answers[0]))
        case.close(here, there, case.same, f"output of the replica on rank {rank}")


def train(case: Case, rank: int, world: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Take two steps on this rank, and say what came of them in plain data."""
    try:
        attn = case.build(options, seed=11 + rank)
    except AttnregError as error:
        return {"refused": str(error)}
    if not any(p.requires_grad for p in attn.parameters()):
        return {"refused": "no parameter of it is trained"}
    mask = case.mask()
    attn.train()
    try:
        replica = DistributedDataParallel(attn)
        bare = copy.deepcopy(attn)
        errors: dict[str, float] = {}
        for step in range(2):
            calls = [case.inputs(seed=10 * step + n) for n in range(world)]
            replica.zero_grad()
            replica(*calls[rank], mask).square().mean().backward()
            expected = _mean_gradients(bare, calls, mask)
            for name, parameter in attn.named_parameters():
                if not parameter.requires_grad:
                    continue
                if parameter.grad is None:
                    return {"failed": f"{name} has no gradient after step {step + 1}"}
                found = relative(parameter.grad, expected[name])
                errors[name] = max(errors.get(name, 0.0), found)
        output = case.call(attn.eval(), *case.inputs(seed=77), mask)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    return {"gradients": errors, "output": output.double().tolist()}


def _mean_gradients(bare: CheckedAttention, calls: list[Any], mask: Any) -> dict[str, Tensor]:
    bare.zero_grad()
    for call in calls:
        (bare(*call, mask).square().mean() / len(calls)).backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in bare.named_parameters()
    }


def _two_processes(case: Case) -> list[dict[str, Any]]:
    """Run ``train`` in two processes.

    Raises ``NotImportable`` where they cannot have the variant, ``TimeoutExpired`` where this
    machine is too busy: gloo itself gives up on a rank that waits in vain long before.
    """
    target = pack(case.variant)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
    command = f"from {__name__} import main; main()"
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for rank in range(WORLD):
            request = {"target": target, "rank": rank, "folder": folder, "dtype": str(case.dtype)}
            log = (Path(folder) / f"log{rank}").open("wb")
            process = subprocess.Popen(
                [sys.executable, "-c", command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
            log.close()
            assert process.stdin is not None  # for mypy: it is a pipe
            with suppress(BrokenPipeError):  # it died at once; its silence will show it
                process.stdin.write(json.dumps(request).encode())
                process.stdin.close()
            running.append(process)
        try:
            for process in running:
                process.wait(timeout=SECONDS)
        finally:
            for process in running:
                process.kill()
                process.wait()
        answers: list[dict[str, Any]] = []
        for rank in range(WORLD):
            place = Path(folder) / f"answer{rank}"
            if not place.exists():
                last = (Path(folder) / f"log{rank}").read_text(errors="replace").strip()
                raise Failure(f"the process of rank {rank} ended: {last[-300:]}")
            answers.append(json.loads(place.read_text(encoding="utf-8")))
    if any("unknown" in answer for answer in answers):
        raise NotImportable(str(answers))
    return answers


def main() -> None:
    """One of the two processes: the request on standard input, the answer in a file."""
    request: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    folder, rank = Path(request["folder"]), int(request["rank"])
    try:
        variant = unpack(request["target"])
    except NotImportable as error:
        answer: dict[str, Any] = {"unknown": str(error)}
    else:
        torch.set_num_threads(1)
        dtype = getattr(torch, request["dtype"].removeprefix("torch."))
        store = dist.FileStore(str(folder / "store"), WORLD)  # type: ignore[attr-defined]  # documented; torch.distributed does not list it
        dist.init_process_group(
            "gloo",
            store=store,
            rank=rank,
            world_size=WORLD,
            timeout=timedelta(seconds=SECONDS / 3),
        )
        answer = train(Case(variant, dtypes=[dtype], full=False), rank, WORLD, {})
        dist.destroy_process_group()
    (folder / f"answer{rank}").write_text(json.dumps(answer), encoding="utf-8")
