"""Softmax attention over scores, tile by tile: never more than a tile of scores at a time.

The tiles are joined by an online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867; Rabe and
Staats 2021, arXiv:2112.05682), and the backward pass computes each tile again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnreg.functional import cast_in_range, plain_gradients, wants_graph
from attnreg.lowering import ALL, LoweredMask
from attnreg.tracing import accumulation_dtype, are_transformed, full_precision

Score = Callable[[Tensor, Tensor], Tensor]
Pattern = Callable[[LoweredMask, slice, slice], Tensor | None]

COLUMNS = 512
"""The widest tile; rows follow from the number of scores that a tile may hold."""


@dataclass
class ScorePlan:
    """How to compute the scores of any tile of one call."""

    module: nn.Module
    score: str
    """The name of the module's method ``score(query, key) -> (B, H, rows, columns)``."""
    lowered: LoweredMask
    scale: float
    pattern: Pattern
    dropout: float = 0.0
    tile_elements: int = 2**20
    seed: int = 0
    names: tuple[str, ...] = field(init=False)
    tensors: tuple[Tensor, ...] = field(init=False)
    autocast: torch.dtype | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        named = dict(self.module.named_parameters())
        self.names = tuple(named)
        self.tensors = tuple(named.values())
        kind = self.lowered.device.type
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            self.autocast = torch.get_autocast_dtype(kind)

    def visible(self, rows: slice, columns: slice) -> Tensor | None:
        """Mask and the variant's own pattern, intersected; None: everything."""
        visible = self.lowered.visible(rows, columns)
        pattern = self.pattern(self.lowered, rows, columns)
        if visible is None or pattern is None:
            return pattern if visible is None else visible
        return visible & pattern

    def logits(self, query: Tensor, key: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
        """Scaled scores of a tile, in float32 or wider, with these tensors as parameters."""
        if self.autocast is None:
            scores = self._score(query, key, tensors)
        else:  # the author's code runs as the caller asked, in the backward pass too
            with torch.autocast(query.device.type, self.autocast):
                scores = self._score(query, key, tensors)
        return scores.to(accumulation_dtype(scores.dtype)) * self.scale

    def keep(self, like: Tensor, index: int) -> Tensor:
        """The dropout factor of tile ``index``: 0 or 1 / (1 - p), the same at every call."""
        generator = torch.Generator(device=like.device).manual_seed(self.seed + index)
        drawn = torch.rand(like.shape, generator=generator, device=like.device, dtype=torch.float32)
        kept = drawn >= self.dropout
        return kept.to(like.dtype) / (1.0 - self.dropout)

    def _score(self, query: Tensor, key: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
        score: Score = getattr(self.module, self.score)
        current = dict(self.module.named_parameters())
        if all(current[n] is t for n, t in zip(self.names, tensors, strict=True)):
            return score(query, key)
        # The parameters were swapped (torch.func.functional_call) and are back by now.
        swapped = {f"module.{n}": t for n, t in zip(self.names, tensors, strict=True)}
        caller = _MethodCaller(self.module, self.score)
        result: Tensor = torch.func.functional_call(caller, swapped, (query, key))
        return result


class _MethodCaller(nn.Module):
    """Call a method of a module through ``forward``, as ``functional_call`` needs."""

    def __init__(self, module: nn.Module, method: str) -> None:
        super().__init__()
        self.module = module
        self.method = method

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        scores: Tensor = getattr(self.module, self.method)(query, key)
        return scores


def attend(plan: ScorePlan, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Softmax of the plan's scores times the values; key and value have Hq heads already."""
    heads = query.shape[0] * query.shape[1]
    bias = plan.lowered.mask.bias
    inputs = (query, key, value, *(() if bias is None else (bias,)), *plan.tensors)
    one_tile = (
        torch.compiler.is_compiling()
        or are_transformed(inputs)
        or heads * query.shape[2] * key.shape[2] <= plan.tile_elements
    )
    if one_tile:
        return _attend_dense(plan, query, key, value, plan.tensors)
    if plan.dropout > 0.0:
        plan.seed = int(torch.randint(2**31, ()).item())
    with full_precision(query.device):
        output: Tensor = _Tiled.apply(plan, query, key, value, bias, *plan.tensors)  # type: ignore[no-untyped-call]  # torch's apply is untyped
    return output


def weights(plan: ScorePlan, query: Tensor, key: Tensor) -> Tensor:
    """The whole (B, Hq, Lq, Lk) weights, in float32 or wider, before dropout."""
    logits = plan.logits(query, key, plan.tensors)
    with full_precision(query.device):
        bias = plan.lowered.bias()
        if bias is not None:
            logits = logits + cast_in_range(bias, logits.dtype)
        return masked_softmax(logits, plan.visible(ALL, ALL))


def masked_softmax(logits: Tensor, visible: Tensor | None) -> Tensor:
    """Softmax over the visible entries; a row with none gives 0, and finite zero gradients."""
    if visible is None:
        return logits.softmax(dim=-1)
    some = visible.any(dim=-1, keepdim=True)
    # A whole row of -inf would make NaN, here or in the backward pass: it gets 0 instead.
    logits = logits.masked_fill(~visible, -torch.inf).masked_fill(~some, 0.0)
    return logits.softmax(dim=-1).masked_fill(~visible, 0.0)


def _attend_dense(
    plan: ScorePlan,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tensors: tuple[Tensor, ...],
    keep: Tensor | None = None,
) -> Tensor:
    logits = plan.logits(query, key, tensors)
    with full_precision(query.device):
        bias = plan.lowered.bias()
        if bias is not None:
            logits = logits + cast_in_range(bias, logits.dtype)
        probabilities = masked_softmax(logits, plan.visible(ALL, ALL))
        if keep is not None:
            probabilities = probabilities * keep
        elif plan.dropout > 0.0:
            probabilities = F.dropout(probabilities, plan.dropout)
        return (probabilities @ value.to(probabilities.dtype)).to(query.dtype)


class _Tiled(torch.autograd.Function):
    """The tiled forward pass, and a backward pass that computes each tile again."""

    @staticmethod
    def forward(
        ctx: Any,
        plan: ScorePlan,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        *tensors: Tensor,
    ) -> Tensor:
        wide = accumulation_dtype(query.dtype)
        batch, heads, length, _ = query.shape
        output = value.new_zeros(batch, heads, length, value.shape[3], dtype=wide)
        log_sum = value.new_full((batch, heads, length, 1), -torch.inf, dtype=wide)
        index = 0
        for rows, strip in _tiles(plan, query, key):
            top = log_sum[:, :, rows]  # the running maximum until the strip is done
            total = torch.zeros_like(top)
            mixed = torch.zeros_like(output[:, :, rows])
            for columns in strip:
                logits = _tile_logits(plan, query[:, :, rows], key[:, :, columns], rows, columns)
                higher = torch.maximum(top, logits.amax(dim=-1, keepdim=True))
                level = higher.masked_fill(higher == -torch.inf, 0.0)
                part = (logits - level).exp_()
                shrink = (top - level).exp()
                total = total * shrink + part.sum(dim=-1, keepdim=True)
                if plan.dropout > 0.0:
                    part = part * plan.keep(part, index)
                mixed = mixed * shrink + part @ value[:, :, columns].to(wide)
                top = higher
                index += 1
            output[:, :, rows] = torch.where(total > 0, mixed / total, 0.0)
            log_sum[:, :, rows] = top + total.log()
        ctx.plan = plan
        result = output.to(query.dtype)
        # The mask is saved so that torch notices where it was changed before the backward pass.
        ctx.count = len(tensors)
        hidden = plan.lowered.mask.tensors
        # Unrounded: a rounded output would cost the gradient of the query most of its digits.
        ctx.save_for_backward(query, key, value, bias, output, log_sum, *tensors, *hidden)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (grad,) = grads
        query, key, value, bias, output, log_sum, *rest = ctx.saved_tensors
        tensors = rest[: ctx.count]
        plan: ScorePlan = ctx.plan
        with full_precision(query.device):
            if wants_graph(grad):
                found = _differentiable_grads(plan, query, key, value, bias, tensors, grad)
            else:
                found = _tiled_grads(plan, query, key, value, bias, output, log_sum, tensors, grad)
        return (None, *found)


def _tiles(plan: ScorePlan, query: Tensor, key: Tensor) -> Iterator[tuple[slice, Iterator[slice]]]:
    """Strips of rows, each with the column tiles that the mask does not wholly hide."""
    heads = query.shape[0] * query.shape[1]
    length = query.shape[2]
    width = min(COLUMNS, key.shape[2])
    height = max(1, min(plan.tile_elements // max(1, heads * width), length))
    for first in range(0, length, height):
        last = min(first + height, length)
        start, stop = plan.lowered.key_range(first, last)
        columns = (slice(c, min(c + width, stop)) for c in range(start, stop, width))
        yield slice(first, last), columns


def _tile_logits(
    plan: ScorePlan, query: Tensor, key: Tensor, rows: slice, columns: slice
) -> Tensor:
    logits = plan.logits(query, key, plan.tensors)
    bias = plan.lowered.bias(rows, columns)
    if bias is not None:
        logits = logits + cast_in_range(bias, logits.dtype)
    visible = plan.visible(rows, columns)
    return logits if visible is None else logits.masked_fill(~visible, -torch.inf)


def _tiled_grads(
    plan: ScorePlan,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    output: Tensor,
    log_sum: Tensor,
    tensors: list[Tensor],
    grad: Tensor,
) -> tuple[Tensor | None, ...]:
    wide = log_sum.dtype
    grad = grad.to(wide)
    grad_query, grad_key, grad_value = (
        torch.zeros(t.shape, dtype=wide, device=t.device) for t in (query, key, value)
    )
    needs_bias = bias is not None and bias.requires_grad
    grad_bias = torch.zeros_like(bias, dtype=wide) if bias is not None and needs_bias else None
    wanted = [t for t in tensors if t.requires_grad]
    grad_wanted = [torch.zeros_like(t, dtype=wide) for t in wanted]
    delta = (grad * output.to(wide)).sum(dim=-1, keepdim=True)
    level = log_sum.masked_fill(log_sum == -torch.inf, 0.0)
    index = 0
    for rows, strip in _tiles(plan, query, key):
        for columns in strip:
            with torch.enable_grad():
                q = query[:, :, rows].detach().requires_grad_()
                k = key[:, :, columns].detach().requires_grad_()
                logits = plan.logits(q, k, tuple(tensors))
            scores = logits.detach()
            tile_bias = plan.lowered.bias(rows, columns)
            if tile_bias is not None:
                scores = scores + cast_in_range(tile_bias, wide)
            visible = plan.visible(rows, columns)
            if visible is not None:
                scores = scores.masked_fill(~visible, -torch.inf)
            part = (scores - level[:, :, rows]).exp()
            arriving = grad[:, :, rows] @ value[:, :, columns].to(wide).transpose(-1, -2)
            if plan.dropout > 0.0:
                keep = plan.keep(part, index)
                arriving = arriving * keep
                dropped = part * keep
            else:
                dropped = part
            grad_value[:, :, columns] += dropped.transpose(-1, -2) @ grad[:, :, rows]
            grad_scores = part * (arriving - delta[:, :, rows])
            if grad_bias is not None:
                _add_to_bias(grad_bias, grad_scores, rows, columns)
            if not logits.requires_grad:  # a score that depends on nothing
                index += 1
                continue
            found = torch.autograd.grad(logits, [q, k, *wanted], grad_scores, allow_unused=True)
            totals = [grad_query[:, :, rows], grad_key[:, :, columns], *grad_wanted]
            for total, extra in zip(totals, found, strict=True):
                if extra is not None:
                    total.add_(extra)
            index += 1
    by_tensor = {id(t): g.to(t.dtype) for t, g in zip(wanted, grad_wanted, strict=True)}
    return (
        grad_query.to(query.dtype),
        grad_key.to(key.dtype),
        grad_value.to(value.dtype),
        None if grad_bias is None or bias is None else grad_bias.to(bias.dtype),
        *(by_tensor.get(id(t)) for t in tensors),
    )


def _add_to_bias(grad_bias: Tensor, grad_scores: Tensor, rows: slice, columns: slice) -> None:
    """Add a tile's gradient where a broadcast bias came from."""
    wide = grad_bias.reshape((1,) * (4 - grad_bias.dim()) + grad_bias.shape)  # a view: it is new
    tile = wide[
        :,
        :,
        rows if wide.shape[2] > 1 else ALL,
        columns if wide.shape[3] > 1 else ALL,
    ]
    tile += grad_scores.sum_to_size(tile.shape)


def _differentiable_grads(
    plan: ScorePlan,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    tensors: list[Tensor],
    grad: Tensor,
) -> tuple[Tensor | None, ...]:
    keep = _whole_keep(plan, query, key) if plan.dropout > 0.0 else None

    def run(
        query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *tensors: Tensor
    ) -> Tensor:
        same = copy(plan)
        same.lowered = plan.lowered.with_bias(bias)
        return _attend_dense(same, query, key, value, tensors, keep)

    return plain_gradients(run, (query, key, value, bias, *tensors), grad)


def _whole_keep(plan: ScorePlan, query: Tensor, key: Tensor) -> Tensor:
    """Put the dropout factors of all tiles together."""
    sizes = (*query.shape[:3], key.shape[2])
    keep = torch.ones(sizes, dtype=accumulation_dtype(query.dtype), device=query.device)
    index = 0
    for rows, strip in _tiles(plan, query, key):
        for columns in strip:
            keep[:, :, rows, columns] = plan.keep(keep[:, :, rows, columns], index)
            index += 1
    return keep
