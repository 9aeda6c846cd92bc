"""Wrong at some lengths, with some strides, or only after another call."""

from __future__ import annotations

from typing import ClassVar

import torch

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


def as_contiguous(tensor):
    """Read a tensor's memory as if it were contiguous."""
    strides = torch.empty(tensor.shape, device="meta").stride()
    return tensor.as_strided(tensor.shape, strides)


class ReadsAsContiguous(Dense):
    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().forward(query, as_contiguous(key), value, mask)


class FeaturesSideBySide(Additive):
    """A value whose features do not lie side by side is read as if they did."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if value.stride(-1) != 1:
            value = as_contiguous(value)
        return super().forward(query, key, value, mask)


class MaskAsContiguous(Dense):
    def masked(self, mask, query, key):
        return mask if mask.allowed is None else mask.replace(allowed=as_contiguous(mask.allowed))


class OneTensorScaledTwice(SharedQKV):
    """Where the key is the query itself, both are scaled."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if key is query:
            query = key = query * self.scale**0.5
        return super().forward(query, key, value, mask)


class _Contiguous(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output):
        return output.clone()

    @staticmethod
    def backward(ctx, grad):
        return as_contiguous(grad)


class ContiguousGradient(Dense):
    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return _Contiguous.apply(super().forward(query, key, value, mask))


class ViewsAreConstants(Euclidean):
    """A copy that makes the query contiguous loses its gradient."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        query = query if query.is_contiguous() else query.detach().contiguous()
        return super().forward(query, key, value, mask)


class OneQueryUniform(Dense):
    """A single query is squeezed away and attends to everything alike."""

    def score(self, query, key):
        scores = super().score(query, key)
        return scores * 0.0 if query.shape[2] == 1 else scores


class PairsOfKeys(Linformer):
    """Keys are read in pairs: past 16 an odd one at the end is lost."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        length = key.shape[2]
        if length > 16 and length % 2 and mask.key_valid is None:
            key, value = key[:, :, :-1], value[:, :, :-1]
        return super().forward(query, key, value, mask)


class WholeBlocksOnly(Euclidean):
    """Keys past the last whole block of 64 are lost."""

    implementations = ()

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        whole = key.shape[2] // 64 * 64
        if whole and not mask.used():
            key, value = key[:, :, :whole], value[:, :, :whole]
        return super().forward(query, key, value, mask)


class NothingCarried(Linear):
    """The second chunk of the causal form starts from nothing."""

    def _causal(self, phi_q, phi_k, value, sums):
        if value.shape[2] <= 64:
            return super()._causal(phi_q, phi_k, value, sums)
        outputs = []
        for start in range(0, value.shape[2], 64):
            part = slice(start, start + 64)
            features = type(phi_k)(*(t if t is None else t[:, :, part] for t in phi_k))
            output, sums = super()._causal(phi_q[:, :, part], features, value[:, :, part], None)
            outputs.append(output)
        return torch.cat(outputs, dim=2), sums


class BufferOf128(Dense):
    """A causal mask made beforehand, and sliced."""

    def masked(self, mask, query, key):
        if not mask.causal or query.shape[2] != key.shape[2]:
            return mask
        past = torch.ones(128, 128, device=key.device).bool().tril()
        return mask.replace(causal=False) & Mask(allowed=past[: query.shape[2], : key.shape[2]])


class ColumnsOfTheLongest(Linformer):
    """The projection's columns are counted from the longest call so far."""

    longest = 0

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        self.longest = max(self.longest, key.shape[2])
        start = self.longest - key.shape[2]
        kept = self._parameters["key_projection"]
        self._parameters["key_projection"] = torch.nn.Parameter(kept[..., start:])
        try:
            return super().forward(query, key, value, mask)
        finally:
            self._parameters["key_projection"] = kept


class FirstMaskKept(Dense):
    """The causal mask of the first call is kept and sliced, though its offset was another."""

    kept = None

    def masked(self, mask, query, key):
        if not mask.causal:
            return mask
        rows, columns = query.shape[2], key.shape[2]
        if self.kept is None or self.kept.shape[0] < rows or self.kept.shape[1] < columns:
            self.kept = Mask(causal=True, query_offset=mask.query_offset).dense(rows, columns)[0, 0]
        return mask.replace(causal=False) & Mask(allowed=self.kept[:rows, :columns])


class FeaturesKept(Performer):
    """Features of keys are kept for as long as the length stays the same."""

    kept = None

    def key_features(self, key):
        if self.kept is None or self.kept[0] != key.shape[:3] or torch.is_grad_enabled():
            self.kept = (key.shape[:3], super().key_features(key))
        return self.kept[1]


class MaskByShape(Dense):
    """Masks are kept by the shape of the call."""

    def __init__(self, dims, **common):
        super().__init__(dims, **common)
        self.kept = {}

    def masked(self, mask, query, key):
        return self.kept.setdefault((query.shape, key.shape), mask)


class KeysByAddress(Cosine):
    """Keys are kept by the address at which they lie."""

    implementations = ()

    def __init__(self, dims, **common):
        super().__init__(dims, **common)
        self.kept = {}

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        key = self.kept.setdefault((key.data_ptr(), key.shape), (key, key.clone()))[1]
        return super().forward(query, key, value, mask)


class LargestOfAll(Dense):
    """The stabiliser is the largest score of the whole tensor."""

    def softmax(self, logits, visible):
        return super().softmax(logits - logits.max().detach(), visible)


class Flattened(Additive):
    """Batch and heads are flattened and guessed back."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        output = super().forward(query, key, value, mask)
        return output.reshape(query.shape[0], -1, *output.shape[2:])


class RightExcluded(Dense):
    def masked(self, mask, query, key):
        left, right = mask.window or (None, None)
        return mask.replace(window=(left, right - 1)) if right else mask


class OneTooFarBack(Cosine):
    """With an offset the window reaches one further back."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().forward(query, key, value, self.wider(mask))

    def attend_fused(self, query, key, value, mask):
        return super().attend_fused(query, key, value, self.wider(mask))

    def wider(self, mask):
        left, right = mask.window or (None, None)
        if left is None or not mask.query_offset:
            return mask
        return mask.replace(window=(left + 1, right))


class ForgottenWindow(SparseWindow):
    """The mask's window is dropped beside the variant's own."""

    implementations = ()
    dropped: ClassVar = {"window": None}

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().forward(query, key, value, mask.replace(**self.dropped))


MUTANTS = [
    dense("keys read as if contiguous", ReadsAsContiguous, ("X-01",)),
    Mutant("features side by side", wrong(ADDITIVE, FeaturesSideBySide), ("X-01",), ("N-01",)),
    dense("a mask read as if contiguous", MaskAsContiguous, ("X-01",)),
    Mutant("one tensor scaled twice", wrong(SHARED, OneTensorScaledTwice), ("X-01",), ("N-01",)),
    dense("a gradient read as if contiguous", ContiguousGradient, ("X-11",), ("N-01", "X-01")),
    Mutant("views are constants", wrong(EUCLIDEAN, ViewsAreConstants), ("X-11",), ("N-01", "X-01")),
    dense("a single query is uniform", OneQueryUniform, ("X-02",)),
    Mutant("keys in pairs", wrong(LINFORMER, PairsOfKeys), ("X-02",), ("N-01",)),
    Mutant("whole blocks only", wrong(EUCLIDEAN, WholeBlocksOnly), ("X-04", "X-05"), ("N-01",)),
    Mutant("nothing carried over", wrong(LINEAR, NothingCarried), ("X-04", "X-07"), ("N-01",)),
    dense("a mask of 128", BufferOf128, ("X-05",), ("N-01", "X-04")),
    Mutant("columns of the longest", wrong(LINFORMER, ColumnsOfTheLongest), ("X-05", "X-06")),
    dense("the first mask is kept", FirstMaskKept, ("X-06",)),
    Mutant("features are kept", wrong(PERFORMER, FeaturesKept), ("X-12",), ("X-11", "P-07")),
    dense("masks kept by shape", MaskByShape, ("X-12",)),
    Mutant("keys kept by address", wrong(COSINE, KeysByAddress), ("X-12",)),
    dense("the largest score of all", LargestOfAll, ("X-03",)),
    Mutant("a batch that is guessed", wrong(ADDITIVE, Flattened), ("X-03",), ("N-01",)),
    dense("the right edge excluded", RightExcluded, ("X-10",)),
    Mutant("one too far back", wrong(COSINE, OneTooFarBack), ("X-10",), ("N-01",)),
    Mutant("the mask's window dropped", wrong(SPARSE, ForgottenWindow), ("X-10",), ("N-01",)),
]
