"""Packed sequences in eager mode: one call per sequence, joined again. Any variant gets it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from attnreg.errors import UnsupportedFeature
from attnreg.mask import Mask, host_values

Attend = Callable[[Tensor, Tensor, Tensor, Mask], Tensor]


def attend_each(attend: Attend, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """Attend within each packed sequence; rows past the last offset give 0."""
    sequences = list(_sequences(mask))
    rows, columns = [r for r, _, _ in sequences], [c for _, c, _ in sequences]
    # Split, not sliced: the gradients of all pieces are joined once, instead of each being padded
    # to the whole length.
    queries, keys, values = _split(query, rows), _split(key, columns), _split(value, columns)
    pieces = [
        attend(queries[n], keys[n], values[n], inner) for n, (_, _, inner) in enumerate(sequences)
    ]
    tail = query.shape[2] - sum(r.stop - r.start for r in rows)
    pieces.append(value.new_zeros(*query.shape[:2], tail, value.shape[3]))
    return torch.cat(pieces, dim=2)


def weigh_each(
    weigh: Callable[[Tensor, Tensor, Mask], Tensor], query: Tensor, key: Tensor, mask: Mask
) -> Tensor:
    """Weights within each packed sequence, placed on the diagonal of (1, Hq, Lq, Lk)."""
    blocks: list[Tensor] = []
    end, width = 0, key.shape[2]
    for rows, columns, inner in _sequences(mask):
        block = weigh(query[:, :, rows], key[:, :, columns], inner)
        blocks.append(torch.nn.functional.pad(block, (columns.start, width - columns.stop)))
        end = rows.stop
    like = blocks[0] if blocks else query.new_zeros((), dtype=torch.float32)
    blocks.append(like.new_zeros(*query.shape[:2], query.shape[2] - end, width))
    return torch.cat(blocks, dim=2)


def _split(tensor: Tensor, parts: list[slice]) -> tuple[Tensor, ...]:
    sizes = [part.stop - part.start for part in parts]
    pieces: tuple[Tensor, ...] = tensor.split([*sizes, tensor.shape[2] - sum(sizes)], dim=2)
    return pieces


def _sequences(mask: Mask) -> Iterator[tuple[slice, slice, Mask]]:
    assert mask.cu_seqlens is not None  # for mypy: callers ask only where the mask is packed
    assert mask.key_offsets is not None
    query_offsets, key_offsets = host_values(mask.cu_seqlens), host_values(mask.key_offsets)
    if query_offsets is None or key_offsets is None:
        raise UnsupportedFeature(
            "packed offsets cannot themselves be transformed (vmap) or be fake or meta tensors"
        )
    for rows, columns in zip(pairwise(query_offsets), pairwise(key_offsets), strict=True):
        yield slice(*rows), slice(*columns), _inside(mask, slice(*rows), slice(*columns))


def _inside(mask: Mask, rows: slice, columns: slice) -> Mask:
    return mask.replace(
        key_valid=None if mask.key_valid is None else mask.key_valid[:, columns],
        allowed=_tile(mask.allowed, rows, columns),
        bias=_tile(mask.bias, rows, columns),
        cu_seqlens=None,
        key_cu_seqlens=None,
    )


def _tile(tensor: Tensor | None, rows: slice, columns: slice) -> Tensor | None:
    if tensor is None:
        return None
    if tensor.dim() >= 2 and tensor.shape[-2] != 1:
        tensor = tensor[..., rows, :]
    if tensor.dim() >= 1 and tensor.shape[-1] != 1:
        tensor = tensor[..., columns]
    return tensor
