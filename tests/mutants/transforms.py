"""Attention that is right when called plainly, and wrong compiled, mapped, lowered or shared."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnreg import Mask
from attnreg.functional import expand_heads
from attnreg.tracing import is_transformed
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
    Dense,
    dense,
)
from tests.mutants.mutant import Mutant, wrong


class LooksAtValues(Dense):
    """Asks whether a score is large before it goes on."""

    def score(self, query, key):
        scores = super().score(query, key)
        if scores.numel() and scores.abs().max() > 1e30:
            scores = scores.clamp(-1e30, 1e30)
        return scores


class UnpaddedWhenCompiled(Cosine):
    """A path of its own for the compiler, without padding."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if torch.compiler.is_compiling():
            mask = mask.replace(key_valid=None)
        return super().forward(query, key, value, mask)

    def attend_fused(self, query, key, value, mask):
        if torch.compiler.is_compiling():
            mask = mask.replace(key_valid=None)
        return super().attend_fused(query, key, value, mask)


class DetachedWhenCompiled(Performer):
    """Its compiled features get no gradient."""

    def key_features(self, key):
        return super().key_features(key.detach() if torch.compiler.is_compiling() else key)


class ByLength(Linear):
    """A table by length, whose entries are constants of the graph."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        names = {length: f"length {length}" for length in (7, 9, 12)}
        assert names.get(key.shape[2], "") != "no such length"
        return super().forward(query, key, value, mask)


class Unrolled(Linformer):
    """Goes over the keys one by one."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        rows = [key[:, :, j] * 1.0 for j in range(key.shape[2])]
        key = torch.stack(rows, dim=2) if rows else key
        return super().forward(query, key, value, mask)


class InPlace(Additive):
    """Writes its output into a tensor that it made itself."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        output = super().forward(query, key, value, mask)
        if not is_transformed(output):
            return output
        made = torch.zeros(output.shape, dtype=output.dtype, device=output.device)
        made[...] = output
        return made


class FirstOfMany(Linear):
    """Under a transform every feature is a little larger."""

    def feature_map(self, x):
        found = super().feature_map(x)
        return found + 0.01 if is_transformed(x) else found


class Widened(Dense):
    """The last product is a sum, whose dtype autocast leaves at float32."""

    def mix(self, weights, value):
        return (weights[..., None] * value[:, :, None]).sum(dim=3)

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        lowered = torch.is_autocast_enabled(query.device.type)
        output = super().forward(query, key, value, mask)
        return output.float() if lowered else output


class _Product(torch.autograd.Function):
    """A product whose backward pass does not know about autocast."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad @ b.mT, a.mT @ grad


class Unprepared(Dense):
    """Multiplies by a function of its own: float32 weights, a value that autocast has lowered."""

    def mix(self, weights, value):
        if torch.is_autocast_enabled(value.device.type):
            weights = weights.float()
            value = value.to(torch.get_autocast_dtype(value.device.type))
        return _Product.apply(weights, value)


class Magnified(Cosine):
    """Values are made small, and the output large again: so is the gradient on its way."""

    def attend_fused(self, query, key, value, mask):
        factor = 2.0**12 if value.dtype == torch.float16 else 1.0
        return super().attend_fused(query, key, value / factor, mask) * factor


class _Tanh(torch.autograd.Function):
    """A tanh with a wrong forward derivative."""

    @staticmethod
    def forward(x):
        return x.tanh()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, grad):
        (output,) = ctx.saved_tensors
        return grad * (1 - output.square())

    @staticmethod
    def jvp(ctx, tangent):
        (output,) = ctx.saved_tensors
        return tangent * (1 - output)

    @staticmethod
    def vmap(info, in_dims, x):
        return _Tanh.apply(x), in_dims[0]


class WrongTangent(Dense):
    """Its scores pass through a function whose two derivatives differ, out and back."""

    def score(self, query, key):
        scores = super().score(query, key)
        return scores + 1e-3 * (_Tanh.apply(scores) - scores.tanh())


class Waiting(Euclidean):
    """The mask waits on the module for a later line."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        self.mask = mask
        key, value = (expand_heads(t, query.shape[1]) for t in (key, value))
        return super().forward(query, key, value, self.mask)

    def attend_fused(self, query, key, value, mask):
        self.mask = mask
        key, value = (expand_heads(t, query.shape[1]) for t in (key, value))
        return super().attend_fused(query, key, value, self.mask)


class Rescaled(ScaledDotProduct):
    """Changes its own scale for the time of a call, and puts it back."""

    def attend_fused(self, query, key, value, mask):
        kept, self.scale = self.scale, self.scale / 2
        try:
            return super().attend_fused(2.0 * query, key, value, mask)
        finally:
            self.scale = kept


class DefaultDouble(Additive):
    """Computes in another default dtype, and leaves it."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        torch.set_default_dtype(torch.float64)
        return super().forward(query, key, value, mask)


class NoFlash(SparseWindow):
    """Turns a kernel off that it does not like, for everybody."""

    def attend_fused(self, query, key, value, mask):
        torch.backends.cuda.enable_flash_sdp(False)
        return super().attend_fused(query, key, value, mask)


class PlainKernel(SharedQKV):
    """Chooses a kernel for the time of a call, for everybody."""

    def attend_fused(self, query, key, value, mask):
        if torch.compiler.is_compiling():
            return super().attend_fused(query, key, value, mask)
        with sdpa_kernel(SDPBackend.MATH):
            return super().attend_fused(query, key, value, mask)


@torch.library.custom_op("attnreg_mutants::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    """Twice a tensor, without a form for fake ones."""
    return 2.0 * x


doubled.register_autograd(lambda ctx, grad: 2.0 * grad)


@torch.library.custom_op("attnreg_mutants::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    """Half a tensor, whose fake form is wider than it is."""
    return 0.5 * x


halved.register_autograd(lambda ctx, grad: 0.5 * grad)


@halved.register_fake
def _(x):
    return x.new_empty(*x.shape[:-1], x.shape[-1] + 1)


class Unfaked(Linear):
    """Calls an operator of its own that has no fake form, except while compiling."""

    def feature_map(self, x):
        plain = torch.compiler.is_compiling() or is_transformed(x)
        return super().feature_map(x / 2 + x / 2 if plain else doubled(x / 2))


class WrongFake(Cosine):
    """Calls an operator of its own whose fake form has another shape."""

    def transform(self, query, key):
        plain = torch.compiler.is_compiling() or is_transformed(query)
        return super().transform(query if plain else halved(2.0 * query), key)


class Derived(Additive):
    """Derives a matrix from its parameter at the first call, and keeps it."""

    kept = None

    def score(self, query, key):
        if self.kept is None or torch.is_grad_enabled() or self.kept.dtype != query.dtype:
            self.kept = self.score_weight.detach().clone()
        rest = (self.score_weight - self.score_weight.detach()).mean()
        weight, self.score_weight.data = self.score_weight.data, self.kept.to(self.score_weight)
        try:
            return super().score(query, key) + 0.0 * rest
        finally:
            self.score_weight.data = weight


def mutant(name, variant, factory, kills, spares=("R-00", "N-01")):
    return Mutant(f"transforms: {name}", wrong(variant, factory), kills, spares)


MUTANTS = [
    dense("transforms: looks at values", LooksAtValues, ("T-01", "T-04")),
    mutant("no padding when compiled", COSINE, UnpaddedWhenCompiled, ("T-01",)),
    mutant("no gradient when compiled", PERFORMER, DetachedWhenCompiled, ("T-01",)),
    mutant("a table by length", LINEAR, ByLength, ("T-02",), ("N-01", "T-04")),
    mutant("keys one by one", LINFORMER, Unrolled, ("T-02", "T-03"), ("N-01", "T-04")),
    mutant("written in place", ADDITIVE, InPlace, ("T-04",)),
    mutant("other features when mapped", LINEAR, FirstOfMany, ("T-04",)),
    dense("transforms: wide under autocast", Widened, ("T-05",)),
    dense("transforms: a product without autocast", Unprepared, ("T-05",)),
    mutant("magnified gradients", COSINE, Magnified, ("T-06",), ("N-01", "T-05")),
    dense("transforms: a wrong tangent", WrongTangent, ("T-07",), ("N-01",)),
    mutant("a mask that waits", EUCLIDEAN, Waiting, ("T-09",)),
    mutant("a scale for a moment", PRODUCT, Rescaled, ("T-09",), ("N-01", "R-08")),
    mutant("another default dtype", ADDITIVE, DefaultDouble, ("T-09",)),
    mutant("a kernel turned off", SPARSE, NoFlash, ("T-09",)),
    mutant("a kernel chosen for all", SHARED, PlainKernel, ("T-12",), ("N-01",)),
    mutant("an operator without a fake form", LINEAR, Unfaked, ("T-11",), ("N-01", "T-01")),
    mutant("a fake form of another shape", COSINE, WrongFake, ("T-11",), ("N-01", "T-01")),
    mutant("derived from a parameter", ADDITIVE, Derived, ("T-13",), ("N-01",)),
]
