"""Figures as plain data: one function for each renderer of the browser, which only draws.

Arrays travel as base64 of little-endian bytes. Labels are sentences or text that stays as it is;
the browser sets every one of them by ``textContent``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnreg_playground.drawing import Figure
from attnreg_playground.texts import Label


def bars(
    name: str,
    title: Label,
    rows: Sequence[tuple[Label, Sequence[float | None]]],
    series: Sequence[Label] = ("",),
    *,
    digits: int = 3,
    unit: Label = "",
    most: float | None = None,
    log: bool = False,
) -> Figure:
    """Show a group of horizontal bars for each label, one bar per series."""
    return {
        "kind": "bars",
        "name": name,
        "title": title,
        "rows": [{"label": label, "values": list(values)} for label, values in rows],
        "series": list(series),
        "digits": digits,
        "unit": unit,
        "most": most,
        "log": log,
    }


def curves(
    name: str,
    title: Label,
    series: Sequence[Mapping[str, Any]],
    *,
    x: Label,
    y: Label,
    log: bool = True,
    limit: tuple[Label, float] | None = None,
) -> Figure:
    """Show lines over x: each of ``series`` has ``name``, ``x``, ``y``, perhaps ``slope``.

    ``log`` is for both axes; ``limit`` is a named horizontal line.
    """
    return {
        "kind": "curves",
        "name": name,
        "title": title,
        "series": [dict(one) for one in series],
        "x": x,
        "y": y,
        "log": log,
        "limit": None if limit is None else {"label": limit[0], "value": limit[1]},
    }


def matrix(
    name: str,
    title: Label,
    values: NDArray[Any],
    *,
    rows: Sequence[Label] = (),
    columns: Sequence[Label] = (),
    row: int | None = None,
    column: int | None = None,
    digits: int = 2,
    hidden: NDArray[np.bool_] | None = None,
    hidden_as: str = "0",
    note: Label = "",
    control: str = "",
) -> Figure:
    """Show a small matrix with its numbers; a row or column may be marked, hidden cells hatched.

    ``control`` names the control whose numbers these are: the cells can be edited then.
    """
    whole = np.atleast_2d(np.asarray(values, dtype=float))
    return {
        "kind": "matrix",
        "name": name,
        "title": title,
        "values": whole.tolist(),
        "rows": list(rows),
        "columns": list(columns),
        "row": row,
        "column": column,
        "digits": digits,
        "hidden": None if hidden is None else np.atleast_2d(hidden).tolist(),
        "hidden_as": hidden_as,
        "note": note,
        "control": control,
    }


def steps(name: str, title: Label, parts: Sequence[Figure], current: int) -> Figure:
    """Show matrices one after the other, those up to the current step."""
    return {"kind": "steps", "name": name, "title": title, "parts": list(parts), "current": current}


def mixing(
    name: str,
    title: Label,
    weights: Sequence[float],
    values: NDArray[Any],
    tokens: Sequence[str],
    row: int,
    output: Sequence[float],
) -> Figure:
    """Show how one query mixes the values: an arrow to each, as thick as its weight."""
    return {
        "kind": "mixing",
        "name": name,
        "title": title,
        "weights": [float(one) for one in weights],
        "values": np.asarray(values, dtype=float).tolist(),
        "tokens": list(tokens),
        "row": row,
        "output": [float(one) for one in output],
    }


def plane(
    name: str,
    title: Label,
    points: Sequence[Sequence[float]],
    labels: Sequence[str],
    weights: Sequence[float],
    control: str,
    reach: float,
) -> Figure:
    """Show vectors that can be dragged: a query, and keys with their weights."""
    return {
        "kind": "plane",
        "name": name,
        "title": title,
        "points": [list(point) for point in points],
        "labels": list(labels),
        "weights": [float(one) for one in weights],
        "control": control,
        "reach": reach,
    }


def table(
    name: str,
    title: Label,
    columns: Sequence[Label],
    rows: Sequence[Sequence[Any]],
    *,
    tones: Sequence[Sequence[str]] | None = None,
    heads: bool = True,
) -> Figure:
    """Show a table; ``tones`` of cells are "", "good", "bad"; the first column heads the rows."""
    return {
        "kind": "table",
        "name": name,
        "title": title,
        "columns": list(columns),
        "rows": [list(row) for row in rows],
        "tones": None if tones is None else [list(row) for row in tones],
        "heads": heads,
    }


def facts(name: str, title: Label, rows: Sequence[tuple[Label, Label]]) -> Figure:
    """Show numbers that matter, each under its label."""
    return {
        "kind": "facts",
        "name": name,
        "title": title,
        "rows": [{"label": label, "value": value} for label, value in rows],
    }


def tiles(name: str, title: Label, found: Sequence[Mapping[str, Any]]) -> Figure:
    """Show checks as tiles: ``id``, ``status``, ``level``, ``law`` and, opened, what was seen."""
    return {"kind": "tiles", "name": name, "title": title, "tiles": [dict(one) for one in found]}


def code(name: str, title: Label, text: str) -> Figure:
    """Show Python, to be copied."""
    return {"kind": "code", "name": name, "title": title, "text": text}


def encode(cells: NDArray[Any]) -> str:
    """Return the bytes of an array as base64."""
    return base64.b64encode(np.ascontiguousarray(cells).tobytes()).decode("ascii")
