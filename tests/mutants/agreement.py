"""Wrong numbers: constants, axes, scales, dtypes, implementations that differ."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F

import attnreg
from attnreg import Implementation, KernelAttention, Mask
from attnreg.families.tiling import masked_softmax
from attnreg.functional import cast_in_range, expand_heads, unit_vectors
from attnreg.lowering import LoweredMask, columns_of, take
from attnreg_additive.module import Additive
from attnreg_cosine.module import Cosine
from attnreg_euclidean.module import Euclidean
from attnreg_linear.module import Linear
from attnreg_linformer.module import Linformer
from attnreg_performer.module import Performer
from attnreg_shared_qkv.module import SharedQKV
from attnreg_sparse_window.module import SparseWindow
from tests.mutants.mutant import Mutant, wrong

ADDITIVE = attnreg.get_variant("additive")
COSINE = attnreg.get_variant("cosine")
EUCLIDEAN = attnreg.get_variant("euclidean")
LINEAR = attnreg.get_variant("linear")
LINFORMER = attnreg.get_variant("linformer")
PERFORMER = attnreg.get_variant("performer")
PRODUCT = attnreg.get_variant("scaled_dot_product")
SHARED = attnreg.get_variant("shared_qkv")
SPARSE = attnreg.get_variant("sparse_window")


class Dense(nn.Module):
    """Right by itself: scaled dot-product attention on the whole (Lq, Lk) matrix, every mask.

    The mutants change one step of it.
    """

    def __init__(self, dims, *, temperature: float = 1.0, scale=None, dropout=0.0):
        super().__init__()
        self.dims = dims
        self.temperature = temperature
        self.scale = dims.head_dim**-0.5 if scale is None else scale
        self.dropout = dropout

    def widen(self, tensor):
        return tensor.to(torch.promote_types(tensor.dtype, torch.float32))

    def score(self, query, key):
        return query @ key.mT * (self.scale / self.temperature)

    def add(self, logits, bias):
        return logits + cast_in_range(bias, logits.dtype)

    def softmax(self, logits, visible):
        return masked_softmax(logits, visible)

    def mix(self, weights, value):
        return weights @ value

    def masked(self, mask, query, key):
        return mask

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        mask = self.masked(mask, query, key)
        lowered = LoweredMask(mask, query.shape[2], key.shape[2], query.device)
        query, key = self.widen(query), self.widen(expand_heads(key, query.shape[1]))
        logits, bias = self.score(query, key), lowered.bias()
        if bias is not None:
            logits = self.add(logits, bias)
        return self.softmax(logits, lowered.visible())

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        weights = self.weights(query, key, mask)
        weights = F.dropout(weights, self.dropout, self.training)
        value = self.widen(expand_heads(value, query.shape[1]))
        return self.mix(weights, value).to(query.dtype)


def dense(name, factory, kills, spares=("N-01",)):
    """A mutant of scaled dot-product attention that stands on ``Dense``."""
    return Mutant(name, wrong(PRODUCT, factory), kills, spares)


class OverQueries(Dense):
    def softmax(self, logits, visible):
        return super().softmax(logits.mT, None if visible is None else visible.mT).mT


class EluAlone(Linear):
    def feature_map(self, x):
        return F.elu(x.to(torch.promote_types(x.dtype, torch.float32)))


class OneProjection(Linformer):
    """F is E, though both are there."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        kept = self._parameters["value_projection"]
        if kept is not None:
            self._parameters["value_projection"] = self.key_projection
        try:
            return super().forward(query, key, value, mask)
        finally:
            self._parameters["value_projection"] = kept


class WholeSquare(Performer):
    """exp(-|x|^2) where exp(-|x|^2 / 2) is meant."""

    def key_features(self, key):
        features = super().key_features(key)
        if features.log_scale is None:
            return features
        _, x = self._projected(key)
        return features._replace(log_scale=features.log_scale - 0.5 * x.square().sum(dim=-1))


class QueryOnly(Cosine):
    def transform(self, query, key):
        scaled, _ = super().transform(query, key)
        return scaled, key.to(scaled.dtype)


class SumOfTanh(Additive):
    def score(self, query, key):
        left = torch.tanh(query @ self.query_weight.mT.to(query) + self.bias[:, None].to(query))
        right = torch.tanh(key @ self.key_weight.mT.to(key))
        hidden = left[..., :, None, :] + right[..., None, :, :]
        return (hidden @ self.score_weight[:, None, :, None].to(query)).squeeze(-1)


class Swapped(Additive):
    def score(self, query, key):
        return super().score(key, query).mT


class NotSquared(Euclidean):
    def score(self, query, key):
        kept, self.squared = self.squared, False
        try:
            return super().score(query, key)
        finally:
            self.squared = kept


class NeverItself(SharedQKV):
    def pattern(self, lowered, rows, columns):
        kept, self.exclude_self = self.exclude_self, True
        try:
            return super().pattern(lowered, rows, columns)
        finally:
            self.exclude_self = kept


class ShortRight(SparseWindow):
    """The last step to the right is left out."""

    def pattern(self, lowered, rows, columns):
        self.right -= 1
        try:
            return super().pattern(lowered, rows, columns)
        finally:
            self.right += 1


class Unshifted(SparseWindow):
    """Counts queries from 0, whatever the offset."""

    def pattern(self, lowered, rows, columns):
        query = take(torch.arange(lowered.query_length, device=lowered.device), rows)[:, None]
        step = columns_of(lowered.key_position, columns) - query
        return (step >= -self.left) & (step <= self.right)


class TopLeft(Dense):
    def masked(self, mask, query, key):
        return mask.replace(query_offset=0) if mask.causal else mask


class HeadOfEight(Dense):
    def score(self, query, key):
        return query @ key.mT * (8**-0.5 / self.temperature)


class EvenWidths(Euclidean):
    """The odd last entry is dropped."""

    implementations = ()

    def score(self, query, key):
        even = max(2, query.shape[-1] // 2 * 2)
        return super().score(query[..., :even], key[..., :even])


class TripledKeys(Dense):
    """Knows one ratio of heads."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        heads = torch.arange(query.shape[1]) // 3 % key.shape[1]
        return super().forward(query, key[:, heads], value[:, heads], mask)


class ScaleIgnored(Dense):
    def score(self, query, key):
        return query @ key.mT * (self.dims.head_dim**-0.5 / self.temperature)


class ScaleOrDefault(Dense):
    """0 counts as not given."""

    def __init__(self, dims, *, temperature: float = 1.0, scale=None, dropout=0.0):
        scale = scale or dims.head_dim**-0.5
        super().__init__(dims, temperature=temperature, scale=scale, dropout=dropout)


class ScaleSquared(Performer):
    def __init__(self, dims, *, scale=None, **options):
        super().__init__(dims, scale=scale, **options)
        self.given = 1.0 if scale is None else scale

    def _projected(self, x):
        return super()._projected(x * self.given)


class NotRenormalized(Dense):
    def softmax(self, logits, visible):
        weights = logits.softmax(-1)
        return weights if visible is None else weights * visible


class NormaliserOfAll(Performer):
    """Padded keys still count in the sum that is divided by."""

    def _features(self, query, key, value, key_valid):
        phi_q, phi_k, value = super()._features(query, key, value, None)
        if key_valid is not None:
            hidden = ~key_valid[:, None, :, None]
            value = torch.cat([value[..., :-1].masked_fill(hidden, 0.0), value[..., -1:]], dim=-1)
        return phi_q, phi_k, value


class Clamped(Dense):
    def mix(self, weights, value):
        return weights @ value.clamp(-5, 5)


class Shifted(KernelAttention):
    """A constant beside the values."""

    def feature_map(self, x):
        return F.elu(x) + 1

    def _quotient(self, mixed):
        return super()._quotient(mixed) + 0.01


def narrower(module, query, key, value, mask):
    if mask.window is not None and mask.window[0]:
        mask = mask.replace(window=(mask.window[0] - 1, mask.window[1]))
    return module(query, key, value, mask)


def one_block(module, query, key, value, mask):
    output = module(query, key, value, mask)
    return output if key.shape[2] <= 128 else output * (1 + 1e-6)


class BiasOverTemperature(Dense):
    def add(self, logits, bias):
        return super().add(logits, bias / self.temperature)


class ForgetsTheOthers(SharedQKV):
    """Hides a position from itself even where the mask leaves it nothing else."""

    def _sees_another(self, lowered, rows):
        count = take(lowered.query_position, rows).shape[0]
        return torch.full((count, 1), lowered.key_length > 1, device=lowered.device)


class StoredEight(Dense):
    """A default that was right for one head dimension."""

    def __init__(self, dims, *, temperature: float = 1.0, scale=None, dropout=0.0):
        scale = 8**-0.5 if scale is None else scale
        super().__init__(dims, temperature=temperature, scale=scale, dropout=dropout)


class StoredSixtyFour(Performer):
    def __init__(self, dims, *, scale=None, **options):
        super().__init__(dims, scale=0.125 if scale is None else scale, **options)


class UnitOverPositions(Cosine):
    def transform(self, query, key):
        scaled, _ = super().transform(query, key)
        return scaled, unit_vectors(key.mT).mT


MUTANTS = [
    dense("softmax over queries", OverQueries, ("N-01", "N-09"), ("N-10",)),
    Mutant("elu without one", wrong(LINEAR, EluAlone), ("N-01", "N-04")),
    Mutant("one projection for two", wrong(LINFORMER, OneProjection), ("N-01", "G-02")),
    Mutant("the whole square norm", wrong(PERFORMER, WholeSquare), ("N-01", "N-12"), ("N-09",)),
    Mutant("only the query is normalised", wrong(COSINE, QueryOnly), ("N-01",), ("N-09",)),
    Mutant("cosine over positions", wrong(COSINE, UnitOverPositions), ("N-01",), ("N-09",)),
    Mutant("a sum of two tanh", wrong(ADDITIVE, SumOfTanh), ("N-01",), ("N-10",)),
    Mutant("distance, not its square", wrong(EUCLIDEAN, NotSquared), ("N-01",), ("N-09",)),
    Mutant("never itself", wrong(SHARED, NeverItself), ("N-01",), ("N-10",)),
    Mutant("one step short", wrong(SPARSE, ShortRight), ("N-01",), ("N-10",)),
    Mutant("window not shifted", wrong(SPARSE, Unshifted), ("N-02",), ("N-10",)),
    dense("causal from the top left", TopLeft, ("N-02", "N-12")),
    dense("scale of head dimension 8", HeadOfEight, ("N-03",)),
    dense("one ratio of heads", TripledKeys, ("N-03",)),
    Mutant("even widths only", wrong(EUCLIDEAN, EvenWidths), ("N-03",), ("N-01",)),
    dense("scale ignored", ScaleIgnored, ("N-08",), ("N-01", "N-03")),
    dense("scale of 0 not given", ScaleOrDefault, ("N-08",), ("N-01", "N-03")),
    Mutant("scale twice", wrong(PERFORMER, ScaleSquared), ("N-08",), ("N-01",)),
    dense("not renormalised", NotRenormalized, ("N-09", "N-12"), ("N-01", "N-10")),
    Mutant("padding in the normaliser", wrong(PERFORMER, NormaliserOfAll), ("N-09", "N-12")),
    dense("values clamped", Clamped, ("N-10",)),
    Mutant(
        "a constant beside the values",
        wrong(LINEAR, Shifted, reference=None, complexity=LINEAR.complexity),
        ("N-10",),
    ),
    Mutant(
        "a kernel with a narrower window",
        replace(PRODUCT, factory=Dense, implementations=(Implementation("quick", narrower),)),
        ("N-11", "N-12"),
        ("N-01",),
    ),
    Mutant(
        "a kernel for one block",
        replace(ADDITIVE, implementations=(Implementation("quick", one_block),)),
        ("N-11",),
        ("N-01", "N-12"),
    ),
    dense("bias over temperature", BiasOverTemperature, ("N-12",)),
    Mutant("hides all it sees", wrong(SHARED, ForgetsTheOthers), ("N-12",), ("N-01",)),
    dense("default scale of 8", StoredEight, ("N-13",), ("N-01", "N-03")),
    Mutant("default scale of 64", wrong(PERFORMER, StoredSixtyFour), ("N-13",), ("N-01", "N-03")),
]
