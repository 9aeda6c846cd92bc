"""The questions of the text that the project grew from, each with a control and a live picture."""

from __future__ import annotations

from attnreg_playground.drawing import Page
from attnreg_playground.questions import (
    additive,
    bottleneck,
    complexity,
    dependence,
    dynamic,
    formula,
    order,
    padding,
    parallel,
    rank,
    reorder,
    roles,
    rows,
    saturation,
    shared,
    similarity,
    temperature,
    vision,
    worked,
)

CARDS: tuple[Page, ...] = tuple(
    card.PAGE
    for card in (
        formula, dependence, complexity, temperature, roles, rows, dynamic, bottleneck, additive,
        worked, parallel, order, shared, saturation, reorder, similarity, vision, padding, rank,
    )
)  # fmt: skip
"""In the order of the text."""
