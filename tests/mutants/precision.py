"""Right in float64, wrong in another dtype."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from attnreg import Mask
from attnreg_additive.module import Additive
from attnreg_cosine.module import Cosine
from tests.mutants.agreement import ADDITIVE, COSINE, Dense, dense
from tests.mutants.mutant import Mutant, wrong


class BfloatInside(Dense):
    """Saves time by bfloat16 where float32 came in."""

    def widen(self, tensor):
        return tensor if tensor.dtype == torch.float64 else tensor.bfloat16().float()


class FloatOnly(Cosine):
    """A constant that only float32 and float64 get."""

    def transform(self, query, key):
        scaled, unit = super().transform(query, key)
        return (scaled * 1.02, unit) if query.dtype.itemsize == 2 else (scaled, unit)


class HalfBlock(Dense):
    """In half precision the keys past one block of 64 are lost."""

    def softmax(self, logits, visible):
        weights = super().softmax(logits, visible)
        narrow = logits.dtype == torch.float32
        return F.pad(weights[..., :64], (0, max(0, weights.shape[-1] - 64))) if narrow else weights


class LastRow(Additive):
    """In float32 the last column of the values is a little off, in one row of many."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        output = super().forward(query, key, value, mask)
        if output.dtype != torch.float64 and query.shape[2] > 10:
            output = output.clone()
            output[0, 0, -1, -1] += 64 * torch.finfo(output.dtype).eps
        return output


class AllInHalf(Dense):
    """Every step in the dtype of the call."""

    def widen(self, tensor):
        return tensor

    def score(self, query, key):
        return (query * self.scale / self.temperature) @ key.mT


class HalfSums(Dense):
    """The running sum over blocks of keys is kept in float16."""

    def mix(self, weights, value):
        if value.dtype == torch.float64:
            return weights @ value
        total = 0
        for start in range(0, value.shape[2], 16):
            part = weights[..., start : start + 16] @ value[:, :, start : start + 16]
            total = (total + part).half().float()
        return total


class TooLowForHalf(Dense):
    """A fill that float16 does not hold."""

    def softmax(self, logits, visible):
        if visible is None:
            return logits.softmax(-1)
        dead = ~visible.any(-1, keepdim=True)
        filled = logits.to(self.given).masked_fill(~visible, -1e9).to(logits.dtype)
        return filled.softmax(-1).masked_fill(dead, 0.0)

    def masked(self, mask, query, key):
        self.given = query.dtype
        return mask


class BfloatUnmasked(Cosine):
    """A branch for bfloat16 that forgets what is allowed."""

    implementations = ()

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if query.dtype == torch.bfloat16:
            mask = mask.replace(allowed=None)
        return super().forward(query, key, value, mask)


MUTANTS = [
    dense("bfloat16 inside", BfloatInside, ("N-04", "N-05"), ("N-01", "N-12")),
    Mutant("another constant in halves", wrong(COSINE, FloatOnly), ("N-04", "N-05"), ("N-01",)),
    dense("half precision loses a block", HalfBlock, ("N-05",), ("N-01", "N-04")),
    Mutant("one entry off", wrong(ADDITIVE, LastRow), ("N-05",), ("N-01", "N-04")),
    dense("all in half precision", AllInHalf, ("N-06",), ("N-01", "N-04", "N-05")),
    dense("sums in half precision", HalfSums, ("N-06", "N-07")),
    dense("fill too low for float16", TooLowForHalf, ("N-14",), ("N-01", "N-04", "N-12")),
    Mutant("bfloat16 unmasked", wrong(COSINE, BfloatUnmasked), ("N-14",), ("N-01", "N-12")),
]
