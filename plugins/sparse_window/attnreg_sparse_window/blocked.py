"""The fast path: tiles of rows against the keys that the pattern leaves them, linear in L."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attnreg import Call, Implementation, Mask
from attnreg.families import attend_visible, equal_widths
from attnreg.functional import plain_gradients, wants_graph
from attnreg.lowering import LoweredMask
from attnreg.tracing import accumulation_dtype, full_precision
from attnreg_sparse_window.layout import Layout, Sizes
from attnreg_sparse_window.module import SparseWindow
from attnreg_sparse_window.tiles import FullRows, Piece, Room, whole_vectors


def attend_blocked(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Mask
) -> Tensor:
    """Attend piece by piece: (B, Hq, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv) to (B, Hq, Lq, Dv).

    Tiles of rows see the keys of their window where they lie, and copies of global keys and
    random blocks. Global queries see every key and are computed apart. The backward pass
    computes most pieces again: but for windows that are read in place, the inputs are all it keeps.
    """
    assert isinstance(module, SparseWindow)  # for mypy: registered for this variant alone
    if query.numel() == 0:
        return module.forward(query, key, value, mask)
    value_width = value.shape[3]
    query, key, value = equal_widths(query, key, value)
    inputs = (query, key, value, mask.bias)
    tracked = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    with full_precision(query.device):
        output: Tensor = _Blocked.apply(module, mask, tracked, *inputs)  # type: ignore[no-untyped-call]  # torch's apply is untyped
    return output[..., :value_width]


def why_not_blocked(call: Call) -> list[str]:
    """Say why ``attend_blocked`` should not run a call."""
    reasons: list[str] = []
    if call.transformed:
        reasons.append("pieces have no rule for function transforms such as vmap")
    if call.compiling:
        reasons.append("while compiling, a loop over pieces would fix the length")
    if call.dropout > 0.0:
        reasons.append("dropout: the backward pass could not draw the same again")
    return reasons


BLOCKED = Implementation("blocked", attend_blocked, why_not_blocked, rank=20)


class _Blocked(torch.autograd.Function):
    """The forward pass in pieces, and a backward pass that computes each piece again."""

    @staticmethod
    def forward(
        ctx: Any,
        module: SparseWindow,
        mask: Mask,
        tracked: bool,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        # A copy, because what was drawn counts, whatever is loaded into the module meanwhile.
        seed = module.seed.clone()
        ctx.module, ctx.mask = module, mask
        ctx.save_for_backward(query, key, value, bias, seed, *mask.tensors)
        layout = _layout(module, seed, mask, query, key, backward=tracked)
        # What is read in place costs little to keep: the graph of a piece then holds its output
        # alone. Copies and visibilities of their own are made again.
        kept: list[_Tracked] | None = [] if tracked and layout.is_light else None
        ctx.kept = kept
        if layout.listed:
            key, value = whole_vectors(key), whole_vectors(value)
        batch, heads, length, width = query.shape
        # As torch's kernels lay it out: each tile is written in one stretch.
        output = query.new_empty(batch, length, heads, width).transpose(1, 2)
        rooms = Room(key), Room(value)
        for piece in layout.pieces():
            part = piece.rows(query), piece.keys(key, rooms[0]), piece.keys(value, rooms[1])
            if kept is not None:
                kept.append(_tracked(module, piece, part, None))
                piece.put_rows(kept[-1].output.detach(), output)
            else:
                found = _attend(*part, piece.visible, piece.bias, module.logit_scale)
                piece.put_rows(found, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (grad,) = grads
        query, key, value, bias, seed, *_ = ctx.saved_tensors
        kept, ctx.kept = ctx.kept, None  # once: a second backward pass makes them again
        with full_precision(query.device):
            if wants_graph(grad):
                plain = partial(_plain, ctx.module, seed, ctx.mask)
                found = plain_gradients(plain, (query, key, value, bias), grad)
            else:
                layout = _layout(ctx.module, seed, ctx.mask, query, key, backward=True)
                found = _gradients(layout, query, key, value, grad, kept)
        return (None, None, None, *found)


def _plain(
    module: SparseWindow,
    seed: Tensor,
    mask: Mask,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
) -> Tensor:
    mask = mask.replace(bias=bias)
    output: Tensor = functional_call(module, {"seed": seed}, (query, key, value, mask))
    return output


class _Tracked(NamedTuple):
    """The graph of one piece, from its leaves to its output."""

    output: Tensor
    leaves: list[Tensor]


def _tracked(
    module: SparseWindow, piece: Piece, part: tuple[Tensor, Tensor, Tensor], bias: Tensor | None
) -> _Tracked:
    """Attend in one piece from leaves: query, key, value and perhaps the piece's bias."""
    with torch.enable_grad():
        query, key, value = (t.detach().requires_grad_() for t in part)
        tile = piece.bias if bias is None else bias.detach().requires_grad_()
        output = _attend(query, key, value, piece.visible, tile, module.logit_scale)
    leaves = [query, key, value]
    return _Tracked(output, leaves if bias is None or tile is None else [*leaves, tile])


def _layout(
    module: SparseWindow, seed: Tensor, mask: Mask, query: Tensor, key: Tensor, backward: bool
) -> Layout:
    lowered = LoweredMask(mask, query.shape[2], key.shape[2], query.device)
    sizes = Sizes(query.shape[0], query.shape[1], key.shape[1], query.shape[3])
    return Layout(module, seed, lowered, sizes, backward)


def _gradients(
    layout: Layout,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    grad: Tensor,
    kept: list[_Tracked] | None,
) -> tuple[Tensor | None, ...]:
    """The gradients of query, key, value and bias."""
    if layout.listed:
        key, value = whole_vectors(key), whole_vectors(value)
    if grad.stride(3) != 1:
        grad = grad.contiguous()
    overwritten = layout.overwritten()
    inner = grad
    if overwritten:
        inner = grad.index_fill(2, torch.tensor(overwritten, device=grad.device), 0.0)
    wide = accumulation_dtype(query.dtype)
    of_query = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    of_key, of_value = (torch.zeros(t.shape, dtype=wide, device=t.device) for t in (key, value))
    bias, of_bias = layout.lowered.mask.bias, None
    if bias is not None and bias.requires_grad:
        sizes = (1,) * (4 - bias.dim()) + bias.shape
        of_bias = torch.zeros(sizes, dtype=wide, device=bias.device)
    rooms = Room(key), Room(value)
    for index, piece in enumerate(layout.pieces()):
        if kept is not None:
            tracked = kept[index]
        else:
            part = piece.rows(query), piece.keys(key, rooms[0]), piece.keys(value, rooms[1])
            tracked = _tracked(layout.module, piece, part, None if of_bias is None else piece.bias)
        arriving = piece.rows(grad if isinstance(piece, FullRows) else inner)
        if not tracked.output.requires_grad:  # no key: exact zeros
            piece.put_rows(torch.zeros_like(arriving), of_query)
            continue
        grads = torch.autograd.grad(tracked.output, tracked.leaves, arriving)
        piece.put_rows(grads[0], of_query)
        piece.add_keys(grads[1], of_key)
        piece.add_keys(grads[2], of_value)
        if of_bias is not None:
            piece.add_bias(grads[3], of_bias)
    if bias is None or of_bias is None:
        return of_query, of_key.to(key.dtype), of_value.to(value.dtype), None
    of_bias = of_bias.reshape(bias.shape).to(bias.dtype)
    return of_query, of_key.to(key.dtype), of_value.to(value.dtype), of_bias


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None,
    bias: Tensor | None,
    scale: float,
) -> Tensor:
    """Attend in one piece; query heads that read the same key head become rows of one head."""
    if key.shape[2] == 0:
        return torch.zeros_like(query)
    group = query.shape[1] // key.shape[1]
    if group > 1:
        rows = query.shape[2]
        query = query.unflatten(1, (-1, group)).flatten(2, 3)
        visible, bias = (_fold(t, group, rows) for t in (visible, bias))
    output = attend_visible(query, key, value, visible, bias, scale=scale)
    return output if group == 1 else output.unflatten(2, (group, -1)).flatten(1, 2)


def _fold(tile: Tensor | None, group: int, rows: int) -> Tensor | None:
    """Give a visibility or bias the rows of a whole group of query heads."""
    if tile is None or tile.shape[1] == tile.shape[2] == 1:
        return tile
    if tile.shape[1] == 1:
        return tile.repeat(1, 1, group, 1)
    folded: Tensor = tile.expand(-1, -1, rows, -1).unflatten(1, (-1, group)).flatten(2, 3)
    return folded
