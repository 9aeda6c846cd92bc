"""What a page is, and what drawing it returns: figures, a sentence, the formula, the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnreg import Registry
from attnreg_playground.controls import Control
from attnreg_playground.formula import tree
from attnreg_playground.texts import Problem, Sentence, localise

Figure = dict[str, Any]
"""What one renderer of the browser draws: a ``kind``, and plain data or sentences."""


class Finding(NamedTuple):
    """What a live check found: ``tone`` is "good", "bad", or "plain" where nothing is promised."""

    tone: Literal["good", "bad", "plain"]
    sentence: Sentence


class Step(NamedTuple):
    """How far a long drawing is, of ``total``; the time left is told from it."""

    done: float
    total: float
    text: Sentence


@dataclass(frozen=True)
class Drawing:
    """What a page shows.

    ``said`` is the one sentence beside the picture; ``formula`` is LaTeX. ``arrays`` are the
    numbers behind the figures, in full precision, by name; they are what an export holds, what
    ``attnreg_playground.draw`` returns, and what tests recompute. ``python`` shows the same when
    pasted. ``about`` is text beside the figures (``about.Blocks``), ``gates`` the controls that a
    variant closes, each with its reason.
    """

    figures: tuple[Figure, ...] = ()
    said: Sentence | None = None
    formula: str = ""
    notes: tuple[Sentence | str, ...] = ()
    findings: tuple[Finding, ...] = ()
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    python: str = ""
    about: tuple[Mapping[str, Any], ...] = ()
    gates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    problem: Problem | None = None
    """Why there are no figures. What else is here is shown all the same."""

    def to_json(self, language: str) -> dict[str, Any]:
        """Return what the browser gets, every sentence in a language; arrays stay here."""
        plain: dict[str, Any] = localise(
            {
                "figures": list(self.figures),
                "said": self.said,
                "notes": list(self.notes),
                "findings": [{"tone": one.tone, "text": one.sentence} for one in self.findings],
                "about": list(self.about),
                "gates": dict(self.gates),
                "problem": self.problem,
            },
            language,
        )
        return {**plain, "formula": tree(self.formula), "python": self.python}


@dataclass(frozen=True)
class Scene:
    """What a page is drawn from: the variants at hand, and the value of every control."""

    registry: Registry
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


Drawn = Drawing | Iterator[Drawing | Step]


@dataclass(frozen=True)
class Page:
    """A page of a tab: its controls, and how it is drawn.

    ``draw(scene)`` returns a ``Drawing``, or yields ``Step`` and ``Drawing`` values of which the
    last is the result. ``started`` says that it is drawn when a button is pressed, not whenever a
    control changes. ``presets`` maps a name, of the text ``preset.<name>``, to values. ``seconds``
    is how long it may take. ``heavy`` pages run one at a time, among the long jobs, and can be
    switched off; where it names a control, only while that is ticked. ``measured`` says that a
    clock gave the numbers, and another run would give others.
    """

    id: str
    tab: str
    controls: tuple[Control, ...]
    draw: Callable[[Scene], Drawn]
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    started: bool = False
    seconds: float = 20.0
    heavy: bool | str = False
    measured: bool = False
    wide: bool = False
    """Whether figures need the room of the column beside them."""

    def describe(self) -> dict[str, Any]:
        """Return what the browser needs to show it, plain data."""
        return {
            "id": self.id,
            "tab": self.tab,
            "controls": [one.describe() for one in self.controls],
            "presets": {name: dict(values) for name, values in self.presets.items()},
            "started": self.started,
            "seconds": self.seconds,
            "heavy": self.heavy,
            "exports": not (self.started or self.measured or self.heavy),
            "wide": self.wide,
        }


def array(values: Any) -> NDArray[Any]:
    """Return a tensor or a list as an array, its dtype kept."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)
