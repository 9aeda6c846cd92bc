"""What only shared-QKV attention promises."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import attnreg
from attnreg import AttentionLayer, Mask
from attnreg.conformance import pytest_suite
from attnreg_shared_qkv import VARIANT
from attnreg_shared_qkv.reference import reference

SIZES = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}

test_conformance = pytest_suite(VARIANT)


def build(dtype=torch.float64, **options):
    """Build the module with parameters from a fixed seed."""
    torch.manual_seed(0)
    return attnreg.create("shared_qkv", **{**SIZES, **options}).to(dtype)


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


def layer(**options):
    """Build a layer of width 16 with 4 heads, in float64."""
    torch.manual_seed(0)
    options = {"attention": "shared_qkv", "bias": False, **options}
    return AttentionLayer(16, 4, **options).double()


def parameters(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("tie", "matrices"), [("qkv", 1), ("qk", 2), ("kv", 2)])
def test_the_projection_holds_one_matrix_per_tie(tie, matrices):
    assert parameters(layer(tie=tie).projection) == matrices * 16**2
    assert parameters(layer(attention="cosine").projection) == 3 * 16**2
    assert parameters(layer(tie=tie, bias=True).projection) == matrices * (16**2 + 16)
    assert not parameters(layer(tie=tie).attention)


@pytest.mark.parametrize(("tie", "same"), [("qkv", "qk kv"), ("qk", "qk"), ("kv", "kv")])
def test_tied_heads_are_equal(tie, same):
    one = layer(tie=tie)
    (x,) = tensors((2, 7, 16))
    heads = dict(zip("qkv", one.projection(x, x, x), strict=True))
    for first, second in ("qk", "kv", "qv"):
        equal = first + second in same or tie == "qkv"
        assert torch.equal(heads[first], heads[second]) == equal
        assert heads[first].shape == (2, 4, 7, 4)


@pytest.mark.parametrize(("tie", "symmetric"), [("qkv", True), ("qk", True), ("kv", False)])
def test_raw_scores_are_symmetric_where_query_and_key_are_tied(tie, symmetric):
    one = layer(tie=tie)
    (x,) = tensors((2, 7, 16))
    query, key, _ = one.projection(x, x, x)
    scores = one.attention.module.score(query, key)
    assert torch.allclose(scores, scores.mT, rtol=1e-12, atol=1e-12) == symmetric
    # The weights show it: log(w_ij / w_ji) is a difference of row constants, free of i and j.
    logits = one.weights(x).log()
    skew = logits - logits.mT
    cycle = skew[..., 0, 1] + skew[..., 1, 2] + skew[..., 2, 0]
    assert torch.allclose(cycle, torch.zeros_like(cycle), atol=1e-12) == symmetric
    if symmetric:  # and, being a Gram matrix, they are largest on the diagonal on average
        diagonal = scores.diagonal(dim1=-2, dim2=-1)
        assert (diagonal >= 0).all()
        assert diagonal.mean() > scores.mean()


def test_a_gradient_reaches_the_matrix_from_all_three_roles():
    one = layer()
    (x,) = tensors((1, 5, 16))
    weight = one.projection.shared.weight
    (whole,) = torch.autograd.grad(one(x).square().sum(), weight)
    parts = []
    for role in range(3):
        heads = [h.detach() for h in one.projection(x, x, x)]
        heads[role] = one.projection(x, x, x)[role]
        output = one.output(one.attention(*heads).transpose(1, 2).flatten(2))
        parts += torch.autograd.grad(output.square().sum(), weight)
    torch.testing.assert_close(sum(parts), whole)
    assert all(part.any() for part in parts)


def without_self(attn, length, mask, keys=None):
    """Which keys each query of item 0, head 0 sees."""
    zeros = torch.zeros(1, 6, length, 8, dtype=torch.float64)
    keys = zeros[:, :2] if keys is None else torch.zeros(1, 2, keys, 8, dtype=torch.float64)
    return [row.nonzero().flatten().tolist() for row in attn.weights(zeros, keys, mask)[0, 0]]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (Mask(), [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]),
        (Mask(causal=True), [[0], [0], [0, 1], [0, 1, 2]]),
        (Mask(window=(0, 0)), [[0], [1], [2], [3]]),  # a row with only itself keeps it
        (Mask(key_valid=torch.tensor([[True, False, True, False]])), [[2], [0, 2], [0], [0, 2]]),
        (Mask(key_valid=torch.tensor([[True, False, False, False]])), [[0]] * 4),
        (Mask(causal=True, query_offset=-1), [[], [0], [0], [0, 1]]),
        (Mask.packed([1, 3]), [[0], [2, 3], [1, 3], [1, 2]]),
    ],
)
def test_exclude_self(mask, expected):
    assert without_self(build(exclude_self=True), 4, mask) == expected


def test_exclude_self_counts_positions_not_rows():
    attn = build(exclude_self=True)
    assert without_self(attn, 2, Mask(), keys=4) == [[0, 1, 3], [0, 1, 2]]
    assert without_self(attn, 2, Mask(query_offset=0), keys=4) == [[1, 2, 3], [0, 2, 3]]
    assert without_self(attn, 1, Mask(), keys=1) == [[0]]


@pytest.mark.parametrize("tie", ["qkv", "qk", "kv"])
def test_decoding_without_itself(tie):
    one = layer(tie=tie, exclude_self=True)
    (x,) = tensors((2, 9, 16))
    expected = one(x, mask=Mask(causal=True))
    state, outputs = None, []
    for first, last in ((0, 1), (1, 2), (2, 6), (6, 9)):
        output, state = one.step(x[:, first:last], state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 1), expected)


@pytest.mark.parametrize("tile", [2**20, 64])
def test_exclude_self_tile_by_tile(tile):
    attn = build(exclude_self=True, implementation="eager")
    attn.module.tile_elements = tile
    call = tensors((2, 6, 40, 8), (2, 2, 40, 8), (2, 2, 40, 6))
    mask = Mask(causal=True) & Mask.from_lengths([40, 17], 40)
    visible = np.zeros((2, 6, 40, 40), dtype=bool)
    for b, i, j in np.ndindex(2, 40, 40):
        visible[b, :, i, j] = j <= i and j < (40, 17)[b]
    assert error(attn, call, mask, visible) < 1e-9


@pytest.mark.parametrize("tie", ["qkv", "qk", "kv"])
def test_cross_attention_shares_the_matrix_too(tie):
    one = layer(tie=tie)
    x, context = tensors((2, 3, 16), (2, 7, 16))
    query, key, value = one.projection(x, context, context)
    shared = one.projection.shared
    for letter, found, given in (("q", query, x), ("k", key, context), ("v", value, context)):
        expected = shared(given).unflatten(-1, (4, 4)).transpose(1, 2)
        assert torch.allclose(found, expected) == (letter in tie)
    assert one(x, context).shape == (2, 3, 16)
    assert one.weights(x, context).shape == (2, 4, 3, 7)


def test_what_is_tied_must_have_one_size():
    assert layer(tie="kv", num_kv_heads=2)(*tensors((1, 3, 16))).shape == (1, 3, 16)
    assert layer(tie="qk", value_dim=3)(*tensors((1, 3, 16))).shape == (1, 3, 16)
    for tie in ("qkv", "qk"):
        with pytest.raises(attnreg.OptionError, match="must equal num_heads=4; use tie='kv'"):
            layer(tie=tie, num_kv_heads=2)
        with pytest.raises(attnreg.ShapeError, match="needs inputs of one width"):
            layer(tie=tie, kdim=8)
    for tie in ("qkv", "kv"):
        with pytest.raises(attnreg.OptionError, match="value_dim=3 must equal head_dim=4"):
            layer(tie=tie, value_dim=3)
        with pytest.raises(attnreg.ShapeError, match="needs inputs of one width"):
            layer(tie=tie, vdim=8)
    assert layer(tie="kv", kdim=8, vdim=8)(*tensors((1, 3, 16), (1, 5, 8))).shape == (1, 3, 16)
    with pytest.raises(attnreg.OptionError, match="tie must be one of 'qkv', 'qk', 'kv'"):
        layer(tie="all")


def test_the_names_in_the_state_dict():
    assert sorted(build().state_dict()) == []
