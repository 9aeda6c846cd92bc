"""Run a variant on an input and return what there is to draw, or why there is nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import attnreg
from attnreg import AttnregError, CheckedAttention, Mask, Variant
from attnreg.projection import QKVProjection
from attnreg_playground.checks import Finding, findings
from attnreg_playground.inputs import HEAD_DIM, Embedded, Problem, Projected, Sentence

MAX_CELLS = 1 << 20
"""The limit on num_heads * L * L, checked before anything of that size exists."""


@dataclass(frozen=True)
class Setting:
    """How to run a variant: its options, checked, and the controls that all variants share."""

    options: Mapping[str, Any]
    scale: float | None = None
    causal: bool = False
    padding: int = 0
    """How many of the last keys are padding."""
    seed: int = 0


@dataclass(frozen=True)
class Picture:
    """The weights of every head, (H, L, L) float32, with what is needed to read them.

    ``visible`` is bool, (1 or H, L, L), False where the mask hides; ``key_valid`` bool (L,), False
    for padding; ``kind`` is "exact" or "implied".
    """

    variant: str
    kind: str
    tokens: tuple[str, ...]
    weights: NDArray[np.float32]
    visible: NDArray[np.bool_]
    key_valid: NDArray[np.bool_]
    notes: tuple[Sentence, ...]
    findings: tuple[Finding, ...]


class _Ready(NamedTuple):
    attention: CheckedAttention
    query: Tensor
    key: Tensor
    value: Tensor
    notes: tuple[Sentence, ...]


def attend(
    variant: Variant, plugin: str, inputs: Embedded | Projected, setting: Setting
) -> Picture | Problem:
    """Run a variant; whatever its plugin does wrong becomes a ``Problem`` that names the plugin."""
    length = len(inputs.tokens)
    if inputs.num_heads * length * length > MAX_CELLS:
        fields = {"heads": inputs.num_heads, "length": length, "limit": MAX_CELLS}
        return Problem(Sentence("problem.budget"), Sentence("problem.budget_detail", fields))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return _attend(variant, plugin, inputs, setting)
    except (AttnregError, NotImplementedError) as error:
        title = Sentence("problem.refused", {"variant": variant.name})
        return Problem(title, str(error), control=isinstance(error, ValueError))
    except (Exception, SystemExit) as error:
        return _failed(variant, plugin, f"{type(error).__name__}: {error}")


def refusal(variant: Variant, mask: Mask) -> str:
    """Return the variant's typed refusal of a mask of one key, or "" where it takes it.

    Nothing is computed; what goes wrong in the plugin is left to ``attend`` to report.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            attention = attnreg.create(variant, num_heads=1, head_dim=HEAD_DIM, max_length=1)
        x = torch.zeros(1, 1, 1, HEAD_DIM)
        refused = attention.explain(x, x, x, mask).refused
    except (Exception, SystemExit) as error:
        return str(error)
    return next((reason for reasons in refused.values() for reason in reasons), "")


def _attend(
    variant: Variant, plugin: str, inputs: Embedded | Projected, setting: Setting
) -> Picture | Problem:
    length = len(inputs.tokens)
    padding = min(setting.padding, length)
    key_valid = torch.arange(length) < length - padding
    mask = Mask(causal=setting.causal, key_valid=key_valid[None] if padding else None)
    ready = _prepare(variant, inputs, setting, key_valid)
    query, key, value = ready.query, ready.key, ready.value
    output = ready.attention(query, key, value, mask)
    wrong = _wrong_shape(variant, plugin, "output", output, value.shape)
    if wrong:
        return wrong
    if variant.capabilities.weights == "none":
        fields = {"variant": variant.name, "shape": _shape(output.shape)}
        return Problem(
            Sentence("problem.no_weights"), Sentence("problem.no_weights_detail", fields)
        )
    weights = ready.attention.weights(query, key, mask)
    expected = torch.Size((1, inputs.num_heads, length, length))
    wrong = _wrong_shape(variant, plugin, "weights", weights, expected)
    if wrong:
        return wrong
    visible = mask.dense(length, length)[0].numpy()
    drawn = weights[0].double().numpy()
    return Picture(
        variant=variant.name,
        kind=variant.capabilities.weights,
        tokens=inputs.tokens,
        weights=drawn.astype(np.float32),
        visible=visible,
        key_valid=key_valid.numpy(),
        notes=(*inputs.notes, *ready.notes, *_counts(drawn, visible)),
        findings=findings(
            variant, drawn, visible, value[0].double().numpy(), output[0].double().numpy()
        ),
    )


def _prepare(
    variant: Variant, inputs: Embedded | Projected, setting: Setting, key_valid: Tensor
) -> _Ready:
    torch.manual_seed(setting.seed)
    attention = attnreg.create(
        variant,
        num_heads=inputs.num_heads,
        head_dim=HEAD_DIM,
        max_length=len(inputs.tokens),
        scale=setting.scale,
        **setting.options,
    ).eval()
    name = {"variant": variant.name}
    own = variant.projection is not None
    if isinstance(inputs, Projected):
        heads = (inputs.query, inputs.key, inputs.value)
        notes = [Sentence("note.bypassed", name)] if own else []
    else:
        projection = _projection(variant, attention, setting.seed)
        x = inputs.x.masked_fill(~key_valid[None, :, None], 0.0)
        heads = projection(x, x, x)
        notes = [Sentence("note.own_projection", name)] if own else []
    count = sum(parameter.numel() for parameter in attention.parameters())
    if count:
        notes.append(Sentence("note.untrained", {**name, "count": count}))
    return _Ready(attention, *heads, tuple(notes))


def _projection(variant: Variant, attention: CheckedAttention, seed: int) -> nn.Module:
    """The projections that ``AttentionLayer`` would have, the same for every variant of a seed."""
    dims = attention.dims
    width = dims.num_heads * dims.head_dim
    torch.manual_seed(seed)
    build = variant.projection
    if build is None:
        return QKVProjection(width, dims, kdim=width, vdim=width)
    return build(attention.module, width, dims, kdim=width, vdim=width, bias=True)


def _counts(weights: NDArray[np.float64], visible: NDArray[np.bool_]) -> list[Sentence]:
    notes: list[Sentence] = []
    missing = int((~np.isfinite(weights)).sum())
    if missing:
        notes.append(Sentence("note.missing", {"count": missing}))
    hidden = int((~visible.any(axis=-1)).any(axis=0).sum())
    if hidden:
        notes.append(Sentence("note.hidden", {"count": hidden}))
    return notes


def _wrong_shape(
    variant: Variant, plugin: str, what: str, got: object, expected: torch.Size
) -> Problem | None:
    if isinstance(got, Tensor) and got.shape == expected and got.is_floating_point():
        return None
    fields = {
        "variant": variant.name,
        "what": what,
        "got": f"{_shape(got.shape)} {got.dtype}"
        if isinstance(got, Tensor)
        else type(got).__name__,
        "expected": _shape(expected),
    }
    title = Sentence("problem.plugin", {"plugin": plugin})
    return Problem(title, Sentence("problem.shape_detail", fields))


def _failed(variant: Variant, plugin: str, error: str) -> Problem:
    fields = {"variant": variant.name, "error": error[:1000]}
    title = Sentence("problem.plugin", {"plugin": plugin})
    return Problem(title, Sentence("problem.plugin_detail", fields))


def _shape(sizes: torch.Size) -> str:
    return "(" + ", ".join(str(size) for size in sizes) + ")"
