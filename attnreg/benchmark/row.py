"""Time all subjects of one length and mode beside each other."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from attnreg.benchmark.budget import Budget, too_slow
from attnreg.benchmark.cell import Target, implementation_of, make_call, make_inputs, wait
from attnreg.benchmark.failing import failure
from attnreg.benchmark.records import Measurement, Settings
from attnreg.benchmark.timing import Race, TooSlow, quartiles
from attnreg.benchmark.work import operations


def time_row(
    row: Sequence[tuple[Measurement, Target]], settings: Settings
) -> Iterator[str | Measurement]:
    """Fill in what was begun: yield every measurement, and before them what is being done.

    A failure becomes that subject's result, and the others go on.
    """
    if not row:
        return
    mode, length = row[0][0].mode, row[0][0].length
    try:
        inputs = make_inputs(settings, mode, length)
    except Exception as error:
        yield from (_failed(begun, error) for begun, _ in row)
        return
    ready = partial(wait, settings.device)
    race = Race(ready, repeat=settings.repeat, seconds=settings.seconds)
    made: dict[str, Measurement] = {}
    gc.collect()  # what earlier rows have left
    for begun, target in row:
        yield f"{begun.subject} warms up"
        try:
            module = target.build(settings, length)
            flops = operations(target.variant, module, settings, mode, length)
            done = replace(begun, flops=flops)
            race.enter(begun.subject, make_call(module, inputs, settings, mode))
            # Only now: one that is compiled at its first call may have failed at it.
            ran = implementation_of(module, inputs, settings, mode)
            done = replace(done, implementation=ran)
        except TooSlow as slow:
            why = too_slow(slow.seconds, Budget.here(settings))
            yield replace(done, status="time", reason=why)
        except (Exception, SystemExit) as error:
            yield _failed(begun, error)
        else:
            made[begun.subject] = done
    count = race.count
    for done_rounds in race.rounds():
        yield f"round {done_rounds} of {count}"
    for name, done in made.items():
        if name in race.fallen:
            yield _failed(done, race.fallen[name])
            continue
        samples = race.samples[name]
        low, middle, high = quartiles(samples)
        yield replace(done, samples=tuple(samples), median=middle, spread=high - low)


def _failed(begun: Measurement, error: BaseException) -> Measurement:
    status, why = failure(error)
    return replace(begun, status=status, reason=why)
