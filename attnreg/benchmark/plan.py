"""Who is measured, and how: everything that can be wrong is found before anything runs."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnreg._version import __version__
from attnreg.benchmark.cell import SDPA, Target
from attnreg.benchmark.records import Machine, Settings, Subject
from attnreg.errors import OptionError, nearest, reason
from attnreg.options import validate
from attnreg.registry import get_variant, list_variants
from attnreg.variant import DTYPES, Variant

LARGEST = 2**31
"""The largest batch, number of heads or head dimension that is tried."""

USUAL = "scaled_dot_product"
"""What variants are measured against unless told otherwise."""

MEMORY = 2**32
"""What a call may take where nothing tells how much is free."""


@dataclass(frozen=True)
class Entrant:
    """A subject, and what is built for it; ``name`` is that of an installed variant, or None."""

    subject: Subject
    target: Target
    name: str | None


def entrants(
    variants: Iterable[str | Variant],
    against: str | Variant | None,
    implementations: Iterable[str],
    options: Mapping[str, Any],
) -> tuple[list[Entrant], str | None]:
    """Return who is measured, and the label of the one that the others are compared with.

    A variant is a name, "distribution/name", either with ":implementation", "sdpa" for torch's
    own, or a ``Variant``. ``implementations`` holds for those that name none: names, or "all".
    Raises ``UnknownVariant`` and ``OptionError``.
    """
    asked = list(implementations) or ["auto"]
    made: dict[str, Entrant] = {}
    for one in variants:
        variant, name, named = _find(one)
        wanted = [named] if named else asked
        if "all" in wanted:
            wanted = [each.name for each in variant.implementations]
        for implementation in wanted:
            entrant = _entrant(variant, name, implementation, options)
            _join(made, entrant)
    if not made:
        raise OptionError(f"name a variant to measure; there are {', '.join(list_variants())}")
    if against == "auto":
        against = USUAL if USUAL in list_variants() else "sdpa"
    label = None
    if against is not None:
        variant, name, named = _find(against)
        entrant = _entrant(variant, name, named or "auto", options)
        label = entrant.subject.label
        _join(made, entrant)
    _check_keys(options, [entrant.target.variant for entrant in made.values()])
    return list(made.values()), label


def _join(made: dict[str, Entrant], entrant: Entrant) -> None:
    label = entrant.subject.label
    if made.setdefault(label, entrant).target.variant is not entrant.target.variant:
        raise OptionError(
            f"two variants are called {label!r}, and the report would take them for one: measure "
            "one at a time, or register yours under a name of its own"
        )


def takes(variant: Variant) -> set[str]:
    """Name the options that a variant takes, ``scale`` and ``dropout`` among them."""
    return {option.name for option in variant.options} | set(variant.common)


def _find(asked: str | Variant) -> tuple[Variant, str | None, str]:
    if isinstance(asked, Variant):
        return asked, None, ""
    if not isinstance(asked, str):
        raise OptionError(f"a variant is a name or a Variant, got {type(asked).__name__}")
    name, _, implementation = asked.partition(":")
    if name == "sdpa":
        return SDPA, None, implementation
    return get_variant(name), name, implementation


def _entrant(
    variant: Variant, name: str | None, implementation: str, options: Mapping[str, Any]
) -> Entrant:
    names = [one.name for one in variant.implementations]
    if variant is SDPA and implementation != "auto":
        raise OptionError(f"sdpa is torch's own and has no implementation {implementation!r}")
    if variant is not SDPA and implementation not in ("auto", *names):
        raise OptionError(
            f"{variant.name} has no implementation {implementation!r}."
            f"{nearest(implementation, names)} It has: auto, all, {', '.join(names)}"
        )
    known = takes(variant)
    own = {key: value for key, value in options.items() if key in known}
    start = f"{variant.name}."
    own |= {key.removeprefix(start): v for key, v in options.items() if key.startswith(start)}
    plain = {key: value for key, value in own.items() if key not in variant.common}
    own |= validate(variant.name, variant.options, plain)
    label = variant.name if name is None else name
    label += "" if implementation == "auto" else f":{implementation}"
    laws = ("", "")  # what is declared holds for the implementation of the highest rank
    if implementation in ("auto", *names[:1]):
        laws = (variant.complexity.time, variant.complexity.memory)
    subject = Subject(label, variant.name, implementation, own, *laws)
    return Entrant(subject, Target(variant, implementation, own), name)


def _check_keys(options: Mapping[str, Any], variants: list[Variant]) -> None:
    known = {key for variant in variants for key in takes(variant)}
    names = {variant.name for variant in variants}
    for key in options:
        owner, dot, _ = key.rpartition(".")
        if dot and owner not in names:
            raise OptionError(f"{key!r} is an option of {owner!r}, which is not measured")
        if not dot and key not in known:
            raise OptionError(
                f"none of {', '.join(sorted(names))} has an option {key!r}.{nearest(key, known)}"
            )


def check(settings: Settings) -> None:
    """Raise ``OptionError`` where a run cannot be made with these settings."""
    for name in ("batch", "heads", "head_dim"):
        if not 1 <= getattr(settings, name) <= LARGEST:
            raise OptionError(f"{name} must be from 1 to {LARGEST}, got {getattr(settings, name)}")
    if not 0 <= settings.seed < 2**63:
        raise OptionError(f"seed must be from 0 to 2**63 - 1, got {settings.seed}")
    if settings.repeat < 3:
        raise OptionError(f"repeat must be at least 3, for a spread, got {settings.repeat}")
    if not 0.0 < settings.seconds < 1e6:
        raise OptionError(f"seconds must be positive, and below a million, got {settings.seconds}")
    if settings.memory < 2**20:
        raise OptionError(
            f"memory must be at least 1 MiB, got {settings.memory} bytes; write it as 4GiB"
        )
    if settings.dtype not in DTYPES:
        raise OptionError(f"dtype must be among {', '.join(DTYPES)}, got {settings.dtype!r}")
    if not settings.lengths:
        raise OptionError("no lengths are given; write 512:4096 or 512,1000")
    try:
        torch.empty(0, device=settings.device)
    except (RuntimeError, AssertionError) as error:  # unknown, or not on this machine
        raise OptionError(
            f"there is no device {settings.device!r} for this torch; device cpu is always there "
            f"({reason(error)})"
        ) from error
    if torch.device(settings.device).type == "meta":
        raise OptionError("device meta computes nothing, so there is nothing to measure")


def free_memory(device: str) -> int:
    """Return what a call may take unless told otherwise: half of what is free."""
    try:
        if torch.device(device).type == "cuda":
            return int(torch.cuda.mem_get_info(device)[0]) // 2
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 // 2
    except (OSError, RuntimeError, AssertionError):  # not Linux; or no such device, told elsewhere
        pass
    return MEMORY


def machine(device: str) -> Machine:
    """Describe where this process runs."""
    cuda = torch.device(device).type == "cuda"
    return Machine(
        attnreg=__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        platform=platform.platform(),
        processor=_processor(),
        cores=os.cpu_count() or 1,
        accelerator=torch.cuda.get_device_name(device) if cuda else "",
    )


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except (OSError, UnicodeDecodeError):  # not Linux
        pass
    return platform.processor() or platform.machine()
