"""LaTeX as a tree of MathML elements, built from a list of allowed ones: nothing else gets out."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert_to_element

ELEMENTS = frozenset(
    {
        "math", "mrow", "mi", "mn", "mo", "ms", "mtext", "mspace", "mfrac", "msqrt", "mroot",
        "msub", "msup", "msubsup", "munder", "mover", "munderover", "mtable", "mtr", "mtd",
        "mstyle", "mpadded", "mphantom",
    }
)  # fmt: skip
ATTRIBUTES = frozenset(
    {
        "display", "stretchy", "fence", "form", "mathvariant", "width", "accent", "displaystyle",
        "columnalign", "separator",
    }
)  # fmt: skip
LONGEST = 2000


@lru_cache(maxsize=256)
def tree(latex: str) -> list[Any]:
    r"""Return formulas as ``[tag, attributes, text, children]``, one for each part.

    Parts are separated by ``,\quad``: a definition beside a formula gets a line of its own. What
    cannot be read is given as text.
    """
    parts = [part.strip() for part in " ".join(latex.split())[:LONGEST].split(r",\quad")]
    return [_tree(part) for part in parts if part]


def _tree(latex: str) -> list[Any]:
    try:
        return _plain(convert_to_element(latex, display="block"))
    except Exception:  # whatever the parser makes of a plugin's text
        return ["math", {"display": "block"}, "", [["mtext", {}, latex, []]]]


def _plain(element: Element) -> list[Any]:
    tag = element.tag if element.tag in ELEMENTS else "mrow"
    attributes = {name: text for name, text in element.attrib.items() if name in ATTRIBUTES}
    text = re.sub(r"&#x([0-9A-Fa-f]+);", lambda found: chr(int(found[1], 16)), element.text or "")
    return [tag, attributes, text, [_plain(child) for child in element]]
