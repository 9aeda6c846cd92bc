"""How results are compared: what a failed law raises, relative errors, and the limits on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnreg.errors import reason

LIMITS = {
    torch.float64: 1e-9,
    torch.float32: 1.9e-6,  # 16 units in the last place
    torch.float16: 2e-3,  # 2 units
    torch.bfloat16: 1.6e-2,  # 2 units
}
"""The largest relative error of an output against its float64 reference, by dtype."""

SAME = 1e-11
"""The relative difference of two ways to compute one thing in float64 that only round apart."""


class Failure(AssertionError):
    """A law does not hold; ``evidence`` is plain data that shows it."""

    def __init__(self, message: str, **evidence: Any) -> None:
        super().__init__(message)
        self.evidence: dict[str, Any] = {"message": message, **evidence}


class DoesNotApply(Exception):
    """A law finds that it does not apply to this variant."""


class CannotJudge(Exception):
    """A law cannot be checked through no fault of the attention: its reference fails, say."""


def reseed(number: int) -> None:
    """Seed torch as ``torch.manual_seed`` does, but quickly.

    That one leaves a note, with a traceback, for every kind of accelerator that is not in use:
    milliseconds, thousands of times.
    """
    torch.default_generator.manual_seed(number)
    if torch.accelerator.is_available():
        torch.manual_seed(number)


def relative(found: Tensor, expected: Tensor) -> float:
    """Return the root mean square of the difference over that of the expected.

    Infinite where anything is not finite. An expected that is all but 0 counts as 1e-3, so that
    rounding around an exact 0 is no error.
    """
    if found.numel() == 0:
        return 0.0
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    if not (found.isfinite().all() and expected.isfinite().all()):
        return float("inf")
    scale = expected.square().mean().sqrt().clamp(min=1e-3)
    return float((found - expected).square().mean().sqrt() / scale)


def check_close(found: Tensor, expected: Tensor, limit: float, what: str) -> float:
    """Return the relative error, or raise ``Failure`` where it is above the limit."""
    if tuple(found.shape) != tuple(expected.shape):
        raise Failure(f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
    bad = int((~found.detach().isfinite()).sum())
    if bad:
        raise Failure(
            f"{what}: {bad} of {found.numel()} entries are NaN or infinite",
            actual=found.detach(),
            expected=expected.detach(),
        )
    error = relative(found, expected)
    if not error <= limit:
        raise Failure(
            f"{what}: the relative error is {error:.2g}, allowed is {limit:.2g}",
            measured=error,
            limit=limit,
            actual=found.detach(),
            expected=expected.detach(),
        )
    return error


def check_equal(found: Tensor, expected: Tensor, what: str) -> None:
    """Raise ``Failure`` unless two tensors are the same bit by bit, NaN equal to nothing."""
    if tuple(found.shape) != tuple(expected.shape) or not torch.equal(found, expected):
        same = found.shape == expected.shape
        raise Failure(
            f"{what}: expected the same bits"
            + (
                f", they differ by up to {float((found - expected).abs().max()):.2g}"
                if same
                else ""
            ),
            measured=relative(found, expected) if same else float("inf"),
            limit=0.0,
            actual=found.detach(),
            expected=expected.detach(),
        )


def out_of_memory(error: Exception) -> bool:
    """Whether torch says that there is no memory for a tensor."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in reason(error)
