"""One cell of a benchmark: build a module and its inputs, and the call that is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnreg.attention import Dims
from attnreg.benchmark.records import Settings
from attnreg.checked import CheckedAttention
from attnreg.errors import UnsupportedFeature
from attnreg.flops import softmax_flops
from attnreg.mask import Mask
from attnreg.registry import Registry
from attnreg.variant import Capabilities, Complexity, Variant


class _Sdpa(nn.Module):
    """``torch.nn.functional.scaled_dot_product_attention``, with nothing around it."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Attend, without a mask or causally; both lengths are one."""
        output: Tensor = F.scaled_dot_product_attention(query, key, value, is_causal=mask.causal)
        return output


SDPA = Variant(
    "sdpa",
    _Sdpa,
    summary="torch's own scaled_dot_product_attention, called directly",
    capabilities=Capabilities(causal=True, weights="exact"),
    complexity=Complexity(time="L^2", memory="L"),
    flops=softmax_flops,
)
"""What variants may be measured against: no plugin's, and no wrapper's checks in the way."""


class Target(NamedTuple):
    """What is built: a variant, how it is to be computed, and its options."""

    variant: Variant
    implementation: str
    options: Mapping[str, Any]

    def build(self, settings: Settings, length: int) -> nn.Module:
        """Build the module for one length, in evaluation mode; torch's generators are left alone.

        Each length has a module of its own, as it would in use: what a variant of fixed length
        stores for longer ones would count in its gradients.
        """
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(settings.seed)
            if self.variant is SDPA:
                dims = Dims(settings.heads, settings.head_dim, settings.heads, settings.head_dim)
                return _Sdpa(dims)
            attn = Registry().create(
                self.variant,
                num_heads=settings.heads,
                head_dim=settings.head_dim,
                max_length=length,
                implementation=self.implementation,
                **self.options,
            )
        return attn.to(device=settings.device, dtype=getattr(torch, settings.dtype)).eval()


class Inputs(NamedTuple):
    """Query, key, value and the gradient that arrives at the output: (B, H, L, D) each.

    "forward" has no use for the last, which then takes no memory of its own.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    grad: Tensor


def make_inputs(settings: Settings, mode: str, length: int) -> Inputs:
    """Draw the inputs of a cell from a generator of their own: the same for every subject."""
    generator = torch.Generator().manual_seed(settings.seed)
    shape = (settings.batch, settings.heads, length, settings.head_dim)
    dtype = getattr(torch, settings.dtype)
    drawn = [
        torch.randn(shape, generator=generator, dtype=torch.float32).to(settings.device, dtype)
        for _ in range(4 if mode == "backward" else 3)
    ]
    if mode == "backward":
        for tensor in drawn[:3]:
            tensor.requires_grad_()
    query, key, value, *grad = drawn
    return Inputs(query, key, value, grad[0] if grad else query)


def make_call(
    module: nn.Module, inputs: Inputs, settings: Settings, mode: str
) -> Callable[[], Any]:
    """Return the call that is measured, which hands back what it computed.

    "forward" attends without gradients. "backward" attends and computes the gradients of query,
    key, value and all parameters, as a step of training does; it raises ``UnsupportedFeature``
    where the output has none.
    """
    query, key, value, grad = inputs
    mask = Mask(causal=settings.causal)
    wanted = [query, key, value, *(p for p in module.parameters() if p.requires_grad)]

    def forward() -> Tensor:
        with torch.no_grad():
            output: Tensor = module(query, key, value, mask)
        return output

    def backward() -> tuple[Tensor | None, ...]:
        output = module(query, key, value, mask)
        if not output.requires_grad:
            raise UnsupportedFeature("its output has no gradient: leave --mode backward out")
        return torch.autograd.grad(output, wanted, grad, allow_unused=True)

    return forward if mode == "forward" else backward


def implementation_of(module: nn.Module, inputs: Inputs, settings: Settings, mode: str) -> str:
    """Name the implementation that the call runs."""
    if not isinstance(module, CheckedAttention):
        return "torch"
    with torch.set_grad_enabled(mode == "backward"):
        found = module.explain(*inputs[:3], Mask(causal=settings.causal))
    return found.chosen or ""


def wait(device: torch.device | str) -> None:
    """Wait until a device has done what it was asked for; the CPU always has."""
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize(torch.device(device))
