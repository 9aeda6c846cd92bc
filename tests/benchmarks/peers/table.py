"""Measure the targets of the table."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import NamedTuple

from tests.benchmarks.peers import report
from tests.benchmarks.peers.measuring import MODES, apart, call, interleave, ratio
from tests.benchmarks.peers.memory import Peaks, peaks
from tests.benchmarks.peers.ours import build
from tests.benchmarks.peers.report import Row
from tests.benchmarks.peers.setting import Core, Setting
from tests.benchmarks.peers.targets import TARGETS, Target


class Wanted(NamedTuple):
    """What a user asks for: the sizes, other lengths or dtype than the targets', and haste."""

    setting: Setting
    lengths: tuple[int, ...] = ()
    dtype: str = ""
    quick: bool = False

    @property
    def seconds(self) -> float:
        """How long one comparison may take, where calls are short."""
        return 1.0 if self.quick else 5.0

    def settings(
        self, lengths: tuple[int, ...], causal: bool = False, dtype: str = "float32"
    ) -> list[Setting]:
        """The settings of a target; with ``quick`` its shortest length only."""
        lengths = self.lengths or (lengths[:1] if self.quick else lengths)
        dtype = self.dtype or dtype
        return [self.setting._replace(length=n, causal=causal, dtype=dtype) for n in lengths]


def has_compiler() -> bool:
    """Whether C++ can be compiled here, as torch would."""
    return shutil.which(os.environ.get("CXX", "g++")) is not None


def table(variant: str, wanted: Wanted) -> Iterator[Row]:
    """Measure every target of a variant, each length beside all of its peers."""
    for target in TARGETS:
        if target.variant != variant or (target.needs_compiler and not has_compiler()):
            continue
        settings = wanted.settings(target.lengths, target.causal, target.dtype)
        cores = (target.core, *target.against, *target.beside)
        used, reasons = peaks(cores, settings)
        for setting in settings:
            yield from _compare(target, setting, used, reasons, wanted.seconds)


def _compare(
    target: Target, setting: Setting, used: Peaks, reasons: dict[str, str], seconds: float
) -> Iterator[Row]:
    case = f"{setting}, {target.core}" if target.ours else str(setting)
    cores: dict[str, Core] = {}
    for name in (target.core, *target.against, *target.beside):
        # A process that died of it is warning enough not to try it here.
        if name in reasons and (name, setting, MODES[-1]) not in used:
            yield report.failed(target.variant, case, name, reasons[name])
            continue
        cores[name] = build(name, setting)
    if target.core not in cores:
        return
    inputs = setting.inputs()
    for name in target.against if target.agrees is not None else ():
        if (
            name in cores
            and (far := apart(cores[target.core], cores[name], inputs)) > target.agrees
        ):
            reason = f"outputs differ by {far:.2g} of the largest: not the same computation"
            yield report.failed(target.variant, case, name, reason)
            del cores[name]
    for mode, least, aim in zip(MODES, (target.forward, target.backward), target.aim, strict=True):
        calls = {name: call(core, inputs, mode) for name, core in cores.items()}
        times = interleave(calls, seconds)
        for name in [name for name in cores if name != target.core]:
            judged = name in target.against
            faster = ratio(times, name, target.core)
            yield report.speed(
                *(target.variant, case, mode, name, faster),
                *((least, aim) if judged else (None, None)),
            )
            pair = [used.get((one, setting, mode)) for one in (target.core, name)]
            if None not in pair:
                yield report.memory(
                    *(target.variant, case, f"memory, {mode}", name, *pair),
                    target.memory if judged else None,
                )
