"""A block of the causal form: chunks, quadratic inside, after the sums of the blocks before it."""

from __future__ import annotations

import torch
from torch import Tensor

from attnreg.families.sums import Features, Scales, exp_difference


class Block:
    """phi(q) (B, H, n, M), phi(k) and [v, 1] (B, H, n, N) in chunks, after the sums ``total``.

    Row i sees all of ``total`` (B, H, M, N), which stands for total * exp(top), and columns up to
    i. Nothing here is tracked by autograd: ``reverse`` is the derivative, in which the scales are
    constants, because they cancel.
    """

    def __init__(
        self,
        phi_q: Tensor,
        phi_k: Features,
        value: Tensor,
        total: Tensor,
        top: Tensor | None,
        size: int,
    ) -> None:
        batch, heads, length = phi_q.shape[:3]
        size = min(size, length)
        self.many, self.count = batch * heads, length // size
        self.shape, self.state = (batch, heads, length), total.shape
        self.queries, self.keys, self.values = (
            t.reshape(self.many * self.count, size, t.shape[3])
            for t in (phi_q, phi_k.values, value)
        )
        self.weights = self.queries @ self.keys.mT
        self.decay: Tensor | None = None
        """What scales each weight, (-, size, size): 0 above the diagonal."""
        self.grow: Tensor | None = None
        """What scales each key within its chunk, (-, size, 1)."""
        self.outer: Tensor | None = None
        """What scales the sums before the chunk in each row, (-, size, 1)."""
        self.top = top
        """The scale of the sums after the block, (B, H)."""
        self.local = self.values
        if phi_k.log_scale is None or top is None:
            self.weights.tril_()
            self.into = total.new_ones(self.count + 1, self.count + 1).tril()
            self.into = self.into.expand(self.many, -1, -1)
        else:
            self._scale(phi_k.log_scale.reshape(batch, heads, self.count, size), top)
        each = (self.keys.mT @ self.local).view(self.many, self.count, -1)
        start = total.reshape(self.many, 1, -1)
        # ``into`` says what is left of the start and of each chunk, before each and after all.
        first, others = self.into[:, :, :1], self.into[:, :, 1:]
        if self.decay is None:
            # Sums one after the other: a later chunk that overflows is not even multiplied by 0.
            running = each.cumsum(dim=1).add_(start)
            before = torch.cat([start, running[:, :-1]], dim=1)
            last = running[:, -1:]
        else:
            limit = torch.finfo(each.dtype).max
            each = each.clamp_(-limit, limit)  # 0 * inf would reach earlier chunks
            before = torch.baddbmm(first[:, :-1] * start, others[:, :-1], each)
            last = torch.baddbmm(first[:, -1:] * start, others[:, -1:], each)
        self.before = before.view(-1, *self.state[2:])
        self.last = last.view(self.state)
        """The sums after the block."""

    def _scale(self, log_scale: Tensor, top: Tensor) -> None:
        size = log_scale.shape[3]
        scales = Scales.of(log_scale, top)
        decay = exp_difference(log_scale[..., None, :], scales.row_top[..., None])
        self.decay = decay.view(-1, size, size).tril_()
        self.weights *= self.decay
        self.grow = exp_difference(log_scale, scales.top[..., None]).view(-1, size, 1)
        outer = exp_difference(scales.reached[..., :-1, None], scales.row_top)
        self.outer = outer.view(-1, size, 1)
        self.local = self.values * self.grow
        self.into = scales.decay().flatten(0, 1)
        self.top = scales.reached[..., -1]

    def mixed(self) -> Tensor:
        """Sums of weights times [v, 1], (B, H, n, N)."""
        mixed = self.queries @ self.before
        if self.outer is not None:
            mixed *= self.outer
        return mixed.baddbmm_(self.weights, self.values).view(*self.shape, -1)

    def reverse(self, grad: Tensor, grad_last: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """From gradients of ``mixed()`` and ``last`` those of phi(q), phi(k), [v, 1] and total."""
        grad = grad.reshape(self.values.shape)
        grad_weights = grad @ self.values.mT
        grad_weights = grad_weights.tril_() if self.decay is None else grad_weights * self.decay
        outer = grad if self.outer is None else grad * self.outer
        grad_queries = (grad_weights @ self.keys).baddbmm_(outer, self.before.mT)
        grad_before = (self.queries.mT @ outer).view(self.many, self.count, -1)
        after = grad_last.reshape(self.many, 1, -1)
        first, others = self.into[:, :, :1].mT, self.into[:, :, 1:].mT
        each = torch.baddbmm(others[:, :, -1:] * after, others[:, :, :-1], grad_before)
        each = each.view(-1, *self.state[2:])
        start = torch.baddbmm(first[:, :, -1:] * after, first[:, :, :-1], grad_before)
        grad_keys = (grad_weights.mT @ self.queries).baddbmm_(self.local, each.mT)
        grad_values = self.keys @ each
        if self.grow is not None:
            grad_values *= self.grow
        grad_values.baddbmm_(self.weights.mT, grad)
        found = (t.view(*self.shape, -1) for t in (grad_queries, grad_keys, grad_values))
        return (*found, start.view(self.state))  # type: ignore[return-value]  # three of a generator
