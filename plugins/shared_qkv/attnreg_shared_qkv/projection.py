"""The tied projections of ``AttentionLayer(..., attention="shared_qkv")``."""

from __future__ import annotations

from torch import Tensor, nn

from attnreg import Dims, OptionError, ShapeError
from attnreg.projection import split_heads
from attnreg_shared_qkv.module import SharedQKV


class SharedProjection(nn.Module):
    """One matrix for what is tied, one for the rest: d^2 parameters for ``tie="qkv"``, not 3 d^2.

    Tying needs equal sizes: as many key heads as query heads where query and key are tied, and
    value_dim equal to head_dim where key and value are; and inputs of one width.
    """

    def __init__(
        self,
        module: SharedQKV,
        embed_dim: int,
        dims: Dims,
        *,
        kdim: int,
        vdim: int,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.tie, self.dims = module.tie, dims
        if "qk" in self.tie and dims.num_kv_heads != dims.num_heads:
            raise OptionError(
                f"tie={self.tie!r} makes query and key one: num_kv_heads={dims.num_kv_heads} must "
                f"equal num_heads={dims.num_heads}; use tie='kv' for grouped heads"
            )
        if "kv" in self.tie and dims.value_dim != dims.head_dim:
            raise OptionError(
                f"tie={self.tie!r} makes key and value one: value_dim={dims.value_dim} must equal "
                f"head_dim={dims.head_dim}"
            )
        widths = {"q": embed_dim, "k": kdim, "v": vdim}
        if len({widths[letter] for letter in self.tie}) > 1:
            raise ShapeError(
                f"tie={self.tie!r} needs inputs of one width, got embed_dim={embed_dim}, "
                f"kdim={kdim}, vdim={vdim}"
            )
        heads = dims.num_heads if "q" in self.tie else dims.num_kv_heads
        self.shared = nn.Linear(widths[self.tie[0]], heads * dims.head_dim, bias=bias)
        self.other: nn.Linear | None = None
        if self.tie == "qk":
            self.other = nn.Linear(vdim, dims.num_kv_heads * dims.value_dim, bias=bias)
        elif self.tie == "kv":
            self.other = nn.Linear(embed_dim, dims.num_heads * dims.head_dim, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw each matrix by Glorot's uniform rule, and set the biases to 0."""
        for linear in (self.shared, self.other):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project (B, Lq, embed_dim), (B, Lk, kdim), (B, Lk, vdim) to query, key, value heads."""
        q, k, v = (self._linear(letter) for letter in "qkv")
        projected_query = q(query)
        projected_key = projected_query if k is q and key is query else k(key)
        projected_value = projected_key if v is k and value is key else v(value)
        return (
            split_heads(projected_query, self.dims.num_heads),
            split_heads(projected_key, self.dims.num_kv_heads),
            split_heads(projected_value, self.dims.num_kv_heads),
        )

    def _linear(self, letter: str) -> nn.Linear:
        return self.shared if letter in self.tie or self.other is None else self.other
