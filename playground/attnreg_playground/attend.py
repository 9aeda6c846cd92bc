"""Run a variant on an input and return what there is to draw, or why there is nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import attnreg
from attnreg import AttnregError, CheckedAttention, Mask, Variant
from attnreg_playground import cost
from attnreg_playground.checks import findings
from attnreg_playground.drawing import Finding
from attnreg_playground.inputs import HEAD_DIM, Given, project
from attnreg_playground.texts import Problem, Sentence, problem, sentence


@dataclass(frozen=True)
class Setting:
    """How to run a variant: its options, checked, and the controls that all variants share."""

    options: Mapping[str, Any]
    causal: bool = False
    padding: int = 0
    """How many of the last keys are padding."""
    window: int = 0
    """How far to either side a query sees; 0 is everywhere."""
    border: int = 0
    """Where the second of two packed sequences begins; 0 is one sequence."""
    seed: int = 0

    def mask(self, queries: int, keys: int) -> Mask:
        """Return the mask of a call."""
        valid = torch.arange(keys)[None] < keys - min(self.padding, keys)
        first, second = min(self.border, queries), min(self.border, keys)
        packed = (
            Mask.packed((first, queries - first), (second, keys - second))
            if self.border
            else Mask()
        )
        return Mask(
            causal=self.causal,
            window=(self.window, self.window) if self.window else None,
            key_valid=valid if self.padding else None,
            cu_seqlens=packed.cu_seqlens,
            key_cu_seqlens=packed.key_cu_seqlens,
        )

    def python(self, queries: int, keys: int) -> str:
        """Return the mask of a call as Python."""
        parts = ["causal=True"] if self.causal else []
        if self.window:
            parts.append(f"window=({self.window}, {self.window})")
        if self.padding:
            real = keys - min(self.padding, keys)
            parts.append(f"key_valid=torch.arange({keys})[None] < {real}")
        if self.border:
            first, second = min(self.border, queries), min(self.border, keys)
            parts.append(f"cu_seqlens=torch.tensor([0, {first}, {queries}], dtype=torch.int32)")
            parts.append(f"key_cu_seqlens=torch.tensor([0, {second}, {keys}], dtype=torch.int32)")
        return f"attnreg.Mask({', '.join(parts)})"


@dataclass(frozen=True)
class Picture:
    """The weights of every head, (H, Lq, Lk) float32, with what is needed to read them.

    ``visible`` is bool, (1 or H, Lq, Lk), False where the mask hides; ``key_valid`` bool (Lk,),
    False for padding; ``kind`` is "exact" or "implied"; ``output`` is (H, Lq, D).
    """

    variant: str
    kind: str
    given: Given
    setting: Setting
    weights: NDArray[np.float32]
    output: NDArray[np.float32]
    visible: NDArray[np.bool_]
    key_valid: NDArray[np.bool_]
    notes: tuple[Sentence, ...]
    findings: tuple[Finding, ...]
    heads: tuple[NDArray[np.float32], ...]
    """Query, key and value (H, L, D)."""


@dataclass(frozen=True)
class Ready:
    """A variant that was built, with the query, key and value that it will be called on."""

    attention: CheckedAttention
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask

    def __call__(self) -> Tensor:
        """Attend."""
        output: Tensor = self.attention(self.query, self.key, self.value, self.mask)
        return output


def attend(variant: Variant, plugin: str, given: Given, setting: Setting) -> Picture | Problem:
    """Run a variant; whatever its plugin does wrong becomes a ``Problem`` that names the plugin."""
    dear = cost.too_much(given.num_heads, len(given.queries), len(given.keys))
    if dear is not None:
        return dear
    shown: Picture | Problem = guarded(
        variant, plugin, lambda: _attend(variant, plugin, given, setting)
    )
    return shown


def guarded(variant: Variant, plugin: str, act: Any) -> Any:
    """Call a function that runs a variant; an error of the plugin is returned as a ``Problem``."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return act()
    except (AttnregError, NotImplementedError) as error:
        control = "options" if isinstance(error, ValueError) else ""
        return problem("refused", str(error), control=control, variant=variant.name)
    except (Exception, SystemExit) as error:
        if isinstance(error, MemoryError) or "allocate" in str(error):
            return problem("memory", variant=variant.name)
        told = f"{type(error).__name__}: {error}"[:1000]
        return problem("plugin", plugin=plugin, variant=variant.name, error=told)


def prepare(variant: Variant, given: Given, setting: Setting) -> Ready:
    """Build a variant for an input, its parameters drawn by the seed."""
    torch.manual_seed(setting.seed)
    attention = attnreg.create(
        variant,
        num_heads=given.num_heads,
        head_dim=HEAD_DIM,
        max_length=len(given.keys),
        **setting.options,
    ).eval()
    heads = project(given, attention, setting.seed, setting.padding)
    return Ready(attention, *heads, setting.mask(len(given.queries), len(given.keys)))


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


def python_of(variant: Variant, given: Given, setting: Setting, name: str = "weights") -> str:
    """Return Python that computes the weights when pasted, call by call, under a name."""
    options = "".join(f", {key}={value!r}" for key, value in setting.options.items())
    padding = f", padding={setting.padding}" if setting.padding else ""
    sizes = f"num_heads={given.num_heads}, head_dim={HEAD_DIM}, max_length={len(given.keys)}"
    mask = setting.python(len(given.queries), len(given.keys))
    return f"""given = {given.python}
torch.manual_seed({setting.seed})
attention = attnreg.create({variant.name!r}, {sizes}{options}).eval()
query, key, value = inputs.project(given, attention, seed={setting.seed}{padding})
mask = {mask}
{name} = attention.weights(query, key, mask).detach()
"""


IMPORTS = """import torch

import attnreg
from attnreg_playground import inputs

"""


def _attend(variant: Variant, plugin: str, given: Given, setting: Setting) -> Picture | Problem:
    ready = prepare(variant, given, setting)
    output = ready()
    wrong = _wrong_shape(
        variant,
        plugin,
        "output",
        output,
        ready.value.shape[:2] + ready.query.shape[2:3] + ready.value.shape[3:],
    )
    if wrong:
        return wrong
    if variant.capabilities.weights == "none":
        return problem("no_weights", variant=variant.name, shape=_shape(output.shape))
    weights = ready.attention.weights(ready.query, ready.key, ready.mask)
    queries, keys = len(given.queries), len(given.keys)
    expected = torch.Size((1, given.num_heads, queries, keys))
    wrong = _wrong_shape(variant, plugin, "weights", weights, expected)
    if wrong:
        return wrong
    visible = ready.mask.dense(queries, keys)[0].numpy()
    drawn = weights[0].double().numpy()
    heads = [x[0].float().numpy() for x in (ready.query, ready.key, ready.value)]
    return Picture(
        variant=variant.name,
        kind=variant.capabilities.weights,
        given=given,
        setting=setting,
        weights=drawn.astype(np.float32),
        output=output[0].float().numpy(),
        visible=visible,
        key_valid=np.arange(keys) < keys - min(setting.padding, keys),
        notes=(*given.notes, *_notes(ready, given, variant), *_counts(drawn, visible)),
        findings=findings(
            variant, drawn, visible, ready.value[0].double().numpy(), output[0].double().numpy()
        ),
        heads=tuple(heads),
    )


def _notes(ready: Ready, given: Given, variant: Variant) -> list[Sentence]:
    notes: list[Sentence] = []
    if variant.projection is not None:
        key = "note.own_projection" if given.heads is None else "note.bypassed"
        notes.append(sentence(key, variant=variant.name))
    count = sum(parameter.numel() for parameter in ready.attention.parameters())
    if count:
        notes.append(sentence("note.untrained", variant=variant.name, count=count))
    if variant.capabilities.weights == "implied":
        notes.append(sentence("note.implied", variant=variant.name))
    elif ready.attention.explain(ready.query, ready.key, ready.value, ready.mask).chosen != "eager":
        notes.append(sentence("note.recomputed"))
    return notes


def _counts(weights: NDArray[np.float64], visible: NDArray[np.bool_]) -> list[Sentence]:
    notes: list[Sentence] = []
    missing = int((~np.isfinite(weights)).sum())
    if missing:
        notes.append(sentence("note.missing", count=missing))
    hidden = int((~visible.any(axis=-1)).any(axis=0).sum())
    if hidden:
        notes.append(sentence("note.hidden", count=hidden))
    return notes


def _wrong_shape(
    variant: Variant, plugin: str, what: str, got: object, expected: torch.Size
) -> Problem | None:
    if isinstance(got, Tensor) and got.shape == expected and got.is_floating_point():
        return None
    came = f"{_shape(got.shape)} {got.dtype}" if isinstance(got, Tensor) else type(got).__name__
    return problem(
        "shape",
        plugin=plugin,
        variant=variant.name,
        what=what,
        got=came,
        expected=_shape(expected),
    )


def _shape(sizes: torch.Size) -> str:
    return "(" + ", ".join(str(size) for size in sizes) + ")"
