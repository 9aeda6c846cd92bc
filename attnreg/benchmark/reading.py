"""Read what a person types: lengths, sizes of memory, modes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from attnreg.benchmark.records import MODES
from attnreg.errors import OptionError, nearest

LONGEST = 2**24
"""The longest sequence that can be asked for."""


def read_lengths(text: str | Iterable[int]) -> tuple[int, ...]:
    """Read "512:65536" (doubling from first to last, the last included) or "512,1000,4096".

    Raises ``OptionError``.
    """
    found: set[int] = set()
    parts = text.split(",") if isinstance(text, str) else [str(one) for one in text]
    for part in (part.strip() for part in parts):
        ends = part.split(":")
        if len(ends) > 2 or not all(re.fullmatch(r"\d{1,9}", end.strip()) for end in ends):
            raise OptionError(
                f"{part!r} is no length; write 512:65536 (doubling from first to last) or "
                "512,1000,4096"
            )
        first, last = int(ends[0]), int(ends[-1])
        if not 1 <= first <= LONGEST or not 1 <= last <= LONGEST:
            raise OptionError(f"a length is between 1 and {LONGEST}, got {part!r}")
        if first > last:
            raise OptionError(f"lengths go from the shorter to the longer: {last}:{first}")
        while first < last:
            found.add(first)
            first *= 2
        found.add(last)
    return tuple(sorted(found))


def read_modes(text: str | Iterable[str]) -> tuple[str, ...]:
    """Read "forward", "backward" (which is forward and backward together) or both."""
    modes = [one.strip() for one in (text.split(",") if isinstance(text, str) else text)]
    for mode in modes:
        if mode not in MODES:
            raise OptionError(
                f"there is no mode {mode!r}.{nearest(mode, MODES)} Modes: forward; backward, "
                "which is forward and backward together; or forward,backward"
            )
    return tuple(dict.fromkeys(modes))


def read_bytes(text: str) -> int:
    """Read "512MiB", "4GiB" or a number of bytes."""
    units = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", text.strip().lower())
    if found is None or float(found[1]) <= 0:
        raise OptionError(f"{text!r} is no size of memory; write 512MiB or 4GiB")
    return int(float(found[1]) * units[found[2]])
