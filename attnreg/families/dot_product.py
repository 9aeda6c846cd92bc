"""``DotProductAttention``: softmax of scaled dot products, on torch's fused kernels."""

from __future__ import annotations

from torch import Tensor, nn

from attnreg.attention import Dims
from attnreg.families.fused import attend_fused, why_not_fused
from attnreg.families.score import SOFTMAX_CAPABILITIES
from attnreg.families.tiling import ScorePlan, attend, weights
from attnreg.functional import expand_heads
from attnreg.lowering import LoweredMask
from attnreg.mask import Mask
from attnreg.tracing import accumulation_dtype
from attnreg.variant import Implementation


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

    @property
    def has_own_score(self) -> bool:
        """Whether ``score`` is another formula, for which the fused kernels do not stand."""
        return _overrides(self, "score")

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
