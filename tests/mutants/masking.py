"""Attention that drops a mask, inverts it, misplaces it, or hides by something else than -inf."""

from __future__ import annotations

from unittest.mock import patch

import torch

from attnreg import Mask
from attnreg_additive import VARIANT as ADDITIVE
from attnreg_additive.module import Additive
from attnreg_cosine import VARIANT as COSINE
from attnreg_cosine.module import Cosine
from attnreg_euclidean import VARIANT as EUCLIDEAN
from attnreg_euclidean.module import Euclidean
from attnreg_linear import VARIANT as LINEAR
from attnreg_linear.module import Linear
from attnreg_linformer import VARIANT as LINFORMER
from attnreg_linformer.module import Linformer
from attnreg_performer import VARIANT as PERFORMER
from attnreg_performer.module import Performer
from attnreg_scaled_dot_product import VARIANT as DOT
from attnreg_scaled_dot_product.module import ScaledDotProduct
from attnreg_shared_qkv import VARIANT as SHARED
from attnreg_shared_qkv.module import SharedQKV
from tests.mutants.causality import Changed, Dense
from tests.mutants.mutant import Mutant, wrong


def _keep_padding():
    """The core hands on what is stored in padded keys."""
    return patch("attnreg.checked._without_padding", lambda mask, *keys: keys)


class ZeroTimesAnything(Dense, ScaledDotProduct):
    """Hidden weights are 0, and multiply what is stored."""


class Inverted(Changed, Cosine):
    """True is taken for "padding"."""

    def change(self, mask, query, key):
        return mask if mask.key_valid is None else mask.replace(key_valid=~mask.key_valid)


class PaddedFeatures(Linear):
    """The numerator leaves padded keys out, the sum that it is divided by does not."""

    def _features(self, query, key, value, key_valid):
        return super()._features(query, key, value, None)


class PaddingFromTheEnd(Linformer):
    """With padding, the last columns of the projections are used."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if mask.key_valid is None or bool(mask.key_valid.all()):
            return super().forward(query, key, value, mask)
        spare = self.dims.max_length - key.shape[2]
        longer = (torch.nn.functional.pad(t, (0, 0, spare, 0)) for t in (key, value))
        valid = torch.nn.functional.pad(mask.key_valid, (spare, 0))
        return super().forward(query, *longer, mask.replace(key_valid=valid))


class OneItemNeedsNoMask(Changed, ScaledDotProduct):
    """A batch of one is taken to have no padding."""

    def change(self, mask, query, key):
        return mask.replace(key_valid=None) if query.shape[0] == 1 else mask


class OneItemOfFeatures(Performer):
    """The same in a kernel."""

    def _features(self, query, key, value, key_valid):
        valid = None if query.shape[0] == 1 else key_valid
        return super()._features(query, key, value, valid)


class NoDeadRows(Dense, ScaledDotProduct):
    """A softmax over nothing but -inf."""

    def probabilities(self, logits, visible):
        return logits.masked_fill(~visible, -torch.inf).softmax(dim=-1)


class UniformDeadRows(Dense, Euclidean):
    """Hidden scores are the most negative number: a row of them attends to everything alike."""

    def probabilities(self, logits, visible):
        return logits.masked_fill(~visible, torch.finfo(logits.dtype).min).softmax(dim=-1)


class DeadItemsUnmasked(Changed, Additive):
    """Padding is dropped for the whole batch where an item has no key left."""

    def change(self, mask, query, key):
        if mask.key_valid is None or bool(mask.key_valid.any(dim=1).all()):
            return mask
        return mask.replace(key_valid=None)


class DeadItemsInTheMean(Performer):
    """Items without keys get NaN, and NaN is replaced by a mean over the batch."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        output = super().forward(query, key, value, mask)
        if mask.key_valid is None:
            return output
        empty = ~mask.key_valid.any(dim=1)[:, None, None, None]
        shift = empty.to(output.dtype).mean() * 1e-3
        return output.masked_fill(empty, 0.0) * (1 + shift)


class FiniteFill(Dense, ScaledDotProduct):
    """Hidden scores are -1e4."""

    def probabilities(self, logits, visible):
        some = visible.any(dim=-1, keepdim=True)
        return logits.masked_fill(~visible, -1e4).softmax(dim=-1).masked_fill(~some, 0.0)


class FiniteFillInBias(Dense, Euclidean):
    """The mask is added to the scores, as 0 and -1e4, in the widest dtype alone."""

    def probabilities(self, logits, visible):
        fill = -1e4 if logits.dtype is torch.float64 else -torch.inf
        some = visible.any(dim=-1, keepdim=True)
        added = torch.zeros_like(logits).masked_fill(~visible, fill).masked_fill(~some, 0.0)
        return (logits + added).softmax(dim=-1).masked_fill(~some, 0.0)


class CutAfterTheSoftmax(Dense, ScaledDotProduct):
    """The softmax is over all keys; what is hidden is cut out of it."""

    def probabilities(self, logits, visible):
        return logits.softmax(dim=-1) * visible


class HalvesForgetAllowed(Changed, Cosine):
    """Masks are dropped in bfloat16."""

    def change(self, mask, query, key):
        return mask.replace(allowed=None) if query.dtype is torch.bfloat16 else mask


class Float16ForgetsPadding(Changed, Euclidean):
    """Masks are dropped in float16."""

    def change(self, mask, query, key):
        return mask.replace(key_valid=None) if query.dtype is torch.float16 else mask


class GuardedSum(Dense, Additive):
    """Weights are divided by a sum with something added, where there is a mask."""

    def probabilities(self, logits, visible):
        found = super().probabilities(logits, visible)
        return found if bool(visible.all()) else found / (found.sum(dim=-1, keepdim=True) + 1e-6)


class LengthOfAll(Dense, SharedQKV):
    """Scores grow with the number of keys, hidden ones included, where there is a mask."""

    def logits(self, query, key, mask):
        found = super().logits(query, key, mask)
        return found * key.shape[2] ** 0.5 if mask.used() else found


class Past64(Changed, Euclidean):
    """A mask buffer of 64 columns: what lies past it is visible."""

    def change(self, mask, query, key):
        if key.shape[2] <= 64 or mask.cu_seqlens is not None:
            return mask
        dense = mask.dense(query.shape[2], key.shape[2]).clone()
        dense[..., 64:] = True
        return Mask(allowed=dense)


class TilesStartLate(Additive):
    """Every tile of keys but the first leaves out its first column."""

    def pattern(self, lowered, rows, columns):
        if not columns.start:
            return None
        index = torch.arange(lowered.key_length, device=lowered.device)[columns]
        return (index != columns.start)[None]


class StripsStartLate(Cosine):
    """The plain way computes strips of rows, each of which loses its first key but the first."""

    implementations = ()

    def pattern(self, lowered, rows, columns):
        if not rows.start:
            return None
        return (torch.arange(lowered.key_length, device=lowered.device)[columns] != 0)[None]


MUTANTS = [
    Mutant(
        "padding-zero-times-anything",
        wrong(DOT, ZeroTimesAnything),
        kills=("M-01",),
        spares=("N-01", "M-02", "M-05"),
        patch=_keep_padding,
    ),
    Mutant(
        "padding-not-zeroed-by-the-core",
        PERFORMER,
        kills=("M-01",),
        spares=("N-01", "M-02"),
        patch=_keep_padding,
    ),
    Mutant(
        "padding-inverted",
        wrong(COSINE, Inverted),
        kills=("M-02", "M-03", "M-09"),
        spares=("N-01", "C-04"),
    ),
    Mutant(
        "padding-in-the-normaliser",
        wrong(LINEAR, PaddedFeatures),
        kills=("M-02", "M-03", "M-20"),
        spares=("N-01", "M-01", "C-01"),
    ),
    Mutant(
        "padding-projected-from-the-end",
        wrong(LINFORMER, PaddingFromTheEnd),
        kills=("M-02", "M-03"),
        spares=("N-01", "M-09"),
    ),
    Mutant(
        "padding-ignored-for-one-item",
        wrong(DOT, OneItemNeedsNoMask),
        kills=("M-03",),
        spares=("N-01", "M-05", "M-11"),
    ),
    Mutant(
        "padding-ignored-for-one-item-of-features",
        wrong(PERFORMER, OneItemOfFeatures),
        kills=("M-03",),
        spares=("N-01", "M-11"),
    ),
    Mutant(
        "dead-rows-nan",
        wrong(DOT, NoDeadRows),
        kills=("M-04",),
        spares=("N-01", "C-11"),
    ),
    Mutant(
        "dead-rows-uniform",
        wrong(EUCLIDEAN, UniformDeadRows),
        kills=("M-04",),
        spares=("N-01", "M-02"),
    ),
    Mutant(
        "dead-items-unmask-all",
        wrong(ADDITIVE, DeadItemsUnmasked),
        kills=("M-11", "M-04"),
        spares=("N-01", "M-05"),
    ),
    Mutant(
        "dead-items-in-the-mean",
        wrong(PERFORMER, DeadItemsInTheMean),
        kills=("M-11",),
        spares=("N-01", "M-04"),
    ),
    Mutant(
        "hidden-by-a-finite-fill",
        wrong(DOT, FiniteFill),
        kills=("M-08",),
        spares=("N-01", "M-05", "M-13"),
    ),
    Mutant(
        "hidden-by-a-finite-bias",
        wrong(EUCLIDEAN, FiniteFillInBias),
        kills=("M-08",),
        spares=("N-01", "M-05"),
    ),
    Mutant(
        "hidden-after-the-softmax",
        wrong(DOT, CutAfterTheSoftmax),
        kills=("M-13", "M-14", "M-20"),
        spares=("N-01", "M-04", "M-01"),
    ),
    Mutant(
        "hidden-but-in-bfloat16",
        wrong(COSINE, HalvesForgetAllowed),
        kills=("M-13", "M-18"),
        spares=("N-01", "M-05"),
    ),
    Mutant(
        "padding-lost-in-float16",
        wrong(EUCLIDEAN, Float16ForgetsPadding),
        kills=("M-18", "M-04"),
        spares=("N-01", "M-02"),
    ),
    Mutant(
        "hidden-weight-not-shared-out",
        wrong(ADDITIVE, GuardedSum),
        kills=("M-14", "M-20"),
        spares=("N-01", "M-04", "M-13"),
    ),
    Mutant(
        "hidden-keys-in-the-scale",
        wrong(SHARED, LengthOfAll),
        kills=("M-20", "M-02", "M-09"),
        spares=("N-01", "M-13", "M-14"),
    ),
    Mutant(
        "long-mask-ends-at-64",
        wrong(EUCLIDEAN, Past64),
        kills=("M-21",),
        spares=("N-01", "M-05", "M-13"),
    ),
    Mutant(
        "long-tiles-start-late",
        wrong(ADDITIVE, TilesStartLate),
        kills=("M-21",),
        spares=("N-01", "M-05", "M-13", "M-20"),
    ),
    Mutant(
        "long-strips-start-late",
        wrong(COSINE, StripsStartLate),
        kills=("M-21",),
        spares=("N-01", "M-05", "M-13", "M-20"),
    ),
]
