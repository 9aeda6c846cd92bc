"""What stands beside the picture, as plain blocks of text: the variant, the notice at the foot."""

from __future__ import annotations

import re
from typing import Any

from attnreg import Registry, Variant
from attnreg_playground.inputs import Problem
from attnreg_playground.texts import say
from attnreg_playground.wording import word_problem

Blocks = dict[str, list[dict[str, Any]]]
"""``{"blocks": [...]}`` for ``assets/blocks.js``: each has tag, text, and perhaps class, href."""

_CAN = (
    "causal",
    "key_valid",
    "allowed",
    "bias",
    "window",
    "packed",
    "cross",
    "grouped",
    "value_dim",
    "dropout",
    "compile",
)
_LINK = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def heading(variant: Variant, plugin: str, language: str) -> Blocks:
    """Return the name, the summary and the plugin of a variant."""
    return _blocks(
        ("h2", variant.name, "name"),
        ("p", variant.summary, "summary"),
        ("p", say("about.from", language, plugin=plugin), "quiet"),
    )


def formula(variant: Variant, language: str) -> str:
    """Return the formula as Markdown that holds nothing but LaTeX displays."""
    latex = " ".join(variant.formula.split())
    if not latex:
        return say("about.no_formula", language)
    # Inside the display: no end of it, no HTML, and no command that loads or links.
    latex = latex.replace("<", r"\lt ").replace(">", r"\gt ").replace("$", r"\text{USD}")
    latex = re.sub(r"\\(href|url|includegraphics|html[A-Za-z]*|def|gdef|newcommand)\b", "", latex)
    parts = latex.split(r",\quad")  # a definition beside the formula gets a line of its own
    return "\n\n".join(f"$$\n{part.strip()}\n$$" for part in parts)


def details(variant: Variant, language: str) -> Blocks:
    """Return paper, cost and capabilities of a variant, and what weights cannot tell."""
    able = variant.capabilities
    can = [name for name in _CAN if getattr(able, name)]
    can += ["decode"] if able.decode != "none" else []
    cannot = [name for name in (*_CAN, "decode") if name not in can]
    rows: list[tuple[str, ...]] = [
        ("h3", say("about.complexity", language)),
        (
            "p",
            say(
                "about.cost",
                language,
                time=_cost(variant.complexity.time),
                memory=_cost(variant.complexity.memory),
            ),
        ),
    ]
    if variant.approximates is not None:
        other, _, law = variant.approximates
        rows += [("h3", say("about.approximates", language)), ("p", f"{other}: {law}")]
    rows.append(("h3", say("about.capabilities", language)))
    rows += [("chip", say(f"can.{name}", language), "can") for name in can]
    if able.fixed_length:
        rows.append(("chip", say("can.fixed_length", language), "plain"))
    if cannot:
        rows.append(("h3", say("about.cannot", language)))
        rows += [("chip", say(f"can.{name}", language), "cannot") for name in cannot]
    if variant.paper:
        rows.append(("h3", say("about.paper", language)))
        rows += [("p", part.strip(), "paper") for part in variant.paper.split(";")]
    rows.append(("p", say("about.caution", language), "caution"))
    return _blocks(*rows)


def form_message(problems: list[Problem], language: str) -> Blocks:
    """Return what is wrong in the form, one line each."""
    return _blocks(*(("p", word_problem(one, language)["detail"], "wrong") for one in problems))


def notice(registry: Registry, faults: list[str], language: str) -> Blocks:
    """Return what is installed but not listed: broken plugins, names claimed twice, panels."""
    rows = [
        say(
            "notice.broken",
            language,
            plugin=f"{one.name} ({one.distribution})",
            reason=f"{type(one.error).__name__}: {one.error}",
        )
        for one in registry.broken.values()
    ]
    rows += [
        say("notice.duplicate", language, name=name, owners=", ".join(owners))
        for name, owners in registry.duplicates.items()
    ]
    rows += faults
    if not rows:
        return _blocks()
    return _blocks(
        ("h2", say("notice.title", language), "small"), *(("p", row, "quiet") for row in rows)
    )


def _cost(text: str) -> str:
    return f"O({text.replace('^2', '²').replace('^3', '³')})"


def _blocks(*rows: tuple[str, ...]) -> Blocks:
    blocks: list[dict[str, Any]] = []
    for tag, text, *style in rows:
        block: dict[str, Any] = {"tag": tag, "text": text, "style": style[0] if style else ""}
        linked = _LINK.search(text) if block["style"] == "paper" else None
        if linked:
            block["href"] = f"https://arxiv.org/abs/{linked.group(1)}"
        blocks.append(block)
    return {"blocks": blocks}
