"""The laws, by family: each a function of a ``Case`` that is silent where it holds."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache

from attnreg.hookspecs import Check

FAMILIES = (
    "refusal",
    "dtypes",
    "building",
    "calling",
    "agreement",
    "precision",
    "gradients",
    "backward",
    "causality",
    "alignment",
    "masking",
    "fields",
    "isolation",
    "packing",
    "stability",
    "extremes",
    "shapes",
    "strides",
    "decoding",
    "states",
    "randomness",
    "dropout",
    "life",
    "keeping",
    "replicas",
    "transforms",
    "autocast",
    "threads",
    "weights",
    "exactness",
    "approximation",
    "complexity",
)
"""The files of this folder, in the order in which their checks run."""

Law = Callable[..., None]


class Laws(list[Check]):
    """The checks of one file, filled by decorating its laws."""

    def law(
        self,
        id: str,
        level: str = "required",
        *,
        needs: tuple[str, ...] = (),
        variants: tuple[str, ...] = (),
        full: bool = False,
    ) -> Callable[[Law], Law]:
        """Add a law; its docstring's first line is the summary."""

        def add(law: Law) -> Law:
            summary = (law.__doc__ or "").strip().splitlines()[0]
            self.append(Check(id, law, level, summary, needs, variants, full))
            return law

        return add


@cache
def built_in() -> dict[str, Check]:
    """Return the checks of this project, by id."""
    found: dict[str, Check] = {}
    for family in FAMILIES:
        module = importlib.import_module(f"attnreg.conformance.checks.{family}")
        for check in module.LAWS:
            assert check.id not in found, check.id
            found[check.id] = check
    return found


def known_checks() -> dict[str, Check]:
    """Return every check, by id: those of this project, then those that plugins register."""
    from attnreg.registry import default_registry

    own = built_in()
    return own | {k: c for k, c in default_registry().checks.items() if k not in own}
