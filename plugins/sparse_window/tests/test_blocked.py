"""The blocked implementation: the same numbers as eager, in memory linear in the length."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode  # torch has no public way to count
from torch.utils._pytree import tree_leaves

import attnreg
from attnreg import Mask


def build(dtype=torch.float64, **options):
    """Build the module, by default with grouped heads and a value_dim of its own."""
    sizes = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}
    return attnreg.create("sparse_window", **{**sizes, **options}).to(dtype)


def tensors(*shapes, dtype=torch.float64, seed=1):
    """Normal numbers from a fixed seed, which ask for gradients."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return [t.to(dtype).requires_grad_() for t in drawn]


class Allocated(TorchDispatchMode):
    """Record the bytes of the largest tensor that any operation makes, and of all of them."""

    def __init__(self):
        super().__init__()
        self.largest = self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.largest = max(self.largest, leaf.untyped_storage().nbytes())
                self.total += leaf.numel() * leaf.itemsize
        return result


BLOCKED = [
    {"left": 3, "right": 2},
    {"left": 2, "right": 1, "dilation": 3, "global_tokens": (0, 40)},
    {"left": 1, "right": 1, "block_size": 16, "random_blocks": 2, "global_tokens": 20, "seed": 1},
    {"left": 0, "right": 0, "random_blocks": 2, "seed": 2},
]


@pytest.mark.parametrize("length", [1, 2, 7, 63, 65, 300])
@pytest.mark.parametrize("options", BLOCKED)
def test_blocked_equals_eager(options, length):
    blocked, eager = (build(implementation=one, **options) for one in ("blocked", "eager"))
    (bias,) = tensors((1, 6, 1, length), seed=3)
    with torch.no_grad():
        for mask in (
            Mask(),
            Mask(causal=True),
            Mask.from_lengths([length, length // 2], length),
            Mask(bias=bias.detach(), causal=True),
            Mask(window=(2, 5)),
            Mask(query_offset=-70, causal=True),
            Mask(query_offset=9),
        ):
            call = tensors((2, 6, length, 8), (2, 2, length, 8), (2, 2, length, 6))
            torch.testing.assert_close(blocked(*call, mask), eager(*call, mask))
        call[0] = call[0][:, :, length // 2 :]  # fewer queries than keys
        torch.testing.assert_close(blocked(*call), eager(*call))


@pytest.mark.parametrize("options", BLOCKED)
def test_blocked_gradients_equal_eager(options):
    grads = []
    for implementation in ("blocked", "eager"):
        attn = build(torch.float32, implementation=implementation, **options)
        call = tensors((1, 6, 140, 8), (1, 2, 140, 8), (1, 2, 140, 6), dtype=torch.float32)
        output = attn(*call, Mask(causal=True))
        grads.append(torch.autograd.grad(output.square().sum(), call))
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


LONG = [
    {"left": 64, "right": 64, "global_tokens": 2},
    {"block_size": 16, "left": 1, "right": 1, "random_blocks": 2, "global_tokens": 16},
]


def allocated(options, causal, backward):
    """What a call of 1024 and one of 4096 positions make."""
    attn = build(torch.float32, num_heads=2, num_kv_heads=2, value_dim=8, **options)
    found = []
    for length in (1024, 4096):
        call = tensors(*[(1, 2, length, 8)] * 3, dtype=torch.float32)
        assert attn.explain(*call, Mask(causal=causal)).chosen == "blocked"
        with Allocated() as count, torch.set_grad_enabled(backward):
            output = attn(*call, Mask(causal=causal))
            if backward:
                output.sum().backward()
        found.append(count)
    return found


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", LONG)
def test_nothing_is_quadratic(options, causal, backward):
    short, long = allocated(options, causal, backward)
    assert long.largest <= 4.2 * short.largest
    assert long.largest < 4096**2 / 4  # no mask of all pairs, let alone scores
    assert 3 < long.total / short.total < 5
