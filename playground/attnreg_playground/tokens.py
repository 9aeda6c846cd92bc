"""Cut a sentence into tokens to look at: Chinese by character, English by word."""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

MAX_TOKENS = 512
"""The longest input: a heatmap of this side can still be read, and is cheap for every variant."""

MAX_CHARACTERS = 4000
"""What is read of a text at most, before it is cut into tokens."""

_WORD = re.compile(r"[^\W_]+(?:['’\-.][^\W_]+)*")

# Scripts written without spaces: CJK ideographs and their extensions, kana, bopomofo.
_UNSPACED = re.compile(
    "[\u3005-\u3007\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


class Tokens(NamedTuple):
    """The tokens kept, at most ``MAX_TOKENS``, and how many more the text had."""

    kept: tuple[str, ...]
    left_out: int


def tokenise(text: str) -> Tokens:
    """Cut a text: one token per Chinese character, word, number or mark; spaces are dropped."""
    text = unicodedata.normalize("NFC", text[:MAX_CHARACTERS])
    found: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        word = _WORD.match(text, position)
        if character.isspace():
            position += 1
        elif _UNSPACED.match(character) or word is None:
            end = position + 1
            while end < len(text) and _joins(text[end - 1], text[end]):
                end += 1
            found.append(text[position:end])
            position = end
        else:
            piece = word.group()
            unspaced = _UNSPACED.search(piece)
            piece = piece[: unspaced.start()] if unspaced else piece
            found.append(piece.rstrip("'’-."))
            position += len(piece)
    visible = [token for token in found if any(sign.isprintable() for sign in token)]
    return Tokens(tuple(visible[:MAX_TOKENS]), max(0, len(visible) - MAX_TOKENS))


def _joins(before: str, after: str) -> bool:
    """Combining marks, emoji selectors and what a zero-width joiner binds stay with their sign."""
    joined = unicodedata.combining(after) or unicodedata.category(after) in ("Mn", "Me")
    return (
        bool(joined)
        or after == "\u200d"
        or before == "\u200d"
        or "\U0001f3fb" <= after <= "\U0001f3ff"
    )
