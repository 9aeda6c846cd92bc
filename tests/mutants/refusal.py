"""Cores that take what they should refuse, and variants that break what a call or a build is."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Annotated, Literal
from unittest.mock import patch

import torch
from annotated_types import Interval

from attnreg import Implementation, Mask, OptionError
from attnreg.checked import CheckedAttention
from attnreg.errors import DtypeError, UnsupportedMask
from attnreg.options import Option
from attnreg.validation import check_capabilities
from attnreg_additive.module import Additive
from attnreg_euclidean.module import Euclidean
from attnreg_linear.module import Linear
from attnreg_performer.module import Performer
from attnreg_scaled_dot_product.module import ScaledDotProduct
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

forward = CheckedAttention.forward


def nothing(*args, **kwargs):
    """A check that checks nothing."""


class NoDropout(ScaledDotProduct):
    """Declares dropout, and has no such parameter."""

    def __init__(self, dims, *, temperature: float = 1.0, scale: float | None = None):
        super().__init__(dims, temperature=temperature, scale=scale)


class NoBias(Additive):
    """Declares biases, and refuses them."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if mask.bias is not None:
            raise NotImplementedError("no bias yet")
        return super().forward(query, key, value, mask)


def unnamed(variant, query, key, mask):
    try:
        check_capabilities(variant, query, key, mask)
    except UnsupportedMask:
        raise UnsupportedMask("this cannot be done") from None


def swallowing(self, query, key, value, mask=Mask(), **ignored):  # noqa: B008  # Mask() is immutable
    return forward(self, query, key, value, mask)


def lenient(name, options, given):
    """Unknown options are left out in silence."""
    return {option.name: given[option.name] for option in options if option.name in given}


class SameStorage(Dense):
    """A single key: its value is the output, so it is handed back as it is."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if key.shape[2] == query.shape[2] == 1 and not mask.used():
            return value
        return super().forward(query, key, value, mask)


class OneBuffer(Linear):
    """Writes every output into one buffer, which it hands back."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        output = super().forward(query, key, value, mask)
        if output.requires_grad:
            return output
        if getattr(self, "out", None) is None or self.out.shape != output.shape:
            self.out = torch.empty_like(output)
        return self.out.to(output.dtype).copy_(output)


class Detached(Dense):
    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().forward(query, key, value, mask).detach()


class KeepsGraph(Additive):
    """Turns gradients on for itself."""

    @torch.enable_grad()
    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().forward(query, key, value, mask)


def dtype_blind(variant, module, tensors):
    """Checks of rank and type, and not of who shares what."""
    for tensor in tensors.values():
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            raise DtypeError(f"not a floating tensor: {getattr(tensor, 'dtype', tensor)}")


class DefaultOutside(ScaledDotProduct):
    """Its own default is below the range that it declares."""

    def __init__(self, dims, *, temperature: Annotated[float, Interval(ge=2)] = 1.0, **common):
        super().__init__(dims, temperature=temperature, **common)


class Halving(ScaledDotProduct):
    """Changes its scale for the time of a call."""

    def attend_fused(self, query, key, value, mask):
        self.scale *= 0.5
        output = super().attend_fused(2.0 * query, key, value, mask)
        self.scale *= 2.0
        return output


class Unfinished(Dense):
    """Keeps the mask of its last size, which is there before it is filled."""

    kept = torch.zeros(0, 0, dtype=torch.bool)

    def masked(self, mask, query, key):
        size = (query.shape[2], key.shape[2])
        if self.kept.shape != size:
            self.kept = torch.zeros(size, dtype=torch.bool)
            self.kept.fill_(True)
        return mask & Mask(allowed=self.kept)


class Counting(Additive):
    """Draws its parameters from a generator seeded by how many were built before."""

    built = itertools.count()

    def reset_parameters(self):
        generator = torch.Generator().manual_seed(next(self.built))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)


class Stuck(Additive):
    """Takes no width but the default."""

    def __init__(self, dims, *, hidden: Annotated[int, Interval(ge=1, le=64)] = 8, **common):
        if hidden != 8:
            raise OptionError(f"hidden must be 8, got {hidden}")
        super().__init__(dims, hidden=hidden, **common)


class Indivisible(Performer):
    """Reshapes its features into blocks, whatever their number."""

    def redraw(self, seed=None):
        super().redraw(seed)
        self.projection.view(-1, 2, self.projection.shape[1])


class Unknown(Linear):
    """Has no entry for one of the choices that it offers."""

    def __init__(
        self,
        dims,
        *,
        feature_map: Literal["elu+1", "relu", "exp", "identity", "softplus"] = "elu+1",
        normalize: bool | None = None,
    ):
        {"elu+1": 1, "relu": 2, "exp": 3, "identity": 4}[feature_map]
        super().__init__(dims, feature_map=feature_map, normalize=normalize)


def talkative(call):
    """Gives its reason as a text, not as a list."""
    return "it takes no mask" if call.mask.used() else ""


def first(variant, *call):
    return variant.implementations[0]


FAST = Implementation("fast", Euclidean.forward, talkative, rank=20)
SHARED_STORAGE = wrong(
    PRODUCT, SameStorage, capabilities=replace(PRODUCT.capabilities, grouped=False)
)

MUTANTS = [
    Mutant("refusal: dropout declared, not taken", wrong(PRODUCT, NoDropout), ("R-00",), ("N-01",)),
    Mutant("refusal: bias declared, not taken", wrong(ADDITIVE, NoBias), ("R-00",), ("N-01",)),
    Mutant(
        "refusal: the core takes what is not declared",
        LINEAR,
        ("R-00",),
        ("N-01", "R-03"),
        lambda: patch("attnreg.checked.check_capabilities", nothing),
    ),
    Mutant(
        "refusal: the core does not say what it refuses",
        LINFORMER,
        ("R-00",),
        ("N-01",),
        lambda: patch("attnreg.checked.check_capabilities", unnamed),
    ),
    Mutant(
        "refusal: keywords are swallowed",
        COSINE,
        ("R-01",),
        ("R-00", "N-01"),
        lambda: patch.object(CheckedAttention, "forward", swallowing),
    ),
    Mutant(
        "refusal: unknown options are left out",
        PERFORMER,
        ("R-01",),
        ("R-00",),
        lambda: patch("attnreg.registry.validate", lenient),
    ),
    Mutant("calling: the output is the value itself", SHARED_STORAGE, ("R-02",), ("N-01",)),
    Mutant("calling: one buffer for every output", wrong(LINEAR, OneBuffer), ("R-02",), ("N-01",)),
    dense("calling: a detached output", Detached, ("R-02",)),
    Mutant("calling: gradients on by itself", wrong(ADDITIVE, KeepsGraph), ("R-02",), ("N-01",)),
    Mutant(
        "refusal: shapes are not checked",
        SHARED,
        ("R-03",),
        ("N-01", "R-00"),
        lambda: patch("attnreg.checked.check_shapes", nothing),
    ),
    Mutant(
        "refusal: masks are not checked",
        SPARSE,
        ("R-03", "R-04"),
        ("N-01", "R-00"),
        lambda: patch("attnreg.checked.check_mask", nothing),
    ),
    Mutant(
        "refusal: mask types are not checked",
        EUCLIDEAN,
        ("R-04",),
        ("N-01", "R-00"),
        lambda: patch.object(Mask, "__post_init__", nothing),
    ),
    Mutant(
        "refusal: tensors are not checked",
        ADDITIVE,
        ("R-04", "R-05", "R-06"),
        ("N-01",),
        lambda: patch("attnreg.checked.check_tensors", nothing),
    ),
    Mutant(
        "refusal: dtypes and devices may be mixed",
        LINEAR,
        ("R-05", "R-06"),
        ("R-04", "N-01"),
        lambda: patch("attnreg.checked.check_tensors", dtype_blind),
    ),
    Mutant(
        "building: options are not checked",
        COSINE,
        ("R-07",),
        ("R-00",),
        lambda: patch.object(Option, "check", lambda self, value: value),
    ),
    Mutant("building: a default out of range", wrong(PRODUCT, DefaultOutside), ("R-07",)),
    Mutant(
        "calling: an attribute changed for a moment", wrong(PRODUCT, Halving), ("R-08",), ("N-01",)
    ),
    dense("calling: a key written before its entry", Unfinished, ("R-08",)),
    Mutant("building: seeded by a counter", wrong(ADDITIVE, Counting), ("R-09",), ("N-01",)),
    Mutant(
        "building: options described as texts",
        SPARSE,
        ("R-09",),
        ("R-00",),
        lambda: patch("attnreg.variant._plain", str),
    ),
    Mutant("building: an option that cannot move", wrong(ADDITIVE, Stuck), ("R-10",), ("N-01",)),
    Mutant("building: blocks that need not fit", wrong(PERFORMER, Indivisible), ("R-11",)),
    Mutant("building: a choice without an entry", wrong(LINEAR, Unknown), ("R-11",)),
    Mutant(
        "calling: a reason that is no list",
        replace(EUCLIDEAN, implementations=(*EUCLIDEAN.implementations, FAST)),
        ("R-12",),
        ("N-01",),
    ),
    Mutant(
        "calling: reasons are not heeded",
        EUCLIDEAN,
        ("R-12",),
        ("R-00",),
        lambda: patch("attnreg.checked.choose", first),
    ),
]
