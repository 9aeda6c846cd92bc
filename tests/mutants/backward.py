"""Backward passes that are infinite, leak, or depend on circumstances."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from attnreg import Features, Mask
from attnreg.families.tiling import masked_softmax
from attnreg_additive.module import Additive
from attnreg_cosine.module import Cosine
from attnreg_euclidean.module import Euclidean
from attnreg_linear.module import Linear
from attnreg_performer.module import Performer
from tests.mutants.agreement import ADDITIVE, COSINE, EUCLIDEAN, LINEAR, PERFORMER, Dense, dense
from tests.mutants.mutant import Mutant, wrong


class Root(Euclidean):
    """The square root of a sum of squares, without a guard."""

    def score(self, query, key):
        if self.squared:
            return super().score(query, key)
        query, key = self._prepared(query), self._prepared(key)
        square = (query[:, :, :, None] - key[:, :, None]).square().sum(-1)
        rate = -(-self.log_tau.to(query.dtype)).exp()[:, None, None]
        return square.sqrt() * rate


class LengthByLog(Performer):
    """A factor of exactly 1 whose slope at coincident vectors is infinite."""

    def key_features(self, key):
        values, log_scale = super().key_features(key)
        near = (key - key[:, :, :1]).square().sum(-1)
        return Features(values * (1 + 0 * near.sqrt())[..., None], log_scale)


class NoGuard(Cosine):
    def transform(self, query, key):
        wide = torch.promote_types(query.dtype, torch.float32)
        query, key = (t.to(wide) / t.to(wide).norm(dim=-1, keepdim=True) for t in (query, key))
        return query * self.head_scale.clamp(max=100.0).to(wide)[:, None, None], key


class NoEmptyNormaliser(Linear):
    def _quotient(self, mixed):
        return mixed[..., :-1] / mixed[..., -1:] if self.normalize else mixed[..., :-1]

    def query_features(self, query):
        return self.feature_map(query)


class _ForwardMask(torch.autograd.Function):
    """Masks the weights; its backward pass is that of the softmax without the mask."""

    @staticmethod
    def forward(ctx, logits, visible):
        weights = masked_softmax(logits, visible)
        ctx.save_for_backward(logits)
        return weights

    @staticmethod
    def backward(ctx, grad):
        weights = ctx.saved_tensors[0].softmax(-1)
        return weights * (grad - (grad * weights).sum(-1, keepdim=True)), None


class MaskedForward(Dense):
    def softmax(self, logits, visible):
        if visible is None:
            return super().softmax(logits, visible)
        return _ForwardMask.apply(logits, visible)


class _Leak(torch.autograd.Function):
    """Nothing forward; backward, rounding noise everywhere."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad + 1e-12 * grad.abs().max()


class Noise(Dense):
    """Atomic sums, say, that leave their noise in hidden places too."""

    def mix(self, weights, value):
        return weights @ _Leak.apply(value)


class Patched(Dense):
    """NaN of rows that see nothing is patched over after the fact."""

    def softmax(self, logits, visible):
        if visible is None:
            return logits.softmax(-1)
        hidden = torch.zeros_like(logits).masked_fill(~visible, -torch.inf)
        return (logits + hidden).softmax(-1).nan_to_num(0.0)


class ChosenNaN(Additive):
    """0 by 0 in rows that see nothing, then torch.where: its backward pass multiplies 0 by NaN."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        output = super().forward(query, key, value, mask)
        count = mask.dense(query.shape[2], key.shape[2]).sum(-1, keepdim=True).to(output.dtype)
        return torch.where(count > 0, output / count * count, torch.zeros_like(output))


class CountedSeed(Dense):
    """Dropout draws from a count of calls, which a second forward pass moves on."""

    def __init__(self, dims, **options):
        super().__init__(dims, **options)
        self.calls = 0

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if not self.training or not self.dropout:
            return super().forward(query, key, value, mask)
        self.calls += 1
        with torch.random.fork_rng():
            torch.manual_seed(self.calls)
            return super().forward(query, key, value, mask)


class Remembers(Performer):
    """Keys are kept of the first forward pass, and used, without a graph, in the second."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if getattr(self, "seen", None) is not None and torch.equal(self.seen, key):
            key = key.detach()
        elif self.training:
            self.seen = key.detach().clone()
        return super().forward(query, key, value, mask)


class OnlyForAll(Dense):
    """Takes a frozen value for evaluation."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().forward(query, key if value.requires_grad else key.detach(), value, mask)


class OtherWithoutGrad(Euclidean):
    """A faster, coarser way where nobody asks for gradients."""

    implementations = ()

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        output = super().forward(query, key, value, mask)
        return output if query.requires_grad else output * (1 + 1e-5)


class _OnModule(torch.autograd.Function):
    @staticmethod
    def forward(ctx, module, logits):
        ctx.module = module
        module.kept = logits.softmax(-1)
        return module.kept.clone()

    @staticmethod
    def backward(ctx, grad):
        weights = ctx.module.kept
        return None, weights * (grad - (grad * weights).sum(-1, keepdim=True))


class KeptOnModule(Dense):
    def softmax(self, logits, visible):
        if visible is None:
            return _OnModule.apply(self, logits)
        return super().softmax(logits, visible)


class _Freed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output):
        ctx.kept = [torch.ones_like(output)]
        return output.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.kept.pop()


class FreedAfterOnce(Performer):
    """What the backward pass needs is gone after the first."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return _Freed.apply(super().forward(query, key, value, mask))


class _Viewed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output):
        return output.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.view(-1, *grad.shape[2:]).view(grad.shape)


class Viewed(Linear):
    """A view of what arrives, which not all strides allow."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return _Viewed.apply(super().forward(query, key, value, mask))


class _Strides(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output):
        return output.clone()

    @staticmethod
    def backward(ctx, grad):
        made = torch.empty_like(grad, memory_format=torch.contiguous_format)
        held = grad.untyped_storage().nbytes() // grad.itemsize
        flat = grad.as_strided((min(grad.numel(), held),), (1,), 0)
        return F.pad(flat, (0, grad.numel() - flat.numel())).reshape(made.shape)


class TakenForDense(Dense):
    """Reads what arrives as if it were laid out densely."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return _Strides.apply(super().forward(query, key, value, mask))


MUTANTS = [
    Mutant("root of 0", wrong(EUCLIDEAN, Root), ("G-04",), ("N-01", "G-01")),
    Mutant("infinite slope of 1", wrong(PERFORMER, LengthByLog), ("G-04",), ("N-01",)),
    Mutant("norm of 0", wrong(COSINE, NoGuard), ("G-05",), ("N-01",)),
    Mutant("normaliser of 0", wrong(LINEAR, NoEmptyNormaliser), ("G-05",), ("N-01",)),
    dense("mask only forward", MaskedForward, ("G-01", "G-06"), ("N-12", "G-02")),
    dense("noise in hidden places", Noise, ("G-06",), ("N-12", "G-01")),
    dense("patched NaN", Patched, ("G-07",), ("N-12", "G-04")),
    Mutant("chosen NaN", wrong(ADDITIVE, ChosenNaN), ("G-07",), ("N-12", "G-04")),
    dense("dropout by count", CountedSeed, ("G-09",), ("G-01", "N-01")),
    Mutant("remembers its keys", wrong(PERFORMER, Remembers), ("G-09",), ("N-01",)),
    dense("frozen values", OnlyForAll, ("G-11",), ("G-01", "N-01")),
    Mutant("another way without grad", wrong(EUCLIDEAN, OtherWithoutGrad), ("G-11", "N-01")),
    dense("kept on the module", KeptOnModule, ("G-12",), ("N-01",)),
    Mutant("freed after one pass", wrong(PERFORMER, FreedAfterOnce), ("G-12",), ("G-01", "N-01")),
    Mutant("viewed", wrong(LINEAR, Viewed), ("G-13",), ("N-01",)),
    dense("taken for dense", TakenForDense, ("G-13",), ("N-01",)),
]
