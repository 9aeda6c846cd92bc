"""The contract: what an attention module is, and the sizes it is built for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from attnreg.errors import ShapeError
from attnreg.mask import Mask

if TYPE_CHECKING:
    from torch import Tensor


class Attention(Protocol):
    """An ``nn.Module`` that mixes values by how well queries and keys fit.

    ======  ==================  =======================================================
    query   (B, Hq, Lq, D)      any strides, never modified
    key     (B, Hkv, Lk, D)     ``Hq % Hkv == 0``; query head h reads key head h // (Hq // Hkv)
    value   (B, Hkv, Lk, Dv)
    output  (B, Hq, Lq, Dv)     dtype of the query
    ======  ==================  =======================================================

    A row with no visible key gives exactly 0, with finite zero gradients.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = ...) -> Tensor:
        """Attend: (B, Hq, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv) to (B, Hq, Lq, Dv)."""
        ...


@dataclass(frozen=True)
class Dims:
    """The sizes an attention module is built for.

    ``num_kv_heads`` defaults to ``num_heads`` and ``value_dim`` to ``head_dim``. ``max_length``
    limits the number of keys, and only for variants that declare ``fixed_length``.

    Raises ``ShapeError`` where a size is not a positive integer or ``num_kv_heads`` does not
    divide ``num_heads``.
    """

    num_heads: int
    head_dim: int
    num_kv_heads: int = cast(int, None)  # filled in below: always an int once built
    value_dim: int = cast(int, None)  # filled in below: always an int once built
    max_length: int | None = None

    def __post_init__(self) -> None:
        if self.num_kv_heads is None:
            object.__setattr__(self, "num_kv_heads", self.num_heads)
        if self.value_dim is None:
            object.__setattr__(self, "value_dim", self.head_dim)
        for name in ("num_heads", "head_dim", "num_kv_heads", "value_dim", "max_length"):
            size = getattr(self, name)
            if name == "max_length" and size is None:
                continue
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ShapeError(f"{name} must be a positive integer, got {size!r}")
        if self.num_heads % self.num_kv_heads:
            raise ShapeError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads="
                f"{self.num_kv_heads}: each key head must serve the same number of query heads"
            )
