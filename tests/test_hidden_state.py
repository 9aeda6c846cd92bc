"""What a fast implementation reads again in its backward pass, and what it has no rule for."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual

import attnreg
from attnreg import Mask

NAMES = attnreg.list_variants()
BIASED = [n for n in NAMES if attnreg.get_variant(n).capabilities.bias]
PADDED = [n for n in NAMES if attnreg.get_variant(n).capabilities.key_valid]
RANDOM = {"block_size": 4, "left": 1, "right": 1, "random_blocks": 2}


def build(name, **options):
    torch.manual_seed(0)
    return attnreg.create(name, num_heads=2, head_dim=4, max_length=70, **options).double()


def inputs(length=70):
    torch.manual_seed(1)
    return [torch.randn(2, 2, length, 4, dtype=torch.float64).requires_grad_() for _ in range(3)]


def small_tiles(attn):
    """Let eager take its tiled path too."""
    attn.module.tile_elements = 2**9
    return attn


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("implementation", ["auto", "eager"])
def test_a_mask_that_changes_before_the_backward_pass_is_noticed(name, implementation):
    attn = small_tiles(build(name, implementation=implementation))
    valid = torch.ones(2, 70, dtype=torch.bool)
    valid[1, 50:] = False
    call = inputs()
    expected = torch.autograd.grad(attn(*call, Mask(key_valid=valid.clone())).sum(), call)
    output = attn(*call, Mask(key_valid=valid))
    valid[0, 3] = False  # as a loader does that fills one buffer again and again
    with contextlib.suppress(RuntimeError):  # torch's, that it was modified
        found = torch.autograd.grad(output.sum(), call)
        for mine, theirs in zip(found, expected, strict=True):  # the mask was not needed again
            torch.testing.assert_close(mine, theirs)


def test_what_was_drawn_counts_for_the_gradient():
    attn, other = build("sparse_window", seed=1, **RANDOM), build("sparse_window", seed=2, **RANDOM)
    call = inputs()
    expected = torch.autograd.grad(attn(*call).square().sum(), call)
    output = attn(*call).square().sum()
    attn.load_state_dict(other.state_dict())
    for mine, theirs in zip(torch.autograd.grad(output, call), expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    swapped = {"module.seed": torch.tensor(1)}
    output = torch.func.functional_call(attn, swapped, tuple(call)).square().sum()
    for mine, theirs in zip(torch.autograd.grad(output, call), expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_kept_where_no_gradient_is_wanted(name):
    attn, kept = small_tiles(build(name)), []
    with torch.no_grad(), torch.autograd.graph.saved_tensors_hooks(kept.append, lambda t: t):
        attn(*inputs())
    assert not kept


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, in jvp
@pytest.mark.parametrize("name", BIASED)
def test_transforms_of_a_bias(name):
    attn = small_tiles(build(name))
    call = [t.detach() for t in inputs()]
    bias = torch.randn(70, 70, dtype=torch.float64)

    def run(bias):
        return attn(*call, Mask(bias=bias))

    tracked = bias.clone().requires_grad_()
    (expected,) = torch.autograd.grad(run(tracked).sin().sum(), tracked)
    found = torch.func.grad(lambda bias: run(bias).sin().sum())(bias)
    torch.testing.assert_close(found, expected)
    both = torch.func.vmap(run)(torch.stack([bias, -bias]))
    torch.testing.assert_close(both[1], run(-bias))
    tangent = torch.randn_like(bias)
    _, forward = torch.func.jvp(lambda bias: run(bias).sin().sum(), (bias,), (tangent,))
    torch.testing.assert_close(forward, (expected * tangent).sum())
    with dual_level():
        dual = unpack_dual(run(make_dual(bias, tangent)).sin().sum()).tangent
    torch.testing.assert_close(dual, forward)


@pytest.mark.parametrize("name", ["additive", "cosine"])
def test_forward_mode_derivatives_of_parameters(name):
    attn = small_tiles(build(name))
    call = tuple(t.detach() for t in inputs())
    parameters = {n: p.detach() for n, p in attn.named_parameters()}
    tangents = {n: torch.randn_like(p) for n, p in parameters.items()}
    total = torch.func.functional_call(attn, dict(attn.named_parameters()), call).sin().sum()
    grads = torch.autograd.grad(total, list(attn.parameters()))
    with dual_level():
        duals = {n: make_dual(p, tangents[n]) for n, p in parameters.items()}
        forward = unpack_dual(torch.func.functional_call(attn, duals, call).sin().sum()).tangent
    backward = sum((g * t).sum() for g, t in zip(grads, tangents.values(), strict=True))
    torch.testing.assert_close(forward, backward)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_many_gradients_at_once(name, dtype):
    attn = small_tiles(build(name)).to(dtype)
    call = [t.detach().to(dtype).requires_grad_() for t in inputs()]
    output = attn(*call)
    many = torch.randn(3, *output.shape, dtype=dtype)
    found = torch.autograd.grad(output, call, many, is_grads_batched=True, retain_graph=True)
    for index, grad in enumerate(many):
        each = torch.autograd.grad(output, call, grad, retain_graph=True)
        for mine, theirs in zip(found, each, strict=True):
            torch.testing.assert_close(mine[index], theirs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", PADDED)
def test_an_empty_batch_with_padding(name, causal):
    able = attnreg.get_variant(name).capabilities
    if causal and not able.causal:
        return
    attn = attnreg.create(name, num_heads=2, head_dim=4, max_length=600)
    query = torch.randn(0, 2, 600, 4)
    mask = Mask(causal=causal, key_valid=torch.ones(0, 600, dtype=torch.bool))
    assert attn(query, query, query, mask).shape == (0, 2, 600, 4)


def test_gradients_are_found_from_what_is_not_rounded():
    """Of values with a common offset, a rounded output would take the digits that matter."""
    for name in ("linear", "performer", "additive", "cosine", "euclidean", "linformer"):
        for implementation in ("auto", "eager"):
            torch.manual_seed(0)
            options = {"features": 16, "seed": 0} if name == "performer" else {}
            attn = attnreg.create(
                name,
                num_heads=2,
                head_dim=8,
                max_length=200,
                implementation=implementation,
                **options,
            )
            attn.module.tile_elements = 2**12
            query, key, value, grad = torch.randn(4, 1, 2, 200, 8).bfloat16()
            value, grad = 1 + 0.1 * value, grad + 1
            found = []
            for dtype in (torch.bfloat16, torch.float64):
                leaf = query.to(dtype).requires_grad_()
                output = attn.to(dtype)(leaf, key.to(dtype), value.to(dtype))
                found += torch.autograd.grad(output, leaf, grad.to(dtype))
            error = (found[0].double() - found[1]).abs().max() / found[1].abs().max()
            assert error < 0.02, (name, implementation, error)


@pytest.mark.parametrize("feature_map", ["elu+1", "relu", "identity", "exp"])
def test_a_future_key_that_overflows_stays_there(feature_map):
    attn = attnreg.create("linear", num_heads=1, head_dim=8, feature_map=feature_map)
    torch.manual_seed(0)
    for length in (4, 150):
        query, key, value = torch.randn(3, 1, 1, length, 8)
        expected = attn(query, key, value, Mask(causal=True))
        key[:, :, -1], value[:, :, -1] = 1.0, 3e38
        found = attn(query, key, value, Mask(causal=True))
        assert torch.equal(found[:, :, :-1], expected[:, :, :-1])


@pytest.mark.parametrize(("kernel", "size"), [("softmax", 20.0), ("relu", 1e-12)])
def test_gradients_of_small_normalisers_are_finite(kernel, size):
    torch.manual_seed(0)
    attn = attnreg.create("performer", num_heads=1, head_dim=16, features=32, seed=1, kernel=kernel)
    query, key, value = (*(size * torch.randn(2, 1, 1, 16, 16)).unbind(), torch.randn(1, 1, 16, 16))
    call = [query.requires_grad_(), key.requires_grad_(), value]
    for graph in (False, True):
        output = attn(*call, Mask(causal=True)).sum()
        for grad in torch.autograd.grad(output, call[:2], create_graph=graph):
            assert torch.isfinite(grad).all()


def test_lazily_negated_keys_beside_padding():
    query, key, value = torch.randn(3, 2, 2, 9, 4)
    negated = torch.complex(torch.zeros_like(key), -key).conj().imag
    assert negated.is_neg()
    mask = Mask.from_lengths([9, 4])
    attn = attnreg.create("scaled_dot_product", num_heads=2, head_dim=4)
    torch.testing.assert_close(attn(query, negated, value, mask), attn(query, key, value, mask))
