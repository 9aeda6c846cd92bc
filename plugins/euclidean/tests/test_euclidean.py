"""What only Euclidean attention promises."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import attnreg
from attnreg import Mask
from attnreg.conformance import pytest_suite
from attnreg_euclidean import VARIANT
from attnreg_euclidean.reference import reference

SIZES = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}
LIMITS = {torch.float32: 1.9e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

test_conformance = pytest_suite(VARIANT)


def build(dtype=torch.float64, **options):
    """Build the module with parameters from a fixed seed."""
    torch.manual_seed(0)
    return attnreg.create("euclidean", **{**SIZES, **options}).to(dtype)


def tensors(*shapes, dtype=torch.float64, seed=1):
    """Normal numbers from a fixed seed, which ask for gradients."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return [t.to(dtype).requires_grad_() for t in drawn]


def error(attn, call, mask, visible, bias=None, offset=0):
    """Relative RMS difference from the float64 reference on the same numbers."""
    exact = copy.deepcopy(attn).double().module
    arrays = [t.detach().double().numpy() for t in call]
    queries, keys = (np.arange(t.shape[2]) for t in call[:2])
    expected = torch.from_numpy(reference(exact, *arrays, visible, bias, queries + offset, keys))
    with torch.no_grad():
        found = attn(*call, mask)
    return float((found.double() - expected).norm() / expected.norm())


SETTINGS = [{}, {"squared": False, "tau": 2.0}, {"normalize_inputs": True, "tau": 0.5}]


both_distances = pytest.mark.parametrize("squared", [True, False])


def distances(query, key, squared):
    """Distances from the definition, in float64."""
    key = key.double().repeat_interleave(3, 1)
    squares = (query.double()[:, :, :, None] - key[:, :, None]).square().sum(-1)
    return squares if squared else squares.sqrt()


@both_distances
def test_moving_and_turning_both_changes_nothing(squared):
    attn = build(squared=squared)
    query, key, value = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6))
    generator = torch.Generator().manual_seed(3)
    shift = 3.0 * torch.randn(8, generator=generator, dtype=torch.float64)
    turn, _ = torch.linalg.qr(torch.randn(8, 8, generator=generator, dtype=torch.float64))
    expected = attn(query, key, value)
    torch.testing.assert_close(attn(query + shift, key + shift, value), expected)
    torch.testing.assert_close(attn(query @ turn, key @ turn, value), expected)
    assert not torch.allclose(attn(query + shift, key, value), expected)


@both_distances
def test_the_option_says_which_distance(squared):
    attn = build(squared=squared, tau=2.5)
    query, key = tensors((2, 6, 5, 8), (2, 2, 9, 8))
    expected = (-distances(query, key, squared) / 2.5).softmax(-1)
    torch.testing.assert_close(attn.weights(query, key), expected)


@both_distances
def test_the_gradient_is_zero_where_query_and_key_meet(squared):
    attn = build(torch.float32, num_kv_heads=6, squared=squared)
    (one,) = tensors((2, 6, 1, 8), dtype=torch.float32)
    query = one.detach().expand(-1, -1, 9, -1).clone().requires_grad_()
    key = one.detach().expand(-1, -1, 9, -1).clone().requires_grad_()
    (value,) = tensors((2, 6, 9, 6), dtype=torch.float32, seed=2)
    attn(query, key, value).square().sum().backward()
    for tensor in (query, key):
        assert torch.isfinite(tensor.grad).all()
        torch.testing.assert_close(tensor.grad, torch.zeros_like(tensor), rtol=0, atol=2e-5)


@both_distances
def test_queries_among_the_keys_have_finite_gradients(squared):
    attn = build(squared=squared, num_kv_heads=6)
    (both,) = tensors((2, 6, 9, 8))
    (value,) = tensors((2, 6, 9, 6), seed=2)
    (grad,) = torch.autograd.grad(attn(both, both, value).square().sum(), both)
    assert torch.isfinite(grad).all()
    assert grad.any()


@both_distances
@pytest.mark.parametrize("entry", [45.0, 300.0])
def test_half_precision_does_not_overflow(entry, squared):
    """64 entries of 45 already have a square, 129600, that float16 cannot hold."""
    for implementation in ("fused", "eager") if squared else ("eager",):
        attn = attnreg.create(
            "euclidean",
            num_heads=2,
            head_dim=64,
            tau=16.0,
            squared=squared,
            implementation=implementation,
        ).half()
        # Distances of order 16 between vectors that are 360 or 2400 long.
        drawn = tensors(*[(1, 2, 7, 64)] * 3, dtype=torch.float16)
        call = [(t.detach() + entry).requires_grad_() for t in drawn[:2]] + [drawn[2]]
        output = attn(*call)
        output.sum().backward()
        assert torch.isfinite(output).all()
        assert all(torch.isfinite(t.grad).all() for t in call)
        if entry < 100:
            visible = np.ones((1, 2, 7, 7), dtype=bool)
            assert error(attn, call, Mask(), visible) < LIMITS[torch.float16]


def test_opposite_vectors_in_half_precision():
    attn = attnreg.create("euclidean", num_heads=1, head_dim=64, dtype=torch.float16)
    far = torch.full((1, 1, 1, 64), 300.0, dtype=torch.float16)
    key = torch.cat([far, -far], dim=2).requires_grad_()
    query = far.clone().requires_grad_()
    attn(query, key, key).sum().backward()
    assert attn.weights(query, key).tolist() == [[[[1.0, 0.0]]]]
    assert torch.isfinite(query.grad).all()
    assert torch.isfinite(key.grad).all()


def test_tau_is_one_number_per_head():
    fixed, learnt = build(tau=3.0), build(tau=3.0, learnable=True)
    assert not list(fixed.parameters())
    assert [name for name, _ in learnt.module.named_parameters()] == ["log_tau"]
    torch.testing.assert_close(learnt.log_tau.detach().exp(), torch.full((6,), 3.0).double())
    taus = torch.tensor([0.5, 1, 2, 4, 8, 16]).double()
    with torch.no_grad():
        learnt.log_tau.copy_(taus.log())
    query, key, value = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6))
    expected = (-distances(query, key, True) / taus[:, None, None]).softmax(-1)
    torch.testing.assert_close(learnt.weights(query, key), expected)
    for head in range(6):
        (grad,) = torch.autograd.grad(
            learnt(query, key, value)[:, head].square().sum(), learnt.log_tau
        )
        assert grad.nonzero().flatten().tolist() == [head]


@both_distances
def test_normalised_inputs(squared):
    attn = build(normalize_inputs=True, squared=squared)
    call = [t.detach() for t in tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6))]
    expected = attn(*call)
    torch.testing.assert_close(attn(7 * call[0], 0.01 * call[1], call[2]), expected)
    call[0][:, :, 1], call[1][:, :, 3] = 0.0, 0.0  # a zero vector stays where it is
    weights = attn.weights(*call[:2])
    others = [j for j in range(9) if j != 3]
    torch.testing.assert_close(weights[:, :, 1, others], weights[:, :, 1, :1].expand(-1, -1, 8))
    assert (weights[:, :, 1, 3] > weights[:, :, 1, 0]).all()
    call = [t.requires_grad_() for t in call]
    attn(*call).sum().backward()
    assert not call[0].grad[:, :, 1].any()
    assert not call[1].grad[:, :, 3].any()


def test_tau_of_twice_the_root_weighs_as_scaled_dot_products():
    """Where all keys are of one length, |q - k|^2 / (2 sqrt(D)) is q.k / sqrt(D) and a constant."""
    attn = build(tau=2 * 8**0.5)
    query, key, _ = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6))
    key = 3 * torch.nn.functional.normalize(key, dim=-1)
    expected = (query @ key.repeat_interleave(3, 1).mT / 8**0.5).softmax(-1)
    torch.testing.assert_close(attn.weights(query, key), expected)


def test_fused_is_for_squares_alone():
    call = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6), dtype=torch.float32)
    assert build(torch.float32).explain(*call).chosen == "fused"
    plain = build(torch.float32, squared=False)
    explanation = plain.explain(*call)
    assert explanation.chosen == "eager"
    assert explanation.refused["fused"] == [
        "squared=False: a distance that is not squared is no dot product"
    ]
    forced = build(torch.float32, squared=False, implementation="fused")
    with pytest.raises(attnreg.UnsupportedFeature, match="is no dot product"):
        forced(*call)


@pytest.mark.parametrize("options", [{}, {"normalize_inputs": True, "learnable": True}])
def test_fused_equals_eager(options):
    fused, eager = (
        build(torch.float32, implementation=one, **options) for one in ("fused", "eager")
    )
    call = tensors((2, 6, 33, 8), (2, 2, 33, 8), (2, 2, 33, 6), dtype=torch.float32)
    wanted = [*call, *([fused.log_tau, eager.log_tau] if options else [])]
    outputs = [attn(*call, Mask(causal=True)) for attn in (fused, eager)]
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-6)
    grads = [torch.autograd.grad(o.square().sum(), wanted, allow_unused=True) for o in outputs]
    for mine, theirs in zip(grads[0][:3], grads[1][:3], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    if options:
        torch.testing.assert_close(grads[0][3], grads[1][4], rtol=1e-4, atol=1e-5)


def test_the_names_in_the_state_dict():
    assert sorted(build().state_dict()) == ["module.log_tau"]
