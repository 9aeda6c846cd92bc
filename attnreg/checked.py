"""``CheckedAttention``: a variant's module behind the checks that every variant gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnreg.attention import Dims
from attnreg.decoding import CacheState, RecurrentState, State, extend_cache
from attnreg.errors import (
    OptionError,
    ShapeError,
    UnsupportedFeature,
    UnsupportedMask,
    nearest,
)
from attnreg.mask import Mask
from attnreg.packing import attend_each, weigh_each
from attnreg.tracing import is_compiling, is_transformed
from attnreg.validation import check_capabilities, check_mask, check_shapes, check_tensors
from attnreg.variant import Call, Implementation, Variant


class Explanation(NamedTuple):
    """Which implementation a call runs, and why the others do not."""

    chosen: str | None
    refused: Mapping[str, list[str]]


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

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008  # Mask() is immutable
        """Attend: (B, Hq, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv) to (B, Hq, Lq, Dv).

        Raises ``ShapeError``, ``DtypeError``, ``LengthError``, ``UnsupportedMask`` or
        ``UnsupportedFeature`` before anything is computed.
        """
        query, key, value = self._cast(query, key, value)
        self._check(query, key, value, mask)
        return self._attend(query, key, value, mask)

    def weights(self, query: Tensor, key: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008  # Mask() is immutable
        """Return the weights, (B, Hq, Lq, Lk): after softmax, before dropout, float32 or wider.

        Where ``capabilities.weights`` is "implied" they are the linear map from the values to the
        output: they may be signed and need not sum to 1.
        """
        if self.variant.capabilities.weights == "none":
            raise UnsupportedFeature(f"{self.variant.name} has no weights to show")
        query, key = self._cast(query, key)
        self._check(query, key, None, mask)
        query, key, _, mask = _without_padding(query, key, None, mask)
        weigh = self._own_weights if hasattr(self.module, "weights") else self._implied_weights
        if mask.cu_seqlens is not None and not is_compiling():
            return weigh_each(weigh, query, key, mask)
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
            raise UnsupportedFeature(
                f"{self.variant.name} cannot decode step by step; run the whole sequence instead"
            )
        if mask.query_offset is not None:
            raise ShapeError("a step counts positions itself: leave query_offset out of its mask")
        if mask.cu_seqlens is not None:
            raise UnsupportedMask("a step takes one chunk per batch item: packing has no meaning")
        query, key, value = self._cast(query, key, value)
        check_tensors(self.variant, self.module, {"query": query, "key": key, "value": value})
        check_shapes(self.dims, query, key, value)
        if query.shape[2] != key.shape[2] or query.shape[2] < 1:
            raise ShapeError(
                f"a step takes n >= 1 queries with as many keys, got {query.shape[2]} and "
                f"{key.shape[2]}"
            )
        chunk = Mask(key_valid=mask.key_valid)
        check_mask(chunk, query, key)
        query, key, value, _ = _without_padding(query, key, value, chunk)
        mask = mask.replace(causal=True)
        _check_state(state, CacheState if kind == "cache" else RecurrentState, query)
        if kind == "recurrent":
            check_capabilities(self.variant, self.dims, query, key, mask)
            step: Callable[..., tuple[Tensor, State]] = getattr(self.module, "step")  # noqa: B009  # mypy takes a module's unknown attribute for a tensor
            return step(query, key, value, state, mask)
        cache = state if isinstance(state, CacheState) else None
        cache = extend_cache(cache, query, key, value, mask.key_valid)
        mask = mask.replace(key_valid=cache.key_valid)
        check_mask(mask, query, cache.key)
        check_capabilities(self.variant, self.dims, query, query, mask)
        return self._attend(query, cache.key, cache.value, mask), cache

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
        check_tensors(self.variant, self.module, {"query": query, "key": key, "value": value})
        check_shapes(self.dims, query, key, value)
        check_mask(mask, query, key)
        try:
            check_capabilities(self.variant, self.dims, query, key, mask)
        except NotImplementedError as error:
            names = [one.name for one in self.variant.implementations]
            return Explanation(None, {name: [str(error)] for name in names})
        call = self._call(query, key, value, mask)
        chosen: str | None = None
        refused: dict[str, list[str]] = {}
        for one in self.variant.implementations:
            reasons = one.why_not(call)
            if not reasons and self.implementation not in ("auto", one.name):
                reasons = [f"implementation={self.implementation!r} was asked for"]
            if not reasons and chosen is not None:
                reasons = [f"{chosen!r} ranks higher"]
            if reasons:
                refused[one.name] = reasons
            else:
                chosen = one.name
        return Explanation(chosen, refused)

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
        own = name in self.__dict__ or name in ("variant", "dims", "implementation", "module")
        inner = self.__dict__.get("_modules", {}).get("module")
        if not own and inner is not None and name != "training" and hasattr(inner, name):
            setattr(inner, name, value)
        else:
            super().__setattr__(name, value)

    def _cast(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        device = tensors[0].device.type if isinstance(tensors[0], Tensor) else "cpu"
        if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
            return tensors
        dtype = torch.get_autocast_dtype(device)
        lowered = (torch.float16, torch.bfloat16, torch.float32)
        return tuple(
            t.to(dtype) if isinstance(t, Tensor) and t.dtype in lowered else t for t in tensors
        )

    def _check(self, query: Tensor, key: Tensor, value: Tensor | None, mask: Mask) -> None:
        tensors = {"query": query, "key": key}
        if value is not None:
            tensors["value"] = value
        check_tensors(self.variant, self.module, tensors)
        check_shapes(self.dims, query, key, value)
        check_mask(mask, query, key)
        check_capabilities(self.variant, self.dims, query, key, mask)

    def _call(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Call:
        sources = [query, key, value, *([] if mask.bias is None else [mask.bias])]
        sources += self.module.parameters()
        return Call(
            dims=self.dims,
            query_shape=tuple(query.shape),
            key_shape=tuple(key.shape),
            value_shape=tuple(value.shape),
            dtype=query.dtype,
            device=query.device,
            mask=mask,
            module=self.module,
            needs_grad=torch.is_grad_enabled() and any(t.requires_grad for t in sources),
            compiling=is_compiling(),
            transformed=is_transformed(query) or is_transformed(key) or is_transformed(value),
        )

    def _choose(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Implementation:
        ranked = self.variant.implementations
        if len(ranked) == 1:
            return ranked[0]
        call = self._call(query, key, value, mask)
        for one in ranked:
            if self.implementation not in ("auto", one.name):
                continue
            reasons = one.why_not(call)
            if not reasons:
                return one
            if self.implementation == one.name:
                raise UnsupportedFeature(
                    f"{self.variant.name}: implementation {one.name!r} cannot run this call: "
                    f"{'; '.join(reasons)}. Use implementation='auto' for one that can"
                )
        raise UnsupportedFeature(f"{self.variant.name}: no implementation can run this call")

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        query, key, value, mask = _without_padding(query, key, value, mask)
        chosen = self._choose(query, key, value, mask)

        def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
            if key.shape[2] == 0:  # nothing to attend to: exact zeros, still part of the graph
                groups = query.shape[1] // key.shape[1]
                key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
                return query @ key.transpose(-1, -2) @ value
            return chosen.forward(self.module, query, key, value, mask)

        if mask.cu_seqlens is not None and not is_compiling():
            return attend_each(attend, query, key, value, mask)
        return attend(query, key, value, mask)

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


def _without_padding(
    query: Tensor, key: Tensor, value: Tensor | None, mask: Mask
) -> tuple[Tensor, Tensor, Any, Mask]:
    """Zero what is stored in padded keys, and in packed rows that belong to no sequence."""
    if mask.key_valid is not None:
        padding = ~mask.key_valid[:, None, :, None]
        key = key.masked_fill(padding, 0.0)
        value = None if value is None else value.masked_fill(padding, 0.0)
    if mask.cu_seqlens is not None and is_compiling():  # eager code never reads those rows
        keys = mask.cu_seqlens if mask.key_cu_seqlens is None else mask.key_cu_seqlens
        outside = torch.arange(key.shape[2], device=key.device) >= keys[-1]
        key = key.masked_fill(outside[:, None], 0.0)
        value = None if value is None else value.masked_fill(outside[:, None], 0.0)
        outside = torch.arange(query.shape[2], device=query.device) >= mask.cu_seqlens[-1]
        query = query.masked_fill(outside[:, None], 0.0)
    return query, key, value, mask


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
