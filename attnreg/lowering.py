"""Lower a ``Mask`` to what a computation needs: the visibility and the bias of any tile of scores.

Nothing here holds an (Lq, Lk) tensor unless the whole of it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnreg.mask import Mask

Index = slice | Tensor
"""Rows or columns: a slice or an int64 tensor (n,); columns may also be (H, n) or (B, H, n)."""

ALL = slice(None)


class LoweredMask:
    """A mask on a call of known sizes: absolute positions, visibility and bias, tile by tile.

    ``query_position`` (Lq,) and ``key_position`` (Lk,) are the absolute positions: key
    j, query i + offset, both counted inside each packed sequence.
    """

    def __init__(
        self, mask: Mask, query_length: int, key_length: int, device: torch.device
    ) -> None:
        self.mask = mask
        self.query_length = query_length
        self.key_length = key_length
        self.device = device
        self._memo: dict[str, Tensor] = {}

    def with_bias(self, bias: Tensor | None) -> LoweredMask:
        """The same with another bias, or an alias of its own."""
        mask = self.mask.replace(bias=bias)
        return LoweredMask(mask, self.query_length, self.key_length, self.device)

    @property
    def offset(self) -> int:
        """What is added to a query's index to give its position, where nothing is packed."""
        given = self.mask.query_offset
        return self.key_length - self.query_length if given is None else given

    @property
    def hides_future(self) -> bool:
        """Whether causality hides anything: the queries of a decoding step see every key."""
        if not self.mask.causal or torch.compiler.is_compiling():  # there lengths are symbols
            return self.mask.causal
        return self.offset < self.key_length - 1

    @property
    def query_position(self) -> Tensor:
        """The absolute position of each query, (Lq,)."""
        return self.once("query_position", self._query_position)

    @property
    def key_position(self) -> Tensor:
        """The absolute position of each key, (Lk,)."""
        return self.once("key_position", self._key_position)

    @property
    def query_sequence(self) -> Tensor:
        """The packed sequence of each query, (Lq,); the number of sequences past the last."""
        return self.once("query_sequence", lambda: _sequence_of(self._starts(0), self.query_length))

    @property
    def key_sequence(self) -> Tensor:
        """The packed sequence of each key, (Lk,); the number of sequences past the last."""
        return self.once("key_sequence", lambda: _sequence_of(self._starts(1), self.key_length))

    def once(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """Compute something once per call, also for a variant's own pattern."""
        # Not functools.cached_property: on Python 3.11 it takes a lock, which dynamo refuses.
        if name not in self._memo:
            self._memo[name] = compute()
        return self._memo[name]

    def _query_position(self) -> Tensor:
        index = torch.arange(self.query_length, device=self.device)
        if self.mask.cu_seqlens is None:
            return index + self.offset
        starts, key_starts = self._starts(0), self._starts(1)
        sequence = self.query_sequence.clamp(0, starts.shape[0] - 2)
        given = self.mask.query_offset
        shift = (key_starts.diff() - starts.diff())[sequence] if given is None else given
        return index - starts[sequence] + shift

    def _key_position(self) -> Tensor:
        index = torch.arange(self.key_length, device=self.device)
        if self.mask.cu_seqlens is None:
            return index
        starts = self._starts(1)
        return index - starts[self.key_sequence.clamp(0, starts.shape[0] - 2)]

    def _starts(self, which: int) -> Tensor:
        """The packed offsets of queries (0) or keys (1), int64."""
        chosen = self.mask.key_offsets if which else self.mask.cu_seqlens
        assert chosen is not None  # for mypy: callers ask only where the mask is packed
        return chosen.to(self.device, torch.int64)

    def visible(self, rows: Index = ALL, columns: Index = ALL) -> Tensor | None:
        """Who may attend to whom in a tile: bool, to (B, H, rows, columns); None: everyone."""
        mask = self.mask
        parts: list[Tensor] = []
        query = take(self.query_position, rows)[:, None]
        key = columns_of(self.key_position, columns)
        if mask.causal:
            parts.append(key <= query)
        if mask.window is not None:
            left, right = mask.window
            if left is not None:
                parts.append(key >= query - left)
            if right is not None:
                parts.append(key <= query + right)
        if mask.cu_seqlens is not None:
            sequence = take(self.query_sequence, rows)[:, None]
            inside = sequence < mask.cu_seqlens.shape[0] - 1
            parts.append((columns_of(self.key_sequence, columns) == sequence) & inside)
        if mask.key_valid is not None:
            valid = mask.key_valid.to(self.device)[:, None, None, :]
            parts.append(take_tile(valid, ALL, columns))
        if mask.allowed is not None:
            parts.append(take_tile(self._wide(mask.allowed), rows, columns))
        if mask.bias is not None:
            parts.append(take_tile(self._wide(mask.bias), rows, columns) != -torch.inf)
        if not parts:
            return None
        visible = parts[0]
        for part in parts[1:]:
            visible = visible & part
        return visible.reshape((1,) * (4 - visible.dim()) + visible.shape)

    def bias(self, rows: Index = ALL, columns: Index = ALL) -> Tensor | None:
        """What is added to a tile of scores, to (B, H, rows, columns), -inf replaced by 0."""
        if self.mask.bias is None:
            return None
        tile = take_tile(self._wide(self.mask.bias), rows, columns)
        return tile.masked_fill(tile == -torch.inf, 0.0)

    def key_range(self, first_row: int, last_row: int) -> tuple[int, int]:
        """The keys [start, stop) outside which causality and window hide all of these rows."""
        start, stop = 0, self.key_length
        if self.mask.cu_seqlens is not None:
            return start, stop
        first, last = first_row + self.offset, last_row - 1 + self.offset
        if self.mask.causal:
            stop = min(stop, last + 1)
        if self.mask.window is not None:
            left, right = self.mask.window
            if left is not None:
                start = max(start, first - left)
            if right is not None:
                stop = min(stop, last + right + 1)
        start = min(start, self.key_length)
        return start, max(start, stop)

    def _wide(self, tensor: Tensor) -> Tensor:
        """View a mask tensor as rank 4, with its last two sizes expanded to Lq and Lk."""
        tensor = tensor.to(self.device)
        tensor = tensor.reshape((1,) * (4 - tensor.dim()) + tensor.shape)
        return tensor.expand(-1, -1, self.query_length, self.key_length)


def _sequence_of(starts: Tensor, length: int) -> Tensor:
    index = torch.arange(length, device=starts.device)
    return torch.searchsorted(starts[1:].contiguous(), index, right=True)


def take(vector: Tensor, index: Index) -> Tensor:
    """Pick entries of a vector (n,) by a slice or an index tensor of any shape."""
    return vector[index]


def columns_of(vector: Tensor, columns: Index) -> Tensor:
    """Pick entries of a vector per column, shaped to stand against a row axis: (…, 1, columns)."""
    return take(vector, columns)[..., None, :]


def take_tile(tensor: Tensor, rows: Index, columns: Index) -> Tensor:
    """Pick a tile of a rank-4 tensor; columns (H, n) or (B, H, n) differ per head or item."""
    tensor = tensor[:, :, rows]
    if isinstance(columns, slice) or columns.dim() == 1:
        return tensor[..., columns]
    index = columns[..., None, :].expand(*columns.shape[:-1], tensor.shape[2], columns.shape[-1])
    index = index.reshape((1,) * (4 - index.dim()) + index.shape)
    sizes = torch.broadcast_shapes(tensor.shape[:2], index.shape[:2])
    return tensor.expand(*sizes, -1, -1).gather(-1, index.expand(*sizes, -1, -1))
