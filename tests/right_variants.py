"""Right variants, none built on a family: the suite must not accuse any of them.

Each is what a stranger may plausibly write: with few capabilities, few dtypes, no reference, odd
options, no gradient. What it declares it keeps; what it does not declare is refused for it.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Interval
from torch import nn

from attnreg import Capabilities, Complexity, OptionError, Variant

PRECISE = ("float32", "float64")


class InNumpy(nn.Module):
    """Softmax attention in five lines of NumPy."""

    def __init__(self, dims):
        super().__init__()

    def forward(self, query, key, value, mask):
        q, k, v = (t.detach().cpu().numpy() for t in (query, key, value))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        output = weights / weights.sum(-1, keepdims=True) @ v
        return torch.from_numpy(output).to(query.device)


class Plain(nn.Module):
    """Softmax attention in three lines of torch, float32 only."""

    def __init__(self, dims):
        super().__init__()

    def forward(self, query, key, value, mask):
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        return scores.softmax(-1) @ value


class PlainWide(nn.Module):
    """The same for every dtype: computed in float32 or wider."""

    def __init__(self, dims):
        super().__init__()

    def forward(self, query, key, value, mask):
        wide = torch.promote_types(query.dtype, torch.float32)
        q, k, v = (t.to(wide) for t in (query, key, value))
        return ((q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v).to(query.dtype)


class CausalOnly(nn.Module):
    """A decaying sum over the past, one token after the other: causal by construction."""

    def __init__(self, dims, *, decay: Annotated[float, Interval(ge=0.0, lt=1.0)] = 0.9):
        super().__init__()
        self.decay = decay

    def forward(self, query, key, value, mask):
        wide = torch.promote_types(query.dtype, torch.float32)
        q, k, v = (t.to(wide) for t in (query, key, value))
        length, offset = q.shape[2], mask.query_offset or 0
        state = v.new_zeros(*v.shape[:2], k.shape[3], v.shape[3])
        rows = []
        states = []
        for j in range(length):
            state = self.decay * state + k[:, :, j, :, None] * v[:, :, j, None, :]
            states.append(state)
        for i in range(length):
            # A query at position p has read the keys up to p, and has decayed past the last.
            last = min(i + offset, length - 1)
            seen = states[last] if last >= 0 else torch.zeros_like(state)
            rows.append((q[:, :, i, None, :] @ seen)[:, :, 0])
        if not rows:
            return value.new_zeros(*query.shape[:3], value.shape[3])
        return torch.stack(rows, dim=2).to(query.dtype) / math.sqrt(q.shape[3])


def causal_only_reference(module, query, key, value, visible, bias, qpos, kpos):
    scores = np.einsum("bhid,bhjd->bhij", query, key) / np.sqrt(query.shape[-1])
    last = np.minimum(qpos, len(kpos) - 1)
    distance = np.maximum(last[:, None] - kpos[None, :], 0)
    return np.einsum(
        "bhij,bhjd->bhid", np.where(visible, scores * module.decay**distance, 0), value
    )


class Polynomial(nn.Module):
    """Weights (q.k)^power over their sum of squares: integer options, signed, no softmax."""

    def __init__(
        self,
        dims,
        *,
        power: Annotated[int, Interval(ge=1, le=3)] = 2,
        groups: Annotated[int, Interval(ge=1, le=8)] = 1,
    ):
        super().__init__()
        if dims.head_dim % groups:
            raise OptionError(f"groups={groups} does not divide head_dim={dims.head_dim}")
        self.power, self.groups = power, groups

    def forward(self, query, key, value, mask):
        q, k = (t.unflatten(-1, (self.groups, -1)) for t in (query, key))
        scores = torch.einsum("bhigd,bhjgd->bhijg", q, k).pow(self.power).mean(-1)
        return scores @ value / (1 + key.shape[2])


class Relative(nn.Module):
    """Softmax attention with a learned bias per distance: positional, of fixed length."""

    def __init__(self, dims):
        super().__init__()
        self.length = dims.max_length
        self.table = nn.Parameter(torch.zeros(dims.num_heads, 2 * dims.max_length - 1))

    def forward(self, query, key, value, mask):
        place = torch.arange(query.shape[2], device=query.device)
        distance = place[:, None] - place[None, :] + self.length - 1
        scores = query @ key.mT / math.sqrt(query.shape[-1]) + self.table[:, distance]
        return scores.softmax(-1) @ value


class Gated(nn.Module):
    """The mean of the values, squashed: not linear in V, so without weights."""

    def __init__(self, dims):
        super().__init__()

    def forward(self, query, key, value, mask):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return torch.tanh(scores.softmax(-1) @ value)


class EvenOnly(nn.Module):
    """Complex-valued scores, which need an even head: other sizes are refused."""

    def __init__(self, dims):
        super().__init__()
        if dims.head_dim % 2:
            raise OptionError(f"head_dim must be even, got {dims.head_dim}")

    def forward(self, query, key, value, mask):
        half = query.shape[-1] // 2
        real = query[..., :half] @ key[..., :half].mT + query[..., half:] @ key[..., half:].mT
        return (real / half).softmax(-1) @ value


class Masked(nn.Module):
    """Softmax attention that honours every mask, by the dense mask; grouped heads by repeating."""

    capabilities = Capabilities(
        causal=True,
        key_valid=True,
        allowed=True,
        bias=True,
        window=True,
        packed=True,
        cross=True,
        grouped=True,
        value_dim=True,
        dropout=True,
        decode="cache",
        weights="exact",
        normalized=True,
        deterministic=True,
    )

    def __init__(self, dims, *, scale: float | None = None, dropout: float = 0.0):
        super().__init__()
        self.scale = dims.head_dim**-0.5 if scale is None else scale
        self.dropout = dropout

    def weights(self, query, key, mask):
        wide = torch.promote_types(query.dtype, torch.float32)
        group = query.shape[1] // key.shape[1]
        q, k = query.to(wide), key.to(wide).repeat_interleave(group, dim=1)
        logits = (q * self.scale) @ k.mT
        keep = mask.dense(query.shape[2], key.shape[2], device=query.device)
        if mask.bias is not None:
            logits = logits + mask.bias.to(wide).masked_fill(mask.bias == -torch.inf, 0.0)
            keep = keep & (mask.bias != -torch.inf)
        keep = keep.expand_as(logits)
        dead = ~keep.any(-1, keepdim=True)
        logits = logits.masked_fill(~keep & ~dead, -torch.inf)
        return logits.softmax(-1).masked_fill(dead | ~keep, 0.0)

    def forward(self, query, key, value, mask):
        weights = self.weights(query, key, mask)
        group = query.shape[1] // key.shape[1]
        weights = nn.functional.dropout(weights, self.dropout, self.training)
        value = value.to(weights.dtype).repeat_interleave(group, dim=1)
        return (weights @ value).to(query.dtype)


class MeanPool(nn.Module):
    """The mean of the valid values, whatever the query: implied weights, padding only."""

    capabilities = Capabilities(
        key_valid=True,
        cross=True,
        grouped=True,
        value_dim=True,
        weights="implied",
        normalized=True,
        deterministic=True,
        compile=True,
    )

    def __init__(self, dims, *, mode: Literal["mean", "half"] = "mean", sharp: bool = False):
        super().__init__()
        self.mode, self.sharp = mode, sharp

    def forward(self, query, key, value, mask):
        wide = torch.promote_types(value.dtype, torch.float32)
        group = query.shape[1] // key.shape[1]
        v = value.to(wide).repeat_interleave(group, dim=1)
        keep = v.new_ones(v.shape[0], v.shape[2])
        if mask.key_valid is not None:
            keep = mask.key_valid.to(wide)
        keep = keep[:, None, :, None]
        mean = (v * keep).sum(2, keepdim=True) / keep.sum(2, keepdim=True).clamp(min=1)
        return mean.expand(-1, -1, query.shape[2], -1).to(query.dtype) + 0 * query.sum(
            -1, keepdim=True
        )


class Hashed(nn.Module):
    """Attention within random buckets that are drawn anew in every call: not deterministic."""

    def __init__(self, dims, *, buckets: Annotated[int, Interval(ge=1, le=16)] = 2):
        super().__init__()
        self.buckets = buckets

    def forward(self, query, key, value, mask):
        plane = torch.randn(query.shape[-1], self.buckets, device=query.device).to(query.dtype)
        same = (query @ plane).argmax(-1)[..., :, None] == (key @ plane).argmax(-1)[..., None, :]
        scores = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(~same, -1e4)
        return scores.softmax(-1) @ value


RIGHT = [
    Variant(
        "in_numpy",
        InNumpy,
        summary="softmax attention in NumPy",
        capabilities=Capabilities(dtypes=PRECISE, differentiable=False),
    ),
    Variant("plain", Plain, summary="float32 only", capabilities=Capabilities(dtypes=("float32",))),
    Variant("plain_wide", PlainWide, summary="every dtype, nothing declared"),
    Variant(
        "plain_declared",
        PlainWide,
        summary="what it is, declared",
        capabilities=Capabilities(
            cross=True,
            value_dim=True,
            weights="implied",
            normalized=True,
            deterministic=True,
            compile=True,
        ),
        complexity=Complexity(time="L^2", memory="L^2"),
    ),
    Variant(
        "causal_only",
        CausalOnly,
        summary="a decaying sum over the past",
        capabilities=Capabilities(
            causal=True, noncausal=False, positional=True, weights="implied", deterministic=True
        ),
        reference=causal_only_reference,
    ),
    Variant(
        "polynomial",
        Polynomial,
        summary="integer options",
        capabilities=Capabilities(dtypes=PRECISE, cross=True, value_dim=True, weights="implied"),
    ),
    Variant(
        "relative",
        Relative,
        summary="positional, of fixed length",
        capabilities=Capabilities(dtypes=PRECISE, positional=True, fixed_length=True),
    ),
    Variant(
        "gated",
        Gated,
        summary="not linear in V",
        capabilities=Capabilities(dtypes=PRECISE, cross=True, deterministic=True),
    ),
    Variant("even_only", EvenOnly, summary="even heads", capabilities=Capabilities(dtypes=PRECISE)),
    Variant("masked", Masked, summary="every mask, densely"),
    Variant(
        "masked_memory",
        Masked,
        summary="the same, with its complexity declared",
        complexity=Complexity(time="L^2", memory="L^2"),
    ),
    Variant("mean_pool", MeanPool, summary="the mean of the values"),
    Variant("hashed", Hashed, summary="random", capabilities=Capabilities(dtypes=PRECISE)),
]
