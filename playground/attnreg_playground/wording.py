"""Say a ``Sentence`` in a language."""

from __future__ import annotations

from attnreg_playground.form import allowed
from attnreg_playground.inputs import Problem, Sentence
from attnreg_playground.texts import say


def word(sentence: Sentence | str, language: str) -> str:
    """Return a sentence in a language; what came from a plugin or the core stays as it is."""
    if isinstance(sentence, str):
        return sentence
    fields = dict(sentence.fields)
    if sentence.key == "option.wrong":
        option, raw = fields["option"], fields["raw"]
        fields = {
            "name": option.name,
            "allowed": allowed(option, language),
            "value": repr(raw)[:80],
        }
    if sentence.key == "problem.control_detail":
        fields["name"] = say(f"control.{fields['name']}", language)
    return say(sentence.key, language, **fields)


def word_problem(problem: Problem, language: str) -> dict[str, str]:
    """Return a problem as its title and its detail."""
    return {"title": word(problem.title, language), "detail": word(problem.detail, language)}
