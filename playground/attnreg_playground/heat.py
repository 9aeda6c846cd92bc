"""The figure of weights: one head in full, all heads as thumbnails with their statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnreg_playground.drawing import Figure
from attnreg_playground.figures import encode
from attnreg_playground.texts import Label

THUMBNAIL = 96
"""The largest side of a head's thumbnail, in cells."""

RANKED = 128
"""The longest sequence whose effective rank is told: it takes a decomposition of every head."""

VISIBLE, MASKED, PADDED, MISSING = range(4)
"""What a cell is: a weight, hidden by the mask, a padded key, or not a finite number."""

NO_LEVEL = 255
"""The level of a thumbnail's cell that holds no weight to show."""

MEAN, LARGEST = -1, -2
"""Heads that stand for all: their mean, and the largest weight of any."""


def heat(
    weights: NDArray[np.float32],
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    name: str,
    title: Label,
    head: int = 0,
    tag: Label = "",
    visible: NDArray[np.bool_] | None = None,
    key_valid: NDArray[np.bool_] | None = None,
    border: int = 0,
    image: Mapping[str, Any] | None = None,
    thumbnails: bool = True,
    difference: bool = False,
    signed: bool | None = None,
    group: str = "",
) -> Figure:
    """Show weights (H, Lq, Lk): one head in full, all as thumbnails.

    ``visible`` (1 or H, Lq, Lk) and ``key_valid`` (Lk,) say what is hatched; ``border`` is where
    the second packed sequence begins. Figures of one ``group`` share their crosshair and their
    head. ``difference`` asks for a scale with both signs, ``signed`` for
    one or the other whatever the weights are. ``image`` is ``pixels`` (h, w) in 0…1
    of which the keys are patches in ``rows`` and ``columns``, row by row.
    """
    head = min(max(head, LARGEST), len(weights) - 1)
    shown = together(weights, head)
    seen = None if visible is None else np.broadcast_to(visible, weights.shape)
    low, high = _range(shown)
    signed = (difference or is_signed(weights)) if signed is None else signed
    figure: Figure = {
        "kind": "heat",
        "name": name,
        "title": title,
        "tag": tag,
        "group": group,
        "difference": difference,
        "head": head,
        "queries": list(queries),
        "keys": list(keys),
        "padded": [] if key_valid is None else [not bool(valid) for valid in key_valid],
        "border": border,
        "signed": signed,
        "low": low,
        "high": high,
        "exact": encode(shown.astype("<f4")),
        "states": _encode_states(states(shown, seen, key_valid, head)),
        "heads": [],
    }
    if thumbnails:
        ranks = effective_ranks(weights)
        figure["heads"] = [
            _thumbnail(weights[one], seen, key_valid, one, signed, ranks[one], not image)
            for one in range(len(weights))
        ]
    if image:
        pixels = np.clip(np.asarray(image["pixels"]) * 255.0, 0, 255).astype(np.uint8)
        figure["image"] = {
            "pixels": encode(pixels),
            "height": pixels.shape[0],
            "width": pixels.shape[1],
            "rows": image["rows"],
            "columns": image["columns"],
            "first": image.get("first", 0),
        }
    return figure


def together(weights: NDArray[np.float32], head: int) -> NDArray[np.float32]:
    """Return one head (Lq, Lk) of (H, Lq, Lk): by number, ``MEAN`` or ``LARGEST``."""
    if head == MEAN:
        mean: NDArray[np.float32] = weights.mean(axis=0)
        return mean
    if head == LARGEST:
        largest: NDArray[np.float32] = weights.max(axis=0)
        return largest
    one: NDArray[np.float32] = weights[head]
    return one


def states(
    shown: NDArray[np.float32],
    seen: NDArray[np.bool_] | None,
    key_valid: NDArray[np.bool_] | None,
    head: int,
) -> NDArray[np.uint8]:
    """Return what each cell of a head is, uint8 (Lq, Lk); of heads together, what all hide."""
    found = np.zeros(shown.shape, np.uint8)
    if seen is not None:
        visible = seen[head] if head >= 0 else seen.any(axis=0)
        found = np.where(visible, VISIBLE, MASKED).astype(np.uint8)
    if key_valid is not None:
        found[:, ~key_valid] = PADDED
    found[~np.isfinite(shown)] = MISSING
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


def distance(weights: NDArray[np.float32]) -> float | None:
    """Return the mean distance |i - j| that the weights of a head (L, L) reach, or None."""
    size = np.abs(weights.astype(np.float64))
    if weights.shape[0] != weights.shape[1] or not np.isfinite(size).all() or not size.sum():
        return None
    place = np.arange(len(size))
    return float((size * np.abs(place[:, None] - place)).sum() / size.sum())


def effective_ranks(weights: NDArray[np.float32]) -> list[float | None]:
    """Return the exponential of the entropy of each head's singular values; None where too long."""
    if max(weights.shape[1:]) > RANKED or not np.isfinite(weights).all():
        return [None] * len(weights)
    return [effective_rank(one) for one in np.linalg.svd(weights, compute_uv=False)]


def effective_rank(values: NDArray[Any]) -> float:
    """Return exp of the entropy of singular values that are scaled to sum to 1 (Roy & Vetterli)."""
    total = float(values.sum())
    if not total:
        return 0.0
    share = np.clip(values.astype(np.float64) / total, 1e-300, None)
    return float(np.exp(-(share * np.log(share)).sum()))


def _encode_states(cells: NDArray[np.uint8]) -> str:
    return encode(cells) if cells.any() else ""


def _thumbnail(
    weights: NDArray[np.float32],
    seen: NDArray[np.bool_] | None,
    key_valid: NDArray[np.bool_] | None,
    head: int,
    signed: bool,
    rank: float | None,
    in_line: bool,
) -> dict[str, Any]:
    drawn = states(weights, seen, key_valid, head) == VISIBLE
    low, high = _range(weights)
    reach = (max(abs(low), abs(high)) if signed else high) or 1.0
    kept = np.where(drawn, weights, 0.0)
    pooled, some = _pool(kept), _pool(drawn.astype(np.float32)) > 0
    levels = pooled / reach * 127.0 + 127.0 if signed else np.clip(pooled, 0, None) / reach * 254.0
    cells = np.where(some, np.clip(np.rint(levels), 0, 254), NO_LEVEL).astype(np.uint8)
    rows = np.ones(len(weights), bool) if seen is None else seen[head].any(axis=-1)
    return {
        "rows": cells.shape[0],
        "columns": cells.shape[1],
        "cells": encode(cells),
        "entropy": entropy(weights, rows),
        "distance": distance(weights) if in_line else None,  # patches lie in a plane
        "rank": rank,
        "max": high,
    }


def _pool(cells: NDArray[Any]) -> NDArray[Any]:
    """Keep the entry of largest size of each block, so that at most ``THUMBNAIL`` a side remain."""
    rows, columns = (-(-length // THUMBNAIL) for length in cells.shape)
    if rows == columns == 1:
        return cells
    # Zeros at the edges change nothing: they are of no size.
    padded = np.pad(cells, ((0, -cells.shape[0] % rows), (0, -cells.shape[1] % columns)))
    high, wide = padded.shape[0] // rows, padded.shape[1] // columns
    blocks = padded.reshape(high, rows, wide, columns)
    largest, smallest = blocks.max(axis=(1, 3)), blocks.min(axis=(1, 3))
    pooled: NDArray[Any] = np.where(-smallest > largest, smallest, largest)
    return pooled


def _range(weights: NDArray[np.float32]) -> tuple[float, float]:
    finite = weights[np.isfinite(weights)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
