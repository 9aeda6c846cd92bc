"""Time of every registered variant, whoever wrote it: ``make bench``.

Without ``--benchmark-enable`` each of these runs once at a few positions, as a test among the
others: a benchmark that no longer runs is then found by who broke it, not by who needs it next.
"""

from __future__ import annotations

import time
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attnreg
from attnreg import AttentionLayer, Mask

HEADS, DIM = 8, 64
LENGTHS = (128, 512)
LONG = 4096
"""Measured where time is declared to grow by less than L^2, and for the yardstick."""
YARDSTICK = "scaled_dot_product"
DECODED = 1024
SLOW = 0.5
"""Seconds of a call that is measured three times and no more."""
FEW = 8

VARIANTS = {name: attnreg.get_variant(name) for name in attnreg.list_variants()}

# Enough rounds for a median; saved runs show whether it moved.
pytestmark = pytest.mark.benchmark(max_time=0.5, min_rounds=5, disable_gc=True)


def lengths_of(name):
    long = name == YARDSTICK or "L^2" not in VARIANTS[name].complexity.time
    return (*LENGTHS, LONG) if long else LENGTHS


def directions_of(name):
    can = VARIANTS[name].capabilities
    return ["full"] * can.noncausal + ["causal"] * can.causal


CASES = [
    (name, direction, length)
    for name in VARIANTS
    for direction in directions_of(name)
    for length in lengths_of(name)
]
TRAINED = [case for case in CASES if VARIANTS[case[0]].capabilities.differentiable]
DECODING = [name for name, one in VARIANTS.items() if one.capabilities.decode != "none"]


def create(name, max_length):
    dtypes = VARIANTS[name].capabilities.dtypes
    dtype = torch.float32 if "float32" in dtypes else getattr(torch, dtypes[0])
    attn = attnreg.create(
        name, num_heads=HEADS, head_dim=DIM, max_length=max(max_length, 2), dtype=dtype
    )
    return attn.eval(), dtype


def make_inputs(length, dtype=torch.float32, count=4):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, HEADS, length, DIM, generator=generator).to(dtype) for _ in range(count)]


def took(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@pytest.fixture
def measure(benchmark):
    """Measure a call in a group: what stands in one group is compared in one table."""

    def run(group, call, **settings):
        benchmark.group = group
        call()  # compiles, fills caches
        if not settings and benchmark.enabled and took(call) > SLOW:
            settings = {"rounds": 3, "iterations": 1}
        return benchmark.pedantic(call, **settings) if settings else benchmark(call)

    run.enabled = benchmark.enabled
    return run


@pytest.mark.parametrize(("name", "direction", "length"), CASES)
def test_forward(measure, name, direction, length):
    size = length if measure.enabled else FEW
    attn, dtype = create(name, size)
    query, key, value, _ = make_inputs(size, dtype)
    mask = Mask(causal=direction == "causal")
    with torch.no_grad():
        output = measure(f"forward, {direction}, L={length}", lambda: attn(query, key, value, mask))
    assert output.shape == query.shape


@pytest.mark.parametrize(("name", "direction", "length"), TRAINED)
def test_forward_backward(measure, name, direction, length):
    size = length if measure.enabled else FEW
    attn, dtype = create(name, size)
    *qkv, gradient = make_inputs(size, dtype)
    mask = Mask(causal=direction == "causal")
    trained = [parameter for parameter in attn.parameters() if parameter.requires_grad]
    leaves = [*(t.requires_grad_() for t in qkv), *trained]

    def train():
        return torch.autograd.grad(attn(*qkv, mask), leaves, gradient, allow_unused=True)

    gradients = measure(f"forward + backward, {direction}, L={length}", train)
    assert gradients[0].shape == qkv[0].shape


@pytest.mark.parametrize("name", DECODING)
def test_step(measure, name):
    length = DECODED if measure.enabled else FEW
    attn, dtype = create(name, 2 * DECODED)
    with torch.no_grad():
        _, state = attn.step(*make_inputs(length, dtype, 3))
        token = make_inputs(1, dtype, 3)

        def step():
            nonlocal state  # each step continues the last: an older state would have to be copied
            output, state = attn.step(*token, state)
            return output

        group = f"step after {DECODED} tokens"
        output = measure(group, step, rounds=200, iterations=1, warmup_rounds=5)
    assert output.shape == token[0].shape


MASKS = {"bare": None, "mask": Mask(), "causal": Mask(causal=True)}


@pytest.mark.parametrize("kind", MASKS)
def test_call(measure, kind):
    """What a call costs beside the kernel that it calls, at a few positions."""
    attn, _ = create(YARDSTICK, FEW)
    inputs = make_inputs(FEW, count=3)
    if kind == "bare":
        call = partial(F.scaled_dot_product_attention, *inputs)
    else:
        call = partial(attn, *inputs, MASKS[kind])
    with torch.no_grad():
        assert measure("call", call).shape == inputs[0].shape


@pytest.mark.parametrize("length", [16, *LENGTHS, 1024])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("kind", ["AttentionLayer", "MultiheadAttention"])
def test_layer(measure, kind, mode, length):
    size = length if measure.enabled else FEW
    x, gradient = (t.transpose(1, 2).flatten(2) for t in make_inputs(size, count=2))
    if kind == "AttentionLayer":
        layer = AttentionLayer(HEADS * DIM, HEADS, YARDSTICK)
        run = layer
    else:
        layer = nn.MultiheadAttention(HEADS * DIM, HEADS, batch_first=True)

        def run(x):
            return layer(x, x, x, need_weights=False)[0]

    layer.train(mode == "train")
    leaves = [x.requires_grad_(mode == "train"), *layer.parameters()]

    def train():
        return torch.autograd.grad(run(x), leaves, gradient)

    def evaluate():
        with torch.no_grad():
            return (run(x),)

    output = measure(f"layer, {mode}, L={length}", train if mode == "train" else evaluate)
    assert output[0].shape == x.shape
