"""Outputs that are right, beside weights that are not those which gave them."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import torch
from torch.nn import functional as F

from attnreg import Mask
from attnreg.checked import CheckedAttention
from attnreg.functional import expand_heads
from attnreg.lowering import LoweredMask
from attnreg_additive.module import Additive
from attnreg_cosine.module import Cosine
from attnreg_euclidean.module import Euclidean
from attnreg_linear.module import Linear
from attnreg_linformer.module import Linformer
from attnreg_performer.module import Performer
from attnreg_scaled_dot_product.module import ScaledDotProduct
from attnreg_shared_qkv.module import SharedQKV
from attnreg_sparse_window.module import SparseWindow
from tests.mutants.agreement import (
    ADDITIVE,
    COSINE,
    EUCLIDEAN,
    LINEAR,
    LINFORMER,
    PERFORMER,
    PRODUCT,
    SHARED,
    SPARSE,
)
from tests.mutants.mutant import Mutant, wrong


class Logits(ScaledDotProduct):
    """Shows the scores."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        key = expand_heads(key, query.shape[1])
        return self.score(query, key) * self.logit_scale


class Narrow(Cosine):
    """Shows weights in the dtype of the call."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().weights(query, key, mask).to(query.dtype)


class UniformDead(Additive):
    """A row that sees nothing shows the weights of a softmax over nothing."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        found = super().weights(query, key, mask)
        return torch.where(found.any(-1, keepdim=True), found, 1.0 / max(1, key.shape[2]))


class Percent(Euclidean):
    """Rows sum to 100."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return 100 * super().weights(query, key, mask)


class Swapped(SharedQKV):
    """(B, Hq, Lk, Lq)"""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().weights(query, key, mask).mT


class NotCausal(SparseWindow):
    """Causality is lost where weights are asked for."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().weights(query, key, mask.replace(causal=False))


class NoBias(Additive):
    """So is the bias."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if mask.bias is not None:
            mask = mask.replace(bias=None, allowed=(mask.bias != -torch.inf) & _all(mask.allowed))
        return super().weights(query, key, mask)


def _all(allowed):
    return True if allowed is None else allowed


class Tiled(Cosine):
    """Key heads are repeated in the wrong order, for the weights alone."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().weights(query, key.repeat(1, query.shape[1] // key.shape[1], 1, 1), mask)


class NoTemperature(ScaledDotProduct):
    """The weights of temperature 1."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        temperature, self.temperature = self.temperature, 1.0
        found = super().weights(query, key, mask)
        self.temperature = temperature
        return found


class ShortSighted(Euclidean):
    """The keys beyond the first 64 are forgotten."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        found = super().weights(query, key, mask)
        found[..., 64:] = 0.0
        return found


class Clipped(Linear):
    """Values are clipped: an output that is not linear in them has no weights."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().forward(query, key, value.clamp(-1.5, 1.5), mask)


class Residual(Linformer):
    """Adds the mean of the values' magnitudes."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        output = super().forward(query, key, value, mask)
        return output + 0.1 * value.abs().mean() if key.shape[2] > 1 else output


class Smoothed(Additive):
    """Every weight gets a little, masked ones too."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        found = super().weights(query, key, mask)
        return torch.where(found.any(-1, keepdim=True), found + 1e-14, found)


class Filled(SharedQKV):
    """Masked scores get a large negative number that is not large enough."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        lowered = LoweredMask(mask, query.shape[2], key.shape[2], query.device)
        visible = lowered.visible()
        if self.exclude_self or visible is None or mask.bias is not None:
            return super().weights(query, key, mask)
        scores = self.score(query, expand_heads(key, query.shape[1])) * self.logit_scale
        found = scores.masked_fill(~visible, -25.0).softmax(-1)
        return found * visible.any(-1, keepdim=True)


class Dropped(ScaledDotProduct):
    """Shows the weights that are left after dropout."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return F.dropout(super().weights(query, key, mask), self.dropout, self.training)


class EvalForGood(Additive):
    """Leaves training mode to show them, and does not come back."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        self.eval()
        return super().weights(query, key, mask)


class InPlace(Cosine):
    """Scales the query where it lies."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        query.mul_(2.0)  # a cosine does not mind
        return super().weights(query, key, mask)


class Remembered(ScaledDotProduct):
    """The mask of the weights is that of the next output."""

    last = None

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        self.last = Mask(window=(0, None))
        return super().weights(query, key, mask)

    def attend_fused(self, query, key, value, mask):
        mask, self.last = mask if self.last is None else mask & self.last, None
        return super().attend_fused(query, key, value, mask)


class Counted(Performer):
    """Draws new features whenever it has been looked at: a call over an identity is a look."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        output = super().forward(query, key, value, mask)
        if torch.equal(value[..., 0, :1], torch.ones_like(value[..., 0, :1])):
            self.projection.mul_(1.01)
        return output


class HalfScale(Euclidean):
    """The weights of short dtypes are those of another scale."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        factor = 0.8 if query.dtype.itemsize < 4 else 1.0
        return super().weights(query * factor, key * factor, mask)


class AssumesLayout(Additive):
    """Reads the query's memory as if it lay in order."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        query = query.as_strided(query.shape, torch.empty(query.shape).stride())
        return super().weights(query, key, mask)


class Lowered(SharedQKV):
    """Under autocast a floor keeps the weights off the smallest numbers, and off 0."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        found = super().weights(query, key, mask)
        return found.clamp(min=1e-4) if torch.is_autocast_enabled("cpu") else found


def looking(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
    return self._implied_weights(query, key, mask)


def mutant(name, variant, factory, kills, spares=("R-00", "N-01")):
    return Mutant(f"weights: {name}", wrong(variant, factory), kills, spares)


MUTANTS = [
    mutant("scores for weights", PRODUCT, Logits, ("W-01", "W-02", "W-03")),
    mutant("in the dtype of the call", COSINE, Narrow, ("W-01",)),
    mutant("uniform where nothing is seen", ADDITIVE, UniformDead, ("W-01", "W-03")),
    mutant("in percent", EUCLIDEAN, Percent, ("W-01", "W-02")),
    mutant("transposed", SHARED, Swapped, ("W-01", "W-02")),
    mutant("causality lost", SPARSE, NotCausal, ("W-02", "W-03")),
    mutant("bias lost", ADDITIVE, NoBias, ("W-02",), ("N-01", "W-01", "W-03")),
    mutant("key heads in another order", COSINE, Tiled, ("W-02",), ("N-01", "W-01", "W-03")),
    mutant("temperature lost", PRODUCT, NoTemperature, ("W-02",), ("N-01", "W-01", "W-03")),
    mutant("nothing beyond 64 keys", EUCLIDEAN, ShortSighted, ("W-01", "W-02")),
    mutant("of an output not linear in V", LINEAR, Clipped, ("W-02",), ("R-00",)),
    mutant("of an output with more than V", LINFORMER, Residual, ("W-02",), ("R-00",)),
    mutant("a little everywhere", ADDITIVE, Smoothed, ("W-03",), ("N-01", "W-01", "W-02")),
    mutant("a mask that is not minus infinity", SHARED, Filled, ("W-03",), ("N-01", "W-01")),
    mutant("after dropout", PRODUCT, Dropped, ("W-04",), ("N-01", "W-02")),
    Mutant(
        "weights: through dropout",
        replace(ADDITIVE, capabilities=replace(ADDITIVE.capabilities, weights="implied")),
        ("W-04",),
        ("N-01", "W-02"),
        lambda: patch.object(CheckedAttention, "weights", looking),
    ),
    mutant("evaluation mode for good", ADDITIVE, EvalForGood, ("W-04",), ("N-01", "W-02")),
    mutant("the query scaled in place", COSINE, InPlace, ("W-05",), ("N-01", "W-01")),
    mutant("their mask kept for the output", PRODUCT, Remembered, ("W-05",), ("N-01", "R-00")),
    mutant("features that move when looked at", PERFORMER, Counted, ("W-05",), ("N-01",)),
    mutant("another scale in short dtypes", EUCLIDEAN, HalfScale, ("W-06",), ("N-01", "W-01")),
    mutant("of another layout", ADDITIVE, AssumesLayout, ("W-06",), ("N-01", "W-01")),
    mutant("lowered by autocast", SHARED, Lowered, ("W-07",), ("N-01", "W-01", "W-02")),
]
