"""The sums of ``attnreg_additive.tiles`` as compiled loops: no pass over a tile leaves a register.

Four hidden units share one division: w1 / p1 + w2 / p2 = (w1 p2 + w2 p1) / (p1 p2), twice over.
The divider of a processor is many times slower than its multiplier, so this is what binds.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attnreg import Call, Implementation, Mask
from attnreg.tracing import accumulation_dtype
from attnreg_additive.module import Additive
from attnreg_additive.tiled import attend_tiled, why_not_tiled
from attnreg_additive.tiles import EAGER_TILES

LOG = logging.getLogger(__name__)

WORTH = 2**27
"""Tanh evaluations (pairs times hidden units) of a call from which it may wait for a compiler."""

DECODING = 16
"""With fewer queries than this a call is taken for a decoding step, which must not wait."""

OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {
    "cpp.enable_floating_point_contract_flag": "fast",  # a product and a sum in one instruction
    "cpp.dynamic_threads": True,
    "compile_threads": 1,  # no pool of processes for one small file
    # What four sums share is computed in registers, never stored as (rows, units, columns).
    "realize_opcount_threshold": 10000,
    "realize_reads_threshold": 10000,
    "realize_acc_reads_threshold": 10000,
}


class NotCompiledError(RuntimeError):
    """A tile function ran as it stands: torch.compile is switched off, or stands aside."""


SMALL = 2.0**-31
"""Multiplies 1 + left right, up to 2^62, so that a product of four stays in float32's range."""


def _denominators(left: Tensor, right: Tensor) -> list[Tensor]:
    """SMALL + left right of (n, rows, 4, m) and (n, 4, m, columns): four (n, rows, m, columns)."""
    if not torch.compiler.is_compiling():
        raise NotCompiledError("torch.compile is switched off, or another mode is in its way")
    # A number here, not the name: that would be an argument, fetched for each entry.
    return [4.656612873077393e-10 + left[:, :, i, :, None] * right[:, None, i] for i in range(4)]


def _scores(left: Tensor, right: Tensor, weight: Tensor, half: Tensor) -> Tensor:
    one, two, three, four = _denominators(left, right)
    w = [weight[:, None, i, :, None] for i in range(4)]
    first, second = one * two, three * four
    above = (w[0] * two + w[1] * one) * second + (w[2] * four + w[3] * three) * first
    return (above / (first * second) - half[:, None, :, None]).sum(dim=2) * 4.656612873077393e-10


def _slopes(grad: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    one, two, three, four = _denominators(left, right)
    first, second = one * two, three * four
    inverse = 1.0 / (first * second)
    above = inverse * second * 4.656612873077393e-10
    below = inverse * first * 4.656612873077393e-10
    reciprocals = (above * two, above * one, below * four, below * three)
    products = [grad[:, :, None] * r for r in reciprocals]
    slopes = [p - p * r for p, r in zip(products, reciprocals, strict=True)]
    return (
        torch.stack([s.sum(dim=3) for s in slopes], dim=2),
        torch.stack([s.sum(dim=1) for s in slopes], dim=1),
        torch.stack([p.sum(dim=1) for p in products], dim=1),
    )


class CompiledTiles:
    """Tiles in float32 by two functions that inductor compiles once in a process, at first use.

    Where that fails the reason is kept in ``failure``, and eager tiles take over.
    """

    multiple = 4
    pairs = 2**19

    def __init__(self) -> None:
        self.failure: str | None = None
        self._lock = threading.Lock()
        self._compiled: dict[str, Callable[..., Any]] = {}

    def reach(self, dtype: torch.dtype) -> tuple[float, float]:
        """From 2^-92 to 2^62 in products, which is tanh to 1e-18; eager tiles go further."""
        return 0.5 * 92 * math.log(2.0), 0.5 * 61.5 * math.log(2.0)

    def scores(self, left: Tensor, right: Tensor, weight: Tensor) -> Tensor:
        """Sum weight * (r - 1/2) over the units, four at a time."""
        rows, columns = left.shape[1], right.shape[2]
        scale = _power_of_two(weight)
        grouped = F.pad(weight / scale, (0, max(0, 8 - weight.shape[1]))).unflatten(1, (4, -1))
        half = grouped.sum(dim=1) * (0.5 / SMALL)
        found = self._call("scores", _scores, *_grouped(left, right), grouped, half)
        if found is None:
            return EAGER_TILES.scores(left, right, weight)
        result: Tensor = found[:, :rows, :columns]
        return result * scale[:, :, None]

    def slopes(self, grad: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sum grad (r - r^2) over columns and over rows, and grad r over both."""
        rows, columns = grad.shape[1:]
        wide = F.pad(grad, (0, max(0, 2 - columns), 0, max(0, 2 - rows)))
        found = self._call("slopes", _slopes, wide, *_grouped(left, right))
        if found is None:
            return EAGER_TILES.slopes(grad, left, right)
        by_row, by_column, products = found
        return (
            by_row.flatten(2)[:, :rows, : left.shape[2]],
            by_column.flatten(1, 2)[:, : left.shape[2], :columns],
            products.sum(dim=3).flatten(1)[:, : left.shape[2]],
        )

    def _call(self, name: str, function: Callable[..., Any], *tensors: Tensor) -> Any:
        """Run a compiled function; None where it cannot be compiled, or does not run compiled."""
        if self.failure is not None or tensors[0].dtype != torch.float32:
            return None
        with self._lock:
            if name not in self._compiled:
                try:
                    self._compiled[name] = self._build(name, function)
                except NotCompiledError as error:
                    LOG.info("additive: this call runs in eager tiles: %s", error)
                    return None
                except Exception as error:  # a compiler fails in many ways; the call must not
                    why = f"{type(error).__name__}: {error}".splitlines()[0]
                    self.failure = f"compiling failed: {why}"
                    LOG.warning("additive: %s; eager tiles take over", self.failure)
                    return None
        try:
            return self._compiled[name](*tensors)
        except NotCompiledError as error:  # turned off since
            LOG.info("additive: this call runs in eager tiles: %s", error)
            return None

    def _build(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        LOG.info("additive: compiling %s with torch.compile, once in this process", name)
        compiled: Callable[..., Any] = torch.compile(
            function, dynamic=True, fullgraph=True, options=OPTIONS
        )
        # The first call is what the loops are laid out for: an odd number of heads, so that
        # threads share heads and rows, and sizes that all differ, so that none is fixed.
        heads, rows, units, columns = 3, 64, 10, 272
        ones = partial(torch.ones, dtype=torch.float32, device="cpu")  # whatever the defaults are
        left, right = ones(heads, rows, 4, units), ones(heads, 4, units, columns)
        if name == "scores":
            compiled(left, right, ones(heads, 4, units), ones(heads, units))
        else:
            compiled(ones(heads, rows, columns), left, right)
        return compiled


def _power_of_two(weight: Tensor) -> Tensor:
    """About the largest weight of each head, (n, 1): divided by it, no product leaves the range."""
    exponent = torch.frexp(weight.abs().amax(dim=1, keepdim=True)).exponent
    return torch.exp2(exponent.clamp(-120, 120).to(weight.dtype))


def _grouped(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Units in four groups, SMALL left (n, rows, 4, m) and right (n, 4, m, columns), none below 2.

    Contiguous, and no size 1, because torch.compile would compile again for either.
    """
    units = max(0, 8 - left.shape[2])
    left = F.pad(left * SMALL, (0, units, 0, max(0, 2 - left.shape[1])))
    right = F.pad(right, (0, max(0, 2 - right.shape[2]), 0, units))
    return left.contiguous().unflatten(2, (4, -1)), right.contiguous().unflatten(1, (4, -1))


COMPILED_TILES = CompiledTiles()


def why_not_compiled(call: Call) -> list[str]:
    """Say why a call should not run in compiled tiles."""
    reasons = why_not_tiled(call)
    if reasons:  # among them that it is being traced, where nothing may be asked of the system
        return reasons
    if accumulation_dtype(call.dtype) != torch.float32:
        reasons.append("float64: only tiles in float32 are compiled")
    if COMPILED_TILES.failure is not None:
        reasons.append(COMPILED_TILES.failure)
    elif not _compiler():
        reasons.append("no C++ compiler was found for torch.compile: set CXX, or install g++")
    if call.named:  # whoever asks for it by name has decided to wait
        return reasons
    return reasons + _not_worth(call)


def _not_worth(call: Call) -> list[str]:
    batch, heads, rows, _ = call.query_shape
    assert isinstance(call.module, Additive)  # for mypy: others were refused before
    work = batch * heads * rows * call.key_shape[2] * call.module.hidden
    if call.mask.cu_seqlens is not None:
        work //= max(1, call.mask.cu_seqlens.shape[0] - 1)
    if rows < DECODING:
        return [f"{rows} queries look like a decoding step, which should not wait for a compiler"]
    if work < WORTH:
        return [f"{work:.2g} tanh are too few to wait for a compiler, from {WORTH:.2g} on it may"]
    return []


def _compiler() -> bool:
    """Whether the C++ compiler that inductor would call is on the path."""
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    return (
        "inductor" in torch.compiler.list_backends()
        and shutil.which(os.environ.get("CXX", usual)) is not None
    )


def _attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    return attend_tiled(module, query, key, value, mask, COMPILED_TILES)


COMPILED = Implementation("compiled", _attend, why_not_compiled, rank=20)
