"""``Control``: one thing that a person sets on a page. The browser draws it, the worker reads it.

What arrives is never trusted: ``read`` returns a value of the right type within its bounds, or
raises ``Wrong`` with a sentence.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from attnreg_playground.texts import Problem, problem, sentence

Kind = Literal[
    "slider", "check", "choice", "text", "variant", "variants", "options", "matrix", "points",
    "strokes", "pixels", "hidden",
]  # fmt: skip

MAX_SEED = 9999
MAX_STROKES = 4000
"""Characters of a drawing: lines of ``x,y`` in pixels, separated by ``;``."""


class Wrong(Exception):
    """A value that a control does not take."""

    def __init__(self, found: Problem) -> None:
        self.problem = found
        super().__init__(found.control)


@dataclass(frozen=True)
class Control:
    """A control: its name in the state and the address, its kind, and the values that it takes.

    ``low``, ``high`` and ``step`` are those of a slider or a hidden number, which are whole
    numbers where the step is one; ``low`` and ``high`` also bound the cells of a matrix of
    ``shape`` and the coordinates of points. ``limit`` is the most characters of a text, entries of
    a list of variants, or points. ``when`` names another control and the values of it for which
    this one is shown. ``of`` is, for options, the control that holds the variant. ``noted`` says
    that a line of help belongs below it; ``rows`` is the height of a text.
    """

    name: str
    kind: Kind
    default: Any = None
    low: float = 0
    high: float = 1
    step: float = 1
    choices: tuple[str, ...] = ()
    shape: tuple[int, int] = (0, 0)
    labels: tuple[str, ...] = ()
    limit: int = 0
    when: tuple[str, tuple[Any, ...]] | None = None
    of: str = ""
    label: str = ""
    noted: bool = False
    rows: int = 2

    def read(self, raw: Any) -> Any:
        """Return the value that the browser sent, checked; raise ``Wrong``."""
        value = getattr(self, f"_read_{self.kind}")(raw)
        if value is None:
            raise Wrong(
                problem(
                    "control",
                    control=self.name,
                    name=sentence(self.text),
                    allowed=self._allowed(),
                    value=repr(raw)[:80],
                )
            )
        return value

    @property
    def text(self) -> str:
        """The key of its label."""
        return self.label or f"control.{self.name}"

    def describe(self) -> dict[str, Any]:
        """Return what the browser needs to draw it, plain data."""
        about: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "default": self.default,
            "label": self.text,
            "info": f"{self.text}_info" if self.noted else "",
        }
        if self.kind in ("slider", "hidden", "matrix", "points"):
            about |= {"low": self.low, "high": self.high, "step": self.step}
        if self.kind == "choice":
            about["choices"] = [[one, f"choice.{one}"] for one in self.choices]
        if self.kind in ("matrix", "points", "pixels"):
            about |= {"shape": list(self.shape), "labels": list(self.labels)}
        if self.kind in ("text", "variants", "points"):
            about |= {"limit": self.limit, "rows": self.rows}
        if self.when:
            about["when"] = [self.when[0], list(self.when[1])]
        if self.of:
            about["of"] = self.of
        return about

    def _allowed(self) -> Any:
        if self.kind in ("slider", "hidden"):
            key = "allowed.whole" if self._whole else "allowed.range"
            return sentence(key, low=f"{self.low:g}", high=f"{self.high:g}")
        if self.kind == "choice":
            return sentence("allowed.choices", choices=", ".join(self.choices))
        if self.kind in ("matrix", "points"):
            rows, columns = self.shape
            fields = {"rows": rows, "columns": columns, "low": self.low, "high": self.high}
            return sentence("allowed.matrix", **fields)
        if self.kind in ("text", "variants", "strokes", "pixels"):
            return sentence(f"allowed.{self.kind}", limit=self.limit or MAX_STROKES)
        return sentence(f"allowed.{self.kind}")

    @property
    def _whole(self) -> bool:
        return float(self.step).is_integer() and float(self.low).is_integer()

    def _read_slider(self, raw: Any) -> int | float | None:
        if isinstance(raw, bool) or not isinstance(raw, (int, float)):
            return None
        if not (math.isfinite(raw) if isinstance(raw, float) else abs(raw) < 2**53):
            return None
        if not self.low <= raw <= self.high:
            return None
        if self._whole:
            return int(raw) if raw == int(raw) else None
        return float(raw)

    _read_hidden = _read_slider

    def _read_check(self, raw: Any) -> bool | None:
        return raw if isinstance(raw, bool) else None

    def _read_choice(self, raw: Any) -> str | None:
        return raw if isinstance(raw, str) and raw in self.choices else None

    def _read_text(self, raw: Any) -> str | None:
        good = isinstance(raw, str) and len(raw) <= self.limit and is_text(raw)
        return raw if good else None

    def _read_variant(self, raw: Any) -> str | None:
        return raw if isinstance(raw, str) and len(raw) <= 200 else None

    def _read_variants(self, raw: Any) -> list[str] | None:
        if not isinstance(raw, list) or not 0 < len(raw) <= self.limit:
            return None
        if not all(isinstance(one, str) and len(one) <= 200 for one in raw):
            return None
        return list(dict.fromkeys(raw))

    def _read_options(self, raw: Any) -> dict[str, Any] | None:
        if not isinstance(raw, Mapping) or len(raw) > 100:
            return None
        plain = all(
            isinstance(name, str) and isinstance(value, (str, int, float, bool, type(None)))
            for name, value in raw.items()
        )
        return dict(raw) if plain else None

    def _read_matrix(self, raw: Any) -> list[list[float]] | None:
        rows, columns = self.shape
        if not isinstance(raw, list) or len(raw) != rows:
            return None
        if not all(isinstance(row, list) and len(row) == columns for row in raw):
            return None
        return raw_numbers(raw, self.low, self.high)

    _read_points = _read_matrix

    def _read_strokes(self, raw: Any) -> str | None:
        if not isinstance(raw, str) or len(raw) > MAX_STROKES:
            return None
        return raw if all(sign in "0123456789,; " for sign in raw) else None

    def _read_pixels(self, raw: Any) -> str | None:
        """Base64 of one byte per pixel, or nothing."""
        rows, columns = self.shape
        if raw == "":
            return ""
        try:
            held = base64.b64decode(raw, validate=True) if isinstance(raw, str) else b""
        except ValueError:
            return None
        return str(raw) if len(held) == rows * columns else None


def is_text(raw: str) -> bool:
    """Whether a text can be written down: half of a pair of surrogates cannot."""
    try:
        raw.encode()
    except UnicodeEncodeError:
        return False
    return True


def raw_numbers(rows: Sequence[Sequence[Any]], low: float, high: float) -> list[list[float]] | None:
    """Return rows of finite numbers within bounds as floats, or None."""
    for row in rows:
        for value in row:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not low <= value <= high:  # a NaN is not in any range
                return None
    return [[float(value) for value in row] for row in rows]


def read_all(controls: Sequence[Control], raw: Any) -> dict[str, Any]:
    """Return the value of every control, at its default where nothing came; raise ``Wrong``."""
    if not isinstance(raw, Mapping):
        raise Wrong(problem("state"))
    return {
        one.name: one.read(raw[one.name]) if one.name in raw else one.default for one in controls
    }


def seed() -> Control:
    """Return the control of the random numbers."""
    return Control("seed", "slider", 0, high=MAX_SEED, noted=True)
