"""The inputs of a variant: query, key and value, from a sentence or from a real model."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnreg_playground import models
from attnreg_playground.tokens import MAX_TOKENS, tokenise

HEAD_DIM = 32
"""The width of a head for a sentence: that of MiniLM, so that both inputs compare."""


@dataclass(frozen=True)
class Sentence:
    """A text by its key in ``texts.TEXTS`` and its fields, to be said in any language."""

    key: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """Why there is nothing to draw: a title and a detail, the latter translated or as it came."""

    title: Sentence
    detail: Sentence | str
    control: bool = False
    """Whether it belongs under the form of options."""


@dataclass(frozen=True)
class Embedded:
    """A sentence as vectors: tokens and ``x`` (1, L, num_heads * HEAD_DIM), still unprojected."""

    tokens: tuple[str, ...]
    num_heads: int
    x: Tensor
    notes: tuple[Sentence, ...]


@dataclass(frozen=True)
class Projected:
    """Tokens with the query, key and value (1, 12, L, 32) of a layer of a real model."""

    tokens: tuple[str, ...]
    num_heads: int
    query: Tensor
    key: Tensor
    value: Tensor
    notes: tuple[Sentence, ...]


def embed(text: str, num_heads: int, seed: int) -> Embedded | Problem:
    """Embed a sentence: a seeded random vector per distinct token plus sinusoidal positions."""
    tokens, left_out = tokenise(text)
    if not tokens:
        return Problem(Sentence("problem.input"), Sentence("problem.empty"))
    width = num_heads * HEAD_DIM
    rows = torch.stack([_vector(token, width, seed) for token in tokens])
    notes = [Sentence("note.random", {"heads": num_heads, "width": HEAD_DIM})]
    if left_out:
        notes.append(Sentence("note.cut", {"count": left_out, "limit": MAX_TOKENS}))
    x = rows + sinusoids(len(tokens), width)
    return Embedded(tokens, num_heads, x[None], tuple(notes))


def from_model(text: str, layer: int) -> Projected | Problem:
    """Take query, key and value of a layer of MiniLM that reads the text."""
    if not text.strip():
        return Problem(Sentence("problem.input"), Sentence("problem.empty"))
    try:
        passage = models.read(text)
    except models.ModelMissing as error:
        detail = Sentence("problem.model_missing", {"what": error.what, "command": error.command})
        return Problem(Sentence("problem.model"), detail)
    except models.ModelFailed as error:
        return Problem(
            Sentence("problem.model"), Sentence("problem.model_failed", {"error": str(error)})
        )
    notes = [Sentence("note.real", {"layer": layer}), Sentence("note.trained_with")]
    if passage.left_out:
        notes.append(Sentence("note.cut", {"count": passage.left_out, "limit": MAX_TOKENS}))
    if passage.unknown:
        notes.append(Sentence("note.unknown", {"count": passage.unknown}))
    return Projected(
        passage.tokens,
        models.NUM_HEADS,
        passage.query[layer],
        passage.key[layer],
        passage.value[layer],
        tuple(notes),
    )


def sinusoids(length: int, width: int) -> Tensor:
    """Return the sinusoidal positions of Vaswani et al. 2017, (length, width), width even."""
    position = torch.arange(length, dtype=torch.float32)[:, None]
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * (-math.log(1e4) / width))
    return torch.stack([(position * rate).sin(), (position * rate).cos()], dim=-1).flatten(-2)


def _vector(token: str, width: int, seed: int) -> Tensor:
    # The same token gives the same vector in any sentence, on any machine.
    digest = hashlib.sha256(f"{seed}:{token}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "big"))
    return torch.randn(width, generator=generator)
