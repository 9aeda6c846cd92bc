"""What a family gives an author: dropout, lean memory, precision, empty rows, any shape."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode  # torch has no public way to count
from torch.utils._pytree import tree_leaves

import attnreg
from attnreg import Mask
from tests.configs import CASES, CONFIGS, IDS, make_inputs
from tests.test_variants import build

NAMES = attnreg.list_variants()


class LargestTensor(TorchDispatchMode):
    """Record the number of elements of the largest tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.largest = max(self.largest, leaf.untyped_storage().nbytes() // leaf.itemsize)
        return result


def largest(attn, length, mask, backward=True):
    torch.manual_seed(0)
    call = [torch.randn(1, 2, length, 8).requires_grad_(backward) for _ in range(3)]
    with LargestTensor() as count:
        output = attn(*call, mask)
        if backward:
            output.sum().backward()
    return count.largest


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["additive", "euclidean", "cosine", "scaled_dot_product"])
def test_scores_are_never_held_whole(name, causal):
    attn = attnreg.create(name, num_heads=2, head_dim=8, implementation="eager")
    attn.module.tile_elements = 2**12
    short, long = (largest(attn, length, Mask(causal=causal)) for length in (256, 1024))
    assert long <= 4 * short  # linear in L, where all scores would grow sixteen times
    assert long < 2 * 1024 * 1024 / 16


LINEAR = [(n, c) for n in ("linear", "performer", "sparse_window") for c in (False, True)]


@pytest.mark.parametrize(("name", "causal"), [*LINEAR, ("linformer", False)])
def test_linear_variants_hold_nothing_quadratic(name, causal):
    options = {"performer": {"features": 16}, "linformer": {"rank": 16}}.get(name, {})
    attn = attnreg.create(name, num_heads=2, head_dim=8, max_length=4096, **options)
    short, long = (largest(attn, length, Mask(causal=causal)) for length in (1024, 4096))
    assert long <= 4.5 * short  # linear, less what is spared at the ends; quadratic would be 16
    assert long < 4096 * 4096 / 8


DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available() + ["mps"] * torch.mps.is_available()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "index"), CASES, ids=IDS)
def test_every_device_at_hand(name, index, device):
    """Built there, called there, decoded there; the numbers are the CPU's."""
    attn = build(name, index).to(device, torch.float32)
    alone = copy.deepcopy(attn).cpu()
    call = [t.detach() for t in make_inputs(queries=9, keys=9, dtype=torch.float32)]
    moved = [t.to(device) for t in call]
    able = attn.variant.capabilities
    mask = Mask(causal=able.causal)
    torch.testing.assert_close(attn(*moved, mask).cpu(), alone(*call, mask), rtol=1e-4, atol=1e-5)
    if able.decode != "none":
        output, state = attn.step(*moved)
        assert {t.device.type for t in state.tensors()} == {device}
        torch.testing.assert_close(output, attn(*moved, mask), rtol=1e-4, atol=1e-5)
    packed = Mask.packed([4, 5])
    one = [t[:1] for t in moved]
    assert attn(*one, packed.replace(cu_seqlens=packed.cu_seqlens.to(device))).device.type == device


def test_sums_do_not_overflow_in_half_precision():
    for name in ("linear", "performer"):
        attn = attnreg.create(name, num_heads=1, head_dim=8, dtype=torch.float16)
        big = torch.full((1, 1, 4096, 8), 5.0, dtype=torch.float16)
        for causal in (False, True):
            output = attn(big, big, big, Mask(causal=causal))
            torch.testing.assert_close(output, big, rtol=2e-3, atol=0)


@pytest.mark.parametrize("tile", [2**20, 32])
@pytest.mark.parametrize("name", ["additive", "scaled_dot_product", "sparse_window"])
def test_dropout_is_unbiased_and_acts_on_weights(name, tile):
    torch.manual_seed(1)
    options = {"left": 9, "right": 9} if name == "sparse_window" else {}
    attn = attnreg.create(
        name, num_heads=2, head_dim=4, dropout=0.4, dtype=torch.float64, **options
    )
    attn.module.tile_elements = tile
    call = [torch.randn(1, 2, 9, 4, dtype=torch.float64) for _ in range(3)]
    expected = attn.eval()(*call)
    weights = attn.weights(*call[:2])
    attn.train()
    runs = torch.stack([attn(*call) for _ in range(1500)])
    error = (runs.mean(0) - expected).abs() / (runs.std(0) / 1500**0.5)
    assert error.max() < 6
    variance = (weights.square() @ call[2].square()) * 0.4 / 0.6
    assert 0.9 < (runs.var(0).sum() / variance.sum()) < 1.1  # of weights, not of outputs or logits
    torch.manual_seed(2)
    first = attn(*call)
    second = attn(*call)
    torch.manual_seed(2)
    assert torch.equal(attn(*call), first)
    assert not torch.equal(first, second)
    torch.testing.assert_close(attn.weights(*call[:2]), weights)  # before dropout


@pytest.mark.parametrize("tile", [2**20, 32])
def test_gradients_with_dropout(tile):
    """The backward pass drops what the forward pass dropped, at every order."""
    attn = attnreg.create("additive", num_heads=1, head_dim=3, dropout=0.5, dtype=torch.float64)
    attn.module.tile_elements = tile
    call = [torch.randn(1, 1, 9, 3, dtype=torch.float64).requires_grad_() for _ in range(3)]

    def run(*inputs):
        torch.manual_seed(3)
        return attn(*inputs)

    assert torch.autograd.gradcheck(run, call, fast_mode=True)
    if tile < 2**20:
        assert torch.autograd.gradgradcheck(run, call, fast_mode=True)


def test_training_advances_the_generator_and_evaluation_leaves_it():
    for name in NAMES:
        dropout = 0.5 if attnreg.get_variant(name).capabilities.dropout else 0.0
        attn = attnreg.create(name, num_heads=2, head_dim=4, max_length=64, dropout=dropout)
        call = [torch.randn(1, 2, 9, 4) for _ in range(3)]
        state = torch.get_rng_state()
        attn.eval()(*call)
        assert torch.equal(torch.get_rng_state(), state), name
        attn.train()(*call)
        assert torch.equal(torch.get_rng_state(), state) == (dropout == 0.0), name


# What the rounding of one operation costs, and what a run of them may: relative RMS.
PRECISION = {torch.float32: 1.9e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize(("name", "index"), CASES, ids=IDS)
def test_precision(name, index, dtype):
    """Against float64 on the rounded inputs and parameters, output and gradients."""
    attn = build(name, index).to(dtype)
    exact = copy.deepcopy(attn).double()
    for length, causal in ((16, False), (65, attn.variant.capabilities.causal)):
        call = make_inputs(queries=length, keys=length, dtype=dtype)
        wide = [t.detach().double().requires_grad_() for t in call]
        mask = Mask(causal=causal)
        output, expected = attn(*call, mask), exact(*wide, mask)
        assert output.dtype == dtype
        # A normaliser that can vanish amplifies what rounding did to it.
        slack = 8 if CONFIGS[name][index].get("feature_map") == "identity" else 1
        limit = PRECISION[dtype] * slack
        assert relative(output, expected) < limit
        arriving = torch.randn(output.shape, dtype=dtype)
        mine = torch.autograd.grad(output, call, arriving)
        theirs = torch.autograd.grad(expected, wide, arriving.double())
        for a, b in zip(mine, theirs, strict=True):
            assert relative(a, b) < 6 * limit


BIASED = [n for n in NAMES if attnreg.get_variant(n).capabilities.bias]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", BIASED)
def test_a_bias_keeps_its_range_and_its_digits(name, dtype):
    """The dtype of the query must not turn "hardly" into "never", nor round what cancels."""
    torch.manual_seed(8)
    settings = {"left": 3, "right": 3, "global_tokens": 1} if name == "sparse_window" else {}
    exact = attnreg.create(name, num_heads=2, head_dim=4, dtype=torch.float64, **settings)
    call = [torch.randn(1, 2, 9, 4).to(dtype) for _ in range(3)]
    wide = [t.double() for t in call]
    hardly = torch.zeros(9, 9)
    hardly[2] = torch.finfo(torch.float32).min
    for bias in (
        hardly,
        torch.randn(9, 9) - 300,
        torch.randn(9, 9) + 7e4,
        torch.zeros(9, 9, dtype=torch.float64).fill_(torch.finfo(torch.float64).min),
    ):
        shifted = bias.double() - bias.double().amax(-1, keepdim=True)
        expected = exact(*wide, Mask(bias=shifted))
        for one in exact.variant.implementations:
            attn = attnreg.create(
                name, num_heads=2, head_dim=4, dtype=dtype, implementation=one.name, **settings
            )
            attn.load_state_dict(exact.state_dict())
            output = attn(*call, Mask(bias=bias))
            if bias.abs().max() > 1e30:  # every digit of the score is lost beside such a number
                assert output[0, 0, 2].any()
                assert torch.isfinite(output).all()
            else:
                # float32 keeps 7e4 to 4e-3: that much of the difference between keys is lost.
                assert relative(output, expected) < max(PRECISION[dtype], 1e-2)


def test_extreme_features_give_no_nan():
    for name, options in (("linear", {}), ("linear", {"feature_map": "exp"}), ("performer", {})):
        attn = attnreg.create(name, num_heads=1, head_dim=2, **options)
        for q, k in (([-46.0, -46.0], [-46.0, -46.0]), ([95.0, 0.0], [0.0, 95.0])):
            call = [
                torch.tensor(x).expand(1, 1, 3, 2).clone().requires_grad_()
                for x in (q, k, [2.0, 3.0])
            ]
            for causal in (False, True):
                output = attn(*call, Mask(causal=causal))
                assert torch.isfinite(output).all()
                for grad in torch.autograd.grad(output.sum(), call):
                    assert torch.isfinite(grad).all()
                if q == k:
                    torch.testing.assert_close(output, call[2])


def test_a_score_that_ignores_its_inputs():
    class Uniform(attnreg.ScoreAttention):
        tile_elements = 16

        def score(self, query, key):
            return query.new_zeros(*query.shape[:3], key.shape[2])

    attn = attnreg.create(attnreg.Variant("uniform", Uniform, summary=""), num_heads=1, head_dim=2)
    call = [torch.randn(1, 1, 9, 2).requires_grad_() for _ in range(3)]
    output = attn(*call)
    torch.testing.assert_close(output, call[2].mean(2, keepdim=True).expand_as(output))
    output.sum().backward()
    torch.testing.assert_close(call[2].grad, torch.ones(1, 1, 9, 2))


@pytest.mark.parametrize("name", NAMES)
def test_blind_calls_stay_in_the_graph(name):
    if not attnreg.get_variant(name).capabilities.causal:
        mask = Mask(key_valid=torch.zeros(1, 5).bool())
    else:
        mask = Mask(causal=True, query_offset=-9)
    attn = attnreg.create(name, num_heads=2, head_dim=4, max_length=8)
    call = [torch.randn(1, 2, 5, 4).requires_grad_() for _ in range(3)]
    output = attn(*call, mask)
    assert not output.any()
    output.sum().backward()
    assert not call[0].grad.any()


def test_implied_weights_need_evaluation_where_dropout_acts():
    class Dropping(torch.nn.Module):
        capabilities = attnreg.Capabilities(weights="implied", dropout=True)

        def __init__(self, dims, *, dropout: float = 0.0):
            super().__init__()
            self.dropout = dropout

        def forward(self, query, key, value, mask):
            return torch.nn.functional.dropout(value, self.dropout, self.training)

    variant = attnreg.Variant("dropping", Dropping, summary="")
    attn = attnreg.create(variant, num_heads=1, head_dim=2, dropout=0.5)
    call = [torch.randn(1, 1, 3, 2)] * 2
    with pytest.raises(attnreg.UnsupportedFeature, match="eval"):
        attn.weights(*call)
    assert torch.equal(attn.eval().weights(*call)[0, 0], torch.eye(3))


def relative(found, expected):
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm())


@pytest.mark.parametrize("name", NAMES)
def test_empty_and_invisible(name):
    attn = attnreg.create(name, num_heads=2, head_dim=4, max_length=64)
    for queries, keys, batch in ((0, 3, 1), (3, 0, 1), (0, 0, 1), (3, 3, 0)):
        call = [torch.randn(batch, 2, n, 4).requires_grad_() for n in (queries, keys, keys)]
        output = attn(*call)
        assert output.shape == (batch, 2, queries, 4)
        assert not output.any()
        output.sum().backward()
        assert attn.weights(*call[:2]).shape == (batch, 2, queries, keys)
    call = [torch.randn(2, 2, 3, 4).requires_grad_() for _ in range(3)]
    nobody = Mask(key_valid=torch.tensor([[False] * 3, [True] * 3]))
    output = attn(*call, nobody)
    assert not output[0].any()
    assert output[1].any()
    output.sum().backward()
    for tensor in call:
        assert not tensor.grad[0].any()
        assert torch.isfinite(tensor.grad).all()
    assert not attn.weights(*call[:2], nobody)[0].any()


@pytest.mark.parametrize("name", NAMES)
def test_weights_explain_the_output(name):
    torch.manual_seed(4)
    variant = attnreg.get_variant(name)
    attn = attnreg.create(name, num_heads=6, num_kv_heads=2, head_dim=8, value_dim=5, max_length=64)
    query, key, value = (torch.randn(2, h, n, d) for h, n, d in ((6, 5, 8), (2, 9, 8), (2, 9, 5)))
    masks = [Mask(), Mask.from_lengths([9, 3], 9), Mask(causal=True)]
    for mask in masks[: 2 + variant.capabilities.causal]:
        weights = attn.weights(query, key, mask)
        assert weights.shape == (2, 6, 5, 9)
        assert weights.dtype == torch.float32
        torch.testing.assert_close(
            weights @ value.repeat_interleave(3, 1), attn(query, key, value, mask)
        )
        if variant.capabilities.normalized:
            assert (weights >= 0).all()
            torch.testing.assert_close(weights.sum(-1), torch.ones(2, 6, 5))
    packed = Mask.packed([2, 0, 2], [3, 1, 4])
    one = [t[:1] for t in (query, key, value)]
    weights = attn.weights(*one[:2], packed)
    torch.testing.assert_close(weights @ one[2].repeat_interleave(3, 1), attn(*one, packed))
    half = attn.to(torch.bfloat16).weights(query.bfloat16(), key.bfloat16())
    assert half.dtype == torch.float32


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("sparse_window", "linformer")])
def test_key_order_does_not_matter(name):
    torch.manual_seed(5)
    attn = attnreg.create(name, num_heads=2, head_dim=4, dtype=torch.float64)
    assert not attn.variant.capabilities.positional
    query, key, value = (torch.randn(1, 2, n, 4, dtype=torch.float64) for n in (3, 7, 7))
    order = torch.randperm(7)
    torch.testing.assert_close(
        attn(query, key[:, :, order], value[:, :, order]), attn(query, key, value)
    )


@pytest.mark.parametrize("name", NAMES)
def test_module_life(name):
    torch.manual_seed(6)
    attn = attnreg.create(name, num_heads=2, head_dim=4, max_length=32)
    call = [torch.randn(1, 2, 9, 4) for _ in range(3)]
    other = attnreg.create(name, num_heads=2, head_dim=4, max_length=32)
    other.load_state_dict(attn.state_dict(), strict=True)
    assert torch.equal(attn(*call), other(*call))
    attn(*call)
    twin = copy.deepcopy(attn)
    assert torch.equal(attn(*call), twin(*call))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    assert torch.equal(attn(*call), other(*call))
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        moved = twin.to(dtype)
        for tensor in [*moved.parameters(), *moved.buffers()]:
            assert tensor.dtype == (dtype if tensor.is_floating_point() else tensor.dtype)
        assert moved(*(t.to(dtype) for t in call)).dtype == dtype
    meta = attnreg.create(name, num_heads=2, head_dim=4, max_length=32, device="meta")
    assert meta(*(t.to("meta") for t in call)).shape == (1, 2, 9, 4)
    assert name in repr(attn)


def test_attributes_of_the_inner_module():
    attn = attnreg.create("performer", num_heads=2, head_dim=4, features=8, seed=1)
    assert attn.projection is attn.module.projection
    attn.redraw(2)
    dropping = attnreg.create("additive", num_heads=2, head_dim=4, dropout=0.5)
    dropping.dropout = 0.25
    assert dropping.module.dropout == 0.25
    with pytest.raises(AttributeError, match="nothing"):
        _ = attn.nothing


def test_functional_call_swaps_parameters_in_both_passes():
    torch.manual_seed(7)
    attn = attnreg.create("additive", num_heads=1, head_dim=3, dtype=torch.float64)
    attn.module.tile_elements = 16
    call = [torch.randn(1, 1, 9, 3, dtype=torch.float64) for _ in range(3)]
    other = attnreg.create("additive", num_heads=1, head_dim=3, dtype=torch.float64)
    other.module.tile_elements = 16
    swapped = {n: p.detach().clone().requires_grad_() for n, p in other.named_parameters()}
    torch.func.functional_call(attn, swapped, tuple(call)).square().sum().backward()
    other(*call).square().sum().backward()
    for name, parameter in other.named_parameters():
        torch.testing.assert_close(swapped[name].grad, parameter.grad)


class Learned(attnreg.KernelAttention):
    """Scaled features with parameters, per head too."""

    def __init__(self, dims):
        super().__init__(dims)
        self.linear = torch.nn.Linear(dims.head_dim, 7)
        self.gain = torch.nn.Parameter(torch.rand(dims.num_heads, 1, 1) + 0.5)

    def query_features(self, query):
        dots = self.linear(query) * self.gain
        return (dots - dots.amax(-1, keepdim=True).detach()).exp()

    def key_features(self, key):
        dots = self.linear(key) * self.gain
        largest = dots.amax(-1)
        log_scale = largest - 0.1 * key.square().sum(-1)
        return attnreg.Features((dots - largest[..., None]).exp(), log_scale)


LEARNED = attnreg.Variant("learned", Learned, summary="")
KERNELS = [
    ("linear", {}),
    ("linear", {"feature_map": "exp"}),
    ("linear", {"feature_map": "identity"}),
    ("performer", {"features": 7, "seed": 0}),
    (LEARNED, {}),
]
KERNEL_MASKS = {
    "none": Mask(),
    "causal": Mask(causal=True),
    "ahead": Mask(causal=True, query_offset=2),
    "behind": Mask(causal=True, query_offset=-3),
    "padding": Mask(key_valid=torch.arange(13) % 3 > 0),
}


def kernel(variant, implementation, options, rows=1, chunk=3, dtype=torch.float64):
    """A small module whose blocks are small too."""
    torch.manual_seed(9)
    attn = attnreg.create(
        variant,
        num_heads=6,
        num_kv_heads=2,
        head_dim=8,
        value_dim=5,
        implementation=implementation,
        dtype=dtype,
        **options,
    )
    attn.module.block_rows, attn.module.chunk = rows, chunk
    return attn


def kernel_inputs(queries, keys, seed=10):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 6, queries, 8), (2, 2, keys, 8), (2, 2, keys, 5))
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return [t.requires_grad_() for t in drawn]


@pytest.mark.parametrize("rows", [1, 6 * 2 * 6, 2**12])
@pytest.mark.parametrize("mask", KERNEL_MASKS)
@pytest.mark.parametrize(("variant", "options"), KERNELS)
def test_blocks_of_positions_compute_the_plain_formula(variant, options, mask, rows):
    """One item and one chunk a block, two items and two chunks, everything at once."""
    for queries in (7, 13, 20):
        call, found = kernel_inputs(queries, 13), []
        given = KERNEL_MASKS[mask]
        if given.key_valid is not None:
            given = Mask(key_valid=torch.stack([given.key_valid, ~given.key_valid]))
        for name in ("chunked", "eager"):
            attn = kernel(variant, name, options, rows)
            output = attn(*call, given)
            with torch.no_grad():
                assert torch.equal(attn(*call, given), output)
            inputs = [*call, *attn.parameters()]
            found.append([output, *torch.autograd.grad(output.sin().sum(), inputs)])
        for mine, plain in zip(*found, strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_positions_can_be_differentiated_twice(causal):
    attn = kernel(LEARNED, "chunked", {})
    call = [t[:1].detach().requires_grad_() for t in kernel_inputs(5, 5)]

    def run(*inputs):
        return attn(*inputs, Mask(causal=causal))

    assert torch.autograd.gradcheck(run, call, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, call, fast_mode=True)


def test_features_computed_again_are_those_of_the_forward_pass():
    """Swapped parameters and buffers are back by then; ones changed in place are an error."""
    call = kernel_inputs(13, 13)
    for variant, options in ((LEARNED, {}), ("performer", {"features": 7, "seed": 0})):
        attn = kernel(variant, "chunked", options)
        other = kernel(variant, "eager", options)
        with torch.no_grad():
            for tensor in (*other.parameters(), *other.buffers()):
                tensor.mul_(1.5)
        swapped = {
            name: tensor.detach().clone().requires_grad_(tensor.requires_grad)
            for name, tensor in (*other.named_parameters(), *other.named_buffers())
        }
        output = torch.func.functional_call(attn, swapped, tuple(call))
        mine = torch.autograd.grad(
            output.sin().sum(), [*call, *(t for t in swapped.values() if t.requires_grad)]
        )
        theirs = torch.autograd.grad(other(*call).sin().sum(), [*call, *other.parameters()])
        for one, two in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, two)
    output = attn(*call)
    attn.redraw(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("causal", [False, True])
def test_features_are_never_held_whole(causal):
    attn = attnreg.create("performer", num_heads=2, head_dim=8, features=96, seed=0)
    attn.module.block_rows = 2 * 64
    assert largest(attn, 1000, Mask(causal=causal)) < 2 * 1000 * 96 / 2


def test_a_forward_of_its_own_is_not_passed_over():
    class Doubled(Learned):
        def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
            return 2 * super().forward(query, key, value, mask)

    call = kernel_inputs(5, 5)
    doubled = kernel(attnreg.Variant("doubled", Doubled, summary=""), "auto", {})
    torch.testing.assert_close(doubled(*call), 2 * kernel(LEARNED, "auto", {})(*call))
    assert "forward of its own" in doubled.explain(*call).refused["chunked"][0]
