"""What only scaled dot-product attention promises."""

from __future__ import annotations

import pytest
import torch

import attnreg
from attnreg import Mask
from attnreg.conformance import pytest_suite
from attnreg_scaled_dot_product import VARIANT

SIZES = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}
LIMITS = {torch.float32: 1.9e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

test_conformance = pytest_suite(VARIANT)


def build(dtype=torch.float64, **options):
    """Build the module with parameters from a fixed seed."""
    torch.manual_seed(0)
    return attnreg.create("scaled_dot_product", **{**SIZES, **options}).to(dtype)


def tensors(*shapes, dtype=torch.float64, seed=1):
    """Normal numbers from a fixed seed, which ask for gradients."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return [t.to(dtype).requires_grad_() for t in drawn]


IMPLEMENTATIONS = ("fused", "eager")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_a_temperature_near_zero_picks_the_largest_score(dtype, implementation):
    attn = build(dtype, temperature=1e-6, implementation=implementation)
    query, key, value = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6), dtype=dtype)
    with torch.no_grad():
        output, weights = attn(query, key, value), attn.weights(query, key)
    best = (query.double() @ key.double().repeat_interleave(3, 1).mT).argmax(-1)
    one_hot = torch.nn.functional.one_hot(best, 9)
    assert torch.equal(weights, one_hot.to(weights.dtype))
    expected = one_hot.to(dtype) @ value.repeat_interleave(3, 1)
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gradients_stay_finite_near_temperature_zero(dtype):
    for implementation in IMPLEMENTATIONS:
        attn = build(dtype, temperature=1e-6, implementation=implementation)
        call = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6), dtype=dtype)
        attn(*call).sum().backward()
        assert all(torch.isfinite(t.grad).all() for t in call)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_high_temperature_is_uniform(implementation):
    attn = build(temperature=1e12, implementation=implementation)
    call = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6))
    with torch.no_grad():
        mean = call[2].repeat_interleave(3, 1).mean(2, keepdim=True).expand(-1, -1, 5, -1)
        torch.testing.assert_close(attn(*call), mean)
        ninths = torch.full((2, 6, 5, 9), 1 / 9, dtype=torch.float64)
        torch.testing.assert_close(attn.weights(*call[:2]), ninths)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_temperature_divides_after_scale_and_before_bias(implementation):
    attn = build(temperature=0.5, scale=0.25, implementation=implementation)
    query, key, value = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6))
    (bias,) = tensors((6, 5, 9), seed=2)
    with torch.no_grad():
        found = attn(query, key, value, Mask(bias=bias.detach()))
        key, value = (t.repeat_interleave(3, 1) for t in (key, value))
        expected = (query @ key.mT * 0.25 / 0.5 + bias).softmax(-1) @ value
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan"), True, "1"])
def test_temperatures_that_are_none(value):
    with pytest.raises(attnreg.OptionError, match="temperature must be a number, at least 1e-30"):
        build(temperature=value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("causal", [False, True])
def test_equals_torch(causal, implementation, dtype):
    attn = build(dtype, implementation=implementation)
    call = tensors((2, 6, 33, 8), (2, 2, 33, 8), (2, 2, 33, 6), dtype=dtype)
    output = attn(*call, Mask(causal=causal))
    wide = [t.detach().double().requires_grad_() for t in call]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *wide, is_causal=causal, enable_gqa=True
    )
    assert (output - expected).norm() < LIMITS[dtype] * expected.norm()
    mine = torch.autograd.grad(output.sum(), call)
    theirs = torch.autograd.grad(expected.sum(), wide)
    for a, b in zip(mine, theirs, strict=True):
        assert (a - b).norm() < 6 * LIMITS[dtype] * b.norm()


def test_no_parameters_and_no_state():
    assert not list(build().parameters())
    assert not build().state_dict()


def test_the_names_in_the_state_dict():
    assert sorted(build().state_dict()) == []
