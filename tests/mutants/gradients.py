"""Wrong gradients under right outputs."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from attnreg import Features, Mask
from attnreg.functional import unit_vectors
from attnreg_additive.module import Additive
from attnreg_cosine.module import Cosine
from attnreg_linear.module import Linear
from attnreg_linformer.module import Linformer
from attnreg_sparse_window.module import SparseWindow
from tests.mutants.agreement import (
    ADDITIVE,
    COSINE,
    LINEAR,
    LINFORMER,
    SPARSE,
    Dense,
    dense,
)
from tests.mutants.mutant import Mutant, wrong


class StoppedWeights(Dense):
    def mix(self, weights, value):
        return weights.detach() @ value


class StoppedNormaliser(Linear):
    def _quotient(self, mixed):
        if self.normalize:
            mixed = torch.cat([mixed[..., :-1], mixed[..., -1:].detach()], dim=-1)
        return super()._quotient(mixed)


class StoppedNorm(Cosine):
    """The norms are taken for constants."""

    def transform(self, query, key):
        rates = [(unit_vectors(t) / t).nan_to_num().detach() for t in (query, key)]
        query, key = query * rates[0], key * rates[1]
        return query * self.head_scale.clamp(max=100.0).to(query.dtype)[:, None, None], key


class StoppedWhenCausal(SparseWindow):
    """Only the causal branch forgets the keys."""

    def transform(self, query, key):
        return query, key

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().forward(query, key.detach() if mask.causal else key, value, mask)


class StoppedPastBlock(Dense):
    """The second block of keys has no gradient."""

    def mix(self, weights, value):
        value = torch.cat([value[:, :, :64], value[:, :, 64:].detach()], dim=2)
        return weights @ value


class ReadScale(Cosine):
    """The scale of each head is read as a number."""

    implementations = ()

    def transform(self, query, key):
        kept = self._parameters.get("head_scale")
        if kept is None:
            return super().transform(query, key)
        self._parameters["head_scale"] = kept.detach()
        try:
            return super().transform(query, key)
        finally:
            self._parameters["head_scale"] = kept


class StoppedBias(Additive):
    def score(self, query, key):
        kept = self.bias
        self._parameters["bias"] = kept.detach()
        try:
            return super().score(query, key)
        finally:
            self._parameters["bias"] = kept


class Unused(Linformer):
    """A projection that no call uses."""

    def __init__(self, dims, **options):
        super().__init__(dims, **options)
        self.output_projection = nn.Parameter(torch.eye(dims.value_dim))


class _OnceSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits):
        weights = logits.softmax(-1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (weights,) = ctx.saved_tensors
        return weights * (grad - (grad * weights).sum(-1, keepdim=True))


class OnceDifferentiable(Dense):
    def softmax(self, logits, visible):
        if visible is None:
            return _OnceSoftmax.apply(logits)
        return super().softmax(logits, visible)


class _RoundedBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad if grad.dtype == torch.float64 else grad.bfloat16().to(grad.dtype)


class RoundedBack(Dense):
    """Gradients are summed in bfloat16."""

    def mix(self, weights, value):
        return _RoundedBack.apply(weights) @ value


class HalfBack(Linear):
    """In half precision the keys get half their gradient."""

    def key_features(self, key):
        values, log_scale = super().key_features(key)
        if key.dtype.itemsize == 2:
            values = 0.5 * values + 0.5 * values.detach()
        return Features(values, log_scale)


class StoppedBroadcast(Dense):
    """A bias per item that is shared by heads and rows gets no gradient."""

    def masked(self, mask, query, key):
        if mask.bias is not None and mask.bias.dim() == 4 and mask.bias.shape[1] == 1:
            return mask.replace(bias=mask.bias.detach())
        return mask


class OneBias(Additive):
    """The gradient of a bias that is spread over the batch is that of the first item."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if mask.bias is not None and mask.bias.dim() == 1:
            bias = mask.bias.expand(query.shape[0], 1, 1, -1)
            first = torch.arange(query.shape[0])[:, None, None, None] == 0
            mask = mask.replace(bias=torch.where(first, bias, bias.detach()))
        return super().forward(query, key, value, mask)


MUTANTS = [
    dense("weights detached", StoppedWeights, ("G-01",), ("N-01", "N-12")),
    Mutant("normaliser detached", wrong(LINEAR, StoppedNormaliser), ("G-01",), ("N-01",)),
    Mutant("norms detached", wrong(COSINE, StoppedNorm), ("G-01",), ("N-01", "G-02")),
    Mutant("detached when causal", wrong(SPARSE, StoppedWhenCausal), ("G-01",), ("N-01", "G-04")),
    dense("detached past a block", StoppedPastBlock, ("G-01",), ("N-01", "G-10")),
    Mutant("scale read as a number", wrong(COSINE, ReadScale), ("G-02",), ("N-01", "G-01")),
    Mutant("bias detached", wrong(ADDITIVE, StoppedBias), ("G-02",), ("N-01", "G-01")),
    Mutant("unused parameter", wrong(LINFORMER, Unused), ("G-02",), ("N-01", "G-01")),
    dense("differentiable once", OnceDifferentiable, ("G-03",), ("N-01", "G-01")),
    dense("gradients in bfloat16", RoundedBack, ("G-08",), ("G-01", "N-04")),
    Mutant("half a gradient", wrong(LINEAR, HalfBack), ("G-08",), ("G-01", "N-04")),
    dense("broadcast bias detached", StoppedBroadcast, ("G-10",), ("G-01", "N-12")),
    Mutant("bias of one item", wrong(ADDITIVE, OneBias), ("G-10",), ("G-01", "N-12")),
]
