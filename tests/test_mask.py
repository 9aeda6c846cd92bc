"""``Mask``: fields, lowering, helpers, combination, errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attnreg
from attnreg import Mask
from attnreg.conformance.plainmask import lower
from attnreg.lowering import LoweredMask
from tests.configs import HEADS, KEYS, MASKS, QUERIES


@pytest.mark.parametrize("name", MASKS)
def test_dense_is_the_definition(name):
    mask = MASKS[name]
    batch = 1 if name.startswith("packed") else 2
    visible, query_position, key_position = lower(mask, batch, HEADS, QUERIES, KEYS)
    dense = mask.dense(QUERIES, KEYS)
    assert dense.dtype == torch.bool
    assert dense.dim() == 4
    np.testing.assert_array_equal(dense.expand(batch, HEADS, QUERIES, KEYS).numpy(), visible)
    lowered = LoweredMask(mask, QUERIES, KEYS, torch.device("cpu"))
    inside = visible.any(axis=(0, 1, 3))
    np.testing.assert_array_equal(lowered.query_position.numpy()[inside], query_position[inside])
    np.testing.assert_array_equal(
        lowered.key_position.numpy()[visible.any(axis=(0, 1, 2))],
        key_position[visible.any(axis=(0, 1, 2))],
    )


@pytest.mark.parametrize("name", MASKS)
def test_any_tile_is_a_part_of_the_whole(name):
    lowered = LoweredMask(MASKS[name], QUERIES, KEYS, torch.device("cpu"))
    whole = MASKS[name].dense(QUERIES, KEYS)
    rows, columns = slice(1, 4), slice(2, 7)
    index = torch.tensor([0, 8, 3])
    by_head = torch.stack([index + h % 2 for h in range(HEADS)]).clamp(max=KEYS - 1)
    tile, picked, heads = (lowered.visible(rows, c) for c in (columns, index, by_head))
    if tile is None:
        assert whole.all()
        return
    assert torch.equal(tile.expand_as(whole[:, :, rows, columns]), whole[:, :, rows, columns])
    assert torch.equal(
        picked.expand_as(whole[:, :, rows][..., index]), whole[:, :, rows][..., index]
    )
    wide = whole.expand(-1, HEADS, -1, -1)
    for head in range(HEADS):
        expected = wide[:, head, rows][..., by_head[head]]
        found = heads.expand(-1, HEADS, -1, -1)[:, head].expand_as(expected)
        assert torch.equal(found, expected)
    start, stop = lowered.key_range(1, 4)
    assert not whole[:, :, rows, :start].any()
    assert not whole[:, :, rows, stop:].any()


def test_bottom_right_causality_and_torch_alignment():
    assert Mask(causal=True).dense(2, 4)[0, 0].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    top_left = Mask(causal=True, query_offset=0).dense(2, 4)[0, 0]
    assert top_left.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]
    assert Mask(causal=True).dense(3, 2)[0, 0].tolist() == [[0, 0], [1, 0], [1, 1]]


def test_from_lengths_and_packed():
    assert Mask.from_lengths([2, 0], 3).key_valid.tolist() == [[1, 1, 0], [0, 0, 0]]
    assert Mask.from_lengths(torch.tensor([2, 3])).key_valid.shape == (2, 3)
    packed = Mask.packed([2, 0, 3])
    assert packed.cu_seqlens.tolist() == [0, 2, 2, 5]
    assert packed.cu_seqlens.dtype == torch.int32
    assert Mask.packed([1, 2], [3, 4]).key_cu_seqlens.tolist() == [0, 3, 7]
    with pytest.raises(attnreg.ShapeError, match="5 does not fit into max_length=4"):
        Mask.from_lengths([5], 4)
    with pytest.raises(attnreg.ShapeError, match="-1"):
        Mask.packed([2, -1])
    with pytest.raises(attnreg.MaskTypeError, match="integers"):
        Mask.from_lengths([1.5])


def test_from_torch_inverts_and_follows_multihead_attention():
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).double()
    x, context = torch.randn(3, 4, 8).double(), torch.randn(3, 5, 8).double()
    blocked = torch.rand(6, 4, 5) > 0.7
    blocked[..., 0] = False
    padding = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
    expected, weights = layer(
        x, context, context, padding, attn_mask=blocked, average_attn_weights=False
    )
    mask = Mask.from_torch(blocked, padding, num_heads=2)
    w = [part.T for part in layer.in_proj_weight.chunk(3)]
    heads = [
        (t @ m).unflatten(-1, (2, 4)).transpose(1, 2)
        for t, m in zip((x, context, context), w, strict=True)
    ]
    attn = attnreg.create("scaled_dot_product", num_heads=2, head_dim=4)
    output = attn(*heads, mask).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer.out_proj(output), expected)
    torch.testing.assert_close(attn.weights(*heads[:2], mask), weights)
    additive = Mask.from_torch(torch.randn(4, 5), torch.zeros(3, 5))
    assert additive.bias.shape == (3, 1, 4, 5)
    assert additive.allowed is None
    causal = Mask.from_torch(is_causal=True)
    assert (causal.causal, causal.query_offset) == (True, 0)
    with pytest.raises(attnreg.ShapeError, match="multiple of num_heads"):
        Mask.from_torch(blocked, num_heads=4)


def test_and_intersects():
    torch.manual_seed(1)
    a = Mask(causal=True, window=(3, None), allowed=torch.rand(1, 1, 4, 6) > 0.3)
    b = Mask(window=(2, 1), key_valid=torch.rand(2, 6) > 0.3, bias=torch.randn(4, 6))
    both = a & b
    assert both.window == (2, 1)
    assert torch.equal(both.dense(4, 6), a.dense(4, 6) & b.dense(4, 6))
    assert torch.equal((both & Mask(bias=torch.ones(4, 6))).bias, b.bias + 1)
    packed = Mask.packed([2, 3]) & Mask(causal=True)
    assert packed.used() == ("causal", "packed")
    assert (Mask(query_offset=1) & Mask(allowed=torch.ones(1, 1).bool())).query_offset == 1
    for left, right, what in (
        (Mask(causal=True), Mask(causal=True, query_offset=0), "query_offset None and 0"),
        (Mask.packed([2, 3]), Mask.packed([3, 2]), "pack the sequences differently"),
        (
            Mask(key_valid=torch.ones(2, 3).bool()),
            Mask(key_valid=torch.ones(2, 4).bool()),
            "cannot combine",
        ),
    ):
        with pytest.raises(ValueError, match=what):
            left & right


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"allowed": torch.ones(2, 2, dtype=torch.int64)}, "allowed must be boolean"),
        ({"allowed": torch.ones(2, 2)}, "allowed must be boolean"),
        ({"key_valid": torch.ones(2, 2, dtype=torch.uint8)}, "key_valid must be boolean"),
        ({"key_valid": torch.ones(2, 2)}, "pass a float mask as bias"),
        ({"key_valid": [[True]]}, "must be a tensor"),
        ({"allowed": np.ones((2, 2), dtype=bool)}, "must be a tensor"),
        ({"bias": torch.ones(2, 2).bool()}, "a boolean mask belongs in allowed"),
        ({"bias": 1.0}, "must be a tensor"),
        ({"causal": 1}, "causal must be True or False"),
        ({"causal": torch.tensor(True)}, "causal must be True or False"),
        ({"query_offset": 1.0}, "query_offset must be an integer"),
        ({"window": 3}, "window must be a pair"),
        ({"window": (1, 2, 3)}, "window must be a pair"),
        ({"window": (1.5, 2)}, "window left must be an integer"),
        ({"cu_seqlens": torch.tensor([0.0, 2.0])}, "int32"),
        ({"cu_seqlens": [0, 2]}, "Mask.packed"),
    ],
)
def test_wrong_types_are_refused(fields, message):
    with pytest.raises(attnreg.MaskTypeError, match=message) as caught:
        Mask(**fields)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"window": (-1, 2)}, "window left must be at least 0"),
        ({"window": (2**63, 0)}, "below 2"),
        ({"query_offset": 10**30}, "between"),
        ({"cu_seqlens": torch.tensor([0])}, "N >= 1 sequences, which may be empty"),
        ({"cu_seqlens": torch.tensor([1, 2])}, "must start at 0"),
        ({"cu_seqlens": torch.tensor([0, 3, 2])}, "must never fall"),
        ({"cu_seqlens": torch.zeros(2, 2, dtype=torch.int32)}, r"\(N \+ 1,\)"),
        ({"key_cu_seqlens": torch.tensor([0, 2])}, "without cu_seqlens"),
        (
            {"cu_seqlens": torch.tensor([0, 2]), "key_cu_seqlens": torch.tensor([0, 2, 3])},
            "2 offsets and key_cu_seqlens 3",
        ),
    ],
)
def test_impossible_values_are_refused(fields, message):
    with pytest.raises(attnreg.ShapeError, match=message) as caught:
        Mask(**fields)
    assert isinstance(caught.value, ValueError)


def test_a_mask_is_frozen_and_compares_by_identity():
    mask = Mask()
    with pytest.raises(AttributeError):
        mask.causal = True
    assert mask != Mask()
    assert mask.replace(causal=True).causal
