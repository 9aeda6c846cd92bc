"""What a law needs to apply: a declared capability, or one of the words here."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import nn

from attnreg.conformance.case import Case
from attnreg.errors import AttnregError
from attnreg.families import KernelAttention, ScoreAttention
from attnreg.hookspecs import Check
from attnreg.mask import MASK_FIELDS
from attnreg.variant import Approximation, Variant


def _module(case: Case) -> nn.Module | None:
    try:
        return case.build().module
    except Exception:  # the laws themselves will say so
        return None


def _declared_complexity(case: Case) -> bool:
    default = Variant.__dataclass_fields__["complexity"].default
    return case.variant.complexity is not default


def _claim(case: Case) -> Approximation | None:
    found = case.variant.approximates
    return found if isinstance(found, Approximation) else None


def _random_features(case: Case) -> bool:
    """Whether it says that its error falls as 1/OPTION, and can draw anew."""
    claim = _claim(case)
    return (
        claim is not None
        and f"1/{claim.option}" in claim.law.replace(" ", "")
        and hasattr(_module(case), "redraw")
    )


def _low_rank(case: Case) -> bool:
    """Whether it has Linformer's projections along the length, named as there."""
    claim = _claim(case)
    sizes = getattr(getattr(_module(case), "key_projection", None), "shape", ())
    return (
        claim is not None
        and claim.variant == "scaled_dot_product"
        and claim.option == "rank"
        and len(sizes) == 3
    )


def _windowed(case: Case) -> bool:
    """Whether it is a window of scaled dot products, with options left and right."""
    claim, names = _claim(case), {option.name for option in case.variant.options}
    return (
        claim is not None
        and claim.variant == "scaled_dot_product"
        and claim.option == "left"
        and {"left", "right"} <= names
    )


_EXACT = re.compile(
    r"^exact where ([\w, ]+?) (?:reach(?:es)? the whole sequence|(?:is|are) L|(?:>=|=) L)$"
)


def tightest(variant: Variant) -> list[str]:
    """The options that its law says make it exact at L, without further conditions."""
    if variant.approximates is None:
        return []
    said = _EXACT.match(variant.approximates[2].strip())
    named = re.split(r", | and ", said[1]) if said else []
    known = {option.name for option in variant.options if int in option.kinds}
    return [name for name in named if name in known]


def falls(variant: Variant) -> bool:
    """Whether its law says that an error falls as one over its option."""
    if variant.approximates is None:
        return False
    _, option, law = variant.approximates
    return f"1/{option}" in law.replace(" ", "")


WORDS: dict[str, tuple[Callable[[Case], bool], str]] = {
    "reference": (lambda c: c.variant.reference is not None, "it has no NumPy reference"),
    "settled": (lambda c: c.settled, "it draws anew in every call"),
    "float64": (lambda c: torch.float64 in c.dtypes, "float64 is not declared, or not asked for"),
    "low_precision": (
        lambda c: bool({torch.float16, torch.bfloat16} & set(c.dtypes)),
        "neither float16 nor bfloat16 is declared",
    ),
    "bfloat16": (lambda c: torch.bfloat16 in c.dtypes, "bfloat16 is not declared"),
    "float16": (lambda c: torch.float16 in c.dtypes, "float16 is not declared"),
    "float32": (lambda c: torch.float32 in c.dtypes, "float32 is not declared"),
    "narrow": (
        lambda c: any(d is not torch.float64 for d in c.dtypes),
        "no dtype but float64 is declared, or asked for",
    ),
    "oracle": (
        lambda c: c.variant.reference is not None or (torch.float64 in c.dtypes and c.settled),
        "it has neither a NumPy reference nor a deterministic float64 to compare with",
    ),
    "judged": (
        lambda c: (
            c.able.normalized
            or c.variant.reference is not None
            or (torch.float64 in c.dtypes and c.settled)
        ),
        "nothing says what its output should be: no NumPy reference, no deterministic float64, "
        "and its weights are not declared normalized",
    ),
    "slopes": (
        lambda c: c.variant.reference is not None or c.dtype.itemsize >= 4,
        "it has no NumPy reference, and no dtype fine enough for finite differences",
    ),
    "several": (lambda c: len(c.variant.implementations) > 1, "it has one implementation"),
    "scale": (lambda c: "scale" in c.variant.common, "it takes no scale"),
    "options": (lambda c: bool(c.variant.options), "it has no options"),
    "parameters": (
        lambda c: (m := _module(c)) is not None and any(True for _ in m.parameters()),
        "it has no parameters",
    ),
    "redraw": (lambda c: hasattr(_module(c), "redraw"), "its module has no redraw()"),
    "reset": (
        lambda c: hasattr(_module(c), "reset_parameters"),
        "its module has no reset_parameters()",
    ),
    "seed": (
        lambda c: any(option.name == "seed" for option in c.variant.options),
        "it has no option 'seed'",
    ),
    "random": (
        lambda c: WORDS["seed"][0](c) or WORDS["redraw"][0](c),
        "it has neither an option 'seed' nor redraw()",
    ),
    "kernel": (lambda c: isinstance(_module(c), KernelAttention), "it is no KernelAttention"),
    "score": (lambda c: isinstance(_module(c), ScoreAttention), "it is no ScoreAttention"),
    "exact": (lambda c: c.able.weights == "exact", "its weights are not declared exact"),
    "recurrent": (lambda c: c.able.decode == "recurrent", "decode is not 'recurrent'"),
    "order_free": (lambda c: not c.able.positional, "it is declared positional"),
    "exact_law": (
        lambda c: bool(tightest(c.variant)),
        "its law does not say that an option at L makes it exact",
    ),
    "tightened": (
        lambda c: bool(tightest(c.variant)) or falls(c.variant),
        "its law names no option that tightens it by itself",
    ),
    "approximates": (
        lambda c: c.variant.approximates is not None,
        "it does not say what it approximates",
    ),
    "random_features": (
        _random_features,
        "it does not say that its error falls as 1/OPTION, or has no redraw()",
    ),
    "low_rank": (_low_rank, "it has no projections along the length, as linformer has"),
    "windowed": (_windowed, "it is no window of scaled dot products"),
    "complexity": (_declared_complexity, "its complexity is not declared"),
    "masks": (
        lambda c: any(getattr(c.able, field) for field in MASK_FIELDS),
        "it takes no mask",
    ),
    "several_dtypes": (lambda c: len(c.dtypes) > 1, "one dtype is declared, or asked for"),
    "mask_tensors": (
        lambda c: c.able.key_valid or c.able.allowed or c.able.bias,
        "it takes no mask that is a tensor",
    ),
    "accelerator": (lambda c: c.device.type not in ("cpu", "meta"), "the device is the CPU"),
    "cpu": (lambda c: c.device.type == "cpu", "the device is not the CPU"),
}
"""Each word: whether it holds of a case, and what to say where it does not."""


def lacking(case: Case, check: Check) -> str | None:
    """Say why a check does not apply to a case, or return None where it does."""
    if check.variants and case.variant.name not in check.variants:
        return f"it is about {', '.join(check.variants)}"
    for need in check.needs:
        if need in WORDS:
            holds, why = WORDS[need]
            if not holds(case):
                return why
        elif not hasattr(case.able, need):
            raise AttnregError(
                f"check {check.id} needs {need!r}, which is neither a capability nor one of "
                f"{', '.join(WORDS)}"
            )
        elif getattr(case.able, need) in (False, "none"):
            return f"capability {need!r} is not declared"
    return None
