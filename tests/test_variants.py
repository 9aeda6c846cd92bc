"""The mathematics of every variant: outputs against NumPy, gradients against dense formulas.

Every variant, every setting, every implementation, every mask that it declares, in float64.
"""

from __future__ import annotations

import pytest
import torch

import attnreg
from attnreg import Mask
from attnreg.conformance.plainmask import lower
from tests.configs import (
    CASES,
    CONFIGS,
    HEADS,
    IDS,
    KEYS,
    MASKS,
    QUERIES,
    SIZES,
    make_inputs,
)
from tests.oracles import ORACLES

TOLERANCE = 1e-9


def relative(found, expected):
    """Root mean square of the difference over that of the expected, which may be all but zero."""
    assert found.shape == expected.shape
    assert torch.isfinite(found).all()
    scale = expected.square().mean().sqrt().clamp(min=1e-3)
    return float((found - expected).square().mean().sqrt() / scale)


def build(name, index, **changes):
    torch.manual_seed(11)
    return attnreg.create(name, **{**SIZES, **CONFIGS[name][index], **changes}).double()


def honoured(variant, mask):
    return all(getattr(variant.capabilities, field) for field in mask.used())


def agree(attn, implementation, mask, query, key, value):
    """Compare output and every gradient of one implementation with the two oracles."""
    variant = attn.variant
    visible, query_position, key_position = lower(
        mask, query.shape[0], query.shape[1], query.shape[2], key.shape[2]
    )
    # Straight to the implementation: what `why_not` prefers elsewhere must be right as well.
    chosen = next(one for one in variant.implementations if one.name == implementation)
    attn = attnreg.checked.CheckedAttention(
        attnreg.Variant(
            variant.name,
            variant.factory,
            summary="",
            capabilities=variant.capabilities,
            implementations=(attnreg.Implementation("only", chosen.forward, rank=99),),
        ),
        attn.module,
        attn.dims,
    )
    output = attn(query, key, value, mask)
    reference = variant.reference(
        attn.module,
        *(t.detach().numpy() for t in (query, key, value)),
        visible,
        None if mask.bias is None else mask.bias.detach().double().numpy(),
        query_position,
        key_position,
    )
    assert relative(output.detach(), torch.from_numpy(reference)) < TOLERANCE

    bias = mask.bias
    dense = ORACLES[variant.name](
        attn.module,
        query,
        key,
        value,
        torch.from_numpy(visible),
        None if bias is None else bias.double(),
        torch.from_numpy(query_position),
        torch.from_numpy(key_position),
    )
    wanted = {"query": query, "key": key, "value": value, **dict(attn.named_parameters())}
    if bias is not None and bias.requires_grad:
        wanted["bias"] = bias
    arriving = torch.randn(output.shape, generator=torch.Generator().manual_seed(3)).double()
    found = torch.autograd.grad(output, list(wanted.values()), arriving, allow_unused=True)
    expected = torch.autograd.grad(dense, list(wanted.values()), arriving, allow_unused=True)
    for (what, tensor), grads in zip(wanted.items(), zip(found, expected), strict=True):  # noqa: B905  # the outer zip is strict
        mine, theirs = (torch.zeros_like(tensor) if g is None else g for g in grads)
        assert relative(mine.double(), theirs.double()) < TOLERANCE, what


@pytest.mark.parametrize("mask_name", MASKS)
@pytest.mark.parametrize(("name", "index"), CASES, ids=IDS)
def test_agrees_with_the_formula(name, index, mask_name):
    mask, attn = MASKS[mask_name], build(name, index)
    batch = 1 if mask_name.startswith("packed") else 2
    query, key, value = make_inputs(batch)
    if not honoured(attn.variant, mask):
        with pytest.raises(attnreg.UnsupportedMask, match=name):
            attn(query, key, value, mask)
        return
    for one in attn.variant.implementations:
        if one.name == "fused" and not CONFIGS[name][index].get("squared", True):
            continue  # a distance is no dot product; why_not says so, and test_euclidean checks it
        agree(attn, one.name, mask, query, key, value)
    if hasattr(attn.module, "tile_elements"):
        attn.module.tile_elements = 40  # so small that even this call takes many tiles
        agree(attn, "eager", mask, query, key, value)


@pytest.mark.parametrize("keys", [1, 2, 7, 63, 65])
@pytest.mark.parametrize(("name", "index"), CASES, ids=IDS)
def test_agrees_at_awkward_lengths(name, index, keys):
    attn = build(name, index)
    causal = attn.variant.capabilities.causal
    query, key, value = make_inputs(queries=keys, keys=keys, seed=keys)
    padded = Mask.from_lengths([keys, max(1, keys - 3)], keys)
    for mask in (Mask(), Mask(causal=True), padded) if causal else (Mask(), padded):
        for one in attn.variant.implementations:
            if one.name == "fused" and not CONFIGS[name][index].get("squared", True):
                continue
            agree(attn, one.name, mask, query, key, value)


BIASED = [c for c in CASES if attnreg.get_variant(c[0]).capabilities.bias]


@pytest.mark.parametrize(("name", "index"), BIASED)
def test_bias_gets_its_gradient(name, index):
    attn = build(name, index)
    query, key, value = make_inputs()
    for shape in ((2, HEADS, QUERIES, KEYS), (1, HEADS, 1, KEYS), (QUERIES, 1), (KEYS,)):
        generator = torch.Generator().manual_seed(2)
        bias = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for tile in (2**20, 40):
            attn.module.tile_elements = tile
            agree(attn, "eager", Mask(bias=bias, causal=True), query, key, value)


@pytest.mark.parametrize(("name", "index"), CASES, ids=IDS)
def test_gradients_agree_with_finite_differences(name, index):
    small = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 3, "value_dim": 2}
    attn = build(name, index, **small, max_length=6)
    query, key, value = make_inputs(batch=1, queries=3, keys=4, **small)
    mask = Mask(causal=attn.variant.capabilities.causal)
    names = [n for n, _ in attn.module.named_parameters()]
    parameters = [p.detach().clone().requires_grad_() for p in attn.module.parameters()]

    def run(query, key, value, *parameters):
        swapped = {f"module.{n}": p for n, p in zip(names, parameters, strict=True)}
        return torch.func.functional_call(attn, swapped, (query, key, value, mask))

    inputs = (query, key, value, *parameters)
    for tile in (2**20, 4):
        if hasattr(attn.module, "tile_elements"):
            attn.module.tile_elements = tile
        assert torch.autograd.gradcheck(run, inputs, atol=1e-6, rtol=1e-6, fast_mode=True)
        if CONFIGS[name][index].get("squared", True):  # torch.cdist has one derivative
            assert torch.autograd.gradgradcheck(run, inputs, atol=1e-6, rtol=1e-6, fast_mode=True)


def test_every_option_moves():
    for name, configs in CONFIGS.items():
        variant = attnreg.get_variant(name)
        moved = {option for config in configs for option in config}
        assert moved == {option.name for option in variant.options}, name
        for option in variant.options:
            seen = {str(config.get(option.name, option.default)) for config in configs}
            assert seen - {str(option.default)}, f"{name}.{option.name} never moves"
