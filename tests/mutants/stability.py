"""Right formulas, computed so that large, tiny or equal inputs break them."""

from __future__ import annotations

import torch

from attnreg import Features, Mask
from attnreg.functional import expand_heads, unit_vectors
from attnreg_additive.module import Additive
from attnreg_cosine.module import Cosine
from attnreg_euclidean.module import Euclidean
from attnreg_linear.module import Linear
from attnreg_linformer.module import Linformer
from attnreg_performer.module import Performer
from attnreg_shared_qkv.module import SharedQKV
from tests.mutants.agreement import (
    ADDITIVE,
    COSINE,
    EUCLIDEAN,
    LINEAR,
    LINFORMER,
    PERFORMER,
    SHARED,
    Dense,
    dense,
)
from tests.mutants.mutant import Mutant, wrong


class ScaledAfter(Dense):
    """The product is in the dtype of the call, the scale comes after it."""

    def widen(self, tensor):
        return tensor

    def softmax(self, logits, visible):
        return super().softmax(logits.float() if logits.dtype.itemsize == 2 else logits, visible)

    def mix(self, weights, value):
        return weights.to(value.dtype) @ value


class SharedScaledAfter(SharedQKV):
    """The same in the family's own score."""

    implementations = ()

    def score(self, query, key):
        return (query @ key.mT).to(torch.promote_types(query.dtype, torch.float32))


class MaximumOfAll(Dense):
    """One maximum for the whole tensor."""

    def softmax(self, logits, visible):
        shown = torch.ones_like(logits).bool() if visible is None else visible.expand_as(logits)
        top = logits.masked_fill(~shown, -torch.inf).amax() if logits.numel() else 0.0
        powers = (logits - top).exp() * shown
        total = powers.sum(-1, keepdim=True)
        return powers / total.masked_fill(~shown.any(-1, keepdim=True), 1.0)


class NoMaximum(Additive):
    """Exponentials as they come."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().forward(query, key, value, mask) + 0 * self._sum(query, key)

    def _sum(self, query, key):
        wide = torch.promote_types(query.dtype, torch.float32)
        logits = (query.to(wide) @ expand_heads(key, query.shape[1]).to(wide).mT) * self.scale
        return logits.exp().sum(-1, keepdim=True).to(query.dtype)


class PlainExponentials(Performer):
    """Features are not kept relative to their largest."""

    def query_features(self, query):
        if self.kernel == "relu":
            return super().query_features(query)
        dots, x = self._projected(query)
        return (dots - 0.5 * x.square().sum(-1, keepdim=True)).exp()

    def key_features(self, key):
        if self.kernel == "relu":
            return super().key_features(key)
        dots, x = self._projected(key)
        return Features((dots - 0.5 * x.square().sum(-1, keepdim=True)).exp())


class LimitedScores(Dense):
    """Scores are cut at 80, below where the exponential overflows, and not shifted."""

    def softmax(self, logits, visible):
        shown = torch.ones_like(logits).bool() if visible is None else visible.expand_as(logits)
        powers = logits.clamp(max=80.0).exp() * shown
        return powers / powers.sum(-1, keepdim=True).masked_fill(~shown.any(-1, keepdim=True), 1.0)


class Unshifted(Dense):
    def softmax(self, logits, visible):
        shown = torch.ones_like(logits).bool() if visible is None else visible.expand_as(logits)
        powers = logits.exp() * shown
        return powers / powers.sum(-1, keepdim=True).masked_fill(~shown.any(-1, keepdim=True), 1.0)


class NarrowNorm(Cosine):
    """Norms are squared and summed in the dtype of the call."""

    def transform(self, query, key):
        wide = torch.promote_types(query.dtype, torch.float32)

        def unit(x):
            norm = x.square().sum(-1, keepdim=True).sqrt()
            return (x / norm.masked_fill((x == 0).all(-1, keepdim=True), 1.0)).to(wide)

        scale = self.head_scale.clamp(max=100.0).to(wide)[:, None, None]
        return unit(query) * scale, unit(key)


class SmallEpsilon(Cosine):
    """An epsilon in the norm that hides small vectors."""

    def transform(self, query, key):
        def unit(x):
            return unit_vectors(x) * (x.abs().amax(-1, keepdim=True) > 1e-9)

        scale = self.head_scale.clamp(max=100.0).to(torch.promote_types(query.dtype, torch.float32))
        return unit(query) * scale[:, None, None], unit(key)


class NarrowKeys(Linformer):
    """Keys are mixed in the dtype of the call."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if key.dtype.itemsize == 2:
            key = (key * 64) / 64
        return super().forward(query, key, value, mask)


class NoLimit(Cosine):
    """The largest scale is in the formula only."""

    def transform(self, query, key):
        query, key = unit_vectors(query), unit_vectors(key)
        return query * self.head_scale.to(query.dtype)[:, None, None], key


class SaturatedEarly(Additive):
    """tanh by exponentials, which overflow where it is 1."""

    def score(self, query, key):
        left = query @ self.query_weight.mT.to(query) + self.bias[:, None].to(query)
        inner = left[..., :, None, :] + (key @ self.key_weight.mT.to(key))[..., None, :, :]
        hidden = (inner.exp() - (-inner).exp()) / (inner.exp() + (-inner).exp())
        score = (hidden @ self.score_weight[:, None, :, None].to(query)).squeeze(-1)
        return score / self.temperature


class NarrowSquares(Euclidean):
    """Squares in the dtype of the call."""

    implementations = ()

    def _prepared(self, x):
        return super()._prepared(x) if self.normalize_inputs else x


class NarrowSums(Linear):
    """K^T V, and the sum of the features, in the dtype of the call."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if query.dtype.itemsize > 2 or mask.used() or not self.normalize:
            return super().forward(query, key, value, mask)
        key, value = (expand_heads(t, query.shape[1]) for t in (key, value))
        phi_q, phi_k = (self.feature_map(t).to(t.dtype) for t in (query, key))
        total = (phi_q @ phi_k.sum(2)[..., None]).masked_fill(phi_q.sum(-1, keepdim=True) == 0, 1)
        return (phi_q @ (phi_k.mT @ value)) / total


class RunningSum(Dense):
    """Blocks of keys are added up in the dtype of the call."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        weights = self.weights(query, key, mask)
        value, total = self.widen(expand_heads(value, query.shape[1])), 0
        for start in range(0, max(1, value.shape[2]), 16):
            part = weights[..., start : start + 16] @ value[:, :, start : start + 16]
            total = (total + part).to(query.dtype)
        return total


class LowestIsHidden(Dense):
    """Any very low bias counts as -inf."""

    def add(self, logits, bias):
        limit = torch.finfo(logits.dtype).min / 2
        return super().add(logits, bias).masked_fill(bias <= max(limit, -6e4), -torch.inf)

    def softmax(self, logits, visible):
        return super().softmax(logits, visible).nan_to_num(0.0)


class BiasOverflows(Additive):
    """Twice a large bias, halved afterwards."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if mask.bias is not None:
            hidden = mask.bias == -torch.inf
            bias = ((mask.bias * 2) / 2).masked_fill(hidden, -torch.inf)
            mask = mask.replace(bias=bias)
        return super().forward(query, key, value, mask)


class DividedLast(Dense):
    """The sum over values is stored in the dtype of the call, then divided."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        weights = self.weights(query, key, mask)
        level = weights.amax(-1, keepdim=True).clamp(min=1e-30)
        value = self.widen(expand_heads(value, query.shape[1]))
        return ((weights / level) @ value).to(query.dtype) * level.to(query.dtype)


class BothBranches(Linear):
    """torch.where computes both branches: the exponential of a large feature is inf, times 0."""

    def feature_map(self, x):
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.feature_map_name != "elu+1":
            return super().feature_map(x)
        return torch.where(x > 0, x + 1.0, x.exp())


class SquaredBack(Euclidean):
    """A gradient that squares on its way back."""

    implementations = ()

    def _prepared(self, x):
        x = super()._prepared(x)
        return torch.sqrt(x.square() + 1e-300) * x.sign().detach() if x.requires_grad else x


MUTANTS = [
    dense("scale after the product", ScaledAfter, ("S-01", "S-07"), ("N-01", "N-04")),
    Mutant("score in halves", wrong(SHARED, SharedScaledAfter), ("S-01", "S-07"), ("N-01", "N-04")),
    dense("one maximum for all", MaximumOfAll, ("S-02",), ("N-01", "N-04")),
    Mutant("a sum without a maximum", wrong(ADDITIVE, NoMaximum), ("S-02",), ("N-01",)),
    Mutant("plain exponentials", wrong(PERFORMER, PlainExponentials), ("S-02",), ("N-01",)),
    dense("scores cut at 80", LimitedScores, ("S-02",), ("N-01", "S-03")),
    dense("no maximum", Unshifted, ("S-03", "S-02"), ("N-01",)),
    Mutant("norm in halves", wrong(COSINE, NarrowNorm), ("S-04", "S-05", "S-07"), ("N-01",)),
    Mutant("epsilon hides the small", wrong(COSINE, SmallEpsilon), ("S-04",), ("N-01", "G-05")),
    Mutant("keys times 64", wrong(LINFORMER, NarrowKeys), ("S-05",), ("N-01", "N-04")),
    Mutant("no largest scale", wrong(COSINE, NoLimit), ("S-06",), ("R-00", "G-02")),
    Mutant("tanh by exponentials", wrong(ADDITIVE, SaturatedEarly), ("S-06", "S-09"), ("N-01",)),
    Mutant("squares in halves", wrong(EUCLIDEAN, NarrowSquares), ("S-07", "S-03"), ("N-01",)),
    Mutant("sums in halves", wrong(LINEAR, NarrowSums), ("S-08",), ("N-01", "N-04")),
    dense("a running sum in halves", RunningSum, ("S-08",), ("N-01", "N-04")),
    dense("the lowest bias hides", LowestIsHidden, ("S-10",), ("N-12", "N-14")),
    Mutant("bias doubled on the way", wrong(ADDITIVE, BiasOverflows), ("S-10",), ("N-12", "N-14")),
    dense("divided last", DividedLast, ("S-11",), ("N-01", "N-12")),
    Mutant("both branches", wrong(LINEAR, BothBranches), ("S-12",), ("N-01", "S-05", "G-05")),
    Mutant("an infinite slope at 0", wrong(EUCLIDEAN, SquaredBack), ("S-12",), ("N-01",)),
]
