"""Check a call before anything is computed: shapes, dtypes, devices, the mask, the capabilities."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from attnreg.attention import Dims
from attnreg.errors import (
    DtypeError,
    LengthError,
    MaskTypeError,
    ShapeError,
    UnsupportedFeature,
    UnsupportedMask,
)
from attnreg.mask import MASK_FIELDS, Mask, host_values
from attnreg.variant import Variant

_LAYOUT = {
    "query": "(batch, num_heads, query_length, head_dim)",
    "key": "(batch, num_kv_heads, key_length, head_dim)",
    "value": "(batch, num_kv_heads, key_length, value_dim)",
}

Signature = tuple[object, ...]
"""All that the checks of a call read, where they read no tensor of a mask."""


def signature(
    own: Tensor | None, query: Tensor, key: Tensor, value: Tensor, mask: Mask
) -> Signature | None:
    """Return what makes one call pass every check that another passed; None where more does.

    Comparing it is several times as fast as the checks.
    """
    if not (type(query) is type(key) is type(value) is Tensor and type(mask) is Mask):
        return None
    if torch.compiler.is_compiling() or query.is_nested or key.is_nested or value.is_nested:
        return None
    if mask.has_tensors:
        return None
    return (
        *(query.shape, key.shape, value.shape),
        *(query.dtype, key.dtype, value.dtype),
        *(query.device, key.device, value.device, own if own is None else own.device),
        *(query.layout, key.layout, value.layout),
        *(mask.causal, mask.window, mask.query_offset),
    )


def check_tensors(variant: Variant, own: Tensor | None, tensors: dict[str, Tensor]) -> None:
    """Check rank, dtype and device of ``query``, ``key`` and perhaps ``value``.

    ``own`` is any parameter or buffer of the module, None where it has none.
    """
    query = tensors["query"]
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise DtypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor.layout != torch.strided or tensor.is_nested:
            raise DtypeError(f"{name} must be a dense tensor, got layout {tensor.layout}")
        if tensor.dim() != 4:
            raise ShapeError(
                f"{name} must have 4 dimensions, {_LAYOUT[name]}, got {tensor.dim()}: "
                f"{tuple(tensor.shape)}"
            )
        if not tensor.is_floating_point():
            raise DtypeError(f"{name} must be floating point, got {tensor.dtype}")
        if tensor.dtype != query.dtype:
            raise DtypeError(
                f"query, key and value must share one dtype: query is {query.dtype}, {name} is "
                f"{tensor.dtype}; convert them, or call under torch.autocast"
            )
        if tensor.device != query.device:
            raise DtypeError(
                f"query, key and value must be on one device: query is on {query.device}, {name} "
                f"on {tensor.device}"
            )
    allowed = variant.capabilities.dtypes
    if str(query.dtype).removeprefix("torch.") not in allowed:
        raise DtypeError(f"{variant.name} takes {', '.join(allowed)}; query is {query.dtype}")
    if own is not None and own.device != query.device:
        raise DtypeError(
            f"the module is on {own.device} and query on {query.device}; move one of them, as in "
            f"attn.to({str(query.device)!r})"
        )


def check_shapes(dims: Dims, query: Tensor, key: Tensor, value: Tensor | None) -> None:
    """Check the sizes of the call against each other and against the module's ``Dims``."""
    batch, _, query_length, _ = query.shape
    key_length = key.shape[2]
    fits = (
        query.shape == (batch, dims.num_heads, query_length, dims.head_dim)
        and key.shape == (batch, dims.num_kv_heads, key_length, dims.head_dim)
        and (value is None or value.shape == (*key.shape[:3], dims.value_dim))
    )
    if fits:
        return
    _expect("query", query, 1, dims.num_heads, "num_heads")
    _expect("query", query, 3, dims.head_dim, "head_dim")
    _expect("key", key, 0, batch, "the batch of query")
    if key.shape[1] != dims.num_kv_heads and dims.num_heads % max(int(key.shape[1]), 1):
        raise ShapeError(
            f"key has {key.shape[1]} heads, which does not divide the {dims.num_heads} of query"
        )
    _expect("key", key, 1, dims.num_kv_heads, "num_kv_heads")
    _expect("key", key, 3, dims.head_dim, "head_dim")
    if value is None:
        return
    _expect("value", value, 0, batch, "the batch of query")
    _expect("value", value, 1, dims.num_kv_heads, "num_kv_heads")
    _expect("value", value, 2, key.shape[2], "the key length")
    _expect("value", value, 3, dims.value_dim, "value_dim")


def check_mask(mask: Mask, query: Tensor, key: Tensor, length: int) -> None:
    """Check that every tensor of the mask fits the call, whose queries see ``length`` keys.

    ``key_valid`` covers ``key``: in decoding that is the last chunk of the ``length`` keys.
    """
    if not isinstance(mask, Mask):
        raise MaskTypeError(
            f"mask must be an attnreg.Mask, got {type(mask).__name__}; "
            "wrap a boolean tensor as Mask(allowed=tensor), True may attend"
        )
    batch, heads, query_length = query.shape[:3]
    key_length = key.shape[2]
    if mask.key_valid is not None and tuple(mask.key_valid.shape) != (batch, key_length):
        raise ShapeError(
            f"key_valid must be (batch, key_length) = ({batch}, {key_length}), "
            f"got {tuple(mask.key_valid.shape)}"
        )
    full = (batch, heads, query_length, length)
    for name in ("allowed", "bias"):
        tensor = getattr(mask, name)
        if tensor is None:
            continue
        sizes = tuple(tensor.shape)
        short = (1,) * (4 - len(sizes)) + sizes
        if len(sizes) > 4 or any(
            size != 1 and size != want for size, want in zip(short, full, strict=True)
        ):
            raise ShapeError(
                f"{name} of shape {sizes} does not broadcast to (batch, num_heads, query_length, "
                f"key_length) = {full}"
            )
    for name in ("key_valid", "allowed", "bias"):
        tensor = getattr(mask, name)
        if tensor is not None and tensor.device != query.device:
            raise DtypeError(
                f"mask {name} is on {tensor.device} and query on {query.device}; move one of them"
            )
    if mask.cu_seqlens is not None:
        if batch != 1:
            raise ShapeError(f"packed sequences lie in a batch of 1, got a batch of {batch}")
        keys = mask.cu_seqlens if mask.key_offsets is None else mask.key_offsets
        for name, offsets, length in (
            ("cu_seqlens", mask.cu_seqlens, query_length),
            ("key_cu_seqlens", keys, key_length),
        ):
            values = None if torch.compiler.is_compiling() else host_values(offsets)
            if values is not None and values[-1] > length:
                raise ShapeError(
                    f"{name} ends at {values[-1]}, past the {length} rows that the call has"
                )


def check_capabilities(variant: Variant, query: Tensor, key: Tensor, mask: Mask) -> None:
    """Refuse what the variant does not declare, naming it and the variants that do."""
    able = variant.capabilities
    for name in mask.used():
        if not getattr(able, name):
            honoured = ", ".join(field for field in MASK_FIELDS if getattr(able, field)) or "none"
            raise UnsupportedMask(
                f"{variant.name} cannot honour mask field {name!r}{reason_for(variant, name)}. "
                f"It honours: {honoured}.{others_with(name)}"
            )
    if not able.noncausal and not mask.causal:
        raise UnsupportedMask(
            f"{variant.name} is causal only{reason_for(variant, 'noncausal')}; "
            f"pass Mask(causal=True).{others_with('noncausal')}"
        )
    if not able.cross and (query.shape[2] != key.shape[2] or mask.key_cu_seqlens is not None):
        raise UnsupportedFeature(
            f"{variant.name} needs as many queries as keys, got {query.shape[2]} and "
            f"{key.shape[2]}.{others_with('cross')}"
        )


def check_length(variant: Variant, dims: Dims, key_length: int, mask: Mask) -> None:
    """Refuse more keys than a variant of fixed length was built for."""
    if variant.capabilities.fixed_length and dims.max_length is not None:
        length = _longest(mask, key_length)
        if length > dims.max_length:
            raise LengthError(
                f"{variant.name} was built for at most max_length={dims.max_length} keys, got "
                f"{length}; build it with a larger max_length"
            )


def check_dims(variant: Variant, dims: Dims) -> None:
    """Refuse sizes that the variant does not declare, when it is built."""
    able = variant.capabilities
    if dims.num_kv_heads != dims.num_heads and not able.grouped:
        raise UnsupportedFeature(
            f"{variant.name} needs num_kv_heads == num_heads, got {dims.num_kv_heads} and "
            f"{dims.num_heads}.{others_with('grouped')}"
        )
    if dims.value_dim != dims.head_dim and not able.value_dim:
        raise UnsupportedFeature(
            f"{variant.name} needs value_dim == head_dim, got {dims.value_dim} and "
            f"{dims.head_dim}.{others_with('value_dim')}"
        )
    if able.fixed_length and dims.max_length is None:
        raise LengthError(
            f"{variant.name} has a fixed length: give max_length, the largest number of keys"
        )


def _expect(name: str, tensor: Tensor, axis: int, size: int, what: str) -> None:
    if tensor.shape[axis] != size:
        raise ShapeError(
            f"{name} must be {_LAYOUT[name]} with size {size} in dimension {axis} ({what}), "
            f"got {tuple(tensor.shape)}"
        )


def _longest(mask: Mask, key_length: int) -> int:
    offsets = mask.key_offsets
    if offsets is None or torch.compiler.is_compiling():
        return key_length
    values = host_values(offsets)
    if values is None:
        return key_length
    return max((b - a for a, b in pairwise(values)), default=0)


def reason_for(variant: Variant, capability: str) -> str:
    """Say why a variant lacks a capability, where its factory has ``reasons``."""
    why = getattr(variant.factory, "reasons", {}).get(capability)
    return f": {why}" if why else ""


def others_with(capability: str) -> str:
    """Name the registered variants that have a capability."""
    if torch.compiler.is_compiling():
        return ""
    from attnreg.registry import default_registry  # the registry builds modules that need this

    able = [
        v.name
        for v in default_registry().values()
        if getattr(v.capabilities, capability) not in (False, "none")
    ]
    return f" Variants that can: {', '.join(able)}." if able else ""
