"""``KernelAttention``: attention as a kernel of feature maps, K^T V first, linear in L.

The causal form works in chunks: quadratic inside a chunk, a running state between chunks (Hua et
al. 2022, arXiv:2202.10447; Yang et al. 2023, arXiv:2312.06635).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnreg.attention import Dims
from attnreg.decoding import RecurrentState
from attnreg.errors import ShapeError
from attnreg.functional import expand_heads
from attnreg.lowering import LoweredMask
from attnreg.mask import Mask
from attnreg.tracing import accumulation_dtype, full_precision
from attnreg.variant import Capabilities

CHUNK = 64
"""Positions per chunk of the causal form."""


class Features(NamedTuple):
    """Features of keys, (B, H, L, M), that stand for ``values * exp(log_scale)``.

    ``log_scale`` (B, H, L), None for 0, keeps exponentials in range. It is only right where the
    output is normalised: there the scale of the query cancels, and only ratios between keys count.
    """

    values: Tensor
    log_scale: Tensor | None = None


class _Sums(NamedTuple):
    """Sums over keys of phi(k) [v, 1], (B, H, M, Dv + 1), to be multiplied by exp(log_scale)."""

    mixed: Tensor
    log_scale: Tensor | None  # (B, H)


class KernelAttention(nn.Module):
    """Attention whose weights are a dot product of features; the author writes ``feature_map``.

    output_i = sum_j A_ij v_j / sum_j A_ij with A_ij = phi(q_i).phi(k_j) over the visible keys
    (Katharopoulos et al. 2020, arXiv:2006.16236); without the division where ``normalize`` is
    False. A normaliser of 0, or one that underflows, gives 0. Time and memory are linear in L:
    never an (L, L) matrix, but for packed sequences while compiling.

    ``feature_map`` gets (B, H, L, D), keys already broadcast to the query heads, in the dtype of
    the call, and treats each position on its own; everything after it is float32 or wider. Where
    query and key need different maps, write ``query_features`` and ``key_features``.

    ``step`` decodes with a state of fixed size: the sum of phi(k) v^T, the sum of phi(k), and,
    where features are scaled, the logarithm of their common scale.
    """

    capabilities = Capabilities(
        causal=True,
        key_valid=True,
        packed=True,
        cross=True,
        grouped=True,
        value_dim=True,
        decode="recurrent",
        weights="implied",
        deterministic=True,
        compile=True,
    )
    reasons: ClassVar[Mapping[str, str]] = {
        name: "K^T V is computed first, so the (Lq, Lk) weights that it would act on never exist"
        for name in ("allowed", "bias", "window")
    }
    normalize: bool = True
    chunk: int = CHUNK

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.dims = dims

    def feature_map(self, x: Tensor) -> Tensor:
        """Map each vector to its features: (B, H, L, D) to (B, H, L, M)."""
        raise NotImplementedError(f"{type(self).__name__} must define feature_map(x)")

    def query_features(self, query: Tensor) -> Tensor:
        """Features of the queries, (B, H, Lq, M); a positive factor per query cancels."""
        return self.feature_map(query)

    def key_features(self, key: Tensor) -> Features:
        """Features of the keys, (B, H, Lk, M), perhaps scaled."""
        return Features(self.feature_map(key))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008  # Mask() is immutable
        """Attend: (B, Hq, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv) to (B, Hq, Lq, Dv)."""
        dtype, lowered = query.dtype, LoweredMask(mask, query.shape[2], key.shape[2], query.device)
        phi_q, phi_k, value = self._features(query, key, value, mask.key_valid)
        with full_precision(query.device):
            if mask.cu_seqlens is not None and torch.compiler.is_compiling():
                return self._explicit(phi_q, phi_k, value, lowered).to(dtype)
            if not mask.causal:
                sums = _accumulate(phi_k, value)
                return self._quotient(phi_q @ sums.mixed).to(dtype)
            return self._causal_with_offset(phi_q, phi_k, value, lowered.offset).to(dtype)

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: RecurrentState | None,
        mask: Mask,
    ) -> tuple[Tensor, RecurrentState]:
        """Attend causally within a chunk of n positions and to everything in the state."""
        phi_q, phi_k, value = self._features(query, key, value, mask.key_valid)
        with full_precision(query.device):
            sums = None if state is None else _from_state(state, phi_k, value)
            output, sums = self._causal(phi_q, phi_k, value, sums)
        length = key.shape[2] + (0 if state is None else state.length)
        content: tuple[Tensor, ...] = (sums.mixed[..., :-1], sums.mixed[..., -1])
        if sums.log_scale is not None:
            content = (*content, sums.log_scale)
        return output.to(query.dtype), RecurrentState(length, content)

    def _features(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None
    ) -> tuple[Tensor, Features, Tensor]:
        wide = accumulation_dtype(query.dtype)
        key, value = (expand_heads(t, query.shape[1]) for t in (key, value))
        phi_q = self.query_features(query).to(wide)
        values, log_scale = self.key_features(key)
        values = values.to(wide)
        if key_valid is not None:
            hidden = ~key_valid[:, None, :]
            values = values.masked_fill(hidden[..., None], 0.0)
            if log_scale is not None:
                log_scale = log_scale.masked_fill(hidden, -torch.inf)
        # The extra column of ones gathers the normaliser along with the values.
        return phi_q, Features(values, log_scale), F.pad(value.to(wide), (0, 1), value=1.0)

    def _quotient(self, mixed: Tensor) -> Tensor:
        numerator, normaliser = mixed[..., :-1], mixed[..., -1:]
        if not self.normalize:
            return numerator
        # Below the smallest normal number the sum has lost its digits, and its gradient overflows.
        empty = normaliser.abs() < torch.finfo(normaliser.dtype).tiny
        return (numerator / normaliser.masked_fill(empty, 1.0)).masked_fill(empty, 0.0)

    def _causal_with_offset(
        self, phi_q: Tensor, phi_k: Features, value: Tensor, offset: int
    ) -> Tensor:
        """Query i sees keys up to i + offset: align the two, then run the causal form."""
        queries, keys = phi_q.shape[2], value.shape[2]
        blind = min(max(-offset, 0), queries)  # the first queries, which see no key
        seen = min(max(offset, 0), keys)  # the first keys, which every query sees
        sums = None
        if seen:
            sums = _accumulate(_part(phi_k, 0, seen), value[:, :, :seen])
        length = queries - blind
        if length == 0:  # no query sees a key: a sum over none, which stays part of the graph
            nothing = phi_k.values[:, :, :0].transpose(-1, -2) @ value[:, :, :0]
            return self._quotient(phi_q @ nothing)
        output, _ = self._causal(
            phi_q[:, :, blind:],
            _fit(_part(phi_k, seen, seen + length), length),
            _fit_length(value[:, :, seen : seen + length], length),
            sums,
        )
        return F.pad(output, (0, 0, blind, 0))

    def _causal(
        self, phi_q: Tensor, phi_k: Features, value: Tensor, sums: _Sums | None
    ) -> tuple[Tensor, _Sums]:
        """The causal form, query i at key i, after the sums of what came before."""
        length, size = value.shape[2], self.chunk
        # A tracer takes a count of one for a constant, so it gets two chunks to spare.
        count = (length + size - 1) // size + 2 * torch.compiler.is_compiling()
        queries, keys, values = (_chunks(t, count, size) for t in (phi_q, phi_k.values, value))
        within = (queries @ keys.transpose(-1, -2)).tril()
        if phi_k.log_scale is None:
            each = keys.transpose(-1, -2) @ values  # (B, H, chunks, M, Dv + 1)
            running = each.cumsum(dim=2)
            start = torch.zeros_like(running[:, :, :1]) if sums is None else sums.mixed[:, :, None]
            before = torch.cat([start, running[:, :, :-1] + start], dim=2)
            mixed = within @ values + queries @ before
            total = _Sums(running[:, :, -1] + start[:, :, 0], None)
        else:
            log_scale = _chunks(phi_k.log_scale[..., None], count, size, -torch.inf).squeeze(-1)
            mixed, total = _scaled_chunks(queries, keys, values, within, log_scale, sums)
        return self._quotient(_joined(mixed, length)), total

    def _explicit(
        self, phi_q: Tensor, phi_k: Features, value: Tensor, lowered: LoweredMask
    ) -> Tensor:
        """The same by explicit weights: packed sequences while compiling, where no loop can run."""
        visible = lowered.visible()
        assert visible is not None  # for mypy: packing always hides something
        weights = phi_q @ phi_k.values.transpose(-1, -2)
        if phi_k.log_scale is not None:
            scale = phi_k.log_scale[:, :, None].masked_fill(~visible, -torch.inf)
            weights = weights * _exp_difference(scale, scale.amax(dim=-1, keepdim=True))
        return self._quotient(weights.masked_fill(~visible, 0.0) @ value)


def _accumulate(phi_k: Features, value: Tensor) -> _Sums:
    """Sum phi(k) [v, 1] over all keys, relative to the largest scale of each item and head."""
    values, log_scale = phi_k
    if log_scale is None:
        return _Sums(values.transpose(-1, -2) @ value, None)
    top = log_scale.amax(dim=-1)
    values = values * _exp_difference(log_scale, top[..., None])[..., None]
    return _Sums(values.transpose(-1, -2) @ value, top)


def _scaled_chunks(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    within: Tensor,
    log_scale: Tensor,
    sums: _Sums | None,
) -> tuple[Tensor, _Sums]:
    """The causal form of scaled features: every row relative to the largest scale it has seen.

    A scale over the whole sequence would let later keys push earlier ones below the smallest
    number, which leaks the future.
    """
    batch, heads, count, _, _ = keys.shape
    start = log_scale.new_full((batch, heads), -torch.inf)
    if sums is not None and sums.log_scale is not None:
        start = sums.log_scale
    top = log_scale.amax(dim=-1)  # (B, H, chunks)
    reached = torch.cat([start[..., None], top], dim=-1).cummax(dim=-1).values
    row_top = torch.maximum(log_scale.cummax(dim=-1).values, reached[..., :-1, None])
    local = keys * _exp_difference(log_scale, top[..., None])[..., None]
    each = local.transpose(-1, -2) @ values  # of each chunk alone, relative to its own top
    first = torch.zeros_like(each[:, :, 0]) if sums is None else sums.mixed
    if (
        torch.compiler.is_compiling()
    ):  # chunks as one lower triangle: no loop over a symbolic length
        decay = _exp_difference(
            torch.cat([start[..., None], top], -1)[..., None, :], reached[..., :, None]
        ).tril()
        terms = torch.cat([first[:, :, None], each], dim=2).flatten(3)
        states = (decay @ terms).unflatten(3, each.shape[3:])
        before, last = states[:, :, :-1], states[:, :, -1]
    else:
        kept = [first]
        for index in range(count):
            shrink = _exp_difference(reached[..., index], reached[..., index + 1])
            grow = _exp_difference(top[..., index], reached[..., index + 1])
            kept.append(
                kept[-1] * shrink[..., None, None] + each[:, :, index] * grow[..., None, None]
            )
        before, last = torch.stack(kept[:-1], dim=2), kept[-1]
    inner = within * _exp_difference(log_scale[..., None, :], row_top[..., None]).tril()
    outer = _exp_difference(reached[..., :-1, None], row_top)[..., None]
    return inner @ values + (queries * outer) @ before, _Sums(last, reached[..., -1])


def _exp_difference(smaller: Tensor, larger: Tensor) -> Tensor:
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
    padded = F.pad(tensor, (0, 0, 0, count * size - length), value=fill)
    cut: Tensor = padded.unflatten(2, (count, size))
    return cut


def _joined(chunks: Tensor, length: int) -> Tensor:
    """Join (B, H, count, size, M) to (B, H, L, M)."""
    if torch.compiler.is_compiling():
        size, index = chunks.shape[3], torch.arange(length, device=chunks.device)
        return chunks[:, :, index // size, index % size]
    return chunks.flatten(2, 3)[:, :, :length]


def _part(phi_k: Features, start: int, stop: int) -> Features:
    values, log_scale = phi_k
    cut = None if log_scale is None else log_scale[:, :, start:stop]
    return Features(values[:, :, start:stop], cut)


def _fit(phi_k: Features, length: int) -> Features:
    """Pad features of keys to a length with keys that weigh nothing."""
    missing = length - phi_k.values.shape[2]
    if phi_k.log_scale is None:
        return Features(_fit_length(phi_k.values, length))
    log_scale = F.pad(phi_k.log_scale, (0, missing), value=-torch.inf)
    return Features(_fit_length(phi_k.values, length), log_scale)


def _fit_length(tensor: Tensor, length: int) -> Tensor:
    padded: Tensor = F.pad(tensor, (0, 0, 0, length - tensor.shape[2]))
    return padded


def _from_state(state: RecurrentState, phi_k: Features, value: Tensor) -> _Sums:
    mixed, total, *rest = state.content
    sums = _Sums(torch.cat([mixed, total[..., None]], dim=-1), rest[0] if rest else None)
    expected = (*phi_k.values.shape[:2], phi_k.values.shape[3], value.shape[3])
    if tuple(sums.mixed.shape) != expected:
        raise ShapeError(
            f"the state has shape {tuple(sums.mixed.shape)}, this module needs {expected}; "
            "states cannot move between modules of different sizes"
        )
    if (sums.log_scale is None) != (phi_k.log_scale is None):
        raise ShapeError(
            "the state comes from a module with another feature map: only one of the two scales "
            "its features; states cannot move between such modules"
        )
    return sums
