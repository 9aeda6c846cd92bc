"""``CheckedAttention``: a variant's module behind the checks that every variant gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from attnreg.attention import Dims
from attnreg.call import Call, needs_grad
from attnreg.choosing import Explanation, choose, explain
from attnreg.decoding import CacheState, RecurrentState, State, extend_cache
from attnreg.errors import (
    OptionError,
    ShapeError,
    UnsupportedFeature,
    UnsupportedMask,
    nearest,
)
from attnreg.functional import attend_to_nothing, zero_where
from attnreg.mask import Mask
from attnreg.packing import attend_each, weigh_each
from attnreg.tracing import autocasts
from attnreg.validation import (
    Signature,
    check_capabilities,
    check_length,
    check_mask,
    check_shapes,
    check_tensors,
    others_with,
    reason_for,
    signature,
)
from attnreg.variant import Implementation, Variant


class CheckedAttention(nn.Module):
    """A variant's module, with every call checked before anything is computed.

    ``module`` is the module that the variant's factory built; its attributes and methods are
    reachable here too, so that ``attn.redraw()`` works where the variant has it.
    """

    def __init__(
        self, variant: Variant, module: nn.Module, dims: Dims, implementation: str = "auto"
    ) -> None:
        super().__init__()
        names = [one.name for one in variant.implementations]
        if implementation != "auto" and implementation not in names:
            raise OptionError(
                f"{variant.name} has no implementation {implementation!r}."
                f"{nearest(implementation, names)} It has: auto, {', '.join(names)}"
            )
        self.variant = variant
        self.dims = dims
        self.implementation = implementation
        self.module = module
        self._holds_tensors = next(_tensors(module), None) is not None
        self._signature: Signature | None = None  # of the last call that was found right

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008  # Mask() is immutable
        """Attend: (B, Hq, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv) to (B, Hq, Lq, Dv).

        Raises ``ShapeError``, ``DtypeError``, ``LengthError``, ``UnsupportedMask`` or
        ``UnsupportedFeature`` before anything is computed.
        """
        module = self.module  # once: torch looks submodules up slowly
        query, key, value = self._cast(query, key, value)
        self._check(module, query, key, value, mask)
        key, value = _without_padding(mask, key, value)
        return self._run(module, query, key, value, mask)

    def weights(self, query: Tensor, key: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008  # Mask() is immutable
        """Return the weights, (B, Hq, Lq, Lk): after softmax, before dropout, float32 or wider.

        Where ``capabilities.weights`` is "implied" they are the linear map from the values to the
        output: they may be signed and need not sum to 1.
        """
        if self.variant.capabilities.weights == "none":
            raise UnsupportedFeature(f"{self.variant.name} has no weights to show")
        query, key = self._cast(query, key)
        self._check(self.module, query, key, None, mask)
        (key,) = _without_padding(mask, key)
        own = self.variant.capabilities.weights == "exact" and hasattr(type(self.module), "weights")
        weigh = self._own_weights if own else self._implied_weights
        if not own and self.module.training and self.variant.capabilities.dropout:
            raise UnsupportedFeature(
                f"{self.variant.name} shows its weights through its output, which dropout "
                "changes: call eval() first"
            )
        if mask.cu_seqlens is not None and not torch.compiler.is_compiling():
            return weigh_each(weigh, query, key, mask)
        query, key = _without_tail(mask, query, key)
        return weigh(query, key, mask)

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: State | None = None,
        mask: Mask = Mask(),  # noqa: B008  # Mask() is immutable
    ) -> tuple[Tensor, State]:
        """Decode the next chunk of any length n >= 1; ``state=None`` starts a sequence.

        Causality is implied. ``mask.key_valid`` (B, n) covers the chunk's keys, ``allowed`` and
        ``bias`` span (n, length + n); an explicit ``query_offset`` is a ``ShapeError``.
        """
        kind = self.variant.capabilities.decode
        if kind == "none":
            why = reason_for(self.variant, "causal")
            raise UnsupportedFeature(
                f"{self.variant.name} cannot decode step by step{why}; run the whole sequence "
                f"instead.{others_with('decode')}"
            )
        query, key, value = self._cast(query, key, value)
        check_tensors(
            self.variant, self._own(self.module), {"query": query, "key": key, "value": value}
        )
        check_shapes(self.dims, query, key, value)
        if query.shape[2] != key.shape[2] or query.shape[2] < 1:
            raise ShapeError(
                f"a step takes n >= 1 queries with as many keys, got {query.shape[2]} and "
                f"{key.shape[2]}"
            )
        _check_state(state, CacheState if kind == "cache" else RecurrentState, query)
        length = key.shape[2] + (0 if state is None else state.length)
        check_mask(mask, query, key, length)
        if mask.query_offset is not None:
            raise ShapeError("a step counts positions itself: leave query_offset out of its mask")
        if mask.cu_seqlens is not None:
            raise UnsupportedMask("a step takes one chunk per batch item: packing has no meaning")
        mask = mask.replace(causal=True)
        check_capabilities(self.variant, query, query, mask)  # a chunk is no cross-attention
        check_length(self.variant, self.dims, length, mask)
        key, value = _without_padding(mask, key, value)
        if kind == "recurrent":
            step: Callable[..., tuple[Tensor, State]] = getattr(self.module, "step")  # noqa: B009  # mypy takes a module's unknown attribute for a tensor
            return step(query, key, value, state, mask)
        cache = state if isinstance(state, CacheState) else None
        tracked = needs_grad(self.module, query, key, value, mask)
        cache = extend_cache(cache, key, value, mask.key_valid, tracked)
        mask = mask.replace(key_valid=cache.key_valid)  # what it hides is zero in the cache
        return self._run(self.module, query, cache.key, cache.value, mask), cache

    def explain(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask = Mask(),  # noqa: B008  # Mask() is immutable
    ) -> Explanation:
        """Say which implementation this call would run, and why not the others; compute nothing.

        A call that the variant refuses has ``chosen`` None and the refusal as every reason.
        """
        query, key, value = self._cast(query, key, value)
        try:
            self._check(self.module, query, key, value, mask)
        except NotImplementedError as error:
            names = [one.name for one in self.variant.implementations]
            return Explanation(None, {name: [str(error)] for name in names})
        call = self._call(self.module, query, key, value, mask)
        return explain(self.variant, self.implementation, call)

    def extra_repr(self) -> str:
        """Show the variant and how it is computed."""
        return f"{self.variant.name}, implementation={self.implementation!r}"

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":  # not set yet, or not restored yet by copy
                raise
            return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # What is read from the inner module is also set there: never a shadow without effect.
        modules = self.__dict__.get("_modules", {})
        here = name in self.__dict__ or name in modules or hasattr(type(self), name)
        inner = None if here else modules.get("module")
        if inner is not None and hasattr(inner, name):
            setattr(inner, name, value)
        else:
            super().__setattr__(name, value)

    def _cast(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        device = tensors[0].device.type if isinstance(tensors[0], Tensor) else "cpu"
        if not autocasts(device):
            return tensors
        dtype = torch.get_autocast_dtype(device)
        lowered = (torch.float16, torch.bfloat16, torch.float32)
        return tuple(
            t.to(dtype) if isinstance(t, Tensor) and t.dtype in lowered else t for t in tensors
        )

    def _own(self, module: nn.Module) -> Tensor | None:
        # Walking through a module costs more than all other checks: not where nothing is found.
        return next(_tensors(module), None) if self._holds_tensors else None

    def _check(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor | None, mask: Mask
    ) -> None:
        own = self._own(module)
        alike = None if value is None else signature(own, query, key, value, mask)
        if alike is not None and alike == self._signature:
            return
        tensors = {"query": query, "key": key}
        if value is not None:
            tensors["value"] = value
        check_tensors(self.variant, own, tensors)
        check_shapes(self.dims, query, key, value)
        check_mask(mask, query, key, key.shape[2])
        check_capabilities(self.variant, query, key, mask)
        check_length(self.variant, self.dims, key.shape[2], mask)
        if alike is not None:
            self._signature = alike

    def _call(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Mask
    ) -> Call:
        named = self.implementation != "auto"
        return Call(self.dims, module, query, key, value, mask, named, self._holds_tensors)

    def _run(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Mask
    ) -> Tensor:
        """Attend on checked tensors whose padding holds zeros."""
        chosen = self.variant.implementations[0]
        if len(self.variant.implementations) > 1:
            call = self._call(module, query, key, value, mask)
            chosen = choose(self.variant, self.implementation, call)
        if mask.cu_seqlens is None:
            return _attend(chosen, module, query, key, value, mask)
        attend = partial(_attend, chosen, module)
        if chosen.packed or torch.compiler.is_compiling():
            query, key, value = _without_tail(mask, query, key, value)
            return attend(query, key, value, mask)
        return attend_each(attend, query, key, value, mask)

    def _own_weights(self, query: Tensor, key: Tensor, mask: Mask) -> Tensor:
        weigh: Callable[..., Tensor] = getattr(self.module, "weights")  # noqa: B009  # as in step
        return weigh(query, key, mask)

    def _implied_weights(self, query: Tensor, key: Tensor, mask: Mask) -> Tensor:
        # Attending to the columns of an identity matrix, value_dim of them at a time.
        length, width = key.shape[2], self.dims.value_dim
        wide = torch.float32 if query.dtype.itemsize < 4 else query.dtype
        allowed = str(wide).removeprefix("torch.") in self.variant.capabilities.dtypes
        query, key = (query.to(wide), key.to(wide)) if allowed else (query, key)
        columns: list[Tensor] = []
        identity = torch.eye(length, dtype=query.dtype, device=query.device)
        for start in range(0, length, width):
            part = torch.nn.functional.pad(
                identity[:, start : start + width], (0, max(0, start + width - length))
            )
            value = part.expand(*key.shape[:2], length, width)
            columns.append(self.module(query, key, value, mask)[..., : length - start])
        if not columns:
            return query.new_zeros(*query.shape[:3], 0).to(wide)
        return torch.cat(columns, dim=-1).to(wide)


def _attend(
    chosen: Implementation,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
) -> Tensor:
    if key.shape[2] == 0:
        return attend_to_nothing(query, key, value)
    return chosen.forward(module, query, key, value, mask)


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    return chain(module.parameters(), module.buffers())


def _without_padding(mask: Mask, *keys: Tensor) -> tuple[Tensor, ...]:
    """Zero what is stored in padded keys and their values."""
    if mask.key_valid is None:
        return keys
    padding = ~mask.key_valid[:, None, :, None]
    return tuple(zero_where(t, padding) for t in keys)


def _without_tail(mask: Mask, query: Tensor, *keys: Tensor) -> tuple[Tensor, ...]:
    """Zero the packed rows past the last offset, for code that reads all rows at once."""
    if mask.cu_seqlens is None or mask.key_offsets is None:
        return query, *keys
    end = mask.key_offsets[-1]
    return _zero_from(query, mask.cu_seqlens[-1]), *(_zero_from(t, end) for t in keys)


def _zero_from(tensor: Tensor, end: Tensor) -> Tensor:
    index = torch.arange(tensor.shape[2], device=tensor.device)
    return zero_where(tensor, (index >= end.to(tensor.device))[:, None])


def _check_state(state: State | None, kind: type, query: Tensor) -> None:
    if state is None:
        return
    if not isinstance(state, kind):
        raise ShapeError(
            f"state must be the {kind.__name__} of an earlier step, got {type(state).__name__}"
        )
    batch = state.tensors()[0].shape[0]
    if batch != query.shape[0]:
        raise ShapeError(
            f"the state holds a batch of {batch} and query one of {query.shape[0]}; "
            "state.select(batch_index) picks items"
        )
