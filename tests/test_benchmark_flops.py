"""Closed forms of the work, held against torch's counter and against the pairs that are seen."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import attnreg
from attnreg import Mask
from attnreg.benchmark.cell import SDPA, Target
from attnreg.benchmark.records import Settings
from attnreg.benchmark.work import moved, operations
from attnreg.flops import visible_pairs
from tests.configs import CONFIGS

HEADS, DIM, VALUE_DIM = 3, 40, 56
DENSE = [name for name in CONFIGS if name != "sparse_window"]
SOFTMAX = ["scaled_dot_product", "additive", "cosine", "euclidean", "shared_qkv"]
LENGTHS = [(11, 23), (23, 11), (17, 17)]

for_each_config = pytest.mark.parametrize(
    ("name", "options"),
    [
        (name, options)
        for name in DENSE
        for options in CONFIGS[name]
        if options.get("squared", True)  # else there is no product in the distance
    ],
    ids=str,
)


def build(name, max_length, **options):
    torch.manual_seed(5)
    return attnreg.create(
        name,
        num_heads=HEADS,
        head_dim=DIM,
        value_dim=VALUE_DIM,
        max_length=max_length,
        implementation="eager",
        **options,
    ).eval()


def inputs(queries, keys):
    generator = torch.Generator().manual_seed(3)
    shapes = ((queries, DIM), (keys, DIM), (keys, VALUE_DIM))
    return [torch.randn(1, HEADS, *shape, generator=generator) for shape in shapes]


def formula(attn, queries, keys, causal):
    return attn.variant.flops(attn.module, queries, keys, causal)


@for_each_config
def test_the_closed_form_is_what_torch_counts_of_the_plain_form(name, options):
    queries, keys = 29, 37
    attn = build(name, keys, **options)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        attn(*inputs(queries, keys))
    counted = counter.get_total_flops()
    # A column for the normaliser, one more dimension for a squared norm: no more than that.
    assert formula(attn, queries, keys, causal=False) == pytest.approx(counted, rel=0.03)


@pytest.mark.parametrize("name", SOFTMAX)
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_causally_only_visible_pairs_count(name, queries, keys):
    attn = build(name, max(queries, keys))
    query, key, _ = inputs(queries, keys)
    seen = int((attn.weights(query, key, Mask(causal=True))[0, 0] > 0).sum())
    assert visible_pairs(queries, keys, causal=True) == seen
    each = 2 * HEADS * ((attn.module.hidden if name == "additive" else DIM) + VALUE_DIM)
    hidden = queries * keys - seen
    whole = formula(attn, queries, keys, causal=False)
    assert formula(attn, queries, keys, causal=True) == whole - each * hidden


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [*LENGTHS, (41, 64)])
@pytest.mark.parametrize(
    "options",
    [
        {"left": 3, "right": 2},
        {"left": 100, "right": 100},
        {"left": 2, "right": 1, "dilation": 3},
        {"left": 2, "right": 2, "global_tokens": 4},
        {"left": 1, "right": 0, "dilation": 2, "global_tokens": (1, 7, 90)},
        {"left": 1, "right": 1, "block_size": 4, "dilation": 2, "global_tokens": (5,)},
    ],
    ids=str,
)
def test_the_pattern_of_a_sparse_window_is_counted_exactly(options, queries, keys, causal):
    attn = build("sparse_window", max(queries, keys), **options)
    query, key, _ = inputs(queries, keys)
    seen = int((attn.weights(query, key, Mask(causal=causal))[0, 0] > 0).sum())
    pair = 2 * HEADS * (DIM + VALUE_DIM)
    assert formula(attn, queries, keys, causal) == pytest.approx(pair * seen)


@pytest.mark.parametrize("causal", [False, True])
def test_random_blocks_are_counted_on_average(causal):
    seen, expected = 0.0, 0.0
    for seed in range(6):
        attn = build(
            "sparse_window", 300, left=1, right=1, block_size=8, random_blocks=3, seed=seed
        )
        query, key, _ = inputs(300, 300)
        seen += int((attn.weights(query, key, Mask(causal=causal)) > 0).sum())
        expected += formula(attn, 300, 300, causal) / (2 * (DIM + VALUE_DIM))
    assert expected == pytest.approx(seen, rel=0.02)


def test_the_causal_form_of_a_kernel_needs_no_more():
    for name in ("linear", "performer"):
        attn = build(name, 64)
        assert formula(attn, 64, 64, causal=True) == formula(attn, 64, 64, causal=False)


def test_a_closed_form_must_be_a_function():
    with pytest.raises(attnreg.OptionError, match="flops must be a function or None, got 3"):
        attnreg.Variant("toy", torch.nn.Identity, summary="a toy", flops=3)


@pytest.mark.parametrize(
    ("name", "factor"), [("scaled_dot_product", 3.5), ("linear", 3.0), ("linformer", 3.0)]
)
def test_the_rule_for_the_backward_pass(name, factor):
    settings = Settings(lengths=(32,), batch=3, heads=HEADS, head_dim=DIM)
    variant = attnreg.get_variant(name)
    module = Target(variant, "auto", {}).build(settings, 32)
    forward = operations(variant, module, settings, "forward", 32)
    assert forward == 3 * variant.flops(module.module, 32, 32, False)
    assert operations(variant, module, settings, "backward", 32) == factor * forward


def test_what_torch_itself_computes():
    settings = Settings(lengths=(32,), batch=2, heads=HEADS, head_dim=DIM, causal=True)
    module = Target(SDPA, "auto", {}).build(settings, 32)
    pairs = 32 * 33 / 2
    assert operations(SDPA, module, settings, "forward", 32) == 2 * HEADS * pairs * 4 * DIM
    assert moved(settings, "forward", 32) == 4 * 2 * HEADS * 32 * DIM * 4
