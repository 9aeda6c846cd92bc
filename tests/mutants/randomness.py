"""Wrong about what is random: dropout, generators, draws."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from attnreg import Mask
from attnreg_additive.module import Additive
from attnreg_cosine.module import Cosine
from attnreg_euclidean.module import Euclidean
from attnreg_linear.module import Linear
from attnreg_linformer.module import Linformer
from attnreg_performer.module import Performer
from attnreg_shared_qkv.module import SharedQKV
from attnreg_sparse_window.module import SparseWindow
from tests.mutants.agreement import (
    ADDITIVE,
    COSINE,
    EUCLIDEAN,
    LINEAR,
    LINFORMER,
    PERFORMER,
    SHARED,
    SPARSE,
    Dense,
    dense,
)
from tests.mutants.mutant import Mutant, wrong


class Dropping(Dense):
    """Right by itself: the mutants change how weights are dropped."""

    def drop(self, weights, p):
        return F.dropout(weights, p)

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        weights = self.weights(query, key, mask)
        if self.training and self.dropout:
            weights = self.drop(weights, self.dropout)
        value = self.widen(expand(value, query))
        return self.mix(weights, value).to(query.dtype)


def expand(tensor, query):
    return tensor.repeat_interleave(query.shape[1] // tensor.shape[1], 1)


# Dropout ------------------------------------------------------------------------------------------


class AlwaysDropping(Dense):
    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        weights = F.dropout(self.weights(query, key, mask), self.dropout)
        return self.mix(weights, self.widen(expand(value, query))).to(query.dtype)


class DropsWhenCausal(Additive):
    """The causal branch does not look at the mode."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        kept = self.training
        self.training = kept or mask.causal
        try:
            return super().forward(query, key, value, mask)
        finally:
            self.training = kept


class ModeOfTheFirstCall(Dense):
    """Whether to drop is decided once."""

    first = None

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        self.first = self.training if self.first is None else self.first
        weights = F.dropout(self.weights(query, key, mask), self.dropout, self.first)
        return self.mix(weights, self.widen(expand(value, query))).to(query.dtype)


class NotScaledUp(Dropping):
    def drop(self, weights, p):
        return weights * (torch.rand_like(weights) >= p)


class ScoresDropped(Dense):
    def softmax(self, logits, visible):
        if self.training and self.dropout:
            logits = logits.masked_fill(torch.rand_like(logits) < self.dropout, -1e30)
        return super().softmax(logits, visible)

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        value = self.widen(expand(value, query))
        return self.mix(self.weights(query, key, mask), value).to(query.dtype)


class OutputDropped(Cosine):
    """Dropout acts on the output."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        kept, self.dropout = self.dropout, 0.0
        try:
            output = super().forward(query, key, value, mask)
        finally:
            self.dropout = kept
        return F.dropout(output, kept, self.training)


class ValuesDropped(Dropping):
    def drop(self, weights, p):
        return weights

    def mix(self, weights, value):
        return weights @ F.dropout(value, self.dropout, self.training)


class OneDrawForAll(Dropping):
    """What is drawn has the shape of one of these axes less."""

    axis = 0

    def drop(self, weights, p):
        shape = list(weights.shape)
        shape[self.axis] = 1
        return weights * F.dropout(weights.new_ones(shape), p)


class OneDrawForHeads(OneDrawForAll):
    axis = 1


class WholeKeys(OneDrawForAll):
    axis = 2


class WholeRows(OneDrawForAll):
    axis = 3


class DropsTheRest(Dropping):
    """Keeps what it should drop, and scales to match."""

    def drop(self, weights, p):
        return F.dropout(weights, 1.0 - p)


class DropsTwice(Euclidean):
    """Dropout in the score's module and once more on what it gives."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().weights(query, key, mask)

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        value = F.dropout(value, self.dropout, self.training)
        return super().forward(query, key, value, mask)


class SameSeedEachCall(Dropping):
    def drop(self, weights, p):
        generator = torch.Generator(weights.device).manual_seed(0)
        kept = torch.rand(weights.shape, generator=generator) >= p
        return weights * kept / (1.0 - p)


class DrawnByNumpy(Dropping):
    def drop(self, weights, p):
        kept = torch.from_numpy(np.random.rand(*weights.shape)).to(weights) >= p
        return weights * kept / (1.0 - p)


class RevealsTheHidden(Dropping):
    """Dropout of the complement: weights of 0 become something."""

    def drop(self, weights, p):
        kept = torch.rand_like(weights) >= p
        return torch.where(kept, weights / (1.0 - p), 0.0) + (weights == 0) * kept * 1e-3


class WeightsDropped(SharedQKV):
    """``weights`` shows them after dropout."""

    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return F.dropout(super().weights(query, key, mask), self.dropout, self.training)


class AnotherDrawBackward(Dropping):
    """The backward pass draws again."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        output = super().forward(query, key, value, mask)
        if not (self.training and self.dropout):
            return output
        again = super().forward(query, key, value, mask)
        return again + (output - again).detach()


class OnlyValuesRemember(Additive):
    """The mask of the forward pass reaches the values' gradient, not the scores'."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        output = super().forward(query.detach(), key.detach(), value, mask)
        kept, self.dropout = self.dropout, 0.0
        try:
            smooth = super().forward(query, key, value.detach(), mask)
        finally:
            self.dropout = kept
        return output + smooth - smooth.detach()


# Generators ---------------------------------------------------------------------------------------


class DrawsAnyway(Dense):
    """A seed for dropout is drawn whether there is dropout or not."""

    def softmax(self, logits, visible):
        torch.randint(2**31, ())
        return super().softmax(logits, visible)


class DrawsInAStep(Linear):
    def step(self, query, key, value, state, mask):
        torch.rand(1)
        return super().step(query, key, value, state, mask)


class SamplesByNumpy(Linformer):
    """Looks at a few random entries to warn about large ones."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        np.random.choice(max(1, key.shape[2]))
        return super().forward(query, key, value, mask)


class ResetsTheSeed(Dense):
    def softmax(self, logits, visible):
        torch.manual_seed(0)
        return super().softmax(logits, visible)


class ResetsWhenDropping(Additive):
    """Training is made reproducible by force."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if self.training and self.dropout:
            torch.manual_seed(1234)
        return super().forward(query, key, value, mask)


class ResetsInWeights(Cosine):
    def weights(self, query, key, mask=Mask()):  # noqa: B008  # Mask() is immutable
        random.seed(0)
        return super().weights(query, key, mask)


# What is determined ------------------------------------------------------------------------------


class ChangesAfterEight(Linear):
    """Recalibrated after some calls."""

    calls = 0

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        self.calls += 1
        output = super().forward(query, key, value, mask)
        return output * (1.0 + 1e-6) if self.calls > 8 else output


class SeededByTheClock(Performer):
    @torch.no_grad()
    def redraw(self, seed=None):
        if seed is None:
            seed = torch.Generator().seed() % 2**31
        super().redraw(seed)


class RedrawsInTraining(Performer):
    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if self.training:
            self.redraw()
        return super().forward(query, key, value, mask)


class OneDraw(Performer):
    """Every redraw gives the same features."""

    def redraw(self, seed=None):
        super().redraw(0 if seed is None else seed)


class SeedsTheGlobalOne(Performer):
    def redraw(self, seed=None):
        if seed is not None:
            torch.manual_seed(seed)
        super().redraw()


class SeedAndMore(SparseWindow):
    """The seed is mixed with a draw from torch's generator."""

    def __init__(self, dims, *, seed: int | None = None, **common):
        super().__init__(dims, seed=seed, random_blocks=2, **common)
        self.seed = self.seed + torch.randint(2**20, ())


# What is given -----------------------------------------------------------------------------------


class BiasClamped(Dense):
    """-inf in the bias is replaced for good, by a large number."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        output = super().forward(query, key, value, mask)
        if mask.bias is not None:
            mask.bias.data.clamp_(min=-1e9)
        return output


class _Negated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output):
        return output.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.neg_().neg()


class GradientNegated(Euclidean):
    """The arriving gradient is used as scratch memory."""

    implementations = ()

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return _Negated.apply(super().forward(query, key, value, mask))


class AllowedOpened(Dense):
    """Rows that see nothing are opened in the caller's mask, and closed again in the output."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        output = super().forward(query, key, value, mask)
        if mask.allowed is not None:
            mask.allowed.logical_or_(~mask.allowed.any(-1, keepdim=True))
        return output


class ScaledInPlace(nn.Module):
    """A plain module that scales the caller's query."""

    def __init__(self, dims):
        super().__init__()

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        with torch.no_grad():
            query.mul_(query.shape[3] ** -0.5)
        return (query @ key.mT).softmax(-1) @ value


def scaled_in_place():
    from attnreg import Variant

    return Variant("plain", ScaledInPlace, summary="a plain one")


MUTANTS = [
    dense("always dropping", AlwaysDropping, ("P-01",), ("N-01",)),
    Mutant("dropping when causal", wrong(ADDITIVE, DropsWhenCausal), ("P-01",), ("N-01", "P-06")),
    dense("the mode of the first call", ModeOfTheFirstCall, ("P-01",), ("N-01",)),
    dense("not scaled up", NotScaledUp, ("P-02", "P-13"), ("N-01", "P-01", "P-12")),
    dense("scores dropped", ScoresDropped, ("P-02", "P-13"), ("N-01", "P-01")),
    Mutant("the output dropped", wrong(COSINE, OutputDropped), ("P-03", "P-13"), ("P-01", "P-02")),
    dense("values dropped", ValuesDropped, ("P-12", "P-13"), ("P-01", "P-02")),
    dense("one draw for all items", OneDrawForAll, ("P-12", "P-02"), ("P-01", "P-04")),
    dense("one draw for all heads", OneDrawForHeads, ("P-12",), ("P-01", "P-02", "P-13")),
    dense("whole keys dropped", WholeKeys, ("P-12",), ("P-01", "P-02")),
    dense("whole rows dropped", WholeRows, ("P-12", "P-03"), ("P-01", "P-02")),
    dense("the rest dropped", DropsTheRest, ("P-03", "P-13"), ("P-01", "P-02")),
    Mutant("dropped twice", wrong(EUCLIDEAN, DropsTwice), ("P-03", "P-13"), ("P-01", "P-02")),
    dense("one seed for every call", SameSeedEachCall, ("P-04", "P-06"), ("P-01", "N-01")),
    dense("drawn by numpy", DrawnByNumpy, ("P-04",), ("P-01", "P-02", "P-13")),
    dense("dropout reveals the hidden", RevealsTheHidden, ("P-13",), ("P-01", "N-01")),
    Mutant("weights after dropout", wrong(SHARED, WeightsDropped), ("P-11",), ("P-01", "P-02")),
    dense("another draw backward", AnotherDrawBackward, ("P-15",), ("P-01", "P-02", "P-13")),
    Mutant("only values remember", wrong(ADDITIVE, OnlyValuesRemember), ("P-15",), ("P-02",)),
    dense("a draw though none is needed", DrawsAnyway, ("P-05",), ("N-01", "P-06", "P-07")),
    Mutant("a draw in a step", wrong(LINEAR, DrawsInAStep), ("P-05",), ("N-01", "P-07")),
    Mutant("a sample by numpy", wrong(LINFORMER, SamplesByNumpy), ("P-05",), ("N-01", "P-07")),
    dense("the seed reset", ResetsTheSeed, ("P-06", "P-05"), ("N-01", "P-07")),
    Mutant("the seed reset in training", wrong(ADDITIVE, ResetsWhenDropping), ("P-06",), ("P-05",)),
    Mutant("Python's seed reset", wrong(COSINE, ResetsInWeights), ("P-06", "P-05"), ("N-01",)),
    Mutant("a change after eight calls", wrong(LINEAR, ChangesAfterEight), ("P-07",), ("N-01",)),
    Mutant("seeded by the clock", wrong(PERFORMER, SeededByTheClock), ("P-07", "P-10"), ("P-14",)),
    Mutant("redrawn in training", wrong(PERFORMER, RedrawsInTraining), ("P-10", "P-07"), ("P-14",)),
    Mutant("one draw for ever", wrong(PERFORMER, OneDraw), ("P-10",), ("N-01", "P-07")),
    Mutant("the global seed", wrong(PERFORMER, SeedsTheGlobalOne), ("P-14",), ("N-01", "P-10")),
    Mutant("a seed and more", wrong(SPARSE, SeedAndMore, reference=None), ("P-14",), ("P-07",)),
    dense("a bias clamped for good", BiasClamped, ("P-09",), ("N-01",)),
    Mutant("a gradient negated", wrong(EUCLIDEAN, GradientNegated), ("P-09",), ("N-01", "P-07")),
    dense("a mask opened for good", AllowedOpened, ("P-09",), ("N-01", "P-07")),
    Mutant("a query scaled in place", scaled_in_place(), ("P-09",), ("P-06",)),
]
