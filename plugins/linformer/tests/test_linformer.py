"""What only Linformer promises."""

from __future__ import annotations

import pytest
import torch

import attnreg
from attnreg import Mask
from attnreg.conformance import pytest_suite
from attnreg_linformer import VARIANT

SIZES = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}
SETUP = {**SIZES, "max_length": 40, "rank": 4}

test_conformance = pytest_suite(VARIANT)


def build(dtype=torch.float64, **options):
    """Build the module with parameters from a fixed seed."""
    torch.manual_seed(0)
    return attnreg.create("linformer", **{**SETUP, **options}).to(dtype)


def tensors(*shapes, dtype=torch.float64, seed=1):
    """Normal numbers from a fixed seed, which ask for gradients."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return [t.to(dtype).requires_grad_() for t in drawn]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("sharing", ["none", "heads", "key-value", "all"])
def test_identity_projections_give_exact_attention(sharing, dtype):
    attn = build(dtype, rank=9, max_length=9, sharing=sharing)
    with torch.no_grad():
        for parameter in attn.parameters():
            parameter.copy_(torch.eye(9).expand_as(parameter))
    call = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6), dtype=dtype)
    expected = torch.nn.functional.scaled_dot_product_attention(*call, enable_gqa=True)
    torch.testing.assert_close(attn(*call), expected)


@pytest.mark.parametrize(
    ("sharing", "heads", "both"),
    [("none", 6, True), ("heads", 1, True), ("key-value", 6, False), ("all", 1, False)],
)
def test_what_each_sharing_shares(sharing, heads, both):
    attn = build(sharing=sharing, rank=4, max_length=12)
    shapes = {name: tuple(p.shape) for name, p in attn.module.named_parameters()}
    names = ["key_projection", "value_projection"][: 1 + both]
    assert shapes == dict.fromkeys(names, (heads, 4, 12))
    assert (attn.value_projection is None) != both
    call = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6))
    attn(*call).square().sum().backward()
    for parameter in attn.parameters():
        assert parameter.grad[..., :9].any()
        assert not parameter.grad[..., 9:].any()  # columns past the length play no part


def test_the_default_rank():
    assert build(rank=None, max_length=100).rank == 100
    assert build(rank=None, max_length=1000).rank == 256
    assert build(rank=100, max_length=100).rank == 100
    with pytest.raises(attnreg.OptionError, match="rank=101 is above max_length=100"):
        build(rank=101, max_length=100)
    with pytest.raises(attnreg.LengthError, match="give max_length"):
        build(max_length=None)


def test_initial_entries_have_variance_one_over_rank():
    weight = attnreg.create(
        "linformer", num_heads=8, head_dim=8, max_length=512, rank=64
    ).key_projection
    assert weight.std().item() == pytest.approx(1 / 8, rel=0.02)
    assert weight.mean().item() == pytest.approx(0, abs=0.002)


@pytest.mark.parametrize("length", [1, 2, 7, 31, 32])
def test_a_shorter_input_uses_the_first_columns(length):
    attn = build(max_length=32, rank=4)
    call = tensors((2, 6, 5, 8), (2, 2, length, 8), (2, 2, length, 6))
    short = build(max_length=length, rank=min(4, length)) if length >= 4 else None
    output = attn(*call)
    assert output.shape == (2, 6, 5, 6)
    if short is not None:
        with torch.no_grad():
            for mine, theirs in zip(short.parameters(), attn.parameters(), strict=True):
                mine.copy_(theirs[..., :length])
        torch.testing.assert_close(short(*call), output)
    # The same as the full length with the rest of the keys padded away.
    fill = 32 - length
    padded = [torch.nn.functional.pad(t, (0, 0, 0, fill), value=7.0) for t in call[1:]]
    mask = Mask.from_lengths([length] * 2, 32)
    torch.testing.assert_close(attn(call[0], *padded, mask), output)


def test_too_many_keys():
    attn = build(max_length=8, rank=4)
    with pytest.raises(attnreg.LengthError, match="at most max_length=8 keys, got 9"):
        attn(*tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6)))
    # Queries have no such limit.
    assert attn(*tensors((2, 6, 50, 8), (2, 2, 8, 8), (2, 2, 8, 6))).shape == (2, 6, 50, 6)


def test_padding_gets_no_gradient_and_no_weight():
    attn = build()
    call = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6))
    mask = Mask.from_lengths([9, 4], 9)
    attn(*call, mask).square().sum().backward()
    for tensor in call[1:]:
        assert not tensor.grad[1, :, 4:].any()
        assert tensor.grad[1, :, :4].any()
    assert not attn.weights(*call[:2], mask)[1, ..., 4:].any()


def test_packed_sequences_each_start_at_the_first_column():
    attn = build(max_length=8)
    lengths = [5, 0, 1, 8]
    call = tensors((1, 6, 14, 8), (1, 2, 14, 8), (1, 2, 14, 6))  # longer than max_length in all
    output = attn(*call, Mask.packed(lengths))
    start = 0
    for length in lengths:
        alone = attn(*(t[:, :, start : start + length] for t in call))
        torch.testing.assert_close(output[:, :, start : start + length], alone)
        start += length
    with pytest.raises(attnreg.LengthError, match="got 9"):
        attn(*call, Mask.packed([9, 5]))


def test_weights_are_the_map_from_values_to_output_and_may_be_signed():
    attn = build()
    call = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6))
    weights = attn.weights(*call[:2])
    torch.testing.assert_close(weights @ call[2].repeat_interleave(3, 1), attn(*call))
    assert (weights < 0).any()


def test_causality_and_single_scores_are_refused_with_the_reason():
    attn, call = build(), tensors((1, 6, 5, 8), (1, 2, 5, 8), (1, 2, 5, 6))
    with pytest.raises(attnreg.UnsupportedMask, match="holds the future as well as the past"):
        attn(*call, Mask(causal=True))
    for mask in (
        Mask(allowed=torch.ones(5, 5).bool()),
        Mask(bias=torch.zeros(5, 5)),
        Mask(window=(1, 1)),
    ):
        with pytest.raises(attnreg.UnsupportedMask, match="no score belongs to one key"):
            attn(*call, mask)
    with pytest.raises(attnreg.UnsupportedFeature, match="cannot decode"):
        attn.step(*call)
    with pytest.raises(attnreg.UnsupportedOption, match="no dropout"):
        build(dropout=0.1)


def test_the_names_in_the_state_dict():
    assert sorted(build().state_dict()) == ["module.key_projection", "module.value_projection"]
