"""What it means that a call failed."""

from __future__ import annotations

from attnreg.benchmark.records import Status
from attnreg.errors import AttnregError, reason, sentence


def failure(error: BaseException) -> tuple[Status, str]:
    """Tell a call that needs too much memory from one that is refused, and from one that broke."""
    import torch

    text = reason(error)
    short = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    if short or "can't allocate memory" in text or "bad_alloc" in text:
        return "memory", f"a call needs more memory than it may take ({_first(text)})"
    if isinstance(error, AttnregError):
        return "refused", sentence(error)
    return "error", _first(text)


def _first(text: str) -> str:
    """The beginning of a long message."""
    return text if len(text) <= 300 else f"{text[:300]}…"
