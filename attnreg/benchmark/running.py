"""``run``: measure variants beside each other, and yield what is found as it is found."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from attnreg.benchmark import conforming, limits, plan
from attnreg.benchmark.budget import Budget, Probe, foreseen
from attnreg.benchmark.cell import SDPA
from attnreg.benchmark.memory import probe
from attnreg.benchmark.plan import Entrant
from attnreg.benchmark.process import TICK, Uncontained, Waiting
from attnreg.benchmark.reading import read_bytes, read_lengths, read_modes
from attnreg.benchmark.records import Event, Measurement, Settings, Started, Step, Verdict
from attnreg.benchmark.row import time_row
from attnreg.benchmark.work import moved
from attnreg.variant import Variant


def run(
    variants: str | Variant | Iterable[str | Variant],
    *,
    lengths: str | Iterable[int] = "512:4096",
    modes: str | Iterable[str] = "forward",
    against: str | Variant | None = "auto",
    implementations: Iterable[str] = ("auto",),
    options: Mapping[str, Any] | None = None,
    causal: bool = False,
    batch: int = 1,
    heads: int = 8,
    head_dim: int = 64,
    dtype: torch.dtype | str = "float32",
    device: torch.device | str = "cpu",
    repeat: int = 20,
    seconds: float = 10.0,
    memory: int | str | None = None,
    seed: int = 0,
    unchecked: bool = False,
    checked: Mapping[str, Verdict] | None = None,
) -> Generator[Event]:
    """Measure variants at growing lengths; yield ``Started`` and then each result as it comes.

    ``variants``: names, "name:implementation", "sdpa" (torch's own) or ``Variant`` values.
    ``against`` is what they are compared with: one of these, "auto" (scaled_dot_product) or None.
    ``implementations`` (names, or "all") are timed beside each other. ``modes``: "forward",
    "backward" (forward and backward together). ``options`` are those of the variants that have
    them, "variant.option" of one alone. ``seconds`` is the budget of the repetitions of one cell,
    ``memory`` (None: half of what is free) that of one call, in bytes or as "4GiB".

    A variant that fails the fast profile of the conformance suite is not timed, unless
    ``unchecked``; ``checked`` has the verdicts of an earlier run, by variant, which are taken over.
    Each call is first made in a process of its own, under both limits; what fails there, or would
    by what shorter lengths took, is recorded with its reason and not made in this process.

    Closing the generator ends every process at once. ``Report.of`` collects what it yields.
    Raises ``UnknownVariant``, ``BrokenPlugin`` and ``OptionError`` before anything runs.
    """
    listed = [variants] if isinstance(variants, (str, Variant)) else list(variants)
    chosen, label = plan.entrants(listed, against, implementations, options or {})
    place = str(device)
    if memory is None:
        memory = plan.free_memory(place)
    settings = Settings(
        lengths=read_lengths(lengths),
        modes=read_modes(modes),
        causal=causal,
        batch=batch,
        heads=heads,
        head_dim=head_dim,
        dtype=str(dtype).removeprefix("torch."),
        device=place,
        repeat=repeat,
        seconds=seconds,
        memory=read_bytes(memory) if isinstance(memory, str) else memory,
        threads=torch.get_num_threads(),
        seed=seed,
        unchecked=unchecked,
    )
    plan.check(settings)
    return _Run(chosen, label, settings, checked or {}).events()


class _Run:
    """One run: its entrants, and what is known of them so far."""

    def __init__(
        self,
        entrants: list[Entrant],
        against: str | None,
        settings: Settings,
        checked: Mapping[str, Verdict],
    ) -> None:
        self.entrants = entrants
        self.against = against
        self.settings = settings
        self.checked = checked
        self.cells = len(entrants) * len(settings.lengths) * len(settings.modes)
        self.probed = self.timed = 0
        self.told = 0.0
        self.barred: dict[str, str] = {}
        """Who is not timed, and why."""

    def events(self) -> Generator[Event]:
        settings = self.settings
        subjects = tuple(one.subject for one in self.entrants)
        machine = plan.machine(settings.device)
        yield Started(settings, machine, subjects, self.against, self.cells)
        yield from self._verdicts()
        if len(self.barred) < len(self.entrants):
            yield Step("limits", "the machine", 0, 1)
            yield limits.measure(settings)
        for mode in settings.modes:
            found: dict[str, dict[int, Probe]] = {}
            for entrant in self.entrants:
                found[entrant.subject.label] = {}
                for event in self._memory(entrant, mode):
                    if isinstance(event, Probe):
                        found[entrant.subject.label][event.length] = event
                    else:
                        yield event
            seen: dict[str, list[Probe]] = {name: [] for name in found}
            for length in settings.lengths:
                row = {name: probes[length] for name, probes in found.items()}
                yield from self._row(mode, length, row, seen)

    def _verdicts(self) -> Iterator[Step | Verdict]:
        known: dict[str, Verdict] = {}
        for entrant in self.entrants:
            variant = entrant.target.variant
            if variant is SDPA:
                continue  # what torch computes is not ours to judge
            name = entrant.name or variant.name
            if name not in known:
                if self.settings.unchecked:
                    known[name] = Verdict(name, "not checked", ok=False)
                elif name in self.checked:
                    known[name] = self.checked[name]
                else:
                    for event in conforming.judge(
                        entrant.name or variant, name, self.settings.device
                    ):
                        if isinstance(event, Verdict):
                            known[name] = event
                        else:
                            yield event
                yield known[name]
            if not known[name].ok and not self.settings.unchecked:
                self.barred[entrant.subject.label] = conforming.refusal(known[name])

    def _memory(self, entrant: Entrant, mode: str) -> Iterator[Step | Probe]:
        label, settings = entrant.subject.label, self.settings
        if label in self.barred:
            self.probed += len(settings.lengths)
            yield from (Probe(n, "refused", self.barred[label]) for n in settings.lengths)
            return
        try:
            for found in probe(entrant.name, entrant.target, settings, mode):
                if isinstance(found, Waiting):
                    text = f"{label}, {mode}, length {found.length}: {found.what}"
                    yield Step("memory", text, self.probed, self.cells)
                    continue
                self.probed += 1
                yield found
                text = f"{label}, {mode}, length {found.length}"
                yield Step("memory", text, self.probed, self.cells)
        except Uncontained as error:
            # Nothing has been measured yet: it is timed here, within what shorter lengths foresee.
            self.probed += len(settings.lengths)
            note = f"not measured: the variant cannot be had in a process of its own ({error})"
            yield from (Probe(n, "ok", note=note) for n in settings.lengths)

    def _row(
        self, mode: str, length: int, row: Mapping[str, Probe], seen: dict[str, list[Probe]]
    ) -> Iterator[Event]:
        """Time all that passed, at one length and mode, and yield every one's measurement.

        ``seen`` has what was timed at shorter lengths.
        """
        settings = self.settings
        blank = {
            name: Measurement(
                name,
                mode,
                length,
                one.status,
                one.reason,
                one.implementation,
                peak_bytes=one.peak,
                peak_note="" if one.note == "ended" else one.note,
                moved=moved(settings, mode, length),
            )
            for name, one in row.items()
        }
        for name, one in row.items():
            spared = foreseen(seen[name], length, Budget.here(settings))
            if one.status == "ok" and spared is not None:
                blank[name] = replace(blank[name], status=spared.status, reason=spared.reason)
        passed = [name for name, one in blank.items() if one.status == "ok"]
        results = dict(blank)
        targets = {one.subject.label: one.target for one in self.entrants}
        for event in time_row([(blank[name], targets[name]) for name in passed], settings):
            if isinstance(event, Measurement):
                results[event.subject] = event
            elif time.monotonic() - self.told > TICK:  # whoever shows it would stand in the way
                self.told = time.monotonic()
                yield Step("time", f"{mode}, length {length}: {event}", self.timed, self.cells)
        for name, result in results.items():
            seen[name].append(Probe(length, result.status, result.reason, seconds=result.median))
            self.timed += 1
            yield result
        yield Step("time", f"{mode}, length {length}", self.timed, self.cells)
