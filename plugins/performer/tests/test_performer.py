"""What only Performer promises."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode  # torch has no public way to count
from torch.utils._pytree import tree_leaves

import attnreg
from attnreg import Mask
from attnreg.conformance import pytest_suite
from attnreg_performer import VARIANT

SIZES = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}
SETUP = {**SIZES, "features": 24}

test_conformance = pytest_suite(VARIANT)


def build(dtype=torch.float64, **options):
    """Build the module with parameters from a fixed seed."""
    torch.manual_seed(0)
    return attnreg.create("performer", **{**SETUP, **options}).to(dtype)


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


def features(attn, x):
    """Return phi(x) in whole, from the scaled form that keeps it in range."""
    values, log_scale = attn.module.key_features(x)
    phi = values if log_scale is None else values * log_scale.exp()[..., None]
    return phi / attn.features**0.5 if attn.kernel == "softmax" else phi


def kernels(features_count, seeds, **options):
    """Estimates of exp(scale q.k) by each seed, and the kernel itself."""
    query, key = (0.3 * t.detach() for t in tensors((1, 1, 5, 8), (1, 1, 7, 8)))
    found = []
    for seed in seeds:
        attn = build(num_heads=1, num_kv_heads=1, features=features_count, seed=seed, **options)
        found.append(features(attn, query) @ features(attn, key).mT)
    return torch.stack(found), (attn.scale * query @ key.mT).exp()


@pytest.mark.parametrize("orthogonal", [True, False])
def test_the_kernel_is_right_on_average(orthogonal):
    found, exact = kernels(64, range(400), orthogonal=orthogonal)
    deviation = (found.mean(0) - exact).abs()
    spread = found.std(0) / 400**0.5
    assert (deviation < 5 * spread).all()
    assert (spread < 0.05 * exact).all()


@pytest.mark.parametrize("orthogonal", [True, False])
def test_the_squared_error_falls_as_one_over_features(orthogonal):
    errors = []
    for count in (16, 64, 256):
        found, exact = kernels(count, range(100), orthogonal=orthogonal)
        errors.append(((found - exact) / exact).square().mean().item())
    assert 2 < errors[0] / errors[1] < 8
    assert 2 < errors[1] / errors[2] < 8


def test_orthogonal_features_have_the_smaller_error():
    errors = [
        ((found - exact) / exact).square().mean().item()
        for found, exact in (kernels(16, range(400), orthogonal=kind) for kind in (True, False))
    ]
    assert errors[0] < errors[1]


def test_the_relu_kernel_by_hand():
    attn = build(kernel="relu", features=5)
    (x,) = tensors((1, 6, 3, 8))
    expected = torch.relu(8**-0.25 * x @ attn.projection.T) / 5**0.5
    torch.testing.assert_close(features(attn, x), expected)
    torch.testing.assert_close(attn.module.query_features(x), expected)


def test_rows_are_orthogonal_within_blocks():
    draws = build(features=20, seed=1).projection
    for start in (0, 8, 16):
        block = draws[start : start + 8]
        gram = block @ block.T
        off = gram - torch.diag(gram.diagonal())
        torch.testing.assert_close(off, torch.zeros_like(off), rtol=0, atol=1e-5)
    gram = build(features=20, seed=1, orthogonal=False).projection[:8]
    assert (gram @ gram.T).triu(1).abs().max() > 0.1


def test_directions_are_uniform_and_lengths_are_those_of_gaussian_vectors():
    """Without the sign correction QR prefers one sign, and the mean is far from 0."""
    draws = torch.stack([build(features=8, seed=seed).projection for seed in range(500)])
    assert draws[:, :, 0].mean(0).abs().max() < 5 / 500**0.5
    assert draws[:, 0].mean(0).abs().max() < 5 / 500**0.5
    assert draws.square().mean().item() == pytest.approx(1.0, abs=0.03)
    lengths = draws.square().sum(-1)  # chi-squared with 8 degrees: mean 8, variance 16
    assert lengths.mean().item() == pytest.approx(8.0, abs=0.3)
    assert lengths.var().item() == pytest.approx(16.0, abs=2.0)


def test_the_seed_says_which_features():
    first, again, other = (build(seed=seed).projection for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    state = torch.get_rng_state()
    build(seed=3)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    attnreg.create("performer", num_heads=1, head_dim=8, seed=3)
    assert torch.equal(torch.get_rng_state(), state)  # a seed leaves torch's generator alone
    attnreg.create("performer", num_heads=1, head_dim=8)
    assert not torch.equal(torch.get_rng_state(), state)


def test_features_change_only_by_redraw():
    attn = build(torch.float32, seed=3).train()
    call = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6), dtype=torch.float32)
    before = attn.projection.clone()
    for _ in range(3):
        attn(*call, Mask(causal=True)).sum().backward()
    attn.step(*(t[:, :, :1] for t in call))
    assert torch.equal(attn.projection, before)
    held = attn.projection
    attn.redraw(7)
    assert attn.projection is held  # in place
    assert torch.equal(held, build(torch.float32, seed=7).projection)
    attn.redraw()
    assert not torch.equal(held, build(torch.float32, seed=7).projection)
    attn.module.reset_parameters()
    assert torch.equal(held, before)
    assert not list(attn.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_features_of_half_inputs_are_computed_in_float32(dtype):
    attn = build(dtype, seed=0)
    (x,) = tensors((1, 6, 9, 8), dtype=dtype)
    wide = copy.deepcopy(attn).float().module  # the same rounded draws
    assert attn.module.query_features(x).dtype == torch.float32
    torch.testing.assert_close(attn.module.query_features(x), wide.query_features(x.float()))
    mine, theirs = attn.module.key_features(x), wide.key_features(x.float())
    torch.testing.assert_close(mine.values, theirs.values)
    torch.testing.assert_close(mine.log_scale, theirs.log_scale)


@pytest.mark.parametrize("causal", [False, True])
def test_items_and_heads_do_not_touch_each_other(causal):
    attn = build(torch.float32, num_kv_heads=6, seed=0)
    call = [t.detach() for t in tensors((2, 6, 70, 8), (2, 6, 70, 8), (2, 6, 70, 6))]
    call = [t.float() for t in call]
    mask = Mask(causal=causal)
    before = attn(*call, mask)
    others = torch.ones(2, 6, dtype=torch.bool)
    others[1, 3] = False
    for tensor in call:
        tensor[others] *= 5.0
    after = attn(*call, mask)
    assert torch.equal(before[1, 3], after[1, 3])
    assert not torch.equal(before[1, 2], after[1, 2])


@pytest.mark.parametrize("kernel", ["softmax", "relu"])
def test_the_causal_past_does_not_feel_the_future(kernel):
    """A stabiliser over the whole sequence would let large later keys erase earlier ones."""
    attn = build(torch.float32, kernel=kernel, seed=0)
    query, key, value = (
        t.detach()
        for t in tensors((1, 6, 150, 8), (1, 2, 150, 8), (1, 2, 150, 6), dtype=torch.float32)
    )
    before = attn(query, key, value, Mask(causal=True))[:, :, :75]
    key[:, :, 75:] *= 300.0
    value[:, :, 75:] *= 300.0
    call = [t.requires_grad_() for t in (query, key, value)]
    past = attn(*call, Mask(causal=True))[:, :, :75]
    assert torch.equal(past, before)
    past.square().sum().backward()
    for tensor in call:
        assert torch.isfinite(tensor.grad).all()
        assert not tensor.grad[:, :, 75:].any()


def test_decoding_carries_a_state_of_one_size():
    attn = build(seed=0)
    call = tensors((2, 6, 70, 8), (2, 2, 70, 8), (2, 2, 70, 6))
    expected, state, sizes = attn(*call, Mask(causal=True)), None, set()
    for first, last in ((0, 1), (1, 2), (2, 66), (66, 70)):
        output, state = attn.step(*(t[:, :, first:last] for t in call), state)
        torch.testing.assert_close(output, expected[:, :, first:last])
        sizes.add(tuple(tuple(t.shape) for t in state.tensors()))
    # K^T V, the normaliser, and the logarithm of their common scale.
    assert sizes == {((2, 6, 24, 6), (2, 6, 24), (2, 6))}


@pytest.mark.parametrize("causal", [False, True])
def test_nothing_is_quadratic(causal):
    attn = build(torch.float32, num_heads=2, num_kv_heads=2)
    seen = []
    for length in (512, 2048):
        call = tensors(*[(1, 2, length, 8)] * 2, (1, 2, length, 6), dtype=torch.float32)
        with Allocated() as count:
            attn(*call, Mask(causal=causal)).sum().backward()
        seen.append(count)
    assert seen[1].largest <= 4 * seen[0].largest
    assert seen[1].largest < 2048**2
    assert seen[1].total < 4.2 * seen[0].total


def test_a_negative_scale_is_refused():
    with pytest.raises(attnreg.OptionError, match="scale must be at least 0"):
        build(scale=-1.0)


def test_the_names_in_the_state_dict():
    assert sorted(build().state_dict()) == ["module.projection"]
