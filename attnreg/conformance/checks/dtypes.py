"""R: what tensors and masks are made of."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnreg.checked import CheckedAttention
from attnreg.conformance.case import DTYPES, Case, Inputs
from attnreg.conformance.checks import Laws
from attnreg.conformance.checks.refusal import EXAMPLES, says
from attnreg.errors import (
    DtypeError,
    MaskTypeError,
)
from attnreg.mask import Mask

LAWS = Laws()


@LAWS.law("R-04")
def wrong_types(case: Case) -> None:
    """Integer, boolean and complex tensors, and masks of the wrong type, are a ``TypeError``.

    An integer or a float mask has no meaning that everybody shares, so none is guessed.
    """
    attn, mask = case.build(), case.mask()
    query, key, value = case.inputs()
    for name, cast in (
        ("int64", torch.int64),
        ("bool", torch.bool),
        ("complex64", torch.complex64),
    ):
        for place in range(3):
            call = [t.to(cast) if i == place else t for i, t in enumerate((query, key, value))]
            error = case.refuses(DtypeError, f"{name} inputs", partial(attn, *call, mask))
            says(case, error, name)
    case.refuses(DtypeError, "a list as query", lambda: attn(query.tolist(), key, value, mask))
    s = case.sizes
    square = torch.ones(s.queries, s.keys, device=case.device)
    for what in (square.bool(), square, None, True):
        case.refuses(MaskTypeError, "no Mask as mask", partial(attn, query, key, value, what))
    padding = torch.ones(s.batch, s.keys, device=case.device)
    fields: list[tuple[str, Any]] = [
        ("key_valid", padding),
        ("key_valid", padding.int()),
        ("key_valid", padding.to(torch.uint8)),
        ("allowed", square),
        ("allowed", square.int()),
        ("bias", square.bool()),
        ("bias", square.int()),
        ("cu_seqlens", torch.tensor([0.0, 2.0])),
        ("causal", square),
        ("window", (1.0, 2)),
    ]
    for field, given in fields:
        error = case.refuses(
            MaskTypeError,
            f"{field} of the wrong type",
            partial(_masked, attn, (query, key, value), mask, field, given),
        )
        says(case, error, field)


def _masked(attn: CheckedAttention, call: Inputs, mask: Mask, field: str, given: object) -> Tensor:
    output: Tensor = attn(*call, mask.replace(**{field: given}))
    return output


@LAWS.law("R-05")
def mixed_dtypes(case: Case) -> None:
    """Query, key and value of different dtypes are one clear error, outside of autocast."""
    attn, mask = case.build(), case.mask()
    call = case.inputs()
    for other in DTYPES:
        if other is case.dtype or (other is torch.float64 and case.device.type == "mps"):
            continue
        for place in range(3):
            mixed = [t.to(other) if i == place else t for i, t in enumerate(call)]
            error = case.refuses(
                DtypeError, f"{case.dtype} with {other}", partial(attn, *mixed, mask)
            )
            says(case, error, case.dtype, other)
    if case.able.weights != "none" and case.dtype is not torch.float32:
        case.refuses(
            DtypeError,
            "weights of two dtypes",
            lambda: attn.weights(call[0], call[1].float(), mask),
        )


@LAWS.law("R-06")
def mixed_devices(case: Case) -> None:
    """Tensors, masks and a module on different devices are one clear error."""
    attn, mask = case.build(), case.mask()
    call = case.inputs()
    elsewhere = torch.device("meta")
    for place in range(3):
        mixed = [t.to(elsewhere) if i == place else t for i, t in enumerate(call)]
        error = case.refuses(DtypeError, "inputs on two devices", partial(attn, *mixed, mask))
        says(case, error, elsewhere)
    for field in ("key_valid", "allowed", "bias"):
        if not getattr(case.able, field):
            continue
        moved = case.mask(EXAMPLES[field])
        moved = moved.replace(**{field: getattr(moved, field).to(elsewhere)})
        error = case.refuses(DtypeError, f"{field} on another device", partial(attn, *call, moved))
        says(case, error, field)
    if [*attn.parameters(), *attn.buffers()]:
        attn.to(elsewhere)
        error = case.refuses(DtypeError, "a module on another device", lambda: attn(*call, mask))
        says(case, error, elsewhere)
