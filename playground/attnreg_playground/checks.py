"""Live checks of what is drawn: row sums, masked cells, and weights times values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnreg import Variant
from attnreg_playground.drawing import Finding
from attnreg_playground.texts import sentence

Floats = NDArray[np.float64]

TOLERANCE = 1e-3
"""What a row sum may miss 1 by, and how far weights times values may be from the output."""


def findings(
    variant: Variant, weights: Floats, visible: NDArray[np.bool_], value: Floats, output: Floats
) -> tuple[Finding, ...]:
    """Check weights (H, L, L) against the mask (1 or H, L, L), value and output (H, L, D).

    Rows that hold NaN or infinity, and rows that may not attend to anything, are left out.
    """
    seen = np.broadcast_to(visible, weights.shape)
    found = [_sums(variant, weights, seen)] if np.isfinite(weights).any() else []
    if not seen.all():
        leaks = int(((weights != 0) & ~seen).sum())
        found.append(
            Finding("bad", sentence("check.leak", count=leaks))
            if leaks
            else Finding("good", sentence("check.masked"))
        )
    whole = np.isfinite(weights).all(axis=-1) & np.isfinite(output).all(axis=-1)
    if whole.any():
        difference = np.abs(np.where(np.isfinite(weights), weights, 0) @ value - output)[whole]
        worst = float(difference.max(initial=0.0))
        limit = TOLERANCE * max(1.0, float(np.abs(output[whole]).max(initial=0.0)))
        good = worst <= limit
        found.append(
            Finding(
                "good" if good else "bad",
                sentence(
                    "check.output" if good else "check.output_wrong", deviation=f"{worst:.1e}"
                ),
            )
        )
    return tuple(found)


def _sums(variant: Variant, weights: Floats, seen: NDArray[np.bool_]) -> Finding:
    kept = seen.any(axis=-1) & np.isfinite(weights).all(axis=-1)
    rows = weights.reshape(-1, weights.shape[-1]) if kept.all() else weights[kept]
    sums = rows.sum(axis=-1)
    deviation = float(np.abs(sums - 1.0).max(initial=0.0))
    low, high = float(rows.min(initial=0.0)), float(rows.max(initial=0.0))
    least, most = (float(sums.min()), float(sums.max())) if len(sums) else (0.0, 0.0)
    span = {"least": f"{least:.4g}", "most": f"{most:.4g}"}
    signed = low < -TOLERANCE * max(1.0, high)
    name = {"variant": variant.name}
    if variant.capabilities.normalized and signed:
        return Finding("bad", sentence("check.negative", **name, low=f"{low:.4g}"))
    if not signed and deviation <= TOLERANCE:
        return Finding("good", sentence("check.sums", deviation=f"{deviation:.1e}"))
    if variant.capabilities.normalized:
        wrong = sentence("check.sums_wrong", **name, deviation=f"{deviation:.1e}")
        return Finding("bad", wrong)
    if signed:
        fields = {**span, "low": f"{low:.4g}", "high": f"{high:.4g}"}
        return Finding("plain", sentence("check.signed", **fields))
    return Finding("plain", sentence("check.unnormalized", **span))
