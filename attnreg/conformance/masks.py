"""Masks of every kind, made for a call of any size, so that a failing one can be made smaller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from attnreg.mask import Mask
from attnreg.variant import Capabilities


@dataclass(frozen=True)
class Sizes:
    """The sizes of one call, as distinct as can be: a transposed tensor does not fit by luck."""

    batch: int = 2
    heads: int = 6
    kv_heads: int = 2
    queries: int = 5
    keys: int = 9
    head_dim: int = 8
    value_dim: int = 6

    def fit(self, able: Capabilities) -> Sizes:
        """Return the nearest sizes that the capabilities allow."""
        return replace(
            self,
            kv_heads=self.kv_heads if able.grouped else self.heads,
            value_dim=self.value_dim if able.value_dim else self.head_dim,
            queries=self.queries if able.cross else self.keys,
        )


@dataclass(frozen=True)
class Recipe:
    """A named kind of mask: the capabilities that it asks for, and how it is made."""

    name: str
    fields: tuple[str, ...]
    make: Callable[[Sizes, torch.Generator], Mask]

    def suits(self, able: Capabilities) -> bool:
        """Whether a variant with these capabilities takes it."""
        causal_only = not able.noncausal and "causal" not in self.fields
        return not causal_only and all(getattr(able, name) for name in self.fields)


def _some(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=generator) > 0.4


def _full(s: Sizes) -> tuple[int, int, int, int]:
    return s.batch, s.heads, s.queries, s.keys


def _draw(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _bias(s: Sizes, generator: torch.Generator) -> torch.Tensor:
    """A bias with -inf in places, and one row of nothing else."""
    drawn = _draw(generator, *_full(s))
    drawn = drawn.masked_fill(~_some(generator, *_full(s)), -torch.inf)
    drawn[0, s.heads // 2, 0] = -torch.inf
    return drawn


def _blind(s: Sizes, generator: torch.Generator) -> torch.Tensor:
    """Every query sees some keys, but for the first of all and one of one head."""
    allowed = _some(generator, *_full(s))
    allowed[:, :, 0] = False
    allowed[-1, s.heads // 2, -1] = False
    return allowed


def _everything(s: Sizes, generator: torch.Generator) -> Mask:
    fields = Mask(causal=True, window=(4, None), bias=_bias(s, generator))
    return fields.replace(allowed=_some(generator, s.queries, s.keys)) & _lengths(s, -2, -1)


def _lengths(s: Sizes, first: int, other: int) -> Mask:
    """Item 0 keeps ``first`` keys, the others ``other``; negative counts from the full length."""
    sizes = [n if n >= 0 else max(0, s.keys + n) for n in [first] + [other] * (s.batch - 1)]
    return Mask.from_lengths([min(n, s.keys) for n in sizes], s.keys)


def _left(s: Sizes) -> Mask:
    pads = torch.tensor([min(2, s.keys - 1)] + [0] * (s.batch - 1))
    return Mask(key_valid=torch.arange(s.keys) >= pads[:, None])


def _packed(s: Sizes, rest: int = 1) -> Mask:
    """Three sequences, the second without queries, and ``rest`` rows past the last offset."""

    def split(length: int, middle: int) -> list[int]:
        inside = max(0, length - rest)
        first = min(inside, (inside + 1) // 2)
        second = min(middle, inside - first)
        return [first, second, inside - first - second]

    if s.queries == s.keys:
        return Mask.packed(split(s.queries, 0))
    return Mask.packed(split(s.queries, 0), split(s.keys, 1))


def _packed_blind(s: Sizes) -> Mask:
    """Three sequences, the first and the last without keys."""
    first, last = (s.queries + 1) // 2, s.queries // 4
    return Mask.packed([first, s.queries - first - last, last], [0, s.keys, 0])


def _same_packed(s: Sizes) -> Mask:
    length = min(s.queries, s.keys)
    return Mask.packed([length // 3, length - length // 3])


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("none", (), lambda s, g: Mask()),
        Recipe("causal", ("causal",), lambda s, g: Mask(causal=True)),
        Recipe("top-left", ("causal",), lambda s, g: Mask(causal=True, query_offset=0)),
        Recipe("blind-rows", ("causal",), lambda s, g: Mask(causal=True, query_offset=-2)),
        Recipe("far-causal", ("causal",), lambda s, g: Mask(causal=True, query_offset=s.keys - 2)),
        Recipe("far-queries", (), lambda s, g: Mask(query_offset=s.keys + 3)),
        Recipe("padding", ("key_valid",), lambda s, g: _lengths(s, -4, -1)),
        Recipe("padding-empty", ("key_valid",), lambda s, g: _lengths(s, 0, -1)),
        Recipe("padding-one", ("key_valid",), lambda s, g: _lengths(s, 1, -1)),
        Recipe("padding-left", ("key_valid",), lambda s, g: _left(s)),
        Recipe(
            "padding-holes", ("key_valid",), lambda s, g: Mask(key_valid=_some(g, s.batch, s.keys))
        ),
        Recipe(
            "causal-padding",
            ("causal", "key_valid"),
            lambda s, g: Mask(causal=True) & _lengths(s, -3, -1),
        ),
        Recipe("causal-left", ("causal", "key_valid"), lambda s, g: Mask(causal=True) & _left(s)),
        Recipe("allowed", ("allowed",), lambda s, g: Mask(allowed=_some(g, *_full(s)))),
        Recipe(
            "allowed-heads",
            ("allowed",),
            lambda s, g: Mask(allowed=_some(g, 1, s.heads, 1, s.keys)),
        ),
        Recipe(
            "allowed-batch",
            ("allowed",),
            lambda s, g: Mask(allowed=_some(g, s.batch, 1, s.queries, 1)),
        ),
        Recipe(
            "allowed-square", ("allowed",), lambda s, g: Mask(allowed=_some(g, s.queries, s.keys))
        ),
        Recipe(
            "allowed-past",
            ("allowed",),
            lambda s, g: Mask(
                allowed=torch.ones(s.queries, s.keys).bool().tril(s.keys - s.queries)
            ),
        ),
        Recipe(
            "allowed-causal",
            ("allowed", "causal"),
            lambda s, g: Mask(causal=True, allowed=_some(g, *_full(s))),
        ),
        Recipe(
            "allowed-padding",
            ("allowed", "key_valid"),
            lambda s, g: Mask(allowed=_some(g, *_full(s))) & _lengths(s, -3, -1),
        ),
        Recipe("allowed-blind", ("allowed",), lambda s, g: Mask(allowed=_blind(s, g))),
        Recipe("bias", ("bias",), lambda s, g: Mask(bias=_bias(s, g))),
        Recipe("bias-keys", ("bias",), lambda s, g: Mask(bias=_draw(g, s.heads, 1, s.keys))),
        Recipe(
            "bias-float32", ("bias",), lambda s, g: Mask(bias=_draw(g, s.queries, s.keys).float())
        ),
        Recipe("bias-causal", ("bias", "causal"), lambda s, g: Mask(causal=True, bias=_bias(s, g))),
        Recipe(
            "bias-allowed",
            ("bias", "allowed"),
            lambda s, g: Mask(bias=_bias(s, g), allowed=_some(g, 1, s.heads, 1, s.keys)),
        ),
        Recipe(
            "bias-padding",
            ("bias", "key_valid"),
            lambda s, g: Mask(bias=_bias(s, g)) & _lengths(s, -3, -1),
        ),
        Recipe("window", ("window",), lambda s, g: Mask(window=(2, 1))),
        Recipe("window-self", ("window",), lambda s, g: Mask(window=(0, 0))),
        Recipe("window-left", ("window",), lambda s, g: Mask(window=(2, None), query_offset=1)),
        Recipe(
            "window-causal", ("window", "causal"), lambda s, g: Mask(causal=True, window=(2, None))
        ),
        Recipe(
            "window-blind",
            ("window",),
            lambda s, g: Mask(window=(1, 0), query_offset=s.keys - 1),
        ),
        Recipe(
            "window-padding",
            ("window", "key_valid"),
            lambda s, g: Mask(window=(1, 2)) & _lengths(s, -3, -1),
        ),
        Recipe(
            "window-allowed",
            ("window", "allowed"),
            lambda s, g: Mask(window=(2, 1), allowed=_some(g, *_full(s))),
        ),
        Recipe("everything", ("causal", "window", "key_valid", "allowed", "bias"), _everything),
        Recipe("packed", ("packed",), lambda s, g: _packed(s)),
        Recipe("packed-full", ("packed",), lambda s, g: _same_packed(s)),
        Recipe("packed-causal", ("packed", "causal"), lambda s, g: _packed(s) & Mask(causal=True)),
        Recipe(
            "packed-top-left",
            ("packed", "causal"),
            lambda s, g: _packed(s) & Mask(causal=True, query_offset=0),
        ),
        Recipe(
            "packed-window", ("packed", "window"), lambda s, g: _packed(s) & Mask(window=(1, 0))
        ),
        Recipe(
            "packed-allowed",
            ("packed", "allowed"),
            lambda s, g: _packed(s) & Mask(allowed=_some(g, 1, s.heads, s.queries, s.keys)),
        ),
        Recipe(
            "packed-bias",
            ("packed", "bias"),
            lambda s, g: _packed(s) & Mask(bias=_bias(replace(s, batch=1), g)),
        ),
        Recipe("packed-blind", ("packed", "cross"), lambda s, g: _packed_blind(s)),
        Recipe(
            "packed-padding",
            ("packed", "key_valid"),
            lambda s, g: _packed(s) & Mask.from_lengths([max(0, s.keys - 3)], s.keys),
        ),
    )
}


def make(name: str, sizes: Sizes, device: torch.device, seed: int = 7) -> Mask:
    """Make a mask of a kind for a call of these sizes; packing takes a batch of one."""
    mask = RECIPES[name].make(sizes, torch.Generator().manual_seed(seed))
    moved = {
        field: tensor.to(device)
        for field in ("key_valid", "allowed", "bias", "cu_seqlens", "key_cu_seqlens")
        if (tensor := getattr(mask, field)) is not None
    }
    if device.type == "mps" and mask.bias is not None:
        moved["bias"] = mask.bias.float().to(device)
    return mask.replace(**moved) if moved and device.type != "cpu" else mask
