"""Torch's fused kernels without a mask tensor: padding cut off, decoding steps, zeroed padding."""

from __future__ import annotations

import pytest
import torch

import attnreg
from attnreg import Mask
from attnreg.families import fused
from attnreg.functional import attend_to_nothing, unit_vectors, zero_where
from tests.test_families import LargestTensor

LENGTH = 7
FORWARD_MODE = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
"""Torch's forward mode itself uses it."""

VALID = {
    "right": [[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0, 0]],
    "left": [[0, 0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1]],
    "both": [[0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1]],
    "alike": [[0, 1, 1, 1, 1, 0, 0]] * 3,
    "one empty": [[0] * 7, [1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1]],
    "all empty": [[0] * 7] * 3,
    "gaps": [[1, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [0, 1, 0, 1, 0, 1, 0]],
}


@pytest.fixture
def _cut_short(monkeypatch):
    monkeypatch.setattr(fused, "CUT_FROM", 1)


def tensors(dtype=torch.float32, batch=3, heads=6, kv_heads=2, queries=LENGTH, value_dim=6):
    generator = torch.Generator().manual_seed(3)
    sizes = ((heads, queries, 8), (kv_heads, LENGTH, 8), (kv_heads, LENGTH, value_dim))
    return [
        torch.randn(batch, *size, generator=generator, dtype=torch.float64)
        .to(dtype)
        .requires_grad_()
        for size in sizes
    ]


def both(mask, inputs):
    """Output and gradients of fused and eager, on the same inputs."""
    found = []
    for implementation in ("fused", "eager"):
        attn = attnreg.create(
            "scaled_dot_product",
            num_heads=6,
            head_dim=8,
            num_kv_heads=2,
            value_dim=6,
            implementation=implementation,
        )
        output = attn(*inputs, mask)
        weight = torch.linspace(-1, 1, output.numel()).reshape(output.shape).to(output)
        found.append([output, *torch.autograd.grad((output * weight).sum(), inputs)])
    return zip(*found, strict=True)


@pytest.mark.usefixtures("_cut_short")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", VALID)
def test_cut_padding_equals_masked_padding(name, causal):
    mask = Mask(causal=causal, key_valid=torch.tensor(VALID[name], dtype=torch.bool))
    for mine, plain in both(mask, tensors()):
        torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("_cut_short")
@pytest.mark.parametrize("queries", [1, 5, 9])
def test_cut_padding_with_other_queries(queries):
    mask = Mask(key_valid=torch.tensor(VALID["both"], dtype=torch.bool))
    for mine, plain in both(mask, tensors(queries=queries)):
        torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-6)
    offset = mask.replace(causal=True)  # not square: strips with a mask
    for mine, plain in both(offset, tensors(queries=queries)):
        torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_long_padding_needs_no_mask(causal):
    lengths, length = [520, 600], 600
    mask = Mask.from_lengths(lengths, length) & Mask(causal=causal)
    attn = attnreg.create("scaled_dot_product", num_heads=1, head_dim=8)
    inputs = [torch.randn(2, 1, length, 8) for _ in range(3)]
    with LargestTensor() as counted:
        attn(*inputs, mask)
    assert counted.largest <= 2 * length * 8, "a mask of queries by keys was built"


def test_a_step_that_sees_every_key_builds_no_mask():
    attn = attnreg.create("scaled_dot_product", num_heads=2, head_dim=8).eval()
    query, key, value = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 65, 8), torch.randn(1, 2, 65, 8)
    with LargestTensor() as counted:
        causal = attn(query, key, value, Mask(causal=True))
    assert counted.largest <= query.numel()
    assert torch.equal(causal, attn(query, key, value))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_zero_where_clears_anything(dtype):
    x = torch.randn(2, 3, 5, 7).to(dtype)
    x[0, 0], x[1, 2, 0, 0] = torch.nan, torch.inf
    hidden = torch.zeros(2, 1, 5, 1, dtype=torch.bool)
    hidden[0], hidden[1, :, 0] = True, True
    for given in (x, x.transpose(1, 2).contiguous().transpose(1, 2)):
        assert torch.equal(zero_where(given, hidden), x.masked_fill(hidden, 0.0))


@FORWARD_MODE
def test_both_are_differentiable_in_every_way():
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    hidden = torch.rand(2, 3, 1) > 0.5
    for function in (unit_vectors, lambda x: zero_where(x, hidden)):
        assert torch.autograd.gradcheck(function, (x,), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, (x,))
        jacobian = torch.func.vmap(torch.func.jacrev(function))(x.unsqueeze(0))
        assert torch.allclose(jacobian[0], torch.autograd.functional.jacobian(function, x))


@FORWARD_MODE
def test_a_tangent_without_a_gradient_is_not_lost():
    x, tangent = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        moved = torch.autograd.forward_ad.unpack_dual(zero_where(dual, torch.tensor(False))).tangent
    assert torch.equal(moved, tangent)


def test_extreme_vectors_have_directions():
    x = torch.tensor([[0.0, 0.0], [1e-30, 2e-30], [1e30, 3e30], [3.0, 4.0]], requires_grad=True)
    unit = unit_vectors(x)
    root = torch.tensor([2.0, 5.0, 10.0]).sqrt()
    expected = torch.stack(
        [
            torch.zeros(2),
            torch.tensor([1.0, 2.0]) / root[1],
            torch.tensor([1.0, 3.0]) / root[2],
            torch.tensor([0.6, 0.8]),
        ]
    )
    torch.testing.assert_close(unit, expected)
    unit[:, 0].sum().backward()
    assert torch.equal(x.grad[0], torch.zeros(2))
    torch.testing.assert_close(x.grad[3], torch.tensor([0.128, -0.096]))
    # 1 / norm of a subnormal vector is out of range: a huge gradient, but no NaN.
    tiny = torch.tensor([[1e-39, 0.0, 0.0], [3.0, 4.0, 0.0]], requires_grad=True)
    unit_vectors(tiny).sum().backward()
    assert not tiny.grad.isnan().any()
    # No vector is rounded otherwise because of another.
    assert torch.equal(unit_vectors(x[3:]), unit[3:])


def test_nothing_gives_zeros_of_the_graph():
    query, key, value = tensors(batch=2)
    output = attend_to_nothing(query, key, value)
    assert torch.equal(output, torch.zeros(2, 6, LENGTH, 6))
    for grad in torch.autograd.grad(output.sum(), (query, key, value)):
        assert not grad.any()
