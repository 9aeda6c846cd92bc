"""Sums over keys of phi(k) [v, 1]: the plain, differentiable formula of kernel attention.

The causal form works in chunks: quadratic inside a chunk, a running state between chunks (Hua et
al. 2022, arXiv:2202.10447; Yang et al. 2023, arXiv:2312.06635).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attnreg.functional import zero_where


class Features(NamedTuple):
    """Features of keys, (B, H, L, M), that stand for ``values * exp(log_scale)``.

    ``log_scale`` (B, H, L), None for 0, keeps exponentials in range. It is only right where the
    output is normalised: there the scale of the query cancels, and only ratios between keys count.
    """

    values: Tensor
    log_scale: Tensor | None = None


class Sums(NamedTuple):
    """Sums over keys of phi(k) [v, 1], (B, H, M, Dv + 1), to be multiplied by exp(log_scale)."""

    mixed: Tensor
    log_scale: Tensor | None  # (B, H)


def hide(features: Features, key_valid: Tensor | None, dtype: torch.dtype) -> Features:
    """Features in ``dtype``; keys where ``key_valid`` (B, L) is False weigh nothing."""
    values, log_scale = features
    values = values.to(dtype)
    if key_valid is None:
        return Features(values, log_scale)
    hidden = ~key_valid[:, None, :]
    if log_scale is not None:
        log_scale = log_scale.masked_fill(hidden, -torch.inf)
    return Features(zero_where(values, hidden[..., None]), log_scale)


def accumulate(phi_k: Features, value: Tensor) -> Sums:
    """Sum phi(k) [v, 1] over all keys, relative to the largest scale of each item and head."""
    values, log_scale = phi_k
    if log_scale is None:
        return Sums(values.transpose(-1, -2) @ value, None)
    top = log_scale.amax(dim=-1)
    value = value * exp_difference(log_scale, top[..., None])[..., None]
    return Sums(values.transpose(-1, -2) @ value, top)


def quotient(mixed: Tensor) -> Tensor:
    """Divide sums of weights times [v, 1] by their last column; nothing by nothing is 0."""
    normaliser = mixed[..., -1:]
    # Below the smallest normal number the sum has lost its digits, and its gradient overflows.
    empty = normaliser.abs() < torch.finfo(mixed.dtype).tiny
    # No product with 1 / normaliser: the derivative of that leaves the range far earlier.
    return (mixed[..., :-1] / normaliser.masked_fill(empty, 1.0)).masked_fill(empty, 0.0)


def causal(
    phi_q: Tensor, phi_k: Features, value: Tensor, sums: Sums | None, size: int
) -> tuple[Tensor, Sums]:
    """The causal form, query i at key i, after the sums of what came before."""
    length = value.shape[2]
    if torch.compiler.is_compiling():
        # A tracer takes a count of one for a constant, so it gets two chunks to spare.
        count = (length + size - 1) // size + 2
    else:
        count = max(1, -(-length // size))
        size = max(1, -(-length // count))  # chunks of one size, and little to fill up
    queries, keys, values = (_chunks(t, count, size) for t in (phi_q, phi_k.values, value))
    within = (queries @ keys.transpose(-1, -2)).tril()
    if phi_k.log_scale is None:
        each = keys.transpose(-1, -2) @ values  # (B, H, chunks, M, Dv + 1)
        running = each.cumsum(dim=2)
        start = torch.zeros_like(running[:, :, :1]) if sums is None else sums.mixed[:, :, None]
        before = torch.cat([start, running[:, :, :-1] + start], dim=2)
        mixed = within @ values + queries @ before
        total = Sums(running[:, :, -1] + start[:, :, 0], None)
    else:
        log_scale = _chunks(phi_k.log_scale[..., None], count, size, -torch.inf).squeeze(-1)
        mixed, total = _scaled_chunks(queries, keys, values, within, log_scale, sums)
    return _joined(mixed, length), total


def explicit(phi_q: Tensor, phi_k: Features, value: Tensor, visible: Tensor) -> Tensor:
    """The same by explicit weights: packed sequences while compiling, where no loop can run."""
    weights = phi_q @ phi_k.values.transpose(-1, -2)
    if phi_k.log_scale is not None:
        scale = phi_k.log_scale[:, :, None].masked_fill(~visible, -torch.inf)
        weights = weights * exp_difference(scale, scale.amax(dim=-1, keepdim=True))
    return weights.masked_fill(~visible, 0.0) @ value


class Scales(NamedTuple):
    """Logarithms that keep the chunks of scaled features in range, each row by what it has seen.

    A scale over the whole sequence would let later keys push earlier ones below the smallest
    number, which leaks the future.
    """

    top: Tensor
    """The largest scale of each chunk alone, (B, H, chunks)."""
    reached: Tensor
    """The largest before each chunk, and after the last, (B, H, chunks + 1)."""
    row_top: Tensor
    """The largest that each row sees, (B, H, chunks, size)."""

    @classmethod
    def of(cls, log_scale: Tensor, start: Tensor) -> Scales:
        """Scales of chunks (B, H, chunks, size) after a ``start`` (B, H)."""
        top = log_scale.amax(dim=-1)
        reached = torch.cat([start[..., None], top], dim=-1).cummax(dim=-1).values
        row_top = torch.maximum(log_scale.cummax(dim=-1).values, reached[..., :-1, None])
        return cls(top, reached, row_top)

    def decay(self) -> Tensor:
        """What is left of the start and of each chunk before each chunk: (B, H, n + 1, n + 1)."""
        each = torch.cat([self.reached[..., :1], self.top], dim=-1)
        return exp_difference(each[..., None, :], self.reached[..., :, None]).tril()


def _scaled_chunks(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    within: Tensor,
    log_scale: Tensor,
    sums: Sums | None,
) -> tuple[Tensor, Sums]:
    """The causal form of scaled features: every row relative to the largest scale it has seen."""
    batch, heads, count, _, _ = keys.shape
    start = log_scale.new_full((batch, heads), -torch.inf)
    if sums is not None and sums.log_scale is not None:
        start = sums.log_scale
    scales = Scales.of(log_scale, start)
    top, reached, row_top = scales
    local = values * exp_difference(log_scale, top[..., None])[..., None]
    each = keys.transpose(-1, -2) @ local  # of each chunk alone, relative to its own top
    first = torch.zeros_like(each[:, :, 0]) if sums is None else sums.mixed
    if torch.compiler.is_compiling():
        # Chunks as one lower triangle: no loop over a symbolic length.
        terms = torch.cat([first[:, :, None], each], dim=2).flatten(3)
        states = (scales.decay() @ terms).unflatten(3, each.shape[3:])
        before, last = states[:, :, :-1], states[:, :, -1]
    else:
        kept = [first]
        for index in range(count):
            shrink = exp_difference(reached[..., index], reached[..., index + 1])
            grow = exp_difference(top[..., index], reached[..., index + 1])
            kept.append(
                kept[-1] * shrink[..., None, None] + each[:, :, index] * grow[..., None, None]
            )
        before, last = torch.stack(kept[:-1], dim=2), kept[-1]
    inner = within * exp_difference(log_scale[..., None, :], row_top[..., None]).tril()
    outer = exp_difference(reached[..., :-1, None], row_top)[..., None]
    return inner @ values + (queries @ before) * outer, Sums(last, reached[..., -1])


def exp_difference(smaller: Tensor, larger: Tensor) -> Tensor:
    """exp(smaller - larger), capped at 1 (above the diagonal it is not used), 0 for -inf."""
    difference = smaller - larger.masked_fill(larger == -torch.inf, 0.0)
    return difference.clamp(max=0.0).exp()


# The next two differ while compiling: padding, slicing and reshaping make a tracer ask whether
# anything is left over, and the answer would fix the length. Indexing asks nothing.


def _chunks(tensor: Tensor, count: int, size: int, fill: float = 0.0) -> Tensor:
    """Cut (B, H, L, M) into (B, H, count, size, M), filled up at the end."""
    length = tensor.shape[2]
    if torch.compiler.is_compiling():
        start = torch.arange(count, device=tensor.device)[:, None] * size
        index = start + torch.arange(size, device=tensor.device)
        chunks = tensor[:, :, index.clamp(max=length - 1)]
        return chunks.masked_fill((index >= length)[..., None], fill)
    if count * size > length:
        tensor = F.pad(tensor, (0, 0, 0, count * size - length), value=fill)
    cut: Tensor = tensor.unflatten(2, (count, size))
    return cut


def _joined(chunks: Tensor, length: int) -> Tensor:
    """Join (B, H, count, size, M) to (B, H, L, M)."""
    if torch.compiler.is_compiling():
        size, index = chunks.shape[3], torch.arange(length, device=chunks.device)
        return chunks[:, :, index // size, index % size]
    return chunks.flatten(2, 3)[:, :, :length]


def part(phi_k: Features, start: int, stop: int) -> Features:
    """Cut features of keys from ``start`` to ``stop``."""
    values, log_scale = phi_k
    cut = None if log_scale is None else log_scale[:, :, start:stop]
    return Features(values[:, :, start:stop], cut)


def fit(phi_k: Features, length: int) -> Features:
    """Pad features of keys to a length with keys that weigh nothing."""
    missing = length - phi_k.values.shape[2]
    if phi_k.log_scale is None:
        return Features(fit_length(phi_k.values, length))
    log_scale = F.pad(phi_k.log_scale, (0, missing), value=-torch.inf)
    return Features(fit_length(phi_k.values, length), log_scale)


def fit_length(tensor: Tensor, length: int) -> Tensor:
    """Pad (B, H, L, M) with zeros to a length."""
    padded: Tensor = F.pad(tensor, (0, 0, 0, length - tensor.shape[2]))
    return padded
