"""Kernel attention block by block: features exist for one block of positions at a time.

The forward pass carries the sums from block to block; the backward pass takes the blocks in
reverse and computes their features again, through the author's own feature maps. Inside a block
the causal form is that of ``sums`` (Yang et al. 2023, arXiv:2312.06635).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from attnreg.families.block import Block
from attnreg.families.plan import ChunkPlan
from attnreg.families.sums import Features, exp_difference
from attnreg.functional import expand_heads, plain_gradients, wants_graph
from attnreg.tracing import accumulation_dtype, full_precision


class Chunked(torch.autograd.Function):
    """The blocks in order, and a backward pass that takes them in reverse."""

    @staticmethod
    def forward(
        ctx: Any, plan: ChunkPlan, query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor
    ) -> Tensor:
        kept: list[Tensor] = []
        # Rounded to halves, what is kept would cost the gradient of the query most of its digits.
        output, inverse = attend(plan, query, key, value, kept)
        ctx.plan, ctx.kept = plan, len(kept)
        # The mask is saved so that torch notices where it was changed before the backward pass.
        hidden = plan.mask.tensors
        ctx.save_for_backward(query, key, value, output, inverse, *kept, *tensors, *hidden)
        return output.to(query.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        query, key, value, output, inverse, *rest = ctx.saved_tensors
        kept, tensors = rest[: ctx.kept], tuple(rest[ctx.kept :][: len(ctx.plan.names)])
        if wants_graph(grads[0]):
            return (None, *_differentiable(ctx.plan, (query, key, value, *tensors), grads[0]))
        with full_precision(query.device):
            reverse = _Reverse(ctx.plan, (query, key, value), output, inverse, tensors)
            return (None, *reverse.run(kept, grads[0]))


def attend(
    plan: ChunkPlan,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kept: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Run the blocks in order: the output and, where ``kept`` is given, 1 / normaliser.

    Where ``kept`` is given the output is float32 or wider.

    ``kept`` gathers a stack for the way back: for each block the sums that its rows start from,
    and the scale of the sums before it; the last scale is on top.
    """
    maps = plan.maps(plan.tensors)
    width, scaled = maps.probe(key)
    wide = accumulation_dtype(query.dtype)
    dtype = value.dtype if kept is None else wide
    output = value.new_empty(*query.shape[:3], value.shape[3], dtype=dtype)
    inverse = None
    if plan.normalize and kept is not None:
        inverse = output.new_empty(*query.shape[:3], 1, dtype=wide)
    output[:, :, : plan.spans(query, key)[0]] = 0.0
    for items in plan.items(query, key, width):
        q, k, v, valid = _items(items, query, key, value, plan.mask.key_valid)
        total = v.new_zeros(*q.shape[:2], width, v.shape[3] + plan.normalize, dtype=wide)
        top = total.new_full(q.shape[:2], -torch.inf) if scaled else None
        for rows, columns in plan.pieces(q, k, width):
            if kept is not None:
                kept += [t for t in (None if rows is None else total, top) if t is not None]
            if columns is not None:
                phi_k = maps.keys(k[:, :, columns], _cut(valid, columns))
                values = expand_heads(v[:, :, columns], plan.heads).to(wide)
            if rows is None:
                top = _join(total, top, phi_k, values)
                continue
            phi_q = maps.queries(q[:, :, rows])
            target = output[items, :, rows]
            if columns is not None:
                block = Block(phi_q, phi_k, _with_ones(values, plan), total, top, plan.size)
                mixed, total, top = block.mixed(), block.last, block.top
            else:
                mixed = phi_q @ total
            if not plan.normalize:
                target.copy_(mixed)
                continue
            mixed, normaliser = mixed[..., :-1], mixed[..., -1:]
            empty = normaliser.abs() < torch.finfo(wide).tiny  # as in sums.quotient
            factor = normaliser.reciprocal().masked_fill_(empty, 0.0)
            if target.dtype == wide:
                torch.mul(mixed, factor, out=target)
            else:
                target.copy_(mixed.mul_(factor))
            if inverse is not None:
                inverse[items, :, rows] = factor
        if kept is not None and top is not None:
            kept.append(top)
    return output, inverse


class _Reverse:
    """The backward pass, from the last block to the first."""

    def __init__(
        self,
        plan: ChunkPlan,
        inputs: tuple[Tensor, Tensor, Tensor],
        output: Tensor,
        inverse: Tensor | None,
        tensors: tuple[Tensor, ...],
    ) -> None:
        self.plan = plan
        self.inputs = inputs
        self.output = output
        self.inverse = inverse
        self.tensors = tensors
        self.maps = plan.maps(tensors)
        self.wide = accumulation_dtype(output.dtype)
        self.found = tuple(torch.empty_like(t) for t in inputs)
        self.wanted = [t for t in tensors if t.requires_grad]
        self.grads = [torch.zeros_like(t, dtype=self.wide) for t in self.wanted]

    def run(self, kept: list[Tensor], grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of query, key, value and the module's tensors from that of the output."""
        query, key, _ = self.inputs
        width, scaled = self.maps.probe(key)
        blind, seen, both = self.plan.spans(query, key)
        self.found[0][:, :, :blind] = 0.0
        for unseen in self.found[1:]:
            unseen[:, :, seen + both :] = 0.0
        for items in reversed(self.plan.items(query, key, width)):
            self._run(items, width, kept, scaled, grad)
        pairs = zip(self.wanted, self.grads, strict=True)
        by_tensor = {id(t): g.to(t.dtype) for t, g in pairs}
        return (*self.found, *(by_tensor.get(id(t)) for t in self.tensors))

    def _run(
        self, items: slice, width: int, kept: list[Tensor], scaled: bool, grad: Tensor
    ) -> None:
        plan = self.plan
        q, k, v, valid = _items(items, *self.inputs, plan.mask.key_valid)
        grad_q, grad_k, grad_v = (t[items] for t in self.found)
        sizes = (*q.shape[:2], width, v.shape[3] + plan.normalize)
        grad_total = grad.new_zeros(sizes, dtype=self.wide)
        top = kept.pop() if scaled else None
        for rows, columns in reversed(plan.pieces(q, k, width)):
            after, top = top, kept.pop() if scaled else None
            if rows is not None:
                total = kept.pop()
                leaf_q = q[:, :, rows].detach().requires_grad_()
                with torch.enable_grad():
                    phi_q = self.maps.queries(leaf_q)
                mapped_q = phi_q.detach()
                grad_mixed = self._grad_mixed(grad[items, :, rows], items, rows)
            if columns is not None:
                leaf_k = k[:, :, columns].detach().requires_grad_()
                with torch.enable_grad():
                    phi_k = self.maps.keys(leaf_k, _cut(valid, columns))
                mapped_k = Features(
                    phi_k[0].detach(), phi_k[1] if phi_k[1] is None else phi_k[1].detach()
                )
                values = expand_heads(v[:, :, columns], plan.heads).to(self.wide)
            if columns is None:
                arriving_q = grad_mixed @ total.mT
                _add_product(grad_total, mapped_q, grad_mixed)
            elif rows is None:
                arriving_k, grad_value, of_scale = _leave(mapped_k, values, grad_total, top, after)
            else:
                values = _with_ones(values, plan)
                block = Block(mapped_q, mapped_k, values, total, top, plan.size)
                arriving_q, arriving_k, grad_value, grad_total = block.reverse(
                    grad_mixed, grad_total
                )
                of_scale = (values * grad_value).sum(dim=-1) if scaled else None
            if rows is not None:
                self._pull([phi_q], [arriving_q], leaf_q, grad_q[:, :, rows])
            if columns is not None:
                outputs, arriving = [phi_k.values], [arriving_k]
                if phi_k.log_scale is not None and of_scale is not None:
                    outputs.append(phi_k.log_scale)
                    arriving.append(of_scale)
                self._pull(outputs, arriving, leaf_k, grad_k[:, :, columns])
                grad_value = grad_value[..., : v.shape[3]]
                if v.shape[1] < q.shape[1]:
                    grad_value = grad_value.unflatten(1, (v.shape[1], -1)).sum(dim=2)
                grad_v[:, :, columns] = grad_value

    def _grad_mixed(self, grad: Tensor, items: slice, rows: slice) -> Tensor:
        """The gradient of the sums of weights times [v, 1], of which the output is the quotient."""
        grad = grad.to(self.wide)
        if self.inverse is None:
            return grad
        factor = self.inverse[items, :, rows]
        mixed = grad.new_empty(*grad.shape[:3], grad.shape[3] + 1)
        torch.mul(grad, factor, out=mixed[..., :-1])
        dots = (grad * self.output[items, :, rows]).sum(dim=-1, keepdim=True)
        torch.mul(dots, -factor, out=mixed[..., -1:])
        return mixed

    def _pull(
        self, outputs: list[Tensor], arriving: list[Tensor], leaf: Tensor, into: Tensor
    ) -> None:
        """Take gradients of features back through the author's map, to its input and tensors."""
        pairs = [(o, g) for o, g in zip(outputs, arriving, strict=True) if o.requires_grad]
        if not pairs:  # features that depend on nothing
            into.zero_()
            return
        tracked, arriving = ([p[n] for p in pairs] for n in (0, 1))
        found = torch.autograd.grad(
            tracked, [leaf, *self.wanted], [g.to(o.dtype) for o, g in pairs], allow_unused=True
        )
        if found[0] is None:
            into.zero_()
        else:
            into.copy_(found[0])
        for total, extra in zip(self.grads, found[1:], strict=True):
            if extra is not None:
                total.add_(extra)


def _differentiable(
    plan: ChunkPlan, inputs: tuple[Tensor, ...], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The same gradients by autograd through the plain formula, to be differentiated again."""

    def run(query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor) -> Tensor:
        swapped = dict(zip(plan.names, tensors, strict=True))
        with plan.as_called():
            output: Tensor = functional_call(plan.module, swapped, (query, key, value, plan.mask))
            return output

    return plain_gradients(run, inputs, grad)


def _join(total: Tensor, top: Tensor | None, phi_k: Features, value: Tensor) -> Tensor | None:
    """Add a block of keys to the sums, in place; return the scale that they now have."""
    values, log_scale = phi_k
    width = value.shape[3]
    if log_scale is not None and top is not None:
        higher = torch.maximum(top, log_scale.amax(dim=-1))
        total *= exp_difference(top, higher)[..., None, None]
        grow = exp_difference(log_scale, higher[..., None])[..., None]
        _add_product(total, values, _grown(value, grow, total.shape[3]))
        return higher
    total[..., :width] += values.mT @ value  # as strided as it is, baddbmm_ would go head by head
    if total.shape[3] > width:  # the normaliser, without a copy of the values for a column of ones
        total[..., width:] += values.sum(dim=2)[..., None]
    return top


def _leave(
    phi_k: Features,
    value: Tensor,
    grad_total: Tensor,
    before: Tensor | None,
    after: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Take ``_join`` back: gradients of features, values and scales, and in place of the sums."""
    values, log_scale = phi_k
    width = value.shape[3]
    if log_scale is None or before is None or after is None:
        found = value @ grad_total[..., :width].mT
        if grad_total.shape[3] > width:
            found += grad_total[..., width:].mT
        return found, values @ grad_total[..., :width], None
    grow = exp_difference(log_scale, after[..., None])[..., None]
    grown = _grown(value, grow, grad_total.shape[3])
    found, of_grown = grown @ grad_total.mT, values @ grad_total
    # A weight grows with exp(log_scale) as its product with [v, 1] does with that.
    of_scale = (grown * of_grown).sum(dim=-1)
    grad_total *= exp_difference(before, after)[..., None, None]
    return found, of_grown[..., :width] * grow, of_scale


def _grown(value: Tensor, grow: Tensor, width: int) -> Tensor:
    """[v, 1] of some width, times what scales each key."""
    return F.pad(value, (0, width - value.shape[3]), value=1.0).mul_(grow)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left^T right to total (B, H, M, N), in place."""
    total.flatten(0, 1).baddbmm_(left.flatten(0, 1).mT, right.flatten(0, 1))


def _with_ones(value: Tensor, plan: ChunkPlan) -> Tensor:
    """Values of a block; where it matters, a column of ones that gathers the normaliser along."""
    return F.pad(value, (0, 1), value=1.0) if plan.normalize else value


def _items(
    items: slice, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    return query[items], key[items], value[items], None if key_valid is None else key_valid[items]


def _cut(key_valid: Tensor | None, columns: slice) -> Tensor | None:
    return None if key_valid is None else key_valid[:, columns]
