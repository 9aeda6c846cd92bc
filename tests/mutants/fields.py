"""Attention that reads a field of the mask in another way than it is meant."""

from __future__ import annotations

import torch

from attnreg import Implementation, Mask
from attnreg_additive import VARIANT as ADDITIVE
from attnreg_additive.module import Additive
from attnreg_cosine import VARIANT as COSINE
from attnreg_cosine.module import Cosine
from attnreg_euclidean import VARIANT as EUCLIDEAN
from attnreg_euclidean.module import Euclidean
from attnreg_linear import VARIANT as LINEAR
from attnreg_linear.module import Linear
from attnreg_scaled_dot_product import VARIANT as DOT
from attnreg_scaled_dot_product.module import ScaledDotProduct
from attnreg_shared_qkv import VARIANT as SHARED
from attnreg_shared_qkv.module import SharedQKV
from attnreg_sparse_window import VARIANT as SPARSE
from attnreg_sparse_window.blocked import attend_blocked, why_not_blocked
from attnreg_sparse_window.module import SparseWindow
from tests.mutants.causality import Changed, Dense
from tests.mutants.mutant import Mutant, wrong


def whole(tensor, query, key):
    """A mask tensor expanded to (B, Hq, Lq, Lk)."""
    return tensor.expand(*query.shape[:3], key.shape[2])


class TrueHides(Changed, ScaledDotProduct):
    """True is taken for "blocked", as in torch's modules."""

    def change(self, mask, query, key):
        return mask if mask.allowed is None else mask.replace(allowed=~mask.allowed)


def _blocked_without_allowed(module, query, key, value, mask):
    return attend_blocked(module, query, key, value, mask.replace(allowed=None))


class BlockedForgetsAllowed(SparseWindow):
    """The fast path for windows knows no other mask."""

    implementations = (
        Implementation("blocked", _blocked_without_allowed, why_not_blocked, rank=20),
    )


class RankThreeIsPerItem(Changed, Additive):
    """A mask of rank 3 is taken to be per item, not per head."""

    def change(self, mask, query, key):
        if mask.allowed is None or mask.allowed.dim() != 3:
            return mask
        return mask.replace(allowed=mask.allowed[: query.shape[0], None])


class OneRowIsPadding(Changed, Cosine):
    """A mask with one row for all queries is taken for padding, alike in all heads."""

    def change(self, mask, query, key):
        allowed = mask.allowed
        if allowed is None or allowed.dim() < 3 or allowed.shape[-2] != 1:
            return mask
        return mask.replace(allowed=allowed[..., :1, :, :])


class TransposedMask(Changed, SharedQKV):
    """Heads and items change places where the mask is reshaped."""

    def change(self, mask, query, key):
        if mask.allowed is None or mask.cu_seqlens is not None:
            return mask
        full = whole(mask.allowed, query, key)
        return mask.replace(allowed=full.transpose(0, 1).reshape(full.shape))


class FirstItemForAll(Changed, Euclidean):
    """The mask of the first item serves all."""

    def change(self, mask, query, key):
        if mask.allowed is None:
            return mask
        return mask.replace(allowed=whole(mask.allowed, query, key)[:1])


class ScaleOfTheValid(Dense, ScaledDotProduct):
    """Where padding is given, scores are scaled by the number of valid keys."""

    def logits(self, query, key, mask):
        found = super().logits(query, key, mask)
        if mask.key_valid is None:
            return found
        return found * mask.key_valid.sum(dim=1)[:, None, None, None].to(found.dtype) ** 0.1


class NoneIsZero(Changed, Euclidean):
    """``left or 0``: an open side of a window is closed."""

    def change(self, mask, query, key):
        if mask.window is None:
            return mask
        left, right = mask.window
        return mask.replace(window=(left or 0, right or 0))


class AllowedReplacesPadding(Changed, Additive):
    """Where ``allowed`` is given, padding is not looked at."""

    def change(self, mask, query, key):
        return mask if mask.allowed is None else mask.replace(key_valid=None)


class EitherIsEnough(Changed, Cosine):
    """Padding or ``allowed``: one of them is enough."""

    def change(self, mask, query, key):
        if mask.allowed is None or mask.key_valid is None:
            return mask
        either = mask.allowed | mask.key_valid[:, None, None]
        return mask.replace(key_valid=None, allowed=either)


class FirstKeyIsAlwaysValid(Changed, ScaledDotProduct):
    """A key is made valid in place, so that every row sees something."""

    def change(self, mask, query, key):
        if mask.key_valid is not None:
            mask.key_valid[:, 0] = True
        return mask


class BiasMadeFinite(Changed, Euclidean):
    """-inf in the bias is replaced in place, by what a row of it survives."""

    def change(self, mask, query, key):
        if mask.bias is None:
            return mask
        hidden = mask.bias == -torch.inf
        allowed = ~hidden if mask.allowed is None else mask.allowed & ~hidden
        return mask.replace(bias=mask.bias.masked_fill_(hidden, -1e9), allowed=allowed)


class BiasBeforeScale(Dense, ScaledDotProduct):
    """The scale multiplies the bias too."""

    def bias_of(self, mask, query, key):
        found = super().bias_of(mask, query, key)
        return None if found is None else found * self.logit_scale


class BiasOfOneHead(Changed, Cosine):
    """The bias of the first head serves all."""

    def change(self, mask, query, key):
        if mask.bias is None:
            return mask
        return mask.replace(bias=whole(mask.bias, query, key)[:, :1])


class BiasInHalf(Changed, Additive):
    """The bias is rounded to half precision."""

    def change(self, mask, query, key):
        return mask if mask.bias is None else mask.replace(bias=mask.bias.bfloat16())


class BiasClamped(Changed, SharedQKV):
    """A bias is kept above -100, so that nothing overflows."""

    def change(self, mask, query, key):
        if mask.bias is None:
            return mask
        hidden = mask.bias == -torch.inf
        return mask.replace(bias=mask.bias.clamp(min=-100.0).masked_fill(hidden, -torch.inf))


class BiasHidesNothing(Changed, SharedQKV):
    """-inf in a bias is taken for a fault and replaced by 0."""

    def change(self, mask, query, key):
        if mask.bias is None:
            return mask
        return mask.replace(bias=mask.bias.masked_fill(mask.bias == -torch.inf, 0.0))


class BiasOfRankOne(Changed, Cosine):
    """A bias (Lk,) is taken for one per query."""

    def change(self, mask, query, key):
        if mask.bias is None or mask.bias.dim() != 1 or mask.bias.shape[0] == 1:
            return mask
        return mask.replace(bias=mask.bias[: query.shape[2], None])


class ExclusiveRight(Changed, ScaledDotProduct):
    """``delta < right`` where ``<=`` was meant."""

    def change(self, mask, query, key):
        if mask.window is None or not mask.window[1]:
            return mask
        return mask.replace(window=(mask.window[0], mask.window[1] - 1))


class WindowOfRows(Changed, Cosine):
    """The window counts from the row's number, not from its position."""

    def change(self, mask, query, key):
        if mask.window is None or mask.cu_seqlens is not None:
            return mask
        inside = Mask(window=mask.window, query_offset=0).dense(query.shape[2], key.shape[2])
        inside = inside.to(query.device)
        allowed = inside if mask.allowed is None else inside & mask.allowed
        return mask.replace(window=None, allowed=allowed)


class OffsetMeansCausal(Changed, Euclidean):
    """An offset is taken to say that the call is causal."""

    def change(self, mask, query, key):
        return mask if mask.query_offset is None else mask.replace(causal=True)


class OffsetTurnsFeatures(Linear):
    """Queries are turned by their position, where one is given."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if mask.query_offset is not None and not mask.causal:
            query = query.roll(mask.query_offset, dims=-1)
        return super().forward(query, key, value, mask)


class TrainingForgetsMasks(Changed, ScaledDotProduct):
    """The path for training drops ``allowed``."""

    def change(self, mask, query, key):
        return mask.replace(allowed=None) if self.training else mask


class GradientsForgetWindows(Additive):
    """The path for gradients drops the window."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if query.requires_grad:
            mask = mask.replace(window=None)
        return super().forward(query, key, value, mask)


MUTANTS = [
    Mutant(
        "allowed-true-hides",
        wrong(DOT, TrueHides),
        kills=("M-05", "M-09", "M-10", "M-13", "M-20"),
        spares=("N-01", "M-02", "M-06", "C-04"),
    ),
    Mutant(
        "allowed-lost-in-the-blocked-path",
        wrong(SPARSE, BlockedForgetsAllowed),
        kills=("M-05", "M-07", "M-10"),
        spares=("N-01", "M-02", "C-04"),
    ),
    Mutant(
        "allowed-of-rank-three-per-item",
        wrong(ADDITIVE, RankThreeIsPerItem),
        kills=("M-06",),
        spares=("N-01", "M-05", "M-07"),
    ),
    Mutant(
        "allowed-one-row-is-padding",
        wrong(COSINE, OneRowIsPadding),
        kills=("M-06", "M-07"),
        spares=("N-01", "M-09"),
    ),
    Mutant(
        "allowed-heads-and-items-swapped",
        wrong(SHARED, TransposedMask),
        kills=("M-07", "M-05"),
        spares=("N-01", "M-02", "M-09"),
    ),
    Mutant(
        "allowed-of-the-first-item",
        wrong(EUCLIDEAN, FirstItemForAll),
        kills=("M-07", "M-05"),
        spares=("N-01", "M-02", "M-09"),
    ),
    Mutant(
        "open-padding-changes-the-scale",
        wrong(DOT, ScaleOfTheValid),
        kills=("M-09", "M-02"),
        spares=("N-01", "M-01", "M-05"),
    ),
    Mutant(
        "open-window-is-closed",
        wrong(EUCLIDEAN, NoneIsZero),
        kills=("M-09", "M-17"),
        spares=("N-01", "M-05"),
    ),
    Mutant(
        "allowed-replaces-padding",
        wrong(ADDITIVE, AllowedReplacesPadding),
        kills=("M-10", "M-23"),
        spares=("N-01", "M-02", "M-05"),
    ),
    Mutant(
        "allowed-or-padding",
        wrong(COSINE, EitherIsEnough),
        kills=("M-10",),
        spares=("N-01", "M-02", "M-05", "M-09"),
    ),
    Mutant(
        "mask-made-valid-in-place",
        wrong(DOT, FirstKeyIsAlwaysValid),
        kills=("M-12", "M-04"),
        spares=("N-01", "M-05"),
    ),
    Mutant(
        "bias-made-finite-in-place",
        wrong(EUCLIDEAN, BiasMadeFinite),
        kills=("M-12",),
        spares=("N-01", "M-05"),
    ),
    Mutant(
        "bias-before-the-scale",
        wrong(DOT, BiasBeforeScale),
        kills=("M-15",),
        spares=("N-01", "M-05", "M-16"),
    ),
    Mutant(
        "bias-of-one-head",
        wrong(COSINE, BiasOfOneHead),
        kills=("M-15",),
        spares=("N-01", "M-05", "M-09"),
    ),
    Mutant(
        "bias-in-half-precision",
        wrong(ADDITIVE, BiasInHalf),
        kills=("M-15",),
        spares=("N-01", "M-05", "M-16"),
    ),
    Mutant(
        "bias-clamped",
        wrong(SHARED, BiasClamped),
        kills=("M-15",),
        spares=("N-01", "M-16", "M-04"),
    ),
    Mutant(
        "bias-hides-nothing",
        wrong(SHARED, BiasHidesNothing),
        kills=("M-15", "M-16", "M-04"),
        spares=("N-01", "M-05"),
    ),
    Mutant(
        "bias-of-rank-one-per-query",
        wrong(COSINE, BiasOfRankOne),
        kills=("M-16",),
        spares=("N-01", "M-15", "M-05"),
    ),
    Mutant(
        "window-exclusive-on-the-right",
        wrong(DOT, ExclusiveRight),
        kills=("M-17", "M-23"),
        spares=("N-01", "M-05", "M-09"),
    ),
    Mutant(
        "window-counts-rows",
        wrong(COSINE, WindowOfRows),
        kills=("M-17",),
        spares=("N-01", "M-05", "C-04"),
    ),
    Mutant(
        "offset-means-causal",
        wrong(EUCLIDEAN, OffsetMeansCausal),
        kills=("M-19", "M-09"),
        spares=("N-01", "M-05", "C-12"),
    ),
    Mutant(
        "offset-turns-features",
        wrong(LINEAR, OffsetTurnsFeatures),
        kills=("M-19",),
        spares=("N-01", "C-04"),
    ),
    Mutant(
        "masks-lost-in-training",
        wrong(DOT, TrainingForgetsMasks),
        kills=("M-22",),
        spares=("N-01", "M-05", "M-13"),
    ),
    Mutant(
        "masks-lost-with-gradients",
        wrong(ADDITIVE, GradientsForgetWindows),
        kills=("M-22",),
        spares=("N-01", "M-17", "M-13"),
    ),
]
