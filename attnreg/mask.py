"""``Mask``: one frozen value that says who may attend to whom. True always means "may attend"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from attnreg.errors import MaskTypeError, ShapeError

MaskField = Literal["causal", "window", "key_valid", "allowed", "bias", "packed"]
MASK_FIELDS: tuple[MaskField, ...] = get_args(MaskField)

# What people pass by mistake. Anything else that is not a tensor is let through: torch's pytrees
# rebuild a Mask around placeholders of their own while they trace, export or transform.
_MISTAKES = (bool, int, float, complex, str, list, tuple, dict)


FARTHEST = 2**62
"""Positions stay below it, so that sums of two of them fit into int64."""


@dataclass(frozen=True, eq=False)
class Mask:
    """Who may attend to whom; the fields intersect, and ``Mask()`` hides nothing.

    ==================  ==============================  =========================================
    field               type                            key j is visible to query i iff
    ==================  ==============================  =========================================
    ``causal``          bool                            ``j <= i + offset``
    ``query_offset``    int or None                     (the offset; None is Lk - Lq, so that the
                                                        last query sees the last key; 0 is torch's
                                                        ``is_causal``)
    ``window``          (left, right) or None           ``i + offset - left <= j <= i + offset +
                                                        right``; None on a side is unbounded
    ``key_valid``       bool (B, Lk)                    key j is real; what is stored in the others
                                                        reaches nothing, NaN included
    ``allowed``         bool, to (B, Hq, Lq, Lk)        the entry is True
    ``bias``            float, to (B, Hq, Lq, Lk)       the entry is not -inf; it is added to the
                                                        scaled score and may need a gradient
    ``cu_seqlens``      int32 (N + 1,)                  both lie in the same packed sequence (B = 1)
    ``key_cu_seqlens``  int32 (N + 1,); None: the same
    ==================  ==============================  =========================================

    With packing, positions, offset and window count inside each sequence, while ``key_valid``,
    ``allowed`` and ``bias`` stay in packed coordinates; rows past the last offset give 0.

    Raises ``MaskTypeError`` for a field of the wrong type (an integer mask, a float ``allowed``)
    and ``ShapeError`` for offsets or sizes that cannot be.
    """

    causal: bool = False
    query_offset: int | None = None
    window: tuple[int | None, int | None] | None = None
    key_valid: Tensor | None = None
    allowed: Tensor | None = None
    bias: Tensor | None = None
    cu_seqlens: Tensor | None = None
    key_cu_seqlens: Tensor | None = None

    def __post_init__(self) -> None:
        if torch.compiler.is_compiling():  # the values are symbols then; eager code checked them
            return
        _check_scalars(self)
        for name in ("key_valid", "allowed"):
            _check_tensor(name, getattr(self, name), torch.bool)
        _check_tensor("bias", self.bias, None)
        if self.key_cu_seqlens is not None and self.cu_seqlens is None:
            raise ShapeError("key_cu_seqlens without cu_seqlens: give the query offsets too")
        for name in ("cu_seqlens", "key_cu_seqlens"):
            _check_offsets(name, getattr(self, name))
        query, key = self.cu_seqlens, self.key_cu_seqlens
        if isinstance(query, Tensor) and isinstance(key, Tensor) and query.shape != key.shape:
            raise ShapeError(
                f"cu_seqlens has {query.shape[0]} offsets and key_cu_seqlens {key.shape[0]}: "
                "both describe the same sequences, so give equally many (a sequence may be empty)"
            )

    @staticmethod
    def from_lengths(lengths: Sequence[int] | Tensor, max_length: int | None = None) -> Mask:
        """Key padding on the right: item b keeps its first ``lengths[b]`` keys of ``max_length``.

        ``max_length`` defaults to the longest. Raises ``ShapeError`` where a length is negative or
        above it.
        """
        sizes = _lengths(lengths)
        longest = int(sizes.max()) if len(sizes) else 0
        max_length = longest if max_length is None else max_length
        if longest > max_length:
            raise ShapeError(f"a length of {longest} does not fit into max_length={max_length}")
        return Mask(key_valid=torch.arange(max_length, device=sizes.device) < sizes[:, None])

    @staticmethod
    def packed(
        lengths: Sequence[int] | Tensor, key_lengths: Sequence[int] | Tensor | None = None
    ) -> Mask:
        """Sequences of these lengths laid end to end along L, in a batch of one."""
        keys = None if key_lengths is None else _offsets(_lengths(key_lengths))
        return Mask(cu_seqlens=_offsets(_lengths(lengths)), key_cu_seqlens=keys)

    @staticmethod
    def from_torch(
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        num_heads: int | None = None,
    ) -> Mask:
        """Translate the arguments of ``nn.MultiheadAttention``, where True means "hide".

        ``attn_mask``: bool or float, (L, S) or (N * num_heads, L, S); ``key_padding_mask``: bool
        or float, (N, S). A float entry is added to the score, as there. This is the only place
        that inverts a mask. ``is_causal`` here hides by itself and is top-left, as in torch.
        """
        allowed, bias, key_valid = None, None, None
        if attn_mask is not None:
            if attn_mask.dim() == 3:
                if num_heads is None or attn_mask.shape[0] % num_heads:
                    raise ShapeError(
                        f"attn_mask of shape {tuple(attn_mask.shape)} holds a mask per item and "
                        f"head: its first size must be a multiple of num_heads, got {num_heads}"
                    )
                attn_mask = attn_mask.unflatten(0, (-1, num_heads))
            elif attn_mask.dim() != 2:
                raise ShapeError(
                    f"attn_mask must be (L, S) or (N * num_heads, L, S), "
                    f"got {tuple(attn_mask.shape)}"
                )
            if attn_mask.dtype == torch.bool:
                allowed = ~attn_mask
            else:
                bias = attn_mask
        if key_padding_mask is not None:
            if key_padding_mask.dim() != 2:
                raise ShapeError(
                    f"key_padding_mask must be (N, S), got {tuple(key_padding_mask.shape)}"
                )
            if key_padding_mask.dtype == torch.bool:
                key_valid = ~key_padding_mask
            else:
                padding = key_padding_mask[:, None, None, :]
                bias = padding if bias is None else bias + padding
        return Mask(
            causal=is_causal,
            query_offset=0 if is_causal else None,
            key_valid=key_valid,
            allowed=allowed,
            bias=bias,
        )

    def __and__(self, other: Mask) -> Mask:
        """Both must allow: booleans AND, biases add, windows take the smaller side.

        Raises ``ShapeError`` (a ``ValueError``) where the two count positions from different
        offsets or pack the sequences differently.
        """
        if not isinstance(other, Mask):
            return NotImplemented
        return Mask(
            causal=self.causal or other.causal,
            query_offset=_same_offset(self, other),
            window=_narrower(self.window, other.window),
            key_valid=_both(self.key_valid, other.key_valid, torch.logical_and),
            allowed=_both(self.allowed, other.allowed, torch.logical_and),
            bias=_both(self.bias, other.bias, torch.add),
            **_same_packing(self, other),
        )

    def dense(
        self,
        query_length: int,
        key_length: int,
        *,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Return every field as one bool tensor, (1 or B, 1 or Hq, Lq, Lk), True may attend.

        It holds Lq * Lk entries: for looking and testing, not for long sequences.
        """
        from attnreg.lowering import LoweredMask  # which needs this module

        if device is None:
            tensors = (getattr(self, field.name) for field in fields(self))
            device = next((t.device for t in tensors if isinstance(t, Tensor)), None)
        lowered = LoweredMask(self, query_length, key_length, torch.device(device or "cpu"))
        visible = lowered.visible()
        if visible is None:
            return torch.ones(1, 1, query_length, key_length, dtype=torch.bool, device=device)
        return visible.expand(*visible.shape[:2], query_length, key_length).clone()

    @property
    def key_offsets(self) -> Tensor | None:
        """The packed offsets of the keys: those of the queries, unless they have their own."""
        return self.cu_seqlens if self.key_cu_seqlens is None else self.key_cu_seqlens

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The fields that are tensors, but for ``bias``, which may get a gradient."""
        fields = (self.key_valid, self.allowed, self.cu_seqlens, self.key_cu_seqlens)
        return tuple(t for t in fields if t is not None)

    @property
    def has_tensors(self) -> bool:
        """Whether any field is a tensor."""
        return not (
            self.key_valid is None
            and self.allowed is None
            and self.bias is None
            and self.cu_seqlens is None
        )

    def used(self) -> tuple[MaskField, ...]:
        """Return the fields that hide or weigh something, by the names of ``Capabilities``."""
        present = (
            self.causal,
            self.window is not None,
            self.key_valid is not None,
            self.allowed is not None,
            self.bias is not None,
            self.cu_seqlens is not None,
        )
        if not any(present):  # the commonest mask of all
            return ()
        return tuple(name for name, here in zip(MASK_FIELDS, present, strict=True) if here)

    def replace(self, **changes: Any) -> Mask:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


torch.export.register_dataclass(Mask, serialized_type_name="attnreg.Mask")


def _check_scalars(mask: Mask) -> None:
    causal, offset, window = mask.causal, mask.query_offset, mask.window
    if isinstance(causal, (*_MISTAKES, Tensor)) and not isinstance(causal, bool):
        raise MaskTypeError(f"causal must be True or False, got {causal!r}")
    if isinstance(offset, (bool, float, str, list, tuple, Tensor)):
        raise MaskTypeError(f"query_offset must be an integer or None, got {offset!r}")
    if isinstance(offset, int) and not -FARTHEST < offset < FARTHEST:
        raise ShapeError(f"query_offset must be between -2**62 and 2**62, got {offset}")
    if window is None:
        return
    if isinstance(window, (bool, int, float, str, Tensor)) or (
        isinstance(window, (list, tuple)) and len(window) != 2
    ):
        raise MaskTypeError(f"window must be a pair (left, right) or None, got {window!r}")
    for name, side in zip(("left", "right"), window, strict=True):
        if isinstance(side, (bool, float, str, Tensor)):
            raise MaskTypeError(f"window {name} must be an integer or None, got {side!r}")
        if isinstance(side, int) and not 0 <= side < FARTHEST:
            raise ShapeError(
                f"window {name} must be at least 0 and below 2**62, or None for no limit, "
                f"got {side}"
            )


def _check_tensor(name: str, value: object, dtype: torch.dtype | None) -> None:
    if isinstance(value, Tensor):
        if dtype is None and not value.is_floating_point():
            raise MaskTypeError(
                f"{name} is added to the score and must be floating point, got {value.dtype}; "
                "a boolean mask belongs in allowed"
            )
        if dtype is not None and value.dtype != dtype:
            raise MaskTypeError(
                f"{name} must be boolean (True: may attend), got {value.dtype}; compare it first, "
                "as in tensor != 0, or pass a float mask as bias"
            )
    elif isinstance(value, _MISTAKES) or type(value).__module__ == "numpy":
        raise MaskTypeError(f"{name} must be a tensor or None, got {type(value).__name__}")


def _check_offsets(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        if isinstance(value, _MISTAKES) or type(value).__module__ == "numpy":
            raise MaskTypeError(
                f"{name} must be an int32 tensor or None, got {type(value).__name__}; "
                "Mask.packed(lengths) builds it"
            )
        return
    if value.dtype not in (torch.int32, torch.int64):
        raise MaskTypeError(f"{name} must be an int32 tensor of offsets, got {value.dtype}")
    if value.dim() != 1 or value.shape[0] < 2:
        raise ShapeError(
            f"{name} must have shape (N + 1,) with N >= 1 sequences, which may be empty; got "
            f"{tuple(value.shape)}"
        )
    offsets = host_values(value)
    if offsets is None:
        return
    if offsets[0] != 0:
        raise ShapeError(f"{name} must start at 0, got {offsets[0]}")
    for before, after in pairwise(offsets):
        if after < before:
            raise ShapeError(f"{name} must never fall, got {before} followed by {after}")


def host_values(offsets: Tensor) -> list[int] | None:
    """Return the values of a small integer tensor, or None where a tracer has only a symbol."""
    try:
        return [int(value) for value in offsets.tolist()]
    except (RuntimeError, NotImplementedError):  # vmap, meta and fake tensors hold no values
        return None


def _lengths(lengths: Sequence[int] | Tensor) -> Tensor:
    try:
        sizes = torch.as_tensor(lengths)
    except (TypeError, ValueError, RuntimeError) as error:
        raise MaskTypeError(f"lengths must be integers, got {lengths!r}") from error
    if sizes.numel() == 0:
        sizes = sizes.to(torch.int64)
    if sizes.dtype == torch.bool or sizes.is_floating_point() or sizes.is_complex():
        raise MaskTypeError(f"lengths must be integers, got {sizes.dtype}")
    if sizes.dim() != 1:
        raise ShapeError(f"lengths must have shape (N,), got {tuple(sizes.shape)}")
    if bool((sizes < 0).any()):
        raise ShapeError(f"lengths must be 0 or more, got {int(sizes.min())}")
    return sizes


def _offsets(sizes: Tensor) -> Tensor:
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).to(torch.int32)


def _both(a: Tensor | None, b: Tensor | None, combine: Any) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    try:
        result: Tensor = combine(a, b)
    except RuntimeError as error:
        raise ShapeError(
            f"cannot combine masks of shapes {tuple(a.shape)} and {tuple(b.shape)}"
        ) from error
    return result


def _narrower(
    a: tuple[int | None, int | None] | None, b: tuple[int | None, int | None] | None
) -> tuple[int | None, int | None] | None:
    if a is None or b is None:
        return b if a is None else a
    left, right = (
        min((side for side in pair if side is not None), default=None)
        for pair in zip(a, b, strict=True)
    )
    return left, right


def _same_offset(a: Mask, b: Mask) -> int | None:
    if a.query_offset == b.query_offset:
        return a.query_offset
    for mask, other in ((a, b), (b, a)):
        # A mask that neither states an offset nor counts positions agrees with any offset.
        if mask.query_offset is None and not mask.causal and mask.window is None:
            return other.query_offset
    raise ShapeError(
        f"cannot combine masks with query_offset {a.query_offset} and {b.query_offset} "
        "(None is Lk - Lq); give both the same offset"
    )


def _same_packing(a: Mask, b: Mask) -> dict[str, Tensor | None]:
    if a.cu_seqlens is None or b.cu_seqlens is None:
        packed = b if a.cu_seqlens is None else a
        return {"cu_seqlens": packed.cu_seqlens, "key_cu_seqlens": packed.key_cu_seqlens}
    for name in ("cu_seqlens", "key_cu_seqlens"):
        mine, theirs = getattr(a, name), getattr(b, name)
        mine = a.cu_seqlens if mine is None else mine
        theirs = b.cu_seqlens if theirs is None else theirs
        if mine is not theirs and not (mine.shape == theirs.shape and torch.equal(mine, theirs)):
            raise ShapeError(f"cannot combine masks that pack the sequences differently ({name})")
    return {"cu_seqlens": a.cu_seqlens, "key_cu_seqlens": a.key_cu_seqlens}
