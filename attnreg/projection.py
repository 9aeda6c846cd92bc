"""Projections of ``AttentionLayer``: from embeddings to query, key and value heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnreg.attention import Dims


class Projection(Protocol):
    """An ``nn.Module`` that makes heads of embeddings.

    A variant brings its own as ``Variant.projection(module, embed_dim, dims, *, kdim, vdim,
    bias)``, where ``module`` is the attention module that was built. The inputs are one and the
    same tensor in self-attention, which an implementation may use to project them at once.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project (B, Lq, embed_dim), (B, Lk, kdim), (B, Lk, vdim) to query, key, value heads."""
        ...


class QKVProjection(nn.Module):
    """Query, key and value each from a matrix of their own, in one product where inputs agree.

    Where ``kdim`` and ``vdim`` equal ``embed_dim`` the three matrices lie in one, ``qkv``.
    """

    def __init__(
        self, embed_dim: int, dims: Dims, *, kdim: int, vdim: int, bias: bool = True
    ) -> None:
        super().__init__()
        self.dims = dims
        self.sizes = (
            dims.num_heads * dims.head_dim,
            dims.num_kv_heads * dims.head_dim,
            dims.num_kv_heads * dims.value_dim,
        )
        if kdim == vdim == embed_dim:
            self.qkv: nn.Linear | None = nn.Linear(embed_dim, sum(self.sizes), bias=bias)
        else:
            self.qkv = None
            self.query = nn.Linear(embed_dim, self.sizes[0], bias=bias)
            self.key = nn.Linear(kdim, self.sizes[1], bias=bias)
            self.value = nn.Linear(vdim, self.sizes[2], bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw each matrix by Glorot's uniform rule, and set the biases to 0."""
        if self.qkv is not None:
            for part in self.qkv.weight.split(self.sizes):
                nn.init.xavier_uniform_(part)
        for linear in self.modules():
            if isinstance(linear, nn.Linear):
                if linear is not self.qkv:
                    nn.init.xavier_uniform_(linear.weight)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project (B, Lq, embed_dim), (B, Lk, kdim), (B, Lk, vdim) to query, key, value heads."""
        dims = self.dims
        parts: Sequence[Tensor]
        if self.qkv is None:
            parts = (self.query(query), self.key(key), self.value(value))
        elif query is key is value and dims.value_dim == dims.head_dim:
            heads = (dims.num_heads, dims.num_kv_heads, dims.num_kv_heads)
            return split_heads(self.qkv(query), sum(heads)).split(heads, dim=1)  # type: ignore[no-any-return]  # torch's split is untyped
        elif query is key is value:
            parts = self.qkv(query).split(self.sizes, dim=-1)
        elif key is value:
            both = self._some(key, 1, 3).split(self.sizes[1:], dim=-1)
            parts = (self._some(query, 0, 1), *both)
        else:
            parts = [self._some(x, i, i + 1) for i, x in enumerate((query, key, value))]
        return (
            split_heads(parts[0], dims.num_heads),
            split_heads(parts[1], dims.num_kv_heads),
            split_heads(parts[2], dims.num_kv_heads),
        )

    def _some(self, x: Tensor, first: int, last: int) -> Tensor:
        """Project with the matrices [first, last) of the three that ``qkv`` holds."""
        assert self.qkv is not None  # for mypy: callers have looked
        start, stop = sum(self.sizes[:first]), sum(self.sizes[:last])
        bias = None if self.qkv.bias is None else self.qkv.bias[start:stop]
        projected: Tensor = F.linear(x, self.qkv.weight[start:stop], bias)
        return projected


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, L, H * D) to (B, H, L, D), a view."""
    batch, length, width = x.shape
    return x.view(batch, length, num_heads, width // num_heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, L, D) to (B, L, H * D)."""
    return torch.flatten(x.transpose(1, 2), 2)
