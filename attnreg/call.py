"""``Call``: what is known of a call before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import torch
from torch import Tensor, nn

from attnreg.attention import Dims
from attnreg.mask import Mask
from attnreg.tracing import are_transformed


class Call:
    """What an implementation may know of a call before anything is computed: no values.

    Most is found out only where it is asked for: this stands between a user and every kernel.
    """

    __slots__ = ("_holds_tensors", "_tensors", "dims", "mask", "module", "named")

    def __init__(
        self,
        dims: Dims,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask,
        named: bool,
        holds_tensors: bool,
    ) -> None:
        self.dims = dims
        self.module = module
        self.mask = mask
        self.named = named
        """Whether the module was built for one implementation, by its name."""
        self._tensors: tuple[Tensor, ...] = (query, key, value)
        self._holds_tensors = holds_tensors

    @property
    def query_shape(self) -> torch.Size:
        """(B, Hq, Lq, D)"""
        return self._tensors[0].shape

    @property
    def key_shape(self) -> torch.Size:
        """(B, Hkv, Lk, D)"""
        return self._tensors[1].shape

    @property
    def value_shape(self) -> torch.Size:
        """(B, Hkv, Lk, Dv)"""
        return self._tensors[2].shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of query, key and value."""
        return self._tensors[0].dtype

    @property
    def device(self) -> torch.device:
        """The device of query, key and value."""
        return self._tensors[0].device

    @property
    def needs_grad(self) -> bool:
        """Whether a gradient will be asked of the call."""
        query, key, value = self._tensors
        return needs_grad(self.module, query, key, value, self.mask)

    @property
    def compiling(self) -> bool:
        """Inside ``torch.compile`` or ``torch.export``: lengths are symbols, loops would unroll."""
        return torch.compiler.is_compiling()

    @property
    def transformed(self) -> bool:
        """Inside a function transform such as ``torch.func.vmap``, or forward-mode derivatives."""
        bias = () if self.mask.bias is None else (self.mask.bias,)
        return are_transformed(self._tensors + bias) or are_transformed(self._own())

    def _own(self) -> Iterable[Tensor]:
        """Parameters and buffers; walking a module that has none costs as much as a small call."""
        if not self._holds_tensors:
            return ()
        return chain(self.module.parameters(), self.module.buffers())

    @property
    def dropout(self) -> float:
        """The dropout in force: 0 in evaluation mode."""
        return float(getattr(self.module, "dropout", 0.0)) if self.module.training else 0.0


def needs_grad(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> bool:
    """Whether a gradient will be asked of a call."""
    if not torch.is_grad_enabled():
        return False
    if query.requires_grad or key.requires_grad or value.requires_grad:
        return True
    if mask.bias is not None and mask.bias.requires_grad:
        return True
    return any(p.requires_grad for p in module.parameters())
