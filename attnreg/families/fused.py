"""Softmax attention on torch's fused kernels: what they take, and how a mask is put to them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attnreg.call import Call
from attnreg.families.tiling import Pattern
from attnreg.functional import attend_to_nothing, cast_in_range, zero_where
from attnreg.lowering import LoweredMask
from attnreg.mask import host_values
from attnreg.tracing import accumulation_dtype, known_true

ROWS = 512
"""Rows per fused call where the mask differs by row, so that no (Lq, Lk) mask is built at once."""

CUT_FROM = 512
"""The length from which padding is cut off item by item; below it one masked call is faster."""


def attend_visible(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None,
    bias: Tensor | None,
    *,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """One fused call over given keys: ``visible`` bool and ``bias`` to (B, Hq, Lq, Lk), or None.

    Key and value may have fewer heads than query. A row that sees nothing gives 0.
    """
    blind, tile = None, visible
    if visible is not None:
        some = visible.any(dim=-1, keepdim=True)
        if not known_true(some):
            # What a fused kernel makes of a row that sees nothing differs between kernels: let it
            # see everything, and zero its output.
            blind = ~some
            tile = visible | blind
    if bias is not None:
        bias = _in_range(bias, tile, query)
        tile = bias if tile is None else bias.masked_fill(~tile, -torch.inf)
    output = _attend(query, key, value, tile=tile, scale=scale, dropout=dropout)
    return output if blind is None else zero_where(output, blind)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    tile: Tensor | None = None,
    scale: float,
    dropout: float,
) -> Tensor:
    grouped = key.shape[1] != query.shape[1]
    output: Tensor = F.scaled_dot_product_attention(
        query, key, value, tile, dropout, causal, scale=scale, enable_gqa=grouped
    )
    return output


def _in_range(bias: Tensor, tile: Tensor | None, query: Tensor) -> Tensor:
    """Bring a bias to a dtype that the fused kernels take."""
    bias = cast_in_range(bias, accumulation_dtype(query.dtype))
    if query.device.type == "cpu" or bias.dtype == query.dtype:
        return bias  # on the CPU they take a float32 bias with halves, and round nothing
    # Elsewhere it must be the query's dtype. What all keys of a row share cancels: without it
    # little is left to round.
    seen = bias if tile is None else bias.masked_fill(~tile, -torch.inf)
    shifted = bias - seen.amax(dim=-1, keepdim=True).detach()
    return shifted.clamp(min=torch.finfo(query.dtype).min, max=0.0).to(query.dtype)


def equal_widths(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pad head and value dimension to one width: torch leaves its fused kernels where they differ.

    Zeros change no dot product; the caller keeps the first columns of the output.
    """
    wider = max(query.shape[3], value.shape[3])
    if query.shape[3] == value.shape[3]:
        return query, key, value
    query, key, value = (F.pad(t, (0, wider - t.shape[3])) for t in (query, key, value))
    return query, key, value


def attend_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lowered: LoweredMask,
    *,
    scale: float,
    pattern: Pattern | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Softmax of ``scale * q.k + bias`` on ``torch.nn.functional.scaled_dot_product_attention``.

    Key and value may have fewer heads than query, and the value dimension may differ.
    """
    width = value.shape[3]
    if query.shape[3] != width:
        query, key, value = equal_widths(query, key, value)
    output = None
    if pattern is None:
        output = _attend_unmasked(query, key, value, lowered, scale=scale, dropout=dropout)
    if output is None:
        output = _attend_strips(query, key, value, lowered, pattern, scale=scale, dropout=dropout)
    return output if output.shape[3] == width else output[..., :width]


def _attend_unmasked(
    query: Tensor, key: Tensor, value: Tensor, lowered: LoweredMask, *, scale: float, dropout: float
) -> Tensor | None:
    """Attend without a mask tensor: by the kernels' own flag for causality, and padding cut off.

    None where the mask cannot be had that way.
    """
    used = lowered.mask.used()
    causal = lowered.hides_future
    if causal and (lowered.offset != 0 or lowered.query_length != lowered.key_length):
        return None
    if used in ((), ("causal",)):
        return _attend(query, key, value, causal=causal, scale=scale, dropout=dropout)
    if used not in (("key_valid",), ("causal", "key_valid")) or lowered.key_length < CUT_FROM:
        return None
    spans = _spans(lowered.mask.key_valid)
    if spans is None:
        return None
    if len(set(spans)) == 1:
        items, spans = [(query, key, value)], spans[:1]
    else:
        items = list(zip(query.split(1), key.split(1), value.split(1), strict=True))
    outputs: list[Tensor] = []
    for (rows, keys, values), (start, stop) in zip(items, spans, strict=True):
        seen = keys[:, :, start:stop], values[:, :, start:stop]
        if start == stop:
            outputs.append(attend_to_nothing(rows, *seen))
        elif not causal:
            outputs.append(_attend(rows, *seen, scale=scale, dropout=dropout))
        else:
            before, inside, after = rows.split([start, stop - start, rows.shape[2] - stop], dim=2)
            parts = [_attend(inside, *seen, causal=True, scale=scale, dropout=dropout)]
            if start:
                parts.insert(0, attend_to_nothing(before, *seen))
            if after.shape[2]:
                parts.append(_attend(after, *seen, scale=scale, dropout=dropout))
            outputs.append(torch.cat(parts, dim=2))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_strips(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lowered: LoweredMask,
    pattern: Pattern | None,
    *,
    scale: float,
    dropout: float,
) -> Tensor:
    """Attend by strips of rows, each with its own piece of the mask."""
    strips: list[Tensor] = []
    by_row = pattern is not None or bool(set(lowered.mask.used()) - {"key_valid"})
    for rows, columns in _strips(lowered, by_row):
        visible = lowered.visible(rows, columns)
        own = None if pattern is None else pattern(lowered, rows, columns)
        if own is not None:
            visible = own if visible is None else visible & own
        part = (query[:, :, rows], key[:, :, columns], value[:, :, columns])
        bias = lowered.bias(rows, columns)
        strips.append(attend_visible(*part, visible, bias, scale=scale, dropout=dropout))
    return strips[0] if len(strips) == 1 else torch.cat(strips, dim=2)


def _strips(lowered: LoweredMask, by_row: bool) -> list[tuple[slice, slice]]:
    """Rows, with the keys that causality and window leave to them (at least one key)."""
    if not by_row or torch.compiler.is_compiling():
        return [(slice(0, lowered.query_length), slice(0, lowered.key_length))]
    strips: list[tuple[slice, slice]] = []
    for first in range(0, max(lowered.query_length, 1), ROWS):
        last = min(first + ROWS, lowered.query_length)
        start, stop = lowered.key_range(first, last)
        if start == stop:
            start, stop = 0, 1
        strips.append((slice(first, last), slice(start, stop)))
    return strips


def _spans(key_valid: Tensor | None) -> list[tuple[int, int]] | None:
    """Where the real keys of each item start and stop; None where padding lies between them.

    None also on an accelerator, where reading the mask would have to wait for it.
    """
    if key_valid is None or key_valid.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    if key_valid.numel() == 0:
        return None
    real = key_valid.to(torch.int8)
    starts = real.argmax(dim=-1)
    stops = key_valid.shape[1] - real.flip(-1).argmax(dim=-1)
    counts = key_valid.sum(dim=-1)
    values = host_values(torch.cat([starts, stops, counts]))
    if values is None:
        return None
    spans: list[tuple[int, int]] = []
    items = len(values) // 3
    bounds = zip(values[:items], values[items : 2 * items], values[2 * items :], strict=True)
    for start, stop, count in bounds:
        if count not in (0, stop - start):
            return None
        spans.append((start, stop) if count else (0, 0))
    return spans


def why_not_fused(call: Call) -> list[str]:
    """Say why ``attend_fused`` should not run a call."""
    reasons: list[str] = []
    if getattr(call.module, "has_own_score", False):
        reasons.append("the module scores by a formula of its own, not by a dot product")
    if call.transformed:
        reasons.append("torch's fused kernels have no rule for function transforms such as vmap")
    if call.dtype == torch.float64 and call.needs_grad:
        # In other dtypes too, but float64 is what second derivatives are taken and checked in.
        reasons.append("float64 gradients: torch's fused kernels cannot be differentiated twice")
    if call.dropout > 0.0 and call.device.type == "cpu":
        reasons.append("dropout: on the CPU torch would hold all (Lq, Lk) weights")
    bias = call.mask.bias
    if bias is not None and bias.requires_grad and call.needs_grad and bias.device.type == "cpu":
        reasons.append("gradient of bias: on the CPU torch would hold all (Lq, Lk) weights")
    return reasons
