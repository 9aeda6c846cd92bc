"""The inputs of a variant: query, key and value, from a sentence, chance, an image or a real model.

"Copy as Python" shows calls of these functions, so they are plain and seeded.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnreg import CheckedAttention
from attnreg.projection import QKVProjection
from attnreg_playground.real import digits, minilm
from attnreg_playground.real.missing import Failed, Missing
from attnreg_playground.texts import Problem, Sentence, problem, sentence
from attnreg_playground.tokens import MAX_TOKENS, tokenise

HEAD_DIM = 32
"""The width of a head: that of MiniLM, so that all inputs compare."""


@dataclass(frozen=True)
class Given:
    """Tokens of queries and keys, and either what is still to be projected or the heads.

    ``x`` (1, Lq, num_heads * HEAD_DIM) and ``context`` (1, Lk, the same), or ``heads``: query, key
    and value (1, num_heads, L, HEAD_DIM) of a real model. ``python`` is the call that gives this.
    """

    queries: tuple[str, ...]
    keys: tuple[str, ...]
    num_heads: int
    notes: tuple[Sentence, ...]
    python: str
    x: Tensor | None = None
    context: Tensor | None = None
    heads: tuple[Tensor, Tensor, Tensor] | None = None
    image: dict[str, Any] = field(default_factory=dict)
    """The picture that the keys are patches of: see ``heat.heat``."""


def embed(text: str, num_heads: int, seed: int) -> Given | Problem:
    """Embed a sentence: a seeded random vector per distinct token plus sinusoidal positions."""
    tokens, left_out = tokenise(text)
    if not tokens:
        return problem("empty", control="text")
    width = num_heads * HEAD_DIM
    rows = torch.stack([_vector(token, width, seed) for token in tokens])
    notes = [sentence("note.random", heads=num_heads, width=HEAD_DIM)]
    if left_out:
        notes.append(sentence("note.cut", count=left_out, limit=MAX_TOKENS))
    x = (rows + sinusoids(len(tokens), width))[None]
    python = f"inputs.embed({text!r}, num_heads={num_heads}, seed={seed})"
    return Given(tokens, tokens, num_heads, tuple(notes), python, x, x)


def random(length: int, keys: int, num_heads: int, seed: int) -> Given:
    """Draw normal embeddings of so many queries, and of other keys where ``keys`` is not 0."""
    width = num_heads * HEAD_DIM
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, length, width, generator=generator)
    context = torch.randn(1, keys, width, generator=generator) if keys else x
    names = tuple(str(place + 1) for place in range(max(length, keys)))
    note = sentence("note.chance", heads=num_heads, width=HEAD_DIM)
    python = f"inputs.random({length}, {keys}, num_heads={num_heads}, seed={seed})"
    return Given(names[:length], names[: keys or length], num_heads, (note,), python, x, context)


def digit(index: int, num_heads: int, seed: int) -> Given | Problem:
    """Cut a handwritten digit (8x8) into 16 patches, each mapped by a seeded random matrix."""
    try:
        pixels = digits.image(index)
    except Missing as error:
        return error.problem()
    width = num_heads * HEAD_DIM
    generator = torch.Generator().manual_seed(seed)
    patches = digits.patches(pixels[None])[0]  # (16, 4)
    x = patches @ torch.randn(patches.shape[1], width, generator=generator)
    x = (x + sinusoids(len(x), width))[None]
    names = tuple(f"{row + 1},{column + 1}" for row in range(4) for column in range(4))
    note = sentence("note.patches", heads=num_heads, width=HEAD_DIM)
    python = f"inputs.digit({index}, num_heads={num_heads}, seed={seed})"
    shown = {"pixels": pixels, "rows": 4, "columns": 4}
    return Given(names, names, num_heads, (note,), python, x, x, image=shown)


def from_model(text: str, layer: int) -> Given | Problem:
    """Take query, key and value of a layer of MiniLM that reads the text."""
    if not text.strip():
        return problem("empty", control="passage")
    try:
        passage = minilm.read(text)
    except (Missing, Failed) as error:
        return error.problem()
    notes = [sentence("note.real", layer=layer), sentence("note.trained_with")]
    if passage.left_out:
        notes.append(sentence("note.cut", count=passage.left_out, limit=MAX_TOKENS))
    if passage.unknown:
        notes.append(sentence("note.unknown", count=passage.unknown))
    return Given(
        passage.tokens,
        passage.tokens,
        minilm.NUM_HEADS,
        tuple(notes),
        f"inputs.from_model({text!r}, layer={layer})",
        heads=(passage.query[layer], passage.key[layer], passage.value[layer]),
    )


def project(
    given: Given, attention: CheckedAttention, seed: int, padding: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value heads: the model's own, or projections that the seed draws.

    They are the projections that ``AttentionLayer`` would have, the same for every variant of a
    seed; the last ``padding`` rows are zeroed before, as the layer does.
    """
    if given.heads is not None:
        return given.heads
    assert given.x is not None  # for mypy: there is one or the other
    assert given.context is not None
    dims, width = attention.dims, given.num_heads * HEAD_DIM
    torch.manual_seed(seed)
    build = attention.variant.projection
    projection: nn.Module = (
        QKVProjection(width, dims, kdim=width, vdim=width)
        if build is None
        else build(attention.module, width, dims, kdim=width, vdim=width, bias=True)
    )
    x, context = given.x, given.context
    if padding:
        hidden = torch.arange(context.shape[1]) >= context.shape[1] - padding
        context = context.masked_fill(hidden[:, None], 0.0)
        x = context if given.x is given.context else x
    with torch.no_grad():
        query, key, value = projection(x, context, context)
    return query, key, value


def sinusoids(length: int, width: int) -> Tensor:
    """Return the sinusoidal positions of Vaswani et al. 2017, (length, width), width even."""
    return sinusoids_at(torch.arange(length), width)


def sinusoids_at(places: Tensor, width: int) -> Tensor:
    """Return the sinusoids of any places (N,), negative ones too, as (N, width)."""
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * (-math.log(1e4) / width))
    angle = places[:, None].float() * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)


def _vector(token: str, width: int, seed: int) -> Tensor:
    # The same token gives the same vector in any sentence, on any machine.
    digest = hashlib.sha256(f"{seed}:{token}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "big"))
    return torch.randn(width, generator=generator)
