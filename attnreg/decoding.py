"""What a decoder carries from step to step: a cache of keys and values, or a recurrent state.

States are values: a step returns a new one, and an old one stays valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from attnreg.errors import DtypeError, ShapeError

BatchIndex = int | Sequence[int] | Tensor


class State(Protocol):
    """The opaque state of ``attn.step``."""

    @property
    def length(self) -> int:
        """How many keys it has seen, padding included."""
        ...

    def tensors(self) -> tuple[Tensor, ...]:
        """Its logical content: equal contents give equal continuations."""
        ...

    def select(self, batch_index: BatchIndex) -> Self:
        """Pick, repeat or reorder batch items, as beam search does."""
        ...


def _index(batch_index: BatchIndex, like: Tensor) -> Tensor:
    try:
        index = torch.as_tensor(batch_index, device=like.device).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ShapeError(f"batch_index must be integers, got {batch_index!r}") from error
    if index.numel() and (index.is_floating_point() or index.dtype == torch.bool):
        raise DtypeError(f"batch_index must be integers, got {index.dtype}")
    index, batch = index.to(torch.int64), like.shape[0]
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < batch:
        raise ShapeError(f"batch_index must be between 0 and {batch - 1}, got {batch_index!r}")
    return index


@dataclass(frozen=True, eq=False)
class RecurrentState:
    """A state of fixed size: tensors whose first dimension is the batch."""

    length: int
    content: tuple[Tensor, ...]

    def tensors(self) -> tuple[Tensor, ...]:
        """Its logical content, each (B, …)."""
        return self.content

    def select(self, batch_index: BatchIndex) -> RecurrentState:
        """Pick, repeat or reorder batch items."""
        index = _index(batch_index, self.content[0])
        return replace(self, content=tuple(t.index_select(0, index) for t in self.content))


class _Storage:
    """Buffers with spare room, shared by the states of one chain; ``used`` rows are taken."""

    def __init__(self, key: Tensor, value: Tensor, valid: Tensor, used: int) -> None:
        self.key = key
        self.value = value
        self.valid = valid
        self.used = used

    @property
    def capacity(self) -> int:
        return self.key.shape[2]


@dataclass(frozen=True, eq=False)
class CacheState:
    """The keys and values seen so far, (B, Hkv, length, D) and (B, Hkv, length, Dv).

    The newest state writes the next chunk into spare room and copies nothing; continuing from an
    older state, or with gradients, copies, so that every state stays usable.
    """

    length: int
    storage: _Storage
    padded: bool
    """Whether any key was declared padding: an unpadded cache needs no mask."""

    @property
    def key(self) -> Tensor:
        """The keys, (B, Hkv, length, D)."""
        return self.storage.key[:, :, : self.length]

    @property
    def value(self) -> Tensor:
        """The values, (B, Hkv, length, Dv)."""
        return self.storage.value[:, :, : self.length]

    @property
    def key_valid(self) -> Tensor | None:
        """Which keys are real, (B, length); None where all are."""
        return self.storage.valid[:, : self.length] if self.padded else None

    def tensors(self) -> tuple[Tensor, ...]:
        """Keys, values, and which keys are real."""
        return self.key, self.value, self.storage.valid[:, : self.length]

    def select(self, batch_index: BatchIndex) -> CacheState:
        """Pick, repeat or reorder batch items, into storage of their own."""
        index = _index(batch_index, self.storage.key)
        key, value, valid = (tensor.index_select(0, index) for tensor in self.tensors())
        return replace(self, storage=_Storage(key, value, valid, self.length))


def extend_cache(
    state: CacheState | None, key: Tensor, value: Tensor, key_valid: Tensor | None, tracked: bool
) -> CacheState:
    """Append a chunk of keys and values to a cache; None starts one.

    ``tracked`` says that autograd may come to need the old rows, or must see the new ones.
    """
    batch, _, count, _ = key.shape
    valid = key_valid
    if valid is None:
        valid = torch.ones(batch, count, dtype=torch.bool, device=key.device)
    if state is None:
        # A copy: the caller may write into its tensors afterwards, and a state is a value.
        storage = _Storage(key.clone(), value.clone(), valid.clone(), count)
        return CacheState(count, storage, key_valid is not None)
    _check_cache(state, key, value)
    storage, length = state.storage, state.length
    total = length + count
    padded = state.padded or key_valid is not None
    kept = (storage.key, storage.value)
    if tracked or (torch.is_grad_enabled() and any(t.requires_grad for t in kept)):
        parts = zip(state.tensors(), (key, value, valid), (2, 2, 1), strict=True)
        key, value, valid = (torch.cat([old, new], dim=axis) for old, new, axis in parts)
        return CacheState(total, _Storage(key, value, valid, total), padded)
    sealed = storage.key.is_inference() and not torch.is_inference_mode_enabled()
    if storage.used != length or storage.capacity < total or sealed:
        storage = _roomier(state, max(total, 2 * length))
    storage.key[:, :, length:total] = key
    storage.value[:, :, length:total] = value
    storage.valid[:, length:total] = valid
    storage.used = total
    return CacheState(total, storage, padded)


def _roomier(state: CacheState, capacity: int) -> _Storage:
    old_key, old_value, old_valid = state.tensors()
    batch, heads, length, _ = old_key.shape
    key = old_key.new_zeros(batch, heads, capacity, old_key.shape[3])
    value = old_value.new_zeros(batch, heads, capacity, old_value.shape[3])
    valid = old_valid.new_zeros(batch, capacity)
    key[:, :, :length] = old_key
    value[:, :, :length] = old_value
    valid[:, :length] = old_valid
    return _Storage(key, value, valid, length)


def _check_cache(state: CacheState, key: Tensor, value: Tensor) -> None:
    for name, old, new in (("keys", state.key, key), ("values", state.value, value)):
        if old.shape[1] != new.shape[1] or old.shape[3] != new.shape[3]:
            raise ShapeError(
                f"the state holds {name} of shape {tuple(old.shape)}, the chunk brings "
                f"{tuple(new.shape)}; states cannot move between modules of different sizes"
            )
        if old.dtype != new.dtype or old.device != new.device:
            raise DtypeError(
                f"the state holds {name} of {old.dtype} on {old.device}, the chunk brings "
                f"{new.dtype} on {new.device}; decode a sequence in one dtype on one device"
            )
