"""Turn a ``Picture`` into what the browser draws: plain data, safe for JSON."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnreg_playground.attend import Picture
from attnreg_playground.inputs import Problem
from attnreg_playground.texts import several
from attnreg_playground.wording import word, word_problem

THUMBNAIL = 96
"""The largest side of a head's thumbnail, in cells."""

VISIBLE, MASKED, PADDED, MISSING = range(4)
"""What a cell is: a weight, hidden by the mask, a padded key, or not a finite number."""

NO_LEVEL = 255
"""The level of a thumbnail's cell that holds no weight to show."""


def payload(shown: Picture | Problem, head: int, language: str) -> dict[str, Any]:
    """Return what the heatmap component draws for one head, every text in a language.

    ``exact`` is base64 of little-endian float32 and ``states`` of uint8, both (Lq, Lk) of the
    chosen head; each of ``thumbnails`` is base64 of uint8 levels, at most ``THUMBNAIL`` a side.
    """
    common = {"language": language, "words": several("map", language)}
    if isinstance(shown, Problem):
        return {**common, "problem": word_problem(shown, language)}
    head = min(max(head, 0), len(shown.weights) - 1)
    weights = shown.weights[head]
    low, high = _range(weights)
    signed = is_signed(shown.weights)
    return {
        **common,
        "problem": None,
        "variant": shown.variant,
        "kind": shown.kind,
        "signed": signed,
        "head": head,
        "tokens": list(shown.tokens),
        "padded": [not bool(valid) for valid in shown.key_valid],
        "low": low,
        "high": high,
        "exact": _base64(weights.astype("<f4")),
        "states": _base64(states(shown, head)),
        "thumbnails": [_thumbnail(shown, index, signed) for index in range(len(shown.weights))],
        "notes": [word(note, language) for note in shown.notes],
        "findings": [
            {"tone": found.tone, "text": word(found.sentence, language)} for found in shown.findings
        ],
    }


def states(picture: Picture, head: int) -> NDArray[np.uint8]:
    """Return what each cell of a head is, uint8 (Lq, Lk)."""
    weights = picture.weights[head]
    visible = picture.visible[head if len(picture.visible) > 1 else 0]
    found = np.where(visible, VISIBLE, MASKED).astype(np.uint8)
    found[:, ~picture.key_valid] = PADDED
    found[~np.isfinite(weights)] = MISSING
    return found


def is_signed(weights: NDArray[np.float32]) -> bool:
    """Whether weights are negative beyond rounding, so that they need a diverging scale."""
    finite = weights[np.isfinite(weights)]
    return bool(finite.size) and float(finite.min()) < -1e-6 * max(1.0, float(finite.max()))


def entropy(weights: NDArray[np.float32], rows: NDArray[np.bool_]) -> float | None:
    """Return the mean entropy, in nats, of the rows that are distributions, or None."""
    kept = weights[rows].astype(np.float64)
    if not kept.size or not np.isfinite(kept).all() or kept.min() < -1e-6:
        return None
    if np.abs(kept.sum(axis=-1) - 1.0).max() > 1e-3:
        return None
    kept = np.clip(kept, 1e-300, None)
    return max(0.0, float(-(kept * np.log(kept)).sum(axis=-1).mean()))


def _thumbnail(picture: Picture, head: int, signed: bool) -> dict[str, Any]:
    weights = picture.weights[head]
    drawn = states(picture, head) == VISIBLE
    low, high = _range(weights)
    reach = (max(abs(low), abs(high)) if signed else high) or 1.0
    kept = np.where(drawn, weights, 0.0)
    pooled, seen = _pool(kept), _pool(drawn.astype(np.float32)) > 0
    levels = pooled / reach * 127.0 + 127.0 if signed else np.clip(pooled, 0, None) / reach * 254.0
    cells = np.where(seen, np.clip(np.rint(levels), 0, 254), NO_LEVEL).astype(np.uint8)
    visible = picture.visible[head if len(picture.visible) > 1 else 0]
    return {
        "rows": cells.shape[0],
        "columns": cells.shape[1],
        "cells": _base64(cells),
        "entropy": entropy(weights, visible.any(axis=-1)),
        "max": high,
    }


def _pool(cells: NDArray[Any]) -> NDArray[Any]:
    """Keep the entry of largest size of each block, so that at most ``THUMBNAIL`` a side remain."""
    for axis in (0, 1):
        length = cells.shape[axis]
        size = -(-length // THUMBNAIL)
        if size > 1:
            starts = np.arange(0, length, size)
            largest = np.maximum.reduceat(cells, starts, axis)
            smallest = np.minimum.reduceat(cells, starts, axis)
            cells = np.where(-smallest > largest, smallest, largest)
    return cells


def _range(weights: NDArray[np.float32]) -> tuple[float, float]:
    finite = weights[np.isfinite(weights)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def _base64(cells: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(cells).tobytes()).decode("ascii")
