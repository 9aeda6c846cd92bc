"""Every sentence of the playground, in English and Chinese. What plugins say stays as it is.

``TEXTS`` maps a key to its two texts; a ``Sentence`` is a key with its fields, to be said in any
language when it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnreg_playground.texts import controls, models, page, pictures, problems, questions, results

LANGUAGES: Mapping[str, str] = {"en": "English", "zh": "中文"}
"""The languages, by the code of ``?lang=``, each under its own name."""

TEXTS: Mapping[str, tuple[str, str]] = {
    **page.TEXTS,
    **controls.TEXTS,
    **pictures.TEXTS,
    **problems.TEXTS,
    **questions.TEXTS,
    **results.TEXTS,
    **models.TEXTS,
}
"""Key -> (English, Chinese)."""


@dataclass(frozen=True)
class Sentence:
    """A text by its key and its fields, which may be sentences themselves."""

    key: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """Why there is nothing to show: a title and a detail, the latter translated or as it came."""

    title: Sentence
    detail: Sentence | str
    control: str = ""
    """The control that it belongs to, if any."""


Label = Sentence | str
"""A text of ours, or one that stays as it is: a token, a symbol, a plugin's."""


def sentence(key: str, **fields: Any) -> Sentence:
    """Return a ``Sentence``; raise ``KeyError`` at once for a key that has no text."""
    if key not in TEXTS:
        raise KeyError(key)
    return Sentence(key, fields)


def problem(key: str, detail: str | None = None, /, *, control: str = "", **fields: Any) -> Problem:
    """Return the problem ``problem.<key>``; its detail ``problem.<key>_detail`` or as it came."""
    told = sentence(f"problem.{key}_detail", **fields) if detail is None else detail
    return Problem(sentence(f"problem.{key}", **fields), told, control)


def say(key: str, language: str, **fields: Any) -> str:
    """Return the text of a key in a language, its fields filled in; English by default."""
    english, chinese = TEXTS[key]
    filled = {name: localise(value, language) for name, value in fields.items()}
    return (chinese if language == "zh" else english).format(**filled)


def localise(value: Any, language: str) -> Any:
    """Return plain data with every ``Sentence`` in it said in a language."""
    if isinstance(value, Sentence):
        return say(value.key, language, **value.fields)
    if isinstance(value, Problem):
        return {
            "title": localise(value.title, language),
            "detail": localise(value.detail, language),
            "control": value.control,
        }
    if isinstance(value, dict):
        return {key: localise(one, language) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [localise(one, language) for one in value]
    return value


def choose_language(asked: str | None, accepted: str | None) -> str:
    """Return a language code from ``?lang=`` and the browser's Accept-Language; else "en"."""
    wanted = [asked or "", *_preferences(accepted or "")]
    for one in wanted:
        code = one.strip().lower().replace("_", "-").partition("-")[0]
        if code in LANGUAGES:
            return code
    return "en"


def _preferences(accepted: str) -> Iterable[str]:
    weighted: list[tuple[float, str]] = []
    for part in accepted.split(","):
        name, _, quality = part.partition(";q=")
        try:
            weighted.append((-float(quality or 1.0), name))
        except ValueError:
            continue
    return [name for _, name in sorted(weighted, key=lambda one: one[0])]
