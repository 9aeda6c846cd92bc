"""Which implementation runs a call, and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnreg.attention import Dims
from attnreg.errors import UnsupportedImplementation
from attnreg.mask import Mask
from attnreg.tracing import is_transformed
from attnreg.variant import Call, Implementation, Variant


class Explanation(NamedTuple):
    """Which implementation a call runs, and why the others do not."""

    chosen: str | None
    refused: Mapping[str, list[str]]


def call_of(
    dims: Dims,
    module: nn.Module,
    asked: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
) -> Call:
    """What an implementation may know of a call of a module that was built for ``asked``."""
    return Call(
        dims=dims,
        query_shape=query.shape,
        key_shape=key.shape,
        value_shape=value.shape,
        dtype=query.dtype,
        device=query.device,
        mask=mask,
        module=module,
        needs_grad=needs_grad(module, query, key, value, mask),
        compiling=torch.compiler.is_compiling(),
        transformed=is_transformed(query) or is_transformed(key) or is_transformed(value),
        named=asked != "auto",
    )


def needs_grad(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> bool:
    """Whether a gradient will be asked of the call."""
    if not torch.is_grad_enabled():
        return False
    if query.requires_grad or key.requires_grad or value.requires_grad:
        return True
    if mask.bias is not None and mask.bias.requires_grad:
        return True
    return any(p.requires_grad for p in module.parameters())


def choose(variant: Variant, asked: str, call: Call) -> Implementation:
    """Return the implementation of the highest rank that can run a call; ``asked`` may name one.

    Raises ``UnsupportedImplementation`` where the one that was asked for cannot.
    """
    for one in variant.implementations:
        if asked in ("auto", one.name) and not one.why_not(call):
            return one
    reasons = explain(variant, asked, call).refused.get(asked, [])
    raise UnsupportedImplementation(
        f"{variant.name}: implementation {asked!r} cannot run this call: "
        f"{'; '.join(reasons)}. Use implementation='auto' for one that can"
    )


def explain(variant: Variant, asked: str, call: Call) -> Explanation:
    """Say what ``choose`` would return, and why not the others."""
    chosen: str | None = None
    refused: dict[str, list[str]] = {}
    for one in variant.implementations:
        if chosen is not None:
            reasons = [f"{chosen!r} ranks higher"]
        elif asked not in ("auto", one.name):
            reasons = [f"implementation={asked!r} was asked for"]
        else:
            reasons = one.why_not(call)
        if reasons:
            refused[one.name] = reasons
        else:
            chosen = one.name
    return Explanation(chosen, refused)
