"""Attention that sees the future, loses the past, or counts positions from the wrong end."""

from __future__ import annotations

import torch

from attnreg import Features, Implementation, Mask
from attnreg.families import DotProductAttention
from attnreg.families.tiling import masked_softmax
from attnreg.functional import expand_heads
from attnreg.lowering import ALL, LoweredMask
from attnreg_additive import VARIANT as ADDITIVE
from attnreg_additive.module import Additive
from attnreg_cosine import VARIANT as COSINE
from attnreg_cosine.module import Cosine
from attnreg_euclidean import VARIANT as EUCLIDEAN
from attnreg_euclidean.module import Euclidean
from attnreg_linear import VARIANT as LINEAR
from attnreg_linear.module import Linear
from attnreg_performer import VARIANT as PERFORMER
from attnreg_performer.module import Performer
from attnreg_scaled_dot_product import VARIANT as DOT
from attnreg_scaled_dot_product.module import ScaledDotProduct
from attnreg_shared_qkv import VARIANT as SHARED
from attnreg_shared_qkv.module import SharedQKV
from attnreg_sparse_window import VARIANT as SPARSE
from attnreg_sparse_window.blocked import attend_blocked, why_not_blocked
from attnreg_sparse_window.module import SparseWindow
from tests.mutants.mutant import Mutant, wrong


class Dense:
    """A softmax family written out in one piece: each step is a method to get wrong."""

    implementations = ()

    def visible(self, mask, query, key):
        lowered = LoweredMask(mask, query.shape[2], key.shape[2], query.device)
        found = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        for own in (lowered.visible(), self.pattern(lowered, ALL, ALL)):
            found = found if own is None else found & own
        return found.reshape((1,) * (4 - found.dim()) + found.shape)

    def logits(self, query, key, mask):
        scale = self.scale
        if isinstance(self, DotProductAttention):
            query, key = self.transform(query, key)
            scale = self.logit_scale
        scores = self.score(query, key) * scale
        bias = self.bias_of(mask, query, key)
        return scores if bias is None else scores + bias.to(scores.dtype)

    def bias_of(self, mask, query, key):
        return LoweredMask(mask, query.shape[2], key.shape[2], query.device).bias()

    def probabilities(self, logits, visible):
        return masked_softmax(logits, visible.expand(*logits.shape))

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        key = self.spread_keys(key, query.shape[1])
        return self.probabilities(self.logits(query, key, mask), self.visible(mask, query, key))

    def spread_keys(self, key, heads):
        return expand_heads(key, heads)

    def spread_values(self, value, heads):
        return expand_heads(value, heads)

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        weights = Dense.weights(self, query, key, mask)
        if self.training:
            weights = torch.nn.functional.dropout(weights, self.dropout)
        value = self.spread_values(value, query.shape[1])
        return (weights @ value.to(weights.dtype)).to(query.dtype)


class Changed:
    """A plugin that makes another mask of the one it gets."""

    def change(self, mask, query, key):
        raise NotImplementedError

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().forward(query, key, value, self.change(mask, query, key))

    def attend_fused(self, query, key, value, mask):
        return super().attend_fused(query, key, value, self.change(mask, query, key))

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().weights(query, key, self.change(mask, query, key))


def offset_of(mask, query, key):
    """The offset in force."""
    return key.shape[2] - query.shape[2] if mask.query_offset is None else mask.query_offset


class OneTooMany(Changed, ScaledDotProduct):
    """The diagonal above the main one is kept."""

    def change(self, mask, query, key):
        later = offset_of(mask, query, key) + 1
        return mask.replace(query_offset=later) if mask.causal else mask


class SelfHidden(Changed, SharedQKV):
    """``>`` where ``>=`` was meant."""

    def change(self, mask, query, key):
        earlier = offset_of(mask, query, key) - 1
        return mask.replace(query_offset=earlier) if mask.causal else mask


class TopLeft(Changed, Cosine):
    """torch's ``is_causal``: query i sees keys up to i, whatever the lengths."""

    def change(self, mask, query, key):
        return mask.replace(query_offset=0) if mask.query_offset is None else mask


class NeverNegative(Changed, Additive):
    """``tril(diagonal=max(0, Lk - Lq))``."""

    def change(self, mask, query, key):
        return mask.replace(query_offset=max(0, offset_of(mask, query, key)))


class OffsetIgnored(Changed, Euclidean):
    """Always aligned at the end, even where an offset is given."""

    def change(self, mask, query, key):
        return mask.replace(query_offset=None)


class PaddingReplacesCausality(Changed, Additive):
    """The branch for padding forgets the flag."""

    def change(self, mask, query, key):
        return mask.replace(causal=mask.causal and mask.key_valid is None)


class PaddingIsALength(Changed, Euclidean):
    """Padding is taken for a number of valid keys: right only where it stands on the right."""

    def change(self, mask, query, key):
        if mask.key_valid is None:
            return mask
        counts = mask.key_valid.sum(dim=1, keepdim=True)
        index = torch.arange(key.shape[2], device=key.device)
        return mask.replace(key_valid=index < counts)


class WeightsForgetCausality(Euclidean):
    """The path that returns weights has masks, but not this one."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().weights(query, key, mask.replace(causal=False))


class WeightsCutAfterwards(Cosine):
    """The weights shown are those of all keys, with the hidden ones set to 0."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        lowered = LoweredMask(mask, query.shape[2], key.shape[2], query.device)
        visible = lowered.visible()
        found = super().weights(query, key)
        return found if visible is None else found * visible


class CachedAt64(Changed, Additive):
    """A causal mask made once for 64 positions; what lies past it is taken as visible."""

    def change(self, mask, query, key):
        if not mask.causal:
            return mask
        rows = torch.arange(query.shape[2], device=key.device)[:, None]
        columns = torch.arange(key.shape[2], device=key.device)
        seen = (columns <= rows + offset_of(mask, query, key)) | (rows >= 64)
        allowed = seen if mask.allowed is None else seen & mask.allowed
        return mask.replace(causal=False, allowed=allowed, query_offset=None)


class ForgetsAfter16(Changed, ScaledDotProduct):
    """Causal attention in blocks of 16 that never looks at an earlier block but the last."""

    def change(self, mask, query, key):
        return mask.replace(window=(15, None)) if mask.causal and mask.window is None else mask


class TrainingForgetsCausality(Changed, SharedQKV):
    """The path for training has no causal mask."""

    def change(self, mask, query, key):
        return mask.replace(causal=mask.causal and not self.training)


class DropoutForgetsCausality(Changed, ScaledDotProduct):
    """The path with dropout has no causal mask."""

    def change(self, mask, query, key):
        dropping = self.training and self.dropout > 0
        return mask.replace(causal=mask.causal and not dropping)


class BackwardLeaks(ScaledDotProduct):
    """The output is right, the gradient reaches every value."""

    implementations = ()

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        leak = value.mean(dim=(1, 2), keepdim=True)
        return super().forward(query, key, value, mask) + (leak - leak.detach())


class LengthInScale(Dense, ScaledDotProduct):
    """Scores grow with the logarithm of the length, which the future is part of."""

    def logits(self, query, key, mask):
        return super().logits(query, key, mask) * (1 + key.shape[2]) ** 0.1


class ExclusiveSum(Linear):
    """The running sum does not include the position itself."""

    def _causal(self, phi_q, phi_k, value, sums):
        _, total = super()._causal(phi_q, phi_k, value, sums)
        earlier = torch.nn.functional.pad(phi_k.values, (0, 0, 1, 0))[:, :, :-1]
        values = torch.nn.functional.pad(value, (0, 0, 1, 0))[:, :, :-1]
        output, _ = super()._causal(phi_q, Features(earlier, None), values, sums)
        return output, total


class WholeNormaliser(Linear):
    """The numerator is causal, the sum that it is divided by is not."""

    def _causal(self, phi_q, phi_k, value, sums):
        normalize, self.normalize = self.normalize, False
        try:
            output, total = super()._causal(phi_q, phi_k, value, sums)
        finally:
            self.normalize = normalize
        whole = phi_q @ phi_k.values.sum(dim=2)[..., None]
        return output / whole if normalize else output, total


class StabiliserSeesAll(Performer):
    """Features are kept in range by the largest exponent of the whole sequence."""

    implementations = ()  # in blocks it would see one block at a time

    def key_features(self, key):
        dots, x = self._projected(key)
        if self.kernel == "relu":
            return super().key_features(key)
        half = 0.5 * x.square().sum(dim=-1, keepdim=True)
        return Features((dots - half - dots.amax(dim=(-1, -2), keepdim=True)).exp())


class StabiliserSeesAllExponents(Performer):
    """The same with the largest of the whole exponents, which only small keys can push up."""

    implementations = ()  # in blocks it would see one block at a time

    def key_features(self, key):
        dots, x = self._projected(key)
        if self.kernel == "relu":
            return super().key_features(key)
        exponent = dots - 0.5 * x.square().sum(dim=-1, keepdim=True)
        return Features((exponent - exponent.amax(dim=(-1, -2), keepdim=True)).exp())


class GuardedNormaliser(Performer):
    """A small number is added to what is divided by."""

    def _quotient(self, mixed):
        return mixed[..., :-1] / (mixed[..., -1:] + 1e-4)


def _blocked_sees_all(module, query, key, value, mask):
    return attend_blocked(module, query, key, value, mask.replace(causal=False))


class BlockedForgetsCausality(SparseWindow):
    """The fast path for windows has no causal flag."""

    implementations = (Implementation("blocked", _blocked_sees_all, why_not_blocked, rank=20),)


MUTANTS = [
    Mutant(
        "causal-one-too-many",
        wrong(DOT, OneTooMany),
        kills=("C-01", "C-02", "C-03", "C-04", "C-07", "C-08"),
        spares=("N-01", "M-19"),
    ),
    Mutant(
        "causal-self-hidden",
        wrong(SHARED, SelfHidden),
        kills=("C-03", "C-04", "C-09", "C-11", "C-12", "M-23"),
        spares=("N-01", "C-01", "C-02"),
    ),
    Mutant(
        "causal-top-left",
        wrong(COSINE, TopLeft),
        kills=("C-03", "C-05"),
        spares=("N-01", "C-01", "C-08"),
    ),
    Mutant(
        "causal-never-negative",
        wrong(ADDITIVE, NeverNegative),
        kills=("C-05", "C-12", "M-04"),
        spares=("N-01", "C-04"),
    ),
    Mutant(
        "causal-offset-ignored",
        wrong(EUCLIDEAN, OffsetIgnored),
        kills=("C-11", "C-12"),
        spares=("N-01", "C-04", "C-05"),
    ),
    Mutant(
        "causal-lost-with-padding",
        wrong(ADDITIVE, PaddingReplacesCausality),
        kills=("C-01", "C-06"),
        spares=("N-01", "C-04", "M-19"),
    ),
    Mutant(
        "causal-padding-is-a-length",
        wrong(EUCLIDEAN, PaddingIsALength),
        kills=("C-06", "M-03"),
        spares=("N-01", "M-02", "C-04"),
    ),
    Mutant(
        "causal-lost-in-weights",
        wrong(EUCLIDEAN, WeightsForgetCausality),
        kills=("C-07",),
        spares=("N-01", "C-01", "C-04"),
    ),
    Mutant(
        "causal-weights-cut-afterwards",
        wrong(COSINE, WeightsCutAfterwards),
        kills=("C-07",),
        spares=("N-01", "C-01", "C-04"),
    ),
    Mutant(
        "causal-cached-at-64",
        wrong(ADDITIVE, CachedAt64),
        kills=("C-01", "C-02", "C-04", "C-08"),
        spares=("N-01", "C-06"),
    ),
    Mutant(
        "causal-forgets-after-16",
        wrong(DOT, ForgetsAfter16),
        kills=("C-03", "C-04"),
        spares=("N-01", "C-01", "C-02", "C-06"),
    ),
    Mutant(
        "causal-lost-in-training",
        wrong(SHARED, TrainingForgetsCausality),
        kills=("C-01", "M-22"),
        spares=("N-01", "C-04"),
    ),
    Mutant(
        "causal-lost-with-dropout",
        wrong(DOT, DropoutForgetsCausality),
        kills=("C-10",),
        spares=("N-01", "C-01", "C-04"),
    ),
    Mutant(
        "causal-leaks-backwards",
        wrong(DOT, BackwardLeaks),
        kills=("C-02",),
        spares=("N-01", "C-01", "C-04"),
    ),
    Mutant(
        "causal-length-in-scale",
        wrong(DOT, LengthInScale),
        kills=("C-08", "M-02", "M-20"),
        spares=("C-01", "C-02", "M-13"),
    ),
    Mutant(
        "linear-exclusive-sum",
        wrong(LINEAR, ExclusiveSum),
        kills=("C-03", "C-04"),
        spares=("N-01", "C-01", "C-02"),
    ),
    Mutant(
        "linear-whole-normaliser",
        wrong(LINEAR, WholeNormaliser),
        kills=("C-01", "C-02", "C-08"),
        spares=("N-01", "M-19"),
    ),
    Mutant(
        "performer-stabiliser-sees-all",
        wrong(PERFORMER, StabiliserSeesAll),
        kills=("C-01", "C-02"),
        spares=("N-01", "C-04"),
    ),
    Mutant(
        "performer-stabiliser-sees-all-exponents",
        wrong(PERFORMER, StabiliserSeesAllExponents),
        kills=("C-01", "C-02"),
        spares=("N-01", "C-04"),
    ),
    Mutant(
        "performer-guarded-normaliser",
        wrong(PERFORMER, GuardedNormaliser),
        kills=("C-09", "M-14"),
        spares=("C-01", "I-01"),
    ),
    Mutant(
        "sparse-blocked-forgets-causality",
        wrong(SPARSE, BlockedForgetsCausality),
        kills=("C-01", "C-02", "C-04"),
        spares=("N-01", "I-09"),
    ),
]
