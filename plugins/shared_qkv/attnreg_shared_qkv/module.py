"""Shared-QKV attention: query, key and value from one projection, or two of them from one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from annotated_doc import Doc
from torch import Tensor

from attnreg import Dims, DotProductAttention
from attnreg.lowering import ALL, LoweredMask, columns_of, take

Tie = Literal["qkv", "qk", "kv"]


class SharedQKV(DotProductAttention):
    """Scaled dot-product attention whose ``AttentionLayer`` shares projections.

    ``tie`` says which projections are one (``attnreg_shared_qkv.projection``); the core attends
    with any query, key and value. Where query and key are tied the raw scores are symmetric and
    their diagonal is heavy: ``exclude_self`` hides a position from itself, where it can see
    another. Kitaev et al. 2020, Reformer, arXiv:2001.04451.
    """

    def __init__(
        self,
        dims: Dims,
        *,
        tie: Annotated[Tie, Doc("which projections are one and the same")] = "qkv",
        exclude_self: Annotated[
            bool, Doc("hide a position from itself where another key is visible")
        ] = False,
        **common: Any,
    ) -> None:
        super().__init__(dims, **common)
        self.tie = tie
        self.exclude_self = exclude_self

    @property
    def has_pattern(self) -> bool:
        """Whether a position may be hidden from itself."""
        return self.exclude_self

    def pattern(self, lowered: LoweredMask, rows: slice, columns: slice) -> Tensor | None:
        """Hide key j = i + offset from query i, in rows that see another key."""
        if not self.exclude_self:
            return None
        return ~(self._itself(lowered, rows, columns) & self._sees_another(lowered, rows))

    def _itself(self, lowered: LoweredMask, rows: slice, columns: slice) -> Tensor:
        query = take(lowered.query_position, rows)[:, None]
        return columns_of(lowered.key_position, columns) == query

    def _sees_another(self, lowered: LoweredMask, rows: slice) -> Tensor:
        def compute() -> Tensor:
            others = ~self._itself(lowered, rows, ALL)
            visible = lowered.visible(rows, ALL)
            others = others if visible is None else others & visible
            return others.any(dim=-1, keepdim=True)

        if torch.compiler.is_compiling():  # one tile; and a name made of symbols would fix them
            return compute()
        # The tiles of one strip share the answer, which needs every key.
        answer: Tensor = lowered.once(f"sees_another {rows.start}:{rows.stop}", compute)
        return answer
