"""What a picture will take, estimated before anything of that size exists.

The estimate is of the weights and what is made of them. What a variant takes for itself, as
additive does for its hidden units, is bounded by the limit of the worker process.
"""

from __future__ import annotations

from attnreg_playground.texts import Problem, problem

LIMIT = 2**29
"""Bytes that one picture may take."""

PER_CELL = 40
"""Bytes per cell of all heads at the peak: weights in float32 and float64, masks, comparisons."""


def estimate(heads: int, queries: int, keys: int) -> int:
    """Return the bytes that drawing the weights of so many heads takes at its peak."""
    return heads * queries * keys * PER_CELL


def too_much(heads: int, queries: int, keys: int) -> Problem | None:
    """Return why a picture is refused, or None where it fits."""
    wanted = estimate(heads, queries, keys)
    if wanted <= LIMIT:
        return None
    return problem(
        "budget",
        heads=heads,
        queries=queries,
        keys=keys,
        wanted=f"{wanted / 2**20:,.0f}",
        limit=f"{LIMIT / 2**20:,.0f}",
    )
