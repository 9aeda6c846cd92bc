"""Rows of the report: what was measured, what was to be reached, and whether it was."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

import torch

import attnreg
from tests.benchmarks.peers.adapters import PEERS
from tests.benchmarks.peers.measuring import Spread
from tests.benchmarks.peers.setting import Setting

DISTURBED = 0.1
"""The share of the machine used by others from which on times deserve little trust."""

MEMORY_STEP = 1.0
"""MiB by which two measurements of the same memory may differ: pages are counted in batches."""


@dataclass(frozen=True)
class Row:
    """One quantity of one setting. ``reached`` is None where there is no target or no figure."""

    variant: str
    case: str
    quantity: str
    against: str
    measured: str
    target: str = ""
    reached: bool | None = None
    aim_reached: bool | None = None
    goodness: float = 0.0
    """The higher the better, among rows of one quantity and target."""
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Say how it ended, in a word or two."""
        if self.reached is None:
            return ""
        if not self.reached:
            return "NOT REACHED"
        return "pass" if self.aim_reached is not False else "pass, aim not reached"

    def __str__(self) -> str:
        target = f"target {self.target}" if self.target else "no target"
        beside = f"{self.quantity} beside {self.against}" if self.against else self.quantity
        text = f"{self.variant}, {self.case}: {beside}: {self.measured}; {target}  {self.verdict}"
        others = f" (others used {self.elsewhere:.0%} of the machine)"
        return text + others if self.elsewhere > DISTURBED else text

    @property
    def elsewhere(self) -> float:
        """The share of the machine that other processes used during the measurement."""
        return self.numbers.get("elsewhere", 0.0)


def speed(
    variant: str,
    case: str,
    quantity: str,
    against: str,
    found: Spread,
    least: float | None,
    aim: float | None = None,
) -> Row:
    """Judge how many times as fast ours is."""
    wanted = "" if least is None else f">= {least:.3g}x"
    return Row(
        variant,
        case,
        quantity,
        against,
        measured=f"{times(found)} as fast",
        target=wanted + (f" (aim {aim:g}x)" if aim else ""),
        reached=None if least is None else found.median >= least,
        aim_reached=None if aim is None else found.median >= aim,
        goodness=found.median,
        numbers=found._asdict(),
    )


def memory(
    variant: str,
    case: str,
    quantity: str,
    against: str,
    ours: float,
    other: float,
    least: float | None,
) -> Row:
    """Judge how many times less memory ours takes, both in MiB; 1 is "no more"."""
    wanted = "" if least is None else "no more" if least == 1 else f"<= 1/{least:g}"
    allowed = None if least is None else other * 1.05 if least == 1 else other / least
    return Row(
        variant,
        case,
        quantity,
        against,
        measured=f"{ours:.1f} of {other:.1f} MiB ({fraction(ours, other)})",
        target=wanted,
        reached=None if allowed is None else ours <= allowed + (MEMORY_STEP if least == 1 else 0),
        goodness=other / max(ours, 1e-9),
        numbers={"ours": ours, "other": other},
    )


def failed(variant: str, case: str, core: str, reason: str) -> Row:
    """Say that a core has no figures; what was to be measured with it is not reached."""
    return Row(variant, case, f"no figures of {core}", "", measured=reason, reached=False)


def times(found: Spread) -> str:
    """A ratio and its quartiles."""
    return f"{found.median:.3g}x ({found.low:.3g}-{found.high:.3g})"


def fraction(ours: float, other: float) -> str:
    """A share such as 1/20, or 1.07x where ours is nearly as much or more."""
    if ours <= 0 or other <= 0:
        return "nothing" if ours <= 0 else "more"
    return f"1/{other / ours:.3g}" if other > 1.5 * ours else f"{ours / other:.3g}x"


def surroundings(usual: Setting) -> dict[str, str | int]:
    """Versions and sizes that the figures hold for."""
    versions = {"attnreg": attnreg.__version__, "torch": torch.__version__}
    for name in sorted({adapter.distribution for adapter in PEERS.values()} - {"torch"}):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions | {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "shape": f"B={usual.batch} H={usual.heads} D={usual.head_dim} {usual.dtype}",
    }


def summary(rows: Sequence[Row]) -> str:
    """A Markdown table of the worst of each quantity, and how many targets were reached."""
    kinds: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.reached is not None:
            kinds.setdefault((row.variant, row.against, row.quantity), []).append(row)
    lines = ["| variant | quantity | against | worst | where | target | |", "|" + "---|" * 7]
    for (variant, against, quantity), group in kinds.items():
        for wanted in dict.fromkeys(row.target for row in group):
            alike = [row for row in group if row.target == wanted]
            row = min(alike, key=lambda row: row.goodness)
            cells = (variant, quantity, against, row.measured, row.case, wanted, row.verdict)
            lines.append(f"| {' | '.join(cells)} |")
    judged = [row.reached for row in rows if row.reached is not None]
    lines += ["", f"{sum(judged)} of {len(judged)} targets reached"]
    if disturbed := sum(row.elsewhere > DISTURBED for row in rows):
        lines[-1] += f"; {disturbed} rows were measured while others used the machine: repeat them"
    return "\n".join(lines)


def write(path: Path, rows: Iterable[Row], about: dict[str, str | int]) -> None:
    """Write everything as JSON."""
    content = {"about": about, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
