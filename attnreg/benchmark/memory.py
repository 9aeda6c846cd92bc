"""Measure the memory of a subject, length by length, before anything of it runs in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from attnreg.benchmark.budget import Budget, Probe, foreseen, judged
from attnreg.benchmark.cell import SDPA, Target
from attnreg.benchmark.process import ONCE, Prober, Uncontained, Waiting
from attnreg.benchmark.records import Settings
from attnreg.conformance.transport import NotImportable, pack


def probe(
    name: str | None, target: Target, settings: Settings, mode: str
) -> Iterator[Probe | Waiting]:
    """Yield what was found at each length, from the shortest on, and ``Waiting`` meanwhile.

    ``name`` is that of an installed variant, None for one that is not. A length that would
    exceed the limits, going by the shorter ones, is not tried. Raises ``Uncontained`` before the
    first result.
    """
    child: Prober | None = None
    known: list[Probe] = []
    budget = Budget.apart(settings)
    try:
        for length in sorted(settings.lengths):
            spared = foreseen(known, length, budget)
            if spared is not None:
                known.append(spared)
                yield spared
                continue
            if child is None:
                child = Prober(_request(name, target, settings, mode))
                yield from child.begin(length)
            for found in child.measure(length, settings):
                if isinstance(found, Waiting):
                    yield found
                    continue
                known.append(judged(found, budget))
                yield known[-1]
    finally:
        if child is not None:
            child.close()


def _request(name: str | None, target: Target, settings: Settings, mode: str) -> str:
    if target.variant is SDPA:
        told: Any = "sdpa"
    elif name is not None:
        told = name
    else:
        try:
            told = pack(target.variant)
        except NotImportable as error:
            raise Uncontained(f"{error}; define it in a module that can be imported") from error
    asked = {
        "target": told,
        "implementation": target.implementation,
        "options": dict(target.options),
        "settings": asdict(settings),
        "mode": mode,
        "patience": 2 * (2 * settings.seconds + ONCE),  # longer than whoever asks will wait
    }
    return json.dumps(asked)
