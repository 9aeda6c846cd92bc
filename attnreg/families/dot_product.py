"""``DotProductAttention``: softmax of scaled dot products, on torch's fused kernels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnreg.attention import Dims
from attnreg.families.score import SOFTMAX_CAPABILITIES
from attnreg.families.tiling import Pattern, ScorePlan, attend, weights
from attnreg.functional import cast_in_range, expand_heads
from attnreg.lowering import LoweredMask
from attnreg.mask import Mask
from attnreg.tracing import accumulation_dtype
from attnreg.variant import Call, Implementation

ROWS = 512
"""Rows per fused call where the mask differs by row, so that no (Lq, Lk) mask is built at once."""


def attend_visible(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None,
    bias: Tensor | None,
    *,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """One fused call over given keys: ``visible`` bool and ``bias`` to (B, Hq, Lq, Lk), or None.

    Key and value may have fewer heads than query. A row that sees nothing gives 0.
    """
    some, tile = None, visible
    if visible is not None:
        # What a fused kernel makes of a row that sees nothing differs between kernels: let it
        # see everything, and zero its output.
        some = visible.any(dim=-1, keepdim=True)
        tile = visible | ~some
    if bias is not None:
        bias = _in_range(bias, tile, query)
        tile = bias if tile is None else bias.masked_fill(~tile, -torch.inf)
    output: Tensor = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=tile,
        dropout_p=dropout,
        scale=scale,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    return output if some is None else output.masked_fill(~some, 0.0)


def _in_range(bias: Tensor, tile: Tensor | None, query: Tensor) -> Tensor:
    """Bring a bias to a dtype that the fused kernels take."""
    bias = cast_in_range(bias, accumulation_dtype(query.dtype))
    if query.device.type == "cpu" or bias.dtype == query.dtype:
        return bias  # on the CPU they take a float32 bias with halves, and round nothing
    # Elsewhere it must be the query's dtype. What all keys of a row share cancels: without it
    # little is left to round.
    seen = bias if tile is None else bias.masked_fill(~tile, -torch.inf)
    shifted = bias - seen.amax(dim=-1, keepdim=True).detach()
    return shifted.clamp(min=torch.finfo(query.dtype).min, max=0.0).to(query.dtype)


def equal_widths(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pad head and value dimension to one width: torch leaves its fused kernels where they differ.

    Zeros change no dot product; the caller keeps the first columns of the output.
    """
    wider = max(query.shape[3], value.shape[3])
    if query.shape[3] == value.shape[3]:
        return query, key, value
    query, key, value = (F.pad(t, (0, wider - t.shape[3])) for t in (query, key, value))
    return query, key, value


def attend_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lowered: LoweredMask,
    *,
    scale: float,
    pattern: Pattern | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Softmax of ``scale * q.k + bias`` on ``torch.nn.functional.scaled_dot_product_attention``.

    Key and value may have fewer heads than query, and the value dimension may differ.
    """
    value_width = value.shape[3]
    query, key, value = equal_widths(query, key, value)
    used = lowered.mask.used()
    square = lowered.offset == 0 and lowered.query_length == lowered.key_length
    if pattern is None and used == ("causal",) and square:
        output: Tensor = F.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=dropout,
            is_causal=True,
            scale=scale,
            enable_gqa=key.shape[1] != query.shape[1],
        )
        return output[..., :value_width]
    strips: list[Tensor] = []
    by_row = pattern is not None or bool(set(used) - {"key_valid"})
    for rows, columns in _strips(lowered, by_row):
        visible = lowered.visible(rows, columns)
        own = None if pattern is None else pattern(lowered, rows, columns)
        if own is not None:
            visible = own if visible is None else visible & own
        part = (query[:, :, rows], key[:, :, columns], value[:, :, columns])
        bias = lowered.bias(rows, columns)
        strips.append(attend_visible(*part, visible, bias, scale=scale, dropout=dropout))
    output = strips[0] if len(strips) == 1 else torch.cat(strips, dim=2)
    return output[..., :value_width]


def _strips(lowered: LoweredMask, by_row: bool) -> list[tuple[slice, slice]]:
    """Rows, with the keys that causality and window leave to them (at least one key)."""
    if not by_row or torch.compiler.is_compiling():
        return [(slice(0, lowered.query_length), slice(0, lowered.key_length))]
    strips: list[tuple[slice, slice]] = []
    for first in range(0, max(lowered.query_length, 1), ROWS):
        last = min(first + ROWS, lowered.query_length)
        start, stop = lowered.key_range(first, last)
        if start == stop:
            start, stop = 0, 1
        strips.append((slice(first, last), slice(start, stop)))
    return strips


def why_not_fused(call: Call) -> list[str]:
    """Say why ``attend_fused`` should not run a call."""
    reasons: list[str] = []
    module = call.module
    if isinstance(module, DotProductAttention) and _overrides(module, "score"):
        reasons.append("the module scores by a formula of its own, not by a dot product")
    if call.transformed:
        reasons.append("torch's fused kernels have no rule for function transforms such as vmap")
    if call.needs_grad and call.dtype == torch.float64:
        # In other dtypes too, but float64 is what second derivatives are taken and checked in.
        reasons.append("float64 gradients: torch's fused kernels cannot be differentiated twice")
    if call.device.type == "cpu":
        if call.dropout > 0.0:
            reasons.append("dropout: on the CPU torch would hold all (Lq, Lk) weights")
        if call.needs_grad and call.mask.bias is not None and call.mask.bias.requires_grad:
            reasons.append("gradient of bias: on the CPU torch would hold all (Lq, Lk) weights")
    return reasons


def _fused(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    assert isinstance(module, DotProductAttention)  # for mypy: registered on this family alone
    return module.attend_fused(query, key, value, mask)


FUSED = Implementation("fused", _fused, why_not_fused, rank=10)


class DotProductAttention(nn.Module):
    """Softmax of scaled dot products; an author may write ``transform(query, key)``.

    softmax_j(scale * q_i.k_j + bias_ij) over the visible keys, times V (Vaswani et al. 2017,
    arXiv:1706.03762). ``transform`` gets keys already broadcast to the query heads, treats each
    position on its own, and may change the width of both. ``scale`` defaults to
    1/sqrt(head_dim), or to 1 where the class sets ``default_scale = 1.0``; ``dropout`` acts on
    the weights in training mode.

    Implementations: ``fused`` (torch's kernels) and ``eager`` (tiles of at most ``tile_elements``
    scores, forward and backward), which every call can run.
    """

    capabilities = SOFTMAX_CAPABILITIES
    implementations: tuple[Implementation, ...] = (FUSED,)
    tile_elements: int = 2**20
    default_scale: float | None = None

    def __init__(self, dims: Dims, *, scale: float | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        default = dims.head_dim**-0.5 if self.default_scale is None else self.default_scale
        self.dims = dims
        self.scale = default if scale is None else scale
        self.dropout = dropout

    @property
    def logit_scale(self) -> float:
        """What multiplies q.k: the scale, and whatever else a variant divides by."""
        return self.scale

    def transform(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Change query (B, H, Lq, D) and key (B, H, Lk, D) before their dot product."""
        return query, key

    @property
    def has_pattern(self) -> bool:
        """Whether ``pattern`` may hide anything: without one causality needs no dense mask."""
        return _overrides(self, "pattern")

    def pattern(self, lowered: LoweredMask, rows: slice, columns: slice) -> Tensor | None:
        """The variant's own visibility of a tile, bool, to (B, H, rows, columns); None: all."""
        return None

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """The dot product of every pair, in float32 or wider."""
        wide = accumulation_dtype(query.dtype)
        return query.to(wide) @ key.to(wide).transpose(-1, -2)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008  # Mask() is immutable
        """Attend: (B, Hq, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv) to (B, Hq, Lq, Dv)."""
        dtype = query.dtype
        key, value = (expand_heads(t, query.shape[1]) for t in (key, value))
        lowered = LoweredMask(mask, query.shape[2], key.shape[2], query.device)
        query, key = self.transform(query, key)
        dropout = self.dropout if self.training else 0.0
        return attend(self._plan(lowered, dropout), query, key, value).to(dtype)

    def attend_fused(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Compute ``forward`` on torch's fused kernels."""
        dtype = query.dtype
        lowered = LoweredMask(mask, query.shape[2], key.shape[2], query.device)
        if _overrides(self, "transform"):
            query, key = self.transform(query, expand_heads(key, query.shape[1]))
            value = expand_heads(value, query.shape[1]).to(query.dtype)
        output = attend_fused(
            query,
            key,
            value,
            lowered,
            scale=self.logit_scale,
            pattern=self.pattern if self.has_pattern else None,
            dropout=self.dropout if self.training else 0.0,
        )
        return output.to(dtype)

    def weights(self, query: Tensor, key: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008  # Mask() is immutable
        """The weights, (B, Hq, Lq, Lk), in float32 or wider, before dropout."""
        lowered = LoweredMask(mask, query.shape[2], key.shape[2], query.device)
        query, key = self.transform(query, expand_heads(key, query.shape[1]))
        return weights(self._plan(lowered, 0.0), query, key)

    def _plan(self, lowered: LoweredMask, dropout: float) -> ScorePlan:
        return ScorePlan(
            module=self,
            score="score",
            lowered=lowered,
            scale=self.logit_scale,
            pattern=self.pattern,
            dropout=dropout,
            tile_elements=self.tile_elements,
        )


def _overrides(module: DotProductAttention, method: str) -> bool:
    return getattr(type(module), method) is not getattr(DotProductAttention, method)
