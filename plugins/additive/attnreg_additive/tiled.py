"""Additive attention in tiles of pairs, by exponentials that are found once for each position.

The tiles are joined by an online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867), and the
backward pass computes each tile again: memory is linear in the length, forward and backward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attnreg import Call, Implementation, Mask
from attnreg.functional import cast_in_range, expand_heads, plain_gradients, wants_graph
from attnreg.lowering import LoweredMask
from attnreg.tracing import accumulation_dtype, full_precision
from attnreg_additive.module import Additive
from attnreg_additive.tiles import EAGER_TILES, Tiles

COLUMNS = 512
"""The widest tile: the exponentials of its keys stay in the cache while rows go by."""


def attend_tiled(
    module: Additive, query: Tensor, key: Tensor, value: Tensor, mask: Mask, tiles: Tiles
) -> Tensor:
    """Attend: (B, Hq, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv) to (B, Hq, Lq, Dv).

    Heads with inputs so large that the range of the dtype would not do, or NaN, go the next way:
    eager tiles after compiled ones, then the module's own. No other head of any item is rounded
    otherwise because of them.
    """
    heads, wide = query.shape[1], accumulation_dtype(query.dtype)
    with full_precision(query.device):
        query_side, key_side, weight = module.sides(query, expand_heads(key, heads), wide)
        far = _out_of_reach(query_side, key_side, *tiles.reach(wide))
        some_far = bool(far.any())
        if some_far:
            query_side, key_side = (t.masked_fill(far, 0.0) for t in (query_side, key_side))
        lowered = LoweredMask(mask, query.shape[2], key.shape[2], query.device)
        factor = module.scale / module.temperature
        output: Tensor = _Tiled.apply(  # type: ignore[no-untyped-call]  # torch's apply is untyped
            tiles,
            lowered,
            factor,
            query_side,
            key_side,
            weight,
            expand_heads(value, heads),
            mask.bias,
        )
        output = output.to(query.dtype)
    if not some_far:
        return output
    if tiles is EAGER_TILES:
        other: Tensor = module(query, key, value, mask)
    else:
        other = attend_tiled(module, query, key, value, mask, EAGER_TILES)
    return torch.where(far, other, output)


def _out_of_reach(query_side: Tensor, key_side: Tensor, most: float, most_sum: float) -> Tensor:
    """Which heads have a too large entry, or a too large sum in some unit: (B, H, 1, 1)."""
    if query_side.numel() == 0 or key_side.numel() == 0:
        return torch.zeros(*query_side.shape[:2], 1, 1, dtype=torch.bool)
    low, high = torch.aminmax(query_side.detach(), dim=2)
    key_low, key_high = torch.aminmax(key_side.detach(), dim=2)
    within = (torch.minimum(low, key_low) > -most) & (torch.maximum(high, key_high) < most)
    within &= high + key_high < most_sum
    return ~within.all(dim=2)[..., None, None]


class _Call:
    """One call with its heads flattened: exponentials, tiles, and the mask of any tile."""

    def __init__(
        self,
        tiles: Tiles,
        lowered: LoweredMask,
        factor: float,
        query_side: Tensor,
        key_side: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> None:
        self.tiles, self.lowered, self.bias = tiles, lowered, bias
        batch, self.heads, self.rows, hidden = query_side.shape
        units = math.ceil(hidden / tiles.multiple) * tiles.multiple
        spare = (0, units - hidden)  # of weight 0
        self.left = F.pad(query_side.flatten(0, 1).mul(2.0).exp_(), spare)
        right = F.pad(key_side.flatten(0, 1).mul(2.0).exp_(), spare)
        self.right = right.transpose(1, 2).contiguous()
        each = F.pad(weight * (-2.0 * factor), spare).expand(batch, self.heads, units)
        self.weight = each.reshape(batch * self.heads, units)

    def strips(self) -> Iterator[tuple[slice, list[slice]]]:
        """Rows, with the column tiles that causality and window leave to them."""
        count, columns = self.left.shape[0], self.right.shape[2]
        width = min(COLUMNS, columns)
        height = max(1, min(self.tiles.pairs // max(1, count * width), self.rows))
        for first in range(0, self.rows, height):
            last = min(first + height, self.rows)
            start, stop = self.lowered.key_range(first, last)
            edges = range(start, stop, width)
            yield slice(first, last), [slice(c, min(c + width, stop)) for c in edges]

    def logits(self, rows: slice, columns: slice) -> Tensor:
        """What the softmax of a tile sees: (n, rows, columns)."""
        logits = self.tiles.scores(self.left[:, rows], self.right[:, :, columns], self.weight)
        tile = logits.unflatten(0, (-1, self.heads))
        bias = self.lowered.bias(rows, columns)
        if bias is not None:
            tile += cast_in_range(bias, tile.dtype)
        visible = self.lowered.visible(rows, columns)
        if visible is not None:
            tile.masked_fill_(~visible, -torch.inf)
        return logits


class _Tiled(torch.autograd.Function):
    """The forward pass, and a backward pass that computes each tile again."""

    @staticmethod
    def forward(
        ctx: Any,
        tiles: Tiles,
        lowered: LoweredMask,
        factor: float,
        query_side: Tensor,
        key_side: Tensor,
        weight: Tensor,
        value: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        with torch.inference_mode(mode=False), torch.no_grad():
            call = _Call(tiles, lowered, factor, query_side, key_side, weight, bias)
            flat, log_sum = _forward(call, value.flatten(0, 1))
        output: Tensor = flat.unflatten(0, query_side.shape[:2])
        ctx.tiles, ctx.lowered, ctx.factor = tiles, lowered, factor
        saved = (query_side, key_side, weight, value, bias, output, log_sum)
        ctx.save_for_backward(*saved, *lowered.mask.tensors)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        query_side, key_side, weight, value, bias, output, log_sum, *_ = ctx.saved_tensors
        inputs = (query_side, key_side, weight, value, bias)
        with full_precision(query_side.device):
            if wants_graph(grads[0]):
                plain = partial(_plain, ctx.lowered, ctx.factor)
                found = plain_gradients(plain, inputs, grads[0])
                return (None, None, None, *found)
            call = _Call(ctx.tiles, ctx.lowered, ctx.factor, query_side, key_side, weight, bias)
            by_query, by_key, by_unit, by_value, by_bias = _backward(
                call, value.flatten(0, 1), output.flatten(0, 1), grads[0].flatten(0, 1), log_sum
            )
        shape = query_side.shape[:2]
        # The weight of r is -2 * factor * weight, and d r / d a = -2 (r - r^2).
        by_weight = by_unit.unflatten(0, shape)[..., : weight.shape[1]].sum(dim=0)
        return (
            None,
            None,
            None,
            by_query.unflatten(0, shape)[..., : weight.shape[1]],
            by_key.unflatten(0, shape)[..., : weight.shape[1]],
            by_weight * (-2.0 * ctx.factor),
            by_value.unflatten(0, shape).to(value.dtype),
            by_bias,
        )


def _forward(call: _Call, value: Tensor) -> tuple[Tensor, Tensor]:
    """The output (n, rows, Dv), and the logarithm of each row's normaliser (n, rows, 1)."""
    wide = call.left.dtype
    count, length, _ = call.left.shape
    output = call.left.new_zeros(count, length, value.shape[2])
    log_sum = call.left.new_full((count, length, 1), -torch.inf)
    for rows, strip in call.strips():
        mixed, top = output[:, rows], log_sum[:, rows]
        total = torch.zeros_like(top)
        for columns in strip:
            logits = call.logits(rows, columns)
            higher = torch.maximum(top, logits.amax(dim=-1, keepdim=True))
            level = higher.masked_fill(higher == -torch.inf, 0.0)
            part = logits.sub_(level).exp_()
            shrink = (top - level).exp_()
            total = part.sum(dim=-1, keepdim=True).add_(total * shrink)
            mixed = torch.baddbmm(mixed * shrink, part, value[:, columns].to(wide))
            top = higher
        output[:, rows] = (mixed / total).masked_fill_(total == 0, 0.0)
        log_sum[:, rows] = top + total.log()
    return output, log_sum


def _backward(
    call: _Call, value: Tensor, output: Tensor, grad: Tensor, log_sum: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients by both sides (n, length, units), unit (n, units), value and bias."""
    wide = call.left.dtype
    grad = grad.to(wide)
    by_query, by_key = torch.zeros_like(call.left), torch.zeros_like(call.right)
    by_unit, by_value = torch.zeros_like(call.weight), torch.zeros_like(value, dtype=wide)
    bias = call.bias
    by_bias = (
        torch.zeros_like(bias, dtype=wide) if bias is not None and bias.requires_grad else None
    )
    delta = (grad * output).sum(dim=-1, keepdim=True)
    level = log_sum.masked_fill(log_sum == -torch.inf, 0.0)
    for rows, strip in call.strips():
        arriving = grad[:, rows]
        for columns in strip:
            part = call.logits(rows, columns).sub_(level[:, rows]).exp_()
            by_value[:, columns].baddbmm_(part.transpose(1, 2), arriving)
            slope = torch.baddbmm(
                -delta[:, rows], arriving, value[:, columns].to(wide).transpose(1, 2)
            ).mul_(part)
            if by_bias is not None:
                _add_to_bias(by_bias, slope.unflatten(0, (-1, call.heads)), rows, columns)
            found = call.tiles.slopes(slope, call.left[:, rows], call.right[:, :, columns])
            by_query[:, rows] += found[0]
            by_key[:, :, columns] += found[1]
            by_unit += found[2]
    by_query *= -2.0 * call.weight[:, None]
    by_key *= -2.0 * call.weight[:, :, None]
    if by_bias is not None and bias is not None:
        by_bias = by_bias.to(bias.dtype)
    return by_query, by_key.transpose(1, 2), by_unit, by_value, by_bias


def _add_to_bias(by_bias: Tensor, slope: Tensor, rows: slice, columns: slice) -> None:
    """Add a tile's gradient where a broadcast bias came from."""
    whole = by_bias.reshape((1,) * (4 - by_bias.dim()) + by_bias.shape)  # a view: it is new
    everything = slice(None)
    tile = whole[
        :,
        :,
        rows if whole.shape[2] > 1 else everything,
        columns if whole.shape[3] > 1 else everything,
    ]
    tile += slope.sum_to_size(tile.shape)


def _plain(
    lowered: LoweredMask,
    factor: float,
    query_side: Tensor,
    key_side: Tensor,
    weight: Tensor,
    value: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """The same from the formula, over all pairs at once, in operations that torch can follow."""
    hidden = torch.tanh(query_side[..., :, None, :] + key_side[..., None, :, :])
    logits = (hidden @ weight[:, None, :, None]).squeeze(-1) * factor
    if bias is not None:
        logits = logits + cast_in_range(bias.masked_fill(bias == -torch.inf, 0.0), logits.dtype)
    visible = lowered.visible()
    if visible is None:
        return logits.softmax(dim=-1) @ value.to(logits.dtype)
    some = visible.any(dim=-1, keepdim=True)
    logits = logits.masked_fill(~visible, -torch.inf).masked_fill(~some, 0.0)
    return logits.softmax(dim=-1).masked_fill(~visible, 0.0) @ value.to(logits.dtype)


def why_not_tiled(call: Call) -> list[str]:
    """Say why a call cannot run in tiles of exponentials."""
    reasons: list[str] = []
    if not isinstance(call.module, Additive) or type(call.module).score is not Additive.score:
        reasons.append("the module scores by a formula of its own")
    if call.dropout > 0.0:
        reasons.append("dropout: only 'eager' draws it tile by tile")
    if call.compiling:
        reasons.append("inside torch.compile or export the loops over tiles would unroll")
    elif call.transformed:
        reasons.append("a hand-written derivative has no rule for function transforms such as vmap")
    if call.device.type != "cpu":
        reasons.append(f"it looks at values, which waits for a device such as {call.device.type}")
    return reasons


def _tiled(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    return attend_tiled(module, query, key, value, mask, EAGER_TILES)


TILED = Implementation("tiled", _tiled, why_not_tiled, rank=10)
