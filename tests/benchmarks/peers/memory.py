"""Peak memory of a call, from a process of its own whose allocator gives memory back at once.

The peak since a reset of ``/proc/self/clear_refs`` (VmHWM), less what was resident before the call
(VmRSS): scratch, saved tensors, output and gradients, not the inputs. Linux with glibc only.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from tests.benchmarks.peers.measuring import MODES, call
from tests.benchmarks.peers.ours import build
from tests.benchmarks.peers.setting import Setting

SMALL = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "0",
    "MALLOC_TOP_PAD_": "0",
}
RESET = Path("/proc/self/clear_refs")

Peaks = dict[tuple[str, Setting, str], float]
"""MiB, by the name of a core, the setting and the mode."""


def peaks(
    cores: Sequence[str], settings: Sequence[Setting], modes: Sequence[str] = MODES
) -> tuple[Peaks, dict[str, str]]:
    """Measure every core, each in a process of its own, and say which process failed and how.

    Both are empty where the system has no ``/proc/self/clear_refs``.
    """
    if not RESET.exists():
        return {}, {}
    found: Peaks = {}
    reasons: dict[str, str] = {}
    for core in cores:
        asked = json.dumps([core, settings, modes, torch.get_num_threads()])
        child = subprocess.run(
            [sys.executable, "-m", __name__, asked],
            env=os.environ | SMALL,
            capture_output=True,
            text=True,
            check=False,
        )
        for line in child.stdout.splitlines():
            mark, _, text = line.partition(" ")
            if mark == "PEAK":  # a peer may print as well
                sizes, mode, reached = json.loads(text)
                found[core, Setting(*sizes), mode] = reached
        if child.returncode:
            last = child.stderr.strip().splitlines()[-1:]
            reasons[core] = f"exit status {child.returncode}: {''.join(last)}"
    return found, reasons


def peak(run: Callable[[], object]) -> float:
    """MiB that a call takes at its peak: of its second call, since the first may compile."""
    reached = 0.0
    for _ in range(2):
        gc.collect()
        before = _status("VmRSS")
        RESET.write_text("5", encoding="ascii")
        output = run()
        reached = (_status("VmHWM") - before) / 1024
        del output
    return max(0.0, reached)


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def main(asked: str) -> None:
    name, settings, modes, threads = json.loads(asked)
    torch.set_num_threads(threads)
    for sizes in settings:
        setting = Setting(*sizes)
        core, inputs = build(name, setting), setting.inputs()
        for mode in modes:
            reached = peak(call(core, inputs, mode))
            print("PEAK", json.dumps([setting, mode, reached]), flush=True)
        del core, inputs


if __name__ == "__main__":
    main(sys.argv[1])
