"""Which rows are computed together, and against which keys: pieces of a call, linear in L."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Room:
    """Memory for copies, the same for one piece after the other: new memory is slow to touch."""

    def __init__(self, like: Tensor) -> None:
        self._held = like.new_empty(0)

    def take(self, count: int) -> Tensor:
        """A vector of ``count`` entries, which hold anything."""
        if self._held.shape[0] < count:
            self._held = self._held.new_empty(count)
        return self._held[:count]


class Piece(Protocol):
    """Some rows of a call and all the keys that they may see."""

    @property
    def visible(self) -> Tensor | None:
        """Bool, to (N, H, rows, keys); None: everything."""
        ...

    @property
    def bias(self) -> Tensor | None:
        """What is added to the scores, to (N, H, rows, keys)."""
        ...

    def rows(self, source: Tensor) -> Tensor:
        """Its rows of queries or outputs (B, Hq, Lq, D): (N, H, rows, D)."""
        ...

    def put_rows(self, rows: Tensor, target: Tensor) -> None:
        """Write ``rows`` where ``rows(target)`` reads them."""
        ...

    def keys(self, source: Tensor, room: Room) -> Tensor:
        """Its rows of keys or values (B, Hkv, Lk, D): (N, H or fewer, keys, D).

        Where they must be copied, it is into ``room``.
        """
        ...

    def add_keys(self, keys: Tensor, target: Tensor) -> None:
        """Add ``keys`` where ``keys(target)`` reads them; ``target`` is contiguous."""
        ...

    def add_bias(self, bias: Tensor, target: Tensor) -> None:
        """Add what ``bias`` has to where it came from, to (B, Hq, Lq, Lk)."""
        ...


@dataclass(frozen=True)
class Tiles:
    """``count`` tiles of ``height`` rows, one below the other; N is the items times the tiles.

    Tile t has the rows from ``row + t * height`` on. It sees ``width`` keys from
    ``key + t * height`` on, read where they lie, or those that ``columns`` lists for it,
    (count, 1 or Hq, n). Several tiles are of one batch item.
    """

    items: slice
    row: int
    height: int
    count: int
    visible: Tensor | None
    bias: Tensor | None = None
    key: int = 0
    width: int = 0
    columns: Tensor | None = None

    def rows(self, source: Tensor) -> Tensor:
        """Its rows, (N, Hq, height, D): a view."""
        return self._each(source, self.row, self.height)

    def put_rows(self, rows: Tensor, target: Tensor) -> None:
        """Write its rows."""
        self.rows(target).copy_(rows)

    def keys(self, source: Tensor, room: Room) -> Tensor:
        """Its keys, (N, H, n, D): a view that overlaps itself, or a copy of those listed."""
        if self.columns is None:
            return self._each(source, self.key, self.width)
        index, sizes = self._flat(source, self.columns)
        copy = room.take(index.shape[0] * sizes[3])
        torch.index_select(_as_rows(source), 0, index, out=copy.view(-1, sizes[3]))
        return copy.view(sizes)

    def add_keys(self, keys: Tensor, target: Tensor) -> None:
        """Add to its keys, several times where tiles share them."""
        if self.columns is not None:
            index, sizes = self._flat(target, self.columns)
            rows = keys.reshape(-1, sizes[-1]).to(target.dtype)
            target.view(-1, sizes[-1]).index_add_(0, index, rows)
            return
        # Tiles are as far apart as they are high: pieces of that width do not overlap.
        for start in range(0, self.width, self.height):
            piece = keys[:, :, start : start + self.height]
            self._each(target, self.key + start, piece.shape[2]).add_(piece)

    def add_bias(self, bias: Tensor, target: Tensor) -> None:
        """Add to where its bias came from; such tiles are of all items, and one by one."""
        rows = torch.arange(self.row, self.row + self.height, device=bias.device)
        columns = self.columns
        if columns is None:
            columns = torch.arange(self.key, self.key + self.width, device=bias.device)[None, None]
        _add_at(target, bias, 0, rows, columns)

    def _each(self, source: Tensor, first: int, width: int) -> Tensor:
        """From each tile's own start on, ``width`` positions."""
        source = source[self.items]
        if self.count == 1:
            return source[:, :, first : first + width]
        _, heads, length, features = source.stride()
        sizes = (self.count, source.shape[1], width, source.shape[3])
        strides = (self.height * length, heads, length, features)
        return source.as_strided(sizes, strides, source.storage_offset() + first * length)

    def _flat(self, source: Tensor, columns: Tensor) -> tuple[Tensor, tuple[int, int, int, int]]:
        """Where the listed keys are among ``_as_rows(source)``, and the sizes of their tensor."""
        batch, heads, _, width = source.shape
        items = torch.arange(batch, device=source.device)[self.items][:, None, None]
        count = max(heads, columns.shape[1])
        head = torch.arange(count, device=source.device) // (count // heads)
        steps = [stride // width for stride in source.stride()[:3]]
        index = items * steps[0] + head[:, None] * steps[1] + columns * steps[2]
        return index.flatten(), (index.shape[0], count, index.shape[2], width)


@dataclass(frozen=True)
class FullRows:
    """Listed rows of some heads against all keys; the key heads are those that they read."""

    row: Tensor
    heads: slice
    key_heads: slice
    visible: Tensor | None
    bias: Tensor | None

    def rows(self, source: Tensor) -> Tensor:
        """Its rows, (B, heads, rows, D)."""
        return source[:, self.heads].index_select(2, self.row)

    def put_rows(self, rows: Tensor, target: Tensor) -> None:
        """Write its rows."""
        target[:, self.heads].index_copy_(2, self.row, rows)

    def keys(self, source: Tensor, room: Room) -> Tensor:
        """All keys of its heads."""
        return source[:, self.key_heads]

    def add_keys(self, keys: Tensor, target: Tensor) -> None:
        """Add to all keys of its heads."""
        target[:, self.key_heads] += keys

    def add_bias(self, bias: Tensor, target: Tensor) -> None:
        """Add to where its bias came from."""
        columns = torch.arange(bias.shape[3], device=bias.device)[None, None]
        _add_at(target, bias, self.heads.start, self.row, columns)


def whole_vectors(tensor: Tensor) -> Tensor:
    """Copy (B, H, L, D) where its vectors do not lie at multiples of their width."""
    width, strides = tensor.shape[3], tensor.stride()
    fits = strides[3] == 1 and all(stride % width == 0 for stride in strides[:3])
    return tensor if fits else tensor.contiguous()


def _as_rows(tensor: Tensor) -> Tensor:
    """View whole vectors of (B, H, L, D) as rows (n, D), with those that lie between them."""
    width = tensor.shape[3]
    steps = zip(tensor.shape[:3], tensor.stride()[:3], strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return tensor.as_strided((last // width + 1, width), (width, 1), tensor.storage_offset())


def _add_at(target: Tensor, found: Tensor, head: int, rows: Tensor, columns: Tensor) -> None:
    """Add (B, H, R, n) at rows (R,) and columns (1, 1 or H, n) of what broadcasts to all heads."""
    alike = columns.shape[1] == 1  # then heads can be added up before they are scattered
    whole = [target.shape[0], target.shape[1] if alike else found.shape[1], target.shape[2]]
    kept = [min(size, have) for size, have in zip(whole, found.shape, strict=False)]
    found = found.sum_to_size(*kept, found.shape[3]).to(target.dtype)
    places = [
        torch.arange(found.shape[0], device=found.device)[:, None, None, None],
        torch.arange(head, head + found.shape[1], device=found.device)[:, None, None],
        rows[: found.shape[2], None],
        columns[:, :, None, :],
    ]
    sized = [
        place if size > 1 else torch.zeros_like(place)
        for place, size in zip(places, target.shape, strict=True)
    ]
    target.index_put_(tuple(sized), found, accumulate=True)
