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


MANY = [
    *BLOCKED,
    {"left": 40, "right": 9, "global_tokens": (3, 77, 200)},
    {"left": 1, "right": 2, "dilation": 2, "block_size": 33},
    {"left": 1, "right": 0, "block_size": 64, "random_blocks": 3, "seed": 5, "global_tokens": 70},
]


def masks(length):
    """Masks of a batch of two; biases that broadcast in different ways ask for gradients."""
    generator = torch.Generator().manual_seed(7)
    valid = torch.rand(2, length, generator=generator) < 0.6
    valid[1] = torch.arange(length) < length // 3  # many tiles see nothing but padding
    allowed = torch.rand(2, 1, length, length, generator=generator) < 0.7
    first, second = tensors((6, 1, length), (2, 1, length, length), seed=11)
    return [
        Mask(),
        Mask(causal=True, key_valid=valid),
        Mask(key_valid=valid),
        Mask(window=(30, None), query_offset=64),
        Mask(causal=True, allowed=allowed),
        Mask(bias=first),
        Mask(bias=second, causal=True),
    ]


@pytest.mark.parametrize("entries", [2000, 2**20])  # how many tiles are computed at once
@pytest.mark.parametrize("options", MANY)
def test_blocked_gradients_equal_eager(options, entries, monkeypatch):
    monkeypatch.setattr("attnreg_sparse_window.layout.ENTRIES", entries)
    for mask in masks(333):
        grads = []
        for implementation in ("blocked", "eager"):
            attn = build(implementation=implementation, **options)
            call = tensors((2, 6, 333, 8), (2, 2, 333, 8), (2, 2, 333, 6))
            inputs = [*call, *([] if mask.bias is None else [mask.bias])]
            output = attn(*call, mask)
            grads.append([output, *torch.autograd.grad(output.sin().sum(), inputs)])
        for mine, theirs in zip(*grads, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("layout", ["heads first", "positions first", "every second feature"])
def test_any_strides(layout):
    shapes = ((2, 6, 300, 8), (2, 2, 300, 8), (2, 2, 300, 6))
    call = [t.detach() for t in tensors(*shapes)]
    if layout == "positions first":
        strided = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in call]
    elif layout == "every second feature":
        strided = [t.repeat_interleave(2, dim=3)[..., ::2] for t in call]
    else:
        strided = call
    for options in MANY:
        expected = build(implementation="eager", **options)(*call)
        torch.testing.assert_close(build(implementation="blocked", **options)(*strided), expected)


@pytest.mark.parametrize("options", BLOCKED)
def test_the_gradient_has_a_gradient(options):
    attn = attnreg.create(
        "sparse_window",
        num_heads=2,
        head_dim=3,
        num_kv_heads=1,
        implementation="blocked",
        **options,
    )
    call = tensors((1, 2, 9, 3), (1, 1, 9, 3), (1, 1, 9, 3), (2, 1, 9))
    assert torch.autograd.gradgradcheck(
        lambda query, key, value, bias: attn(query, key, value, Mask(bias=bias, causal=True)), call
    )


@pytest.mark.parametrize(
    ("options", "extra"),
    [({}, 1.4), ({"global_tokens": 1}, 0.01), ({"random_blocks": 1, "block_size": 4}, 0.01)],
)
def test_copies_are_not_kept(options, extra):
    """Beyond the inputs, a window that is read in place keeps its output and little else."""
    kept = {}
    attn = build(
        torch.float32, num_heads=2, num_kv_heads=2, value_dim=8, left=9, right=9, **options
    )
    call = tensors(*[(1, 2, 4000, 8)] * 3, dtype=torch.float32)

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = attn(*call)
    for tensor in call:
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    assert sum(kept.values()) <= extra * output.untyped_storage().nbytes()


def test_a_second_backward_pass_finds_the_same():
    attn = build(torch.float64, num_heads=2, num_kv_heads=2, value_dim=8, left=9, right=9)
    call = tensors(*[(1, 2, 200, 8)] * 3)
    output = attn(*call)
    first = torch.autograd.grad(output.sum(), call, retain_graph=True)
    second = torch.autograd.grad(output.sum(), call)
    for mine, theirs in zip(first, second, strict=True):
        torch.testing.assert_close(mine, theirs)


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
