"""``KernelAttention``: attention as a kernel of feature maps, K^T V first, linear in L."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnreg.attention import Dims
from attnreg.call import Call
from attnreg.decoding import RecurrentState
from attnreg.errors import ShapeError
from attnreg.families import sums
from attnreg.families.chunked import Chunked, attend
from attnreg.families.plan import ROWS, ChunkPlan
from attnreg.families.sums import Features, Sums
from attnreg.functional import expand_heads
from attnreg.lowering import LoweredMask
from attnreg.mask import Mask
from attnreg.tracing import accumulation_dtype, full_precision
from attnreg.variant import Capabilities, Implementation

CHUNK = 64
"""Positions per chunk of the causal form."""


def _chunked(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    assert isinstance(module, KernelAttention)  # for mypy: registered on this family alone
    return module.attend_chunked(query, key, value, mask)


def why_not_chunked(call: Call) -> list[str]:
    """Say why blocks of positions should not run a call."""
    reasons: list[str] = []
    for name in ("forward", "_features", "_causal", "_quotient"):
        if getattr(type(call.module), name) is not getattr(KernelAttention, name):
            reasons.append(f"the module has a {name} of its own")
    if call.compiling:
        reasons.append("while compiling a loop over blocks would fix the length")
    if call.transformed:
        reasons.append("the blocks have no rule for function transforms such as vmap")
    return reasons


CHUNKED = Implementation("chunked", _chunked, why_not_chunked, rank=10)


class KernelAttention(nn.Module):
    """Attention whose weights are a dot product of features; the author writes ``feature_map``.

    output_i = sum_j A_ij v_j / sum_j A_ij with A_ij = phi(q_i).phi(k_j) over the visible keys
    (Katharopoulos et al. 2020, arXiv:2006.16236); without the division where ``normalize`` is
    False. A normaliser of 0, or one that underflows, gives 0. Time and memory are linear in L:
    never an (L, L) matrix, but for packed sequences while compiling.

    ``feature_map`` gets (B, H, L, D), keys already broadcast to the query heads, in the dtype of
    the call, treats each position on its own, and may be called on any part of them; everything
    after it is float32 or wider. Where query and key need different maps, write
    ``query_features`` and ``key_features``.

    Implementations: ``chunked`` holds the features of one block of positions at a time, and
    computes them again in the backward pass; ``eager`` is the plain formula.

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
    implementations: ClassVar[tuple[Implementation, ...]] = (CHUNKED,)
    reasons: ClassVar[Mapping[str, str]] = {
        name: "K^T V is computed first, so the (Lq, Lk) weights that it would act on never exist"
        for name in ("allowed", "bias", "window")
    }
    normalize: bool = True
    chunk: int = CHUNK
    block_rows: int = ROWS

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
        lowered = LoweredMask(mask, query.shape[2], key.shape[2], query.device)
        phi_q, phi_k, value = self._features(query, key, value, mask.key_valid)
        with full_precision(query.device):
            if mask.cu_seqlens is not None and torch.compiler.is_compiling():
                visible = lowered.visible()
                assert visible is not None  # for mypy: packing always hides something
                output = self._quotient(sums.explicit(phi_q, phi_k, value, visible))
            elif mask.causal:
                output = self._causal_with_offset(phi_q, phi_k, value, lowered.offset)
            else:
                output = self._quotient(phi_q @ sums.accumulate(phi_k, value).mixed)
            return output.to(query.dtype)

    def attend_chunked(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Compute ``forward`` block by block."""
        lowered = LoweredMask(mask, query.shape[2], key.shape[2], query.device)
        plan = ChunkPlan(
            module=self,
            heads=query.shape[1],
            normalize=self.normalize,
            mask=mask,
            offset=lowered.offset if mask.causal else None,
            size=self.chunk,
            rows=self.block_rows,
            device=query.device,
        )
        with full_precision(query.device):
            inputs = (query, key, value, *plan.tensors)
            if not (torch.is_grad_enabled() and any(t.requires_grad for t in inputs)):
                return attend(plan, query, key, value)[0]
            output: Tensor = Chunked.apply(plan, *inputs)  # type: ignore[no-untyped-call]  # torch's apply is untyped
            return output

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
        if state is not None:
            _check_state(state, phi_k, value[..., :-1])
        with full_precision(query.device):
            if query.shape[2] == 1:
                mixed, content = _one_token(phi_q, phi_k, value[..., :-1], state)
                output = self._quotient(mixed)
            else:
                output, total = self._causal(phi_q, phi_k, value, _sums(state))
                content = (total.mixed[..., :-1], total.mixed[..., -1])
                if total.log_scale is not None:
                    content = (*content, total.log_scale)
        length = key.shape[2] + (0 if state is None else state.length)
        return output.to(query.dtype), RecurrentState(length, content)

    def _features(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None
    ) -> tuple[Tensor, Features, Tensor]:
        wide = accumulation_dtype(query.dtype)
        key, value = (expand_heads(t, query.shape[1]) for t in (key, value))
        phi_q = self.query_features(query).to(wide)
        phi_k = sums.hide(self.key_features(key), key_valid, wide)
        # The extra column of ones gathers the normaliser along with the values.
        return phi_q, phi_k, F.pad(value.to(wide), (0, 1), value=1.0)

    def _causal_with_offset(
        self, phi_q: Tensor, phi_k: Features, value: Tensor, offset: int
    ) -> Tensor:
        """Query i sees keys up to i + offset: align the two, then run the causal form."""
        queries, keys = phi_q.shape[2], value.shape[2]
        blind = min(max(-offset, 0), queries)  # the first queries, which see no key
        seen = min(max(offset, 0), keys)  # the first keys, which every query sees
        before = None
        if seen:
            before = sums.accumulate(sums.part(phi_k, 0, seen), value[:, :, :seen])
        length = queries - blind
        if length == 0:  # no query sees a key: a sum over none, which stays part of the graph
            nothing = phi_k.values[:, :, :0].transpose(-1, -2) @ value[:, :, :0]
            return self._quotient(phi_q @ nothing)
        output, _ = self._causal(
            phi_q[:, :, blind:],
            sums.fit(sums.part(phi_k, seen, seen + length), length),
            sums.fit_length(value[:, :, seen : seen + length], length),
            before,
        )
        return F.pad(output, (0, 0, blind, 0))

    def _causal(
        self, phi_q: Tensor, phi_k: Features, value: Tensor, before: Sums | None
    ) -> tuple[Tensor, Sums]:
        mixed, total = sums.causal(phi_q, phi_k, value, before, self.chunk)
        return self._quotient(mixed), total

    def _quotient(self, mixed: Tensor) -> Tensor:
        return sums.quotient(mixed) if self.normalize else mixed[..., :-1]


def _sums(state: RecurrentState | None) -> Sums | None:
    if state is None:
        return None
    numerator, normaliser, *rest = state.content
    joined = torch.cat([numerator, normaliser[..., None]], dim=-1)
    return Sums(joined, rest[0] if rest else None)


def _one_token(
    phi_q: Tensor, phi_k: Features, value: Tensor, state: RecurrentState | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The recurrence itself: no chunk, nothing to fill up."""
    keys, log_scale = phi_k
    scale: tuple[Tensor, ...] = (
        () if log_scale is None else (log_scale.amax(dim=2),)
    )  # of one: a copy of its own
    if state is None:
        numerator, normaliser = keys.transpose(-1, -2) * value, keys.sum(dim=2)
    else:
        numerator, normaliser, *before = state.content
        if before:
            top = torch.maximum(scale[0], before[0])
            grow, shrink = (sums.exp_difference(t, top)[..., None] for t in (scale[0], before[0]))
            keys, scale = keys * grow[..., None], (top,)
            numerator, normaliser = numerator * shrink[..., None], normaliser * shrink
        numerator = torch.addcmul(numerator, keys.transpose(-1, -2), value)
        normaliser = normaliser + keys.squeeze(2)
    mixed = torch.cat([phi_q @ numerator, phi_q @ normaliser[..., None]], dim=-1)
    return mixed, (numerator, normaliser, *scale)


def _check_state(state: RecurrentState, phi_k: Features, value: Tensor) -> None:
    expected = (*phi_k.values.shape[:2], phi_k.values.shape[3], value.shape[3])
    if tuple(state.content[0].shape) != expected:
        raise ShapeError(
            f"the state has shape {tuple(state.content[0].shape)}, this module needs {expected}; "
            "states cannot move between modules of different sizes"
        )
    if (len(state.content) == 2) != (phi_k.log_scale is None):
        raise ShapeError(
            "the state comes from a module with another feature map: only one of the two scales "
            "its features; states cannot move between such modules"
        )
