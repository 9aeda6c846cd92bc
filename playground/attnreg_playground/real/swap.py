"""Listen to the attention of a transformer, and put another variant in its place.

The linear layers that make query, key and value are overheard, and what goes into the layer that
follows the attention is replaced. So no library's own attention code is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnreg.projection import merge_heads, split_heads

Replace = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""From the layer's number and its query, key and value heads to the output heads."""


class Parts(NamedTuple):
    """The linear layers around one attention."""

    query: nn.Module
    key: nn.Module
    value: nn.Module
    after: nn.Module


class Heads(NamedTuple):
    """Query, key and value of one layer, (1, H, L, D)."""

    query: Tensor
    key: Tensor
    value: Tensor


@contextmanager
def overheard(
    layers: Sequence[Parts], num_heads: int, replace: Replace | None = None
) -> Iterator[list[Heads]]:
    """Collect the heads of every layer that runs meanwhile, in order; perhaps replace the output.

    One layer may run several times, as where all layers share their parameters.
    """
    heard: list[Heads] = []
    held: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            held[name] = split_heads(output, num_heads).contiguous()

        return hook

    def exchange(module: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
        heads = Heads(held["query"], held["key"], held["value"])
        heard.append(heads)
        if replace is None:
            return None
        return (merge_heads(replace(len(heard) - 1, *heads)), *inputs[1:])

    hooks = []
    for parts in layers:
        for name in ("query", "key", "value"):
            hooks.append(getattr(parts, name).register_forward_hook(keep(name)))
        hooks.append(parts.after.register_forward_pre_hook(exchange))
    try:
        with torch.no_grad():
            yield heard
    finally:
        for hook in hooks:
            hook.remove()
