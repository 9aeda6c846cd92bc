"""``AttentionLayer``: projections around any registered variant."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from attnreg.attention import Dims
from attnreg.decoding import State
from attnreg.errors import DtypeError, MaskTypeError, ShapeError
from attnreg.functional import zero_where
from attnreg.lowering import LoweredMask
from attnreg.mask import Mask
from attnreg.positions import Positioning, create_position
from attnreg.projection import QKVProjection, merge_heads
from attnreg.registry import create
from attnreg.tracing import autocasts
from attnreg.variant import Variant

Context = Tensor | tuple[Tensor, Tensor]


class AttentionLayer(nn.Module):
    """Multi-head attention of embeddings: project, attend with any variant, project back.

    ``layer(x)`` maps (B, L, embed_dim) to (B, L, embed_dim); ``layer(x, context, mask)`` attends
    from x to a context (B, Lk, kdim), or to a pair of contexts for key and value where ``kdim``
    and ``vdim`` differ. ``head_dim`` defaults to embed_dim / num_heads, ``value_dim`` to
    head_dim. ``position`` is None, "rotary", "alibi", or a name that a plugin registers.
    ``dropout`` acts on the weights. Further options are the variant's own.

    Padded rows (``mask.key_valid``) are zeroed before they are projected, so that nothing stored
    in them reaches an output or a gradient.

    Raises ``ShapeError`` for sizes that do not fit, and whatever ``attnreg.create`` raises.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        attention: str | Variant = "scaled_dot_product",
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        position: str | None = None,
        dropout: float = 0.0,
        scale: float | None = None,
        max_length: int | None = None,
        implementation: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        for name, size in {
            "embed_dim": embed_dim,
            "num_heads": num_heads,
            "kdim": embed_dim if kdim is None else kdim,
            "vdim": embed_dim if vdim is None else vdim,
        }.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ShapeError(f"{name} must be a positive integer, got {size!r}")
        if head_dim is None:
            if embed_dim % num_heads:
                raise ShapeError(
                    f"embed_dim={embed_dim} is not a multiple of num_heads={num_heads}; "
                    "change one of them, or give head_dim"
                )
            head_dim = embed_dim // num_heads
        self.attention = create(
            attention,
            num_heads=num_heads,
            head_dim=head_dim,
            num_kv_heads=num_kv_heads,
            value_dim=value_dim,
            max_length=max_length,
            implementation=implementation,
            dropout=dropout,
            scale=scale,
            **options,
        )
        dims: Dims = self.attention.dims
        own = self.attention.variant.projection
        sizes = {
            "kdim": embed_dim if kdim is None else kdim,
            "vdim": embed_dim if vdim is None else vdim,
        }
        self.widths = {"x": embed_dim, **sizes}
        self.projection = (
            QKVProjection(embed_dim, dims, bias=bias, **sizes)
            if own is None
            else own(self.attention.module, embed_dim, dims, bias=bias, **sizes)
        )
        self.output = nn.Linear(num_heads * dims.value_dim, embed_dim, bias=bias)
        if bias:
            nn.init.zeros_(self.output.bias)
        self.position = None if position is None else create_position(position, dims)
        if device is not None or dtype is not None:
            self.to(device=device, dtype=dtype)

    def forward(self, x: Tensor, context: Context | None = None, mask: Mask = Mask()) -> Tensor:  # noqa: B008  # Mask() is immutable
        """Attend from (B, Lq, embed_dim), by default to itself: (B, Lq, embed_dim)."""
        query, key, value, mask = self._heads(x, context, mask)
        return self._output(self.attention(query, key, value, mask))

    def weights(self, x: Tensor, context: Context | None = None, mask: Mask = Mask()) -> Tensor:  # noqa: B008  # Mask() is immutable
        """Return the weights that ``forward`` uses, (B, num_heads, Lq, Lk)."""
        query, key, _, mask = self._heads(x, context, mask)
        return self.attention.weights(query, key, mask)

    def step(
        self,
        x: Tensor,
        state: State | None = None,
        mask: Mask = Mask(),  # noqa: B008  # Mask() is immutable
    ) -> tuple[Tensor, State]:
        """Decode the next chunk (B, n, embed_dim) of a sequence; ``state=None`` starts one."""
        length = 0 if state is None else state.length
        self._check_input("x", x, mask)
        x = _zero_padding(x, mask)
        query, key, value = self.projection(x, x, x)
        if self.position is not None:
            # Keys in the state were placed when they came; a bias spans them as well.
            seen = torch.arange(length + x.shape[1], device=x.device)
            query, key, mask = self._place(query, key, seen[length:], seen[length:], seen, mask)
        output, state = self.attention.step(query, key, value, state, mask)
        return self._output(output), state

    def _heads(
        self, x: Tensor, context: Context | None, mask: Mask
    ) -> tuple[Tensor, Tensor, Tensor, Mask]:
        self._check_input("x", x, mask)
        if mask.cu_seqlens is not None:
            x = _zero_from(x, mask.cu_seqlens)
        if context is None:
            key_input = value_input = x = _zero_padding(x, mask)
        else:
            key_input, value_input = self._context(context, mask)
        query, key, value = self.projection(x, key_input, value_input)
        if self.position is not None:
            lowered = LoweredMask(mask, query.shape[2], key.shape[2], query.device)
            seen = lowered.key_position
            query, key, mask = self._place(query, key, lowered.query_position, seen, seen, mask)
        return query, key, value, mask

    def _context(self, context: Context, mask: Mask) -> tuple[Tensor, Tensor]:
        """The inputs of key and value, without what is stored in padding; one tensor stays one."""
        pair = context if isinstance(context, tuple) else (context, context)
        if len(pair) != 2:
            raise ShapeError(f"context must be a tensor or a pair of them, got {len(pair)}")
        for name, tensor in zip(("kdim", "vdim"), pair, strict=True):
            self._check_input(name, tensor, mask)
        key = _zero_padding(pair[0], mask)
        return key, key if pair[1] is pair[0] else _zero_padding(pair[1], mask)

    def _place(
        self,
        query: Tensor,
        key: Tensor,
        query_position: Tensor,
        key_position: Tensor,
        seen: Tensor,
        mask: Mask,
    ) -> tuple[Tensor, Tensor, Mask]:
        """Apply the position; ``seen`` are the positions of all keys, those of a state too."""
        position = cast(Positioning, self.position)
        query = position.place(query, query_position)
        key = position.place(key, key_position)
        bias = position.bias(query_position, seen)
        return query, key, mask & Mask(bias=bias)

    def _check_input(self, name: str, tensor: Tensor, mask: Mask) -> None:
        if not isinstance(mask, Mask):
            raise MaskTypeError(f"mask must be an attnreg.Mask, got {type(mask).__name__}")
        width, like = self.widths[name], self.output.weight
        what, size = ("x", "embed_dim") if name == "x" else ("context", name)
        if isinstance(tensor, Mask):
            raise ShapeError("a mask came as the context; pass it by name: layer(x, mask=mask)")
        if not isinstance(tensor, Tensor) or tensor.dim() != 3 or tensor.shape[2] != width:
            got = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ShapeError(
                f"{what} must be (batch, length, {size}) with {size}={width}, got {got}"
            )
        if tensor.device != like.device or (
            tensor.dtype != like.dtype and not autocasts(tensor.device.type)
        ):
            raise DtypeError(
                f"{what} is {tensor.dtype} on {tensor.device}, the layer is {like.dtype} on "
                f"{like.device}; convert one of them"
            )

    def _output(self, heads: Tensor) -> Tensor:
        output: Tensor = self.output(merge_heads(heads))
        return output


def _zero_padding(x: Tensor, mask: Mask) -> Tensor:
    """Zero the rows of keys that are padding, before anything is computed from them."""
    if mask.key_offsets is not None:
        x = _zero_from(x, mask.key_offsets)
    if mask.key_valid is None:
        return x
    if tuple(mask.key_valid.shape) != tuple(x.shape[:2]):
        raise ShapeError(
            f"key_valid of shape {tuple(mask.key_valid.shape)} does not fit keys of shape "
            f"{tuple(x.shape)}: it must be (batch, key_length)"
        )
    return zero_where(x, ~mask.key_valid[..., None])


def _zero_from(x: Tensor, offsets: Tensor) -> Tensor:
    """Zero the packed rows past the last offset."""
    index = torch.arange(x.shape[1], device=x.device)
    return zero_where(x, (index >= offsets[-1].to(x.device))[:, None])
