"""Euclidean attention: the nearer a key, the larger its weight."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from annotated_doc import Doc
from annotated_types import Interval
from torch import Tensor, nn

from attnreg import Dims, Mask, ScoreAttention
from attnreg.families import attend_fused, attend_visible, equal_widths
from attnreg.functional import expand_heads, unit_vectors
from attnreg.lowering import LoweredMask
from attnreg.tracing import full_precision


class Euclidean(ScoreAttention):
    """score(q, k) = -||q - k||^2 / tau, or -||q - k|| / tau where ``squared`` is False.

    tau is one number per head, stored as ``log_tau`` (Hq,). tau = 2 sqrt(head_dim) weighs
    directions as scaled dot products do. The gradient at q = k is 0. Kim et al. 2020, The
    Lipschitz Constant of Self-Attention, arXiv:2006.04710.
    """

    def __init__(
        self,
        dims: Dims,
        *,
        tau: Annotated[
            float,
            Interval(gt=0, le=1e6),
            Doc("divides the distance; 2 sqrt(head_dim) is as soft as scaled dot products"),
        ] = 1.0,
        learnable: Annotated[bool, Doc("whether tau is trained, per head")] = False,
        squared: Annotated[bool, Doc("squared distance (True) or the distance itself")] = True,
        normalize_inputs: Annotated[
            bool, Doc("scale query and key to length 1 first; a zero vector stays zero")
        ] = False,
        **common: Any,
    ) -> None:
        super().__init__(dims, **common)
        self.tau = tau
        self.learnable = learnable
        self.squared = squared
        self.normalize_inputs = normalize_inputs
        log_tau = torch.empty(dims.num_heads)
        if learnable:
            self.log_tau = nn.Parameter(log_tau)
        else:
            self.register_buffer("log_tau", log_tau)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the tau of every head to the option's value."""
        nn.init.constant_(self.log_tau, math.log(self.tau))

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """Score every pair: (B, H, rows, D), (B, H, columns, D) to (B, H, rows, columns)."""
        with full_precision(query.device):
            query, key = self._prepared(query), self._prepared(key)
            rate = -(-self.log_tau.to(query.dtype)).exp()[:, None, None]
            if not self.squared:
                # Exact differences: the expanded square loses small distances to rounding.
                distance = torch.cdist(query, key, compute_mode="donot_use_mm_for_euclid_dist")
                return distance * rate
            square = query.square().sum(-1, keepdim=True) + key.square().sum(-1)[..., None, :]
            return (square - 2.0 * query @ key.transpose(-1, -2)) * rate

    def attend_fused(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Compute the squared form as one dot product: ||q||^2 cancels in the softmax.

        2 q.k - ||k||^2 is a dot product with a bias per key, for which the fused kernels have no
        gradient, or the dot product of (2 q, -1) and (k, ||k||^2).
        """
        dtype, width = query.dtype, value.shape[3]
        lowered = LoweredMask(mask, query.shape[2], key.shape[2], query.device)
        dropout = self.dropout if self.training else 0.0
        with full_precision(query.device):
            key, value = (expand_heads(t, query.shape[1]) for t in (key, value))
            query, key = self._prepared(query), self._prepared(key)
            value = value.to(query.dtype)
            rate = (-self.log_tau.to(query.dtype)).exp()[:, None, None]
            square = key.square().sum(-1, keepdim=True)
            tracked = torch.is_grad_enabled() and any(
                t.requires_grad for t in (query, key, value, rate)
            )
            if tracked or mask.used() not in ((), ("key_valid",)):
                query = torch.cat([query * (2.0 * rate), -rate.expand(*query.shape[:3], 1)], dim=-1)
                key = torch.cat([key, square], dim=-1)
                output = attend_fused(query, key, value, lowered, scale=self.scale, dropout=dropout)
            else:
                bias = (square * rate).transpose(-1, -2) * -self.scale
                tensors = equal_widths(query * (2.0 * rate), key, value)
                visible = lowered.visible()
                output = attend_visible(*tensors, visible, bias, scale=self.scale, dropout=dropout)
        return output[..., :width].to(dtype)

    def _prepared(self, x: Tensor) -> Tensor:
        if self.normalize_inputs:
            return unit_vectors(x)
        return x.to(torch.promote_types(x.dtype, torch.float32))
