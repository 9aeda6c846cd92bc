"""The plan of kernel attention in blocks: how a call is cut, and the author's maps on a block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnreg.families.sums import Features, hide
from attnreg.functional import expand_heads
from attnreg.mask import Mask
from attnreg.tracing import accumulation_dtype, autocasts

ROWS, ELEMENTS = 2**13, 2**20
"""Vectors per block, over batch items and heads, and the most features that they may have: few
enough that what is computed of them stays in the caches, enough that each product is large."""


class Piece(NamedTuple):
    """Rows that read the sums so far, columns that join them, or both.

    Where there are both, row i of the piece also sees the columns up to its own place.
    """

    rows: slice | None
    columns: slice | None


@dataclass
class ChunkPlan:
    """One call: the author's maps as they were called, what is visible, and the sizes."""

    module: nn.Module
    heads: int
    normalize: bool
    mask: Mask
    offset: int | None
    """Query i sees keys up to i + offset; None: all of them."""
    size: int
    """Positions per chunk, inside which the causal form is quadratic."""
    rows: int
    device: torch.device
    names: tuple[str, ...] = field(init=False)
    tensors: tuple[Tensor, ...] = field(init=False)
    autocast: torch.dtype | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        named = _named(self.module)
        self.names = tuple(named)
        self.tensors = tuple(named.values())
        kind = self.device.type
        if autocasts(kind):
            self.autocast = torch.get_autocast_dtype(kind)

    def as_called(self) -> torch.autocast:
        """Return a context that runs the author's code as the caller asked, backward too."""
        # What autocast casts outside of the graph must not come back from its cache.
        enabled = self.autocast is not None
        kind = self.device.type if enabled else "cpu"
        return torch.autocast(kind, dtype=self.autocast, enabled=enabled, cache_enabled=False)

    def maps(self, tensors: tuple[Tensor, ...]) -> Maps:
        """Return the author's maps, with these tensors as parameters and buffers."""
        current = _named(self.module)
        if all(current.get(n) is t for n, t in zip(self.names, tensors, strict=True)):
            return Maps(self, None)
        # They were swapped (torch.func.functional_call) and are back by now.
        return Maps(self, {f"module.{n}": t for n, t in zip(self.names, tensors, strict=True)})

    def items(self, query: Tensor, key: Tensor, width: int) -> list[slice]:
        """Cut the batch, so that a block of few items still has many positions."""
        each = self.heads * max(1, min(max(query.shape[2], key.shape[2]), 4 * self.size))
        return _ranges(0, query.shape[0], max(1, self._rows(width) // each))

    def spans(self, query: Tensor, key: Tensor) -> tuple[int, int, int]:
        """The first queries, which see no key; the first keys, which all see; those in step."""
        queries, keys = query.shape[2], key.shape[2]
        if self.offset is None:
            return 0, keys, 0
        blind = min(max(-self.offset, 0), queries)
        seen = min(max(self.offset, 0), keys)
        return blind, seen, min(queries - blind, keys - seen)

    def pieces(self, query: Tensor, key: Tensor, width: int) -> list[Piece]:
        """Cut the positions of a group of batch items."""
        blind, seen, both = self.spans(query, key)
        whole = both - both % self.size  # what is left over is a block of its own: no padding
        chunk = max(1, query.shape[0] * self.heads * self.size)
        block = max(1, self._rows(width) // chunk) * self.size
        square = (*_ranges(0, whole, block), *_ranges(whole, both, block))
        return [
            *(Piece(None, columns) for columns in _ranges(0, seen, block)),
            *(Piece(_shift(part, blind), _shift(part, seen)) for part in square),
            *(Piece(rows, None) for rows in _ranges(blind + both, query.shape[2], block)),
        ]

    def _rows(self, width: int) -> int:
        return min(self.rows, max(1, ELEMENTS // max(1, width)))


class Maps:
    """The author's feature maps on blocks, in float32 or wider."""

    def __init__(self, plan: ChunkPlan, swapped: dict[str, Tensor] | None) -> None:
        self.plan = plan
        self.swapped = swapped

    def queries(self, query: Tensor) -> Tensor:
        """Features of queries, (B, H, n, M)."""
        phi: Tensor = self._call("query_features", query)
        return phi.to(accumulation_dtype(query.dtype))

    def keys(self, key: Tensor, key_valid: Tensor | None) -> Features:
        """Features of keys, (B, H, n, M)."""
        found: Features = self._call("key_features", expand_heads(key, self.plan.heads))
        return hide(found, key_valid, accumulation_dtype(key.dtype))

    def probe(self, key: Tensor) -> tuple[int, bool]:
        """How many features there are, and whether those of keys are scaled."""
        with torch.no_grad():
            values, log_scale = self.keys(key[:1, :, :1], None)
        return values.shape[3], log_scale is not None

    def _call(self, method: str, x: Tensor) -> Any:
        if self.plan.autocast is None and self.swapped is None:  # no context: they cost much here
            return getattr(self.plan.module, method)(x)
        with self.plan.as_called():
            if self.swapped is None:
                return getattr(self.plan.module, method)(x)
            caller = _MethodCaller(self.plan.module, method)
            return torch.func.functional_call(caller, self.swapped, (x,))


class _MethodCaller(nn.Module):
    """Call a method of a module through ``forward``, as ``functional_call`` needs."""

    def __init__(self, module: nn.Module, method: str) -> None:
        super().__init__()
        self.module = module
        self.method = method

    def forward(self, x: Tensor) -> Any:
        return getattr(self.module, self.method)(x)


def _ranges(start: int, stop: int, step: int) -> list[slice]:
    return [slice(n, min(n + step, stop)) for n in range(start, stop, step)]


def _shift(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def _named(module: nn.Module) -> dict[str, Tensor]:
    """Parameters, and buffers too: a map may be drawn again before the backward pass."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
