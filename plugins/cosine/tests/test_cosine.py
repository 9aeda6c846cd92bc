"""What only cosine attention promises."""

from __future__ import annotations

import pytest
import torch

import attnreg
from attnreg.conformance import pytest_suite
from attnreg_cosine import VARIANT

SIZES = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}

test_conformance = pytest_suite(VARIANT)


def build(dtype=torch.float64, **options):
    """Build the module with parameters from a fixed seed."""
    torch.manual_seed(0)
    return attnreg.create("cosine", **{**SIZES, **options}).to(dtype)


def tensors(*shapes, dtype=torch.float64, seed=1):
    """Normal numbers from a fixed seed, which ask for gradients."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return [t.to(dtype).requires_grad_() for t in drawn]


IMPLEMENTATIONS = ("fused", "eager")


def cosines(query, key):
    """Cosines from the definition, in float64, for vectors that are not zero."""
    query, key = (t / t.norm(dim=-1, keepdim=True) for t in (query.double(), key.double()))
    return query @ key.repeat_interleave(3, 1).mT


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_lengths_do_not_matter(implementation):
    attn = build(implementation=implementation)
    query, key, value = (t.detach() for t in tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6)))
    lengths = torch.rand(2, 2, 9, 1, generator=torch.Generator().manual_seed(2)).double() + 0.01
    with torch.no_grad():
        expected = attn(query, key, value)
        torch.testing.assert_close(attn(7 * query, 0.01 * key, value), expected)
        torch.testing.assert_close(attn(query, lengths * key, value), expected)


def test_logits_are_cosines_times_the_scale_of_the_head():
    attn = build()
    with torch.no_grad():
        attn.head_scale.copy_(torch.tensor([0.5, 1, 2, 5, 50, 400]))
    query, key = tensors((2, 6, 5, 8), (2, 2, 9, 8))
    scale = torch.tensor([0.5, 1, 2, 5, 50, 100]).double()[:, None, None]  # 400 is clamped
    torch.testing.assert_close(attn.weights(query, key), (cosines(query, key) * scale).softmax(-1))


def test_the_scale_is_clamped_at_100_and_its_gradient_with_it():
    attn = build()
    with torch.no_grad():
        attn.head_scale.copy_(torch.tensor([99.0, 100, 101, 1e6, 10, -3]))
    call = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6))
    attn(*call).square().sum().backward()
    grad = attn.head_scale.grad
    assert torch.isfinite(grad).all()
    assert (grad != 0).tolist() == [True, True, False, False, True, True]
    for scale in (100.5, 0.0, -1.0):
        with pytest.raises(attnreg.OptionError, match="init_scale must be"):
            build(init_scale=scale)


def test_learnable_scale_is_a_parameter_else_a_buffer():
    learnt, fixed = build(init_scale=4.0), build(init_scale=4.0, learnable=False)
    assert [name for name, _ in learnt.module.named_parameters()] == ["head_scale"]
    assert [name for name, _ in fixed.module.named_buffers()] == ["head_scale"]
    assert not list(fixed.parameters())
    assert learnt.head_scale.tolist() == fixed.head_scale.tolist() == [4.0] * 6
    fixed.load_state_dict(learnt.state_dict(), strict=True)  # one may become the other
    with torch.no_grad():
        learnt.head_scale.zero_()
    learnt.module.reset_parameters()
    assert learnt.head_scale.tolist() == [4.0] * 6


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_zero_vectors(dtype, implementation):
    attn = build(dtype, implementation=implementation)
    call = [t.detach() for t in tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6), dtype=dtype)]
    call[0][:, :, 2] = 0.0
    call[1][:, :, 4] = 0.0
    call = [t.requires_grad_() for t in call]
    output = attn(*call)
    output.square().sum().backward()
    assert torch.isfinite(output).all()
    assert all(torch.isfinite(t.grad).all() for t in call)
    assert not call[0].grad[:, :, 2].any()
    assert not call[1].grad[:, :, 4].any()
    assert call[0].grad[:, :, 1].any()
    # A cosine of 0 with everything: the zero query weighs all keys alike.
    torch.testing.assert_close(attn.weights(*call[:2])[:, :, 2], torch.full((2, 6, 9), 1 / 9))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_tiny_and_huge_vectors(size, implementation):
    """Squares of these are 0 or infinite in float32."""
    attn = build(torch.float32, implementation=implementation)
    call = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6), dtype=torch.float32)
    expected = attn(*call)
    wanted = torch.autograd.grad(expected.square().sum(), call)
    sized = [(t.detach() * size).requires_grad_() for t in call[:2]]
    output = attn(*sized, call[2])
    torch.testing.assert_close(output, expected)
    found = torch.autograd.grad(output.square().sum(), sized)
    for mine, theirs in zip(found, wanted, strict=False):  # the gradient is of size 1 / size
        torch.testing.assert_close(mine.double() * size, theirs.double(), rtol=1e-4, atol=1e-4)


def test_half_precision_keeps_small_entries():
    """The square of 2e-4 is below the least float16."""
    attn = build(torch.float16, init_scale=2.0)
    query, key = tensors((1, 6, 5, 8), (1, 2, 9, 8), dtype=torch.float16)
    query, key = query.detach() * 2e-4, key.detach() * 2e-4
    expected = (2.0 * cosines(query, key)).softmax(-1)
    torch.testing.assert_close(attn.weights(query, key).double(), expected, rtol=1e-5, atol=1e-6)


def test_the_names_in_the_state_dict():
    assert sorted(build().state_dict()) == ["module.head_scale"]
