"""``ScoreAttention``: softmax attention over any score, from one formula."""

from __future__ import annotations

from torch import Tensor, nn

from attnreg.attention import Dims
from attnreg.families.tiling import ScorePlan, attend, weights
from attnreg.functional import expand_heads
from attnreg.lowering import LoweredMask
from attnreg.mask import Mask
from attnreg.variant import Capabilities, Implementation

SOFTMAX_CAPABILITIES = Capabilities(
    causal=True,
    key_valid=True,
    allowed=True,
    bias=True,
    window=True,
    packed=True,
    cross=True,
    grouped=True,
    value_dim=True,
    dropout=True,
    decode="cache",
    weights="exact",
    normalized=True,
    deterministic=True,
    compile=True,
)


class ScoreAttention(nn.Module):
    """Softmax attention whose author writes ``score(query, key)``.

    softmax_j(scale * score(q_i, k_j) + bias_ij) over the visible keys, times V; the softmax in
    float32 or wider. ``score`` gets (B, H, rows, D) and (B, H, columns, D), keys already broadcast
    to the query heads, in the dtype of the call; it treats each pair on its own and may be called
    on any tile, again in the backward pass. In eager mode at most ``tile_elements`` scores are
    held at a time, forward and backward; while compiling, exporting or under function transforms
    the scores are one tile.

    ``scale`` multiplies the score (default 1); ``dropout`` acts on the weights in training mode.
    """

    capabilities = SOFTMAX_CAPABILITIES
    implementations: tuple[Implementation, ...] = ()
    tile_elements: int = 2**20

    def __init__(self, dims: Dims, *, scale: float | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.dims = dims
        self.scale = 1.0 if scale is None else scale
        self.dropout = dropout

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """Score every pair: (B, H, rows, D), (B, H, columns, D) to (B, H, rows, columns)."""
        raise NotImplementedError(f"{type(self).__name__} must define score(query, key)")

    def pattern(self, lowered: LoweredMask, rows: slice, columns: slice) -> Tensor | None:
        """The variant's own visibility of a tile, bool, to (B, H, rows, columns); None: all."""
        return None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008  # Mask() is immutable
        """Attend: (B, Hq, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv) to (B, Hq, Lq, Dv)."""
        key, value = (expand_heads(t, query.shape[1]) for t in (key, value))
        dropout = self.dropout if self.training else 0.0
        return attend(self._plan(query, key, mask, dropout), query, key, value)

    def weights(self, query: Tensor, key: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008  # Mask() is immutable
        """The weights, (B, Hq, Lq, Lk), in float32 or wider, before dropout."""
        key = expand_heads(key, query.shape[1])
        return weights(self._plan(query, key, mask, 0.0), query, key)

    def _plan(self, query: Tensor, key: Tensor, mask: Mask, dropout: float) -> ScorePlan:
        lowered = LoweredMask(mask, query.shape[2], key.shape[2], query.device)
        return ScorePlan(
            module=self,
            score="score",
            lowered=lowered,
            scale=self.scale,
            pattern=self.pattern,
            dropout=dropout,
            tile_elements=self.tile_elements,
        )
