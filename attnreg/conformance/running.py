"""``run``: check a variant, and report; ``stream``: the same, result by result."""

from __future__ import annotations

import platform
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from typing import Any, Literal

import torch

from attnreg._version import __version__
from attnreg.conformance.case import Case
from attnreg.conformance.checks import known_checks
from attnreg.conformance.containment import Uncontained, contained
from attnreg.conformance.judging import judge, select, stale_waivers
from attnreg.conformance.report import Report, Result
from attnreg.conformance.transport import NotImportable, pack
from attnreg.errors import AttnregError, DtypeError, OptionError, reason
from attnreg.hookspecs import CONTRACT
from attnreg.registry import default_registry, get_variant
from attnreg.variant import DTYPES, Variant

Profile = Literal["full", "fast"]

SECONDS = {"fast": 60.0, "full": 180.0}
"""How long one check may take before its process is stopped."""


class Stream:
    """The results of a run as they come, in no order; ``contained`` is known from the first on."""

    def __init__(self, variant: Variant, profile: str, device: str, total: int) -> None:
        self.variant = variant
        self.profile = profile
        self.device = device
        self.total = total
        """How many results there will be."""
        self.contained = False
        self._results: Generator[Result] = _nothing()

    def __iter__(self) -> Iterator[Result]:
        return self._results

    def close(self) -> None:
        """Stop the processes; what is left is not checked."""
        self._results.close()


def stream(
    target: str | Variant,
    *,
    device: torch.device | str = "cpu",
    dtypes: Iterable[torch.dtype | str] | None = None,
    checks: Iterable[str] | None = None,
    profile: Profile = "full",
    contain: bool = True,
    seconds: float | None = None,
    known_failures: Mapping[str, str] | None = None,
) -> Stream:
    """Check a variant, and yield each result as it comes; the arguments are those of ``run``."""
    if profile not in SECONDS:
        raise OptionError(f"profile must be 'full' or 'fast', got {profile!r}")
    variant = get_variant(target) if isinstance(target, str) else target
    if not isinstance(variant, Variant):
        raise OptionError(f"run takes a name or a Variant, got {type(target).__name__}")
    known = known_checks()
    chosen = select(known, checks, profile == "full")
    waived = variant.known_failures if known_failures is None else known_failures
    names = None if dtypes is None else [_dtype_name(d) for d in dtypes]
    if not isinstance(waived, Mapping) or not all(
        isinstance(text, str) for pair in waived.items() for text in pair
    ):
        raise OptionError(f"known_failures maps checks to reasons, both texts, got {waived!r}")
    if seconds is not None and not 0.0 < seconds < 1e6:
        raise OptionError(f"seconds must be positive, and below a million, got {seconds!r}")
    try:
        device = str(torch.device(device))
    except (RuntimeError, TypeError) as error:
        raise OptionError(f"there is no device {device!r}: {reason(error)}") from error
    stale = stale_waivers(waived, known)
    made = Stream(variant, profile, device, len(chosen) + len(stale))

    def here() -> Iterator[Result]:
        try:
            wanted = None if names is None else [getattr(torch, name) for name in names]
            case = Case(variant, device=device, dtypes=wanted, full=profile == "full")
        except Exception as error:
            for check in chosen:
                message = {"message": reason(error)}
                yield Result(check.id, "error", check.level, check.summary, 0.0, message)
            return
        for check in chosen:
            yield judge(case, check, waived)

    def results() -> Generator[Result]:
        yield from stale
        if contain:
            try:
                request: dict[str, Any] = {
                    "target": target if isinstance(target, str) else pack(variant),
                    "device": device,
                    "dtypes": names,
                    "full": profile == "full",
                    "waived": dict(waived),
                }
                made.contained = True
                limit = SECONDS[profile] if seconds is None else seconds
                yield from contained(request, chosen, limit)
                return
            except (NotImportable, Uncontained):
                made.contained = False  # known before the first result
        yield from here()

    made._results = results()
    return made


def run(
    target: str | Variant,
    *,
    device: torch.device | str = "cpu",
    dtypes: Iterable[torch.dtype | str] | None = None,
    checks: Iterable[str] | None = None,
    profile: Profile = "full",
    progress: Callable[[Result], None] | None = None,
    contain: bool = True,
    seconds: float | None = None,
    known_failures: Mapping[str, str] | None = None,
) -> Report:
    """Run the laws on a variant and report what held.

    ``target`` is the name of an installed variant or a ``Variant``; ``dtypes`` (None: all that it
    declares) narrows the dtypes; ``checks`` (None: all of the profile) lists ids such as "N-01" or
    families such as "N". The "fast" profile tries fewer settings and leaves out what takes long.
    ``progress`` is called with every result. ``known_failures`` replaces the variant's own: a
    mapping from a check to the reason why it fails, strict, which may not name a check of
    ``NEVER_WAIVED``.

    The checks run in processes of their own, with ``seconds`` for each (None: 60 fast, 180 full)
    and a limit on memory, so that a plugin that crashes, hangs or asks for too much gives an
    "error"; where such a process could not import what the variant is made of, or ``contain`` is
    False, they run here, and ``report.contained`` is False.

    Raises ``UnknownVariant`` or ``BrokenPlugin`` for a name, ``OptionError`` for a check or a
    profile that does not exist.
    """
    results = stream(
        target,
        device=device,
        dtypes=dtypes,
        checks=checks,
        profile=profile,
        contain=contain,
        seconds=seconds,
        known_failures=known_failures,
    )
    collected = []
    with closing(results):
        for result in results:
            collected.append(result)
            if progress is not None:
                progress(result)
    return report_of(results, collected)


def _nothing() -> Generator[Result]:
    yield from ()


def report_of(results: Stream, collected: Iterable[Result]) -> Report:
    """Return the report of a stream whose results were collected, in the order of the laws."""
    variant = results.variant
    order = {name: place for place, name in enumerate(known_checks())}
    return Report(
        variant.name,
        tuple(sorted(collected, key=lambda result: order.get(result.check, -1))),
        profile=results.profile,
        device=results.device,
        contained=results.contained,
        environment=_environment(variant),
        capabilities=asdict(variant.capabilities),
    )


def _dtype_name(dtype: torch.dtype | str) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise DtypeError(f"dtypes must be among {', '.join(DTYPES)}, got {dtype!r}")
    return name


def _environment(variant: Variant) -> dict[str, str]:
    found = {
        "attnreg": __version__,
        "contract": str(CONTRACT),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    registry = default_registry()
    try:
        owner = registry.owner(variant.name)
    except AttnregError:  # a Variant that is not installed
        return found
    if registry[variant.name].factory is variant.factory:
        versions = (p.version for p in registry.plugins if p.distribution == owner)
        found |= {"distribution": owner, "version": next(versions, "")}
    return found
