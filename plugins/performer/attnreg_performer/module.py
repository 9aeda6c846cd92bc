"""Performer attention: random features whose dot product is the softmax kernel on average."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from annotated_doc import Doc
from annotated_types import Interval
from torch import Tensor

from attnreg import Dims, Features, KernelAttention, OptionError
from attnreg.tracing import full_precision


class Performer(KernelAttention):
    """Linear attention with the positive orthogonal random features of FAVOR+.

    phi(x) = exp(w_m.x' - ||x'||^2 / 2) / sqrt(features) with x' = sqrt(scale) x and w_m ~ N(0, I),
    so that E[phi(q).phi(k)] = exp(scale q.k); the relu kernel is relu(w_m.x') / sqrt(features).
    The rows of the buffer ``projection`` (features, D) are orthogonal in blocks of D; it is saved
    in the state dict and changes only by ``redraw()``. ``scale`` defaults to 1/sqrt(head_dim).
    Choromanski et al. 2020, Rethinking Attention with Performers, arXiv:2009.14794.
    """

    projection: Tensor

    def __init__(
        self,
        dims: Dims,
        *,
        features: Annotated[
            int, Interval(ge=1, le=2**16), Doc("number of random features; the error falls with it")
        ] = 256,
        kernel: Annotated[Literal["softmax", "relu"], Doc("which kernel to stand for")] = "softmax",
        orthogonal: Annotated[bool, Doc("orthogonal features: a smaller error")] = True,
        seed: Annotated[
            int | None, Interval(ge=0, lt=2**63), Doc("of the features; None: torch's generator")
        ] = None,
        scale: float | None = None,
        **common: Any,
    ) -> None:
        super().__init__(dims, **common)
        self.scale = dims.head_dim**-0.5 if scale is None else scale
        if self.scale < 0:
            raise OptionError(f"scale must be at least 0 for random features, got {scale}")
        self.features = features
        self.kernel = kernel
        self.orthogonal = orthogonal
        self.seed = seed
        self.register_buffer("projection", torch.empty(features, dims.head_dim))
        self.redraw(seed)

    def reset_parameters(self) -> None:
        """Draw the features that construction drew: those of ``seed``, where one was given."""
        self.redraw(self.seed)

    @torch.no_grad()
    def redraw(self, seed: int | None = None) -> None:
        """Draw new features in place; nothing else ever changes them."""
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        count, width = self.projection.shape
        drawn = torch.randn(count, width, generator=generator, device="cpu", dtype=torch.float64)
        if self.orthogonal:
            blocks: list[Tensor] = []
            for _ in range(math.ceil(count / width)):
                square = torch.randn(
                    width, width, generator=generator, device="cpu", dtype=torch.float64
                )
                basis, upper = torch.linalg.qr(square)
                # Without the sign of the diagonal, Q is not uniform over rotations.
                blocks.append((basis * upper.diagonal().sign()).T)
            # Directions are orthogonal, lengths those of the Gaussian vectors drawn first.
            drawn = torch.cat(blocks)[:count] * drawn.norm(dim=1, keepdim=True)
        self.projection.copy_(drawn)

    def query_features(self, query: Tensor) -> Tensor:
        """Features of the queries, without what cancels: exp(-||x||^2 / 2), the largest, 1/sqrt."""
        dots, _ = self._projected(query)
        if self.kernel == "relu":
            return dots.relu() / math.sqrt(self.features)
        return dots.sub_(dots.detach().amax(dim=-1, keepdim=True)).exp_()

    def key_features(self, key: Tensor) -> Features:
        """Features of the keys, relative to the largest of each, which is handed on."""
        dots, x = self._projected(key)
        if self.kernel == "relu":
            return Features(dots.relu() / math.sqrt(self.features))
        largest = dots.detach().amax(dim=-1, keepdim=True)
        # ||x||^2 is one number per key: in the logarithm it costs the features no digits.
        log_scale = largest.squeeze(-1) - 0.5 * x.square().sum(dim=-1)
        return Features(dots.sub_(largest).exp_(), log_scale)

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """w_m.x' for every feature, and x'."""
        with full_precision(x.device):
            x = x.to(torch.promote_types(x.dtype, torch.float32)) * math.sqrt(self.scale)
            return x @ self.projection.to(x.dtype).T, x
