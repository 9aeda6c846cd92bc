"""What stands beside the pictures, as plain blocks of text: a variant, a note, a list."""

from __future__ import annotations

import re
from typing import Any

from attnreg import Variant
from attnreg_playground.texts import Sentence, sentence

Block = dict[str, Any]
"""A piece of text for the browser: ``tag`` (h3, p, chip), ``text``, ``style``, perhaps ``href``."""

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


def details(variant: Variant) -> tuple[Block, ...]:
    """Return paper, cost and capabilities of a variant, and what weights cannot tell."""
    able = variant.capabilities
    can = [name for name in _CAN if getattr(able, name)]
    can += ["decode"] if able.decode != "none" else []
    cannot = [name for name in (*_CAN, "decode") if name not in can]
    time, memory = _cost(variant.complexity.time), _cost(variant.complexity.memory)
    rows: list[Block] = [
        block("h3", sentence("about.complexity")),
        block("p", sentence("about.cost", time=time, memory=memory)),
    ]
    if variant.approximates is not None:
        other, _, law = variant.approximates
        rows += [block("h3", sentence("about.approximates")), block("p", f"{other}: {law}")]
    rows.append(block("h3", sentence("about.capabilities")))
    rows += [block("chip", sentence(f"can.{name}"), "can") for name in can]
    if able.fixed_length:
        rows.append(block("chip", sentence("can.fixed_length"), "plain"))
    if cannot:
        rows.append(block("h3", sentence("about.cannot")))
        rows += [block("chip", sentence(f"can.{name}"), "cannot") for name in cannot]
    if variant.paper:
        rows.append(block("h3", sentence("about.paper")))
        rows += [paper(part.strip()) for part in variant.paper.split(";")]
    rows.append(block("p", sentence("about.caution"), "caution"))
    return tuple(rows)


def block(tag: str, text: Sentence | str, style: str = "") -> Block:
    """Return a block of text."""
    return {"tag": tag, "text": text, "style": style}


def paper(text: str) -> Block:
    """Return a paper, linked where it is on arXiv."""
    found = _LINK.search(text)
    link = {"href": f"https://arxiv.org/abs/{found.group(1)}"} if found else {}
    return {**block("p", text, "paper"), **link}


def _cost(text: str) -> str:
    return f"O({text.replace('^2', '²').replace('^3', '³')})"
