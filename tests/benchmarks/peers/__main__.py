"""``python -m tests.benchmarks.peers``: measure, judge, write."""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import torch

from tests.benchmarks.peers.claims import claims
from tests.benchmarks.peers.report import Row, summary, surroundings, write
from tests.benchmarks.peers.setting import Setting
from tests.benchmarks.peers.table import Wanted, table
from tests.benchmarks.peers.targets import TARGETS

VARIANTS = tuple(dict.fromkeys(target.variant for target in TARGETS))
DTYPES = ("float32", "float64", "bfloat16")
PARTS = {"all": (table, claims), "table": (table,), "claims": (claims,)}
THREADS = 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.peers",
        description="Measure attnreg's variants beside other libraries, and judge by the targets.",
    )
    add, usual = parser.add_argument, Setting(0)
    add("--variant", nargs="+", choices=VARIANTS, default=VARIANTS, metavar="NAME")
    add("--lengths", nargs="+", type=int, default=(), help="instead of those of each target")
    add("--heads", type=int, default=usual.heads, help="%(default)s, as for the targets")
    add("--head-dim", type=int, default=usual.head_dim, help="%(default)s, as for the targets")
    add("--batch", type=int, default=usual.batch, help="%(default)s, as for the targets")
    add("--dtype", default="", choices=DTYPES, help="instead of that of each target")
    add("--part", choices=tuple(PARTS), default="all", help="the table, the other claims, or all")
    add("--quick", action="store_true", help="the shortest length of each target, fewer rounds")
    add("--json", type=Path, metavar="FILE", help="write every row with its numbers")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    warnings.simplefilter("ignore")  # the peers'
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    setting = Setting(0, False, asked.batch, asked.heads, asked.head_dim)
    wanted = Wanted(setting, tuple(asked.lengths), asked.dtype, asked.quick)
    about = surroundings(setting)
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    started = time.monotonic()
    rows: list[Row] = []
    for variant in asked.variant:
        for part in PARTS[asked.part]:
            for row in part(variant, wanted):
                print(row, flush=True)
                rows.append(row)
    print(f"\n{summary(rows)}\n\n{time.monotonic() - started:.0f} s")
    if asked.json is not None:
        write(asked.json, rows, about)


if __name__ == "__main__":
    main()
