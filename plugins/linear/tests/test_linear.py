"""What only linear attention promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode  # torch has no public way to count
from torch.utils._pytree import tree_leaves

import attnreg
from attnreg import Mask
from attnreg.conformance import pytest_suite
from attnreg_linear import VARIANT

SIZES = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}
LIMITS = {torch.float32: 1.9e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

test_conformance = pytest_suite(VARIANT)


def build(dtype=torch.float64, **options):
    """Build the module with parameters from a fixed seed."""
    torch.manual_seed(0)
    return attnreg.create("linear", **{**SIZES, **options}).to(dtype)


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


SETTINGS = [
    {},
    {"feature_map": "relu"},
    {"feature_map": "exp"},
    {"feature_map": "exp", "normalize": False},
    {"feature_map": "identity"},
    {"feature_map": "elu+1", "normalize": False},
]


PHI = {
    "elu+1": lambda x: torch.nn.functional.elu(x) + 1,
    "relu": torch.relu,
    "exp": torch.exp,
    "identity": lambda x: x,
}
every_map = pytest.mark.parametrize("feature_map", PHI)


@every_map
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_explicit_kernel_matrix(feature_map, normalize, causal):
    attn = build(feature_map=feature_map, normalize=normalize)
    call = tensors((2, 6, 70, 8), (2, 2, 70, 8), (2, 2, 70, 6))  # more than a chunk
    phi = PHI[feature_map]
    kernel = phi(call[0]) @ phi(call[1]).repeat_interleave(3, 1).mT
    kernel = kernel.tril() if causal else kernel
    weights = (kernel / kernel.sum(-1, keepdim=True)).nan_to_num() if normalize else kernel
    expected = weights @ call[2].repeat_interleave(3, 1)
    mask = Mask(causal=causal)
    torch.testing.assert_close(attn(*call, mask), expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(attn.weights(*call[:2], mask), weights, rtol=1e-8, atol=1e-8)


def test_the_identity_is_not_normalised_unless_asked():
    assert [build(feature_map=name).normalize for name in PHI] == [True, True, True, False]
    assert build(feature_map="identity", normalize=True).normalize


def test_the_bare_product():
    attn = build(feature_map="identity")
    query, key, value = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6))
    state = (key.mT @ value).repeat_interleave(3, 1)  # K^T V first: (D, Dv)
    torch.testing.assert_close(attn(query, key, value), query @ state)
    torch.testing.assert_close(attn(-2 * query, key, value), -2 * query @ state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_small_features_do_not_cancel(dtype):
    phi = build(dtype).module.feature_map
    x = torch.tensor([-20.0, -8.0, -6.0, -1.0, 0.0, 0.5, 3.0], dtype=dtype)
    expected = [np.exp(min(v, 0)) + max(v, 0) for v in x.tolist()]
    assert phi(x).dtype == torch.float32
    assert phi(x).tolist() == pytest.approx(expected, rel=1e-6)


def test_the_feature_map_is_smooth_at_zero():
    x = torch.tensor([-1e3, -1.0, -0.0, 0.0, 1.0, 1e3], dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(build().module.feature_map(x).sum(), x)
    assert grad.tolist() == pytest.approx([0.0, np.exp(-1), 1.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_normaliser_of_zero_gives_zero(dtype, causal):
    attn = build(dtype, feature_map="relu")
    call = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6), dtype=dtype)
    key = (-call[1].detach().abs()).requires_grad_()  # relu leaves nothing of it
    output = attn(call[0], key, call[2], Mask(causal=causal))
    assert not output.any()
    output.sum().backward()
    for tensor in (call[0], key, call[2]):
        assert torch.isfinite(tensor.grad).all()
        assert not tensor.grad.any()
    assert not attn.weights(call[0], key, Mask(causal=causal)).any()


@pytest.mark.parametrize("causal", [False, True])
def test_nothing_is_quadratic(causal):
    attn = build(torch.float32, num_heads=2, num_kv_heads=2)
    seen = []
    for length in (512, 2048):
        call = tensors(*[(1, 2, length, 8)] * 2, (1, 2, length, 6), dtype=torch.float32)
        with Allocated() as count:
            attn(*call, Mask(causal=causal)).sum().backward()
        seen.append(count)
    short, long = seen
    assert long.largest <= 4 * short.largest
    assert long.largest < 2048**2  # not even one byte per pair
    assert long.total < 4.1 * short.total


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_exp_does_not_overflow_where_it_is_normalised(dtype, causal):
    attn = build(dtype, feature_map="exp")
    call = tensors((1, 6, 70, 8), (1, 2, 70, 8), (1, 2, 70, 6), dtype=dtype)
    large = [(t.detach() * 30).requires_grad_() for t in call[:2]]
    assert min(t.max().item() for t in large) > 89  # whose exp is no float32
    output = attn(*large, call[2], Mask(causal=causal))
    output.sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in (*large, call[2]))
    query, key, value = (t.detach().double() for t in (*large, call[2]))
    key, value = (t.repeat_interleave(3, 1) for t in (key, value))
    powers = (query[:, :, :, None] + key[:, :, None]).logsumexp(-1)
    if causal:
        powers = powers.masked_fill(torch.ones(70, 70).triu(1).bool(), -torch.inf)
    expected = powers.softmax(-1) @ value
    assert (output - expected).norm() < LIMITS[dtype] * expected.norm()


def test_the_causal_past_does_not_feel_the_future():
    attn = build(torch.float32, feature_map="exp")
    query, key, value = tensors((1, 6, 70, 8), (1, 2, 70, 8), (1, 2, 70, 6), dtype=torch.float32)
    before = attn(query, key, value, Mask(causal=True))[:, :, :40]
    key = torch.cat([key[:, :, :40], 300 * key[:, :, 40:]], dim=2)
    assert torch.equal(attn(query, key, value, Mask(causal=True))[:, :, :40], before)


@pytest.mark.parametrize("options", SETTINGS)
def test_the_decoding_state_has_one_size(options):
    attn = build(**options)
    call = tensors((2, 6, 70, 8), (2, 2, 70, 8), (2, 2, 70, 6))
    expected, state, sizes = attn(*call, Mask(causal=True)), None, set()
    for first, last in ((0, 1), (1, 2), (2, 66), (66, 70)):
        output, state = attn.step(*(t[:, :, first:last] for t in call), state)
        torch.testing.assert_close(output, expected[:, :, first:last], rtol=1e-8, atol=1e-8)
        sizes.add(tuple(tuple(t.shape) for t in state.tensors()))
    (shapes,) = sizes
    assert shapes[:2] == ((2, 6, 8, 6), (2, 6, 8))  # K^T V and the normaliser
    assert state.length == 70


def test_what_has_no_place_is_refused_with_the_reason():
    attn, call = build(), tensors((1, 6, 5, 8), (1, 2, 5, 8), (1, 2, 5, 6))
    for mask in (Mask(allowed=torch.ones(5, 5).bool()), Mask(window=(1, 1))):
        with pytest.raises(attnreg.UnsupportedMask, match=r"K\^T V is computed first"):
            attn(*call, mask)
    with pytest.raises(attnreg.UnsupportedOption, match="no scale"):
        build(scale=0.5)
    with pytest.raises(attnreg.UnsupportedOption, match="no dropout"):
        build(dropout=0.1)


def test_the_names_in_the_state_dict():
    assert sorted(build().state_dict()) == []
