"""What the real models share: a variant in the place of the attention that came with a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import attnreg
from attnreg import CheckedAttention
from attnreg_playground.attend import guarded
from attnreg_playground.controls import Control
from attnreg_playground.drawing import Drawing, Scene
from attnreg_playground.given import choose
from attnreg_playground.heat import heat
from attnreg_playground.real.swap import Heads, Replace
from attnreg_playground.texts import Label, Problem, problem, sentence

VARIANT = (
    Control("variant", "variant", "cosine", label="control.swap"),
    Control("options", "options", {}, of="variant"),
)


def with_variant(
    scene: Scene,
    heads: int,
    head_dim: int,
    length: int,
    show: Callable[[CheckedAttention], Drawing],
) -> Drawing:
    """Build the chosen variant for a model's sizes and draw with it.

    What the variant does wrong becomes a problem that names its plugin; so does one that cannot
    take that place.
    """
    chosen = choose(scene.registry, scene["variant"], scene["options"])
    if isinstance(chosen, Problem):
        return Drawing(problem=chosen)
    if not chosen.variant.capabilities.noncausal:
        told = problem("only_causal", variant=chosen.variant.name, control="variant")
        return Drawing(problem=told)

    def act() -> Drawing:
        torch.manual_seed(0)
        attention = attnreg.create(
            chosen.variant, num_heads=heads, head_dim=head_dim, max_length=length, **chosen.options
        )
        return show(attention.eval())

    found = guarded(chosen.variant, chosen.plugin, act)
    return Drawing(problem=found) if isinstance(found, Problem) else found


def instead(scene: Scene, attention: CheckedAttention) -> Replace:
    """Return what stands for a model's attention: the variant in one layer, or in all."""

    def replace(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        here = scene["layers"] == "all" or number == scene["layer"]
        output: Tensor = (attention if here else F.scaled_dot_product_attention)(query, key, value)
        return output

    return replace


def original(heads: Heads) -> Tensor:
    """Return the weights that a softmax model used, (H, L, L)."""
    scores = heads.query @ heads.key.transpose(-1, -2) / heads.query.shape[-1] ** 0.5
    weights: Tensor = scores.softmax(dim=-1)[0]
    return weights


def weights_of(attention: CheckedAttention, heads: Heads) -> Tensor | None:
    """Return the weights of the variant on a layer's heads (H, L, L), or None where it has none."""
    if attention.variant.capabilities.weights == "none":
        return None
    with torch.no_grad():
        return attention.weights(heads.query, heads.key)[0]


def two_maps(
    before: Tensor,
    after: Tensor | None,
    tokens: Any,
    head: int,
    variant: str,
    image: Any = None,
    title: Label = "",
) -> list[Any]:
    """Return the figures of the model's own weights and of the variant's, side by side."""
    common: dict[str, Any] = {"head": head, "group": "swap", "image": image}
    own = heat(
        before.numpy(), tokens, tokens, name="own", title=title or sentence("swap.own"), **common
    )
    if after is None:
        return [own]
    other = heat(
        after.numpy(), tokens, tokens, name="swapped",
        title=sentence("swap.other", variant=variant), thumbnails=False, **common,
    )  # fmt: skip
    return [own, other]
