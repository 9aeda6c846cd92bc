"""Decoding: chunks of any length equal one pass, and states are values."""

from __future__ import annotations

import pytest
import torch

import attnreg
from attnreg import Mask
from tests.configs import CASES, CONFIGS, HEADS, KV_HEADS, SIZES, VALUE_DIM, make_inputs

DECODERS = [
    (name, index)
    for name, index in CASES
    if attnreg.get_variant(name).capabilities.decode != "none"
]
IDS = [f"{name}-{index}" for name, index in DECODERS]


def build(name, index=0, **changes):
    torch.manual_seed(11)
    return attnreg.create(name, **{**SIZES, **CONFIGS[name][index], **changes}).double()


def decode(attn, call, cuts, make_mask=lambda start, stop: Mask(), state=None):
    outputs, start = [], 0
    for size in cuts:
        chunk = [t[:, :, start : start + size] for t in call]
        output, state = attn.step(*chunk, state, make_mask(start, start + size))
        outputs.append(output)
        start += size
    return torch.cat(outputs, dim=2), state


@pytest.mark.parametrize("chunk", [3, 64])
@pytest.mark.parametrize(("name", "index"), DECODERS, ids=IDS)
def test_one_pass_equals_chunks_equals_token_by_token(name, index, chunk):
    attn = build(name, index)
    if hasattr(attn.module, "chunk"):
        attn.module.chunk = chunk
    call = make_inputs(queries=13, keys=13)
    keep = torch.ones(2, 13, dtype=torch.bool)
    keep[0, :3] = False
    generator = torch.Generator().manual_seed(5)
    bias = torch.randn(1, HEADS, 13, 13, generator=generator, dtype=torch.float64)
    masks = {"none": (Mask(), lambda a, b: Mask())}
    masks["padding"] = (Mask(key_valid=keep), lambda a, b: Mask(key_valid=keep[:, a:b]))
    if attn.variant.capabilities.bias:
        masks["bias"] = (
            Mask(bias=bias, allowed=bias > -1, window=(5, None)),
            lambda a, b: Mask(
                bias=bias[..., a:b, :b], allowed=bias[..., a:b, :b] > -1, window=(5, None)
            ),
        )
    for whole, part in masks.values():
        full = attn(*call, whole & Mask(causal=True))
        first, final = decode(attn, call, [13], part)
        torch.testing.assert_close(first, full, rtol=1e-9, atol=1e-11)
        for cuts in ([4, 1, 5, 3], [1] * 13):
            output, state = decode(attn, call, cuts, part)
            torch.testing.assert_close(output, full, rtol=1e-9, atol=1e-11)
            assert state.length == final.length == 13
            for mine, theirs in zip(state.tensors(), final.tensors(), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
        wanted = torch.autograd.grad(full.sin().sum(), call)
        found = torch.autograd.grad(decode(attn, call, [4, 1, 5, 3], part)[0].sin().sum(), call)
        for mine, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("name", "index"), DECODERS, ids=IDS)
def test_states_are_values(name, index):
    attn = build(name, index)
    call = [t.detach() for t in make_inputs(queries=9, keys=9)]
    other = [t.detach() for t in make_inputs(queries=9, keys=9, seed=1)]
    _, state = decode(attn, call, [4])
    before = [t.clone() for t in state.tensors()]
    left, _ = decode(attn, [t[:, :, 4:] for t in call], [1, 2], state=state)
    right, _ = decode(attn, [t[:, :, 4:] for t in other], [3], state=state)
    again, _ = decode(attn, [t[:, :, 4:] for t in call], [1, 2], state=state)
    assert torch.equal(left, again)
    assert not torch.allclose(left, right)
    for mine, theirs in zip(state.tensors(), before, strict=True):
        assert torch.equal(mine, theirs)
    beams = state.select([1, 1, 0])
    token = [t[:, :, 4:5] for t in call]
    wide = [t[[1, 1, 0]] for t in token]
    torch.testing.assert_close(attn.step(*wide, beams)[0], attn.step(*token, state)[0][[1, 1, 0]])
    assert state.select(0).tensors()[0].shape[0] == 1
    assert state.select(torch.tensor([1])).length == 4


def test_the_newest_state_of_a_cache_copies_nothing():
    attn = build("scaled_dot_product")
    call = [t.detach() for t in make_inputs(queries=64, keys=64)]
    state, homes = None, []
    for start in range(64):
        _, state = attn.step(*(t[:, :, start : start + 1] for t in call), state)
        homes.append(state.tensors()[0].untyped_storage().data_ptr())
    assert len(set(homes)) <= 8  # it doubles; it does not grow by one


def test_a_state_is_not_the_callers_memory():
    attn = build("cosine")
    call = [t.detach() for t in make_inputs(queries=4, keys=4)]
    expected, state = attn.step(*(t.clone() for t in call))
    _, state = attn.step(*call)
    before = [t.clone() for t in state.tensors()]
    for tensor in call:
        tensor.zero_()
    assert all(torch.equal(a, b) for a, b in zip(state.tensors(), before, strict=True))
    assert expected.any()
    half = [t.float() for t in call]
    with pytest.raises(attnreg.DtypeError, match="one dtype on one device"):
        attn.step(*half, state)
    exp, elu = (build("linear", feature_map=f) for f in ("exp", "elu+1"))
    with pytest.raises(attnreg.ShapeError, match="another feature map"):
        elu.step(*call, exp.step(*call)[1])


@pytest.mark.parametrize("name", ["cosine", "additive", "scaled_dot_product"])
def test_training_through_a_cache_of_constants(name):
    """A parameter or a bias alone asks for gradients: nothing that is saved is overwritten."""
    attn = build(name, **({"learnable": True} if name == "cosine" else {}))
    call = [t.detach() for t in make_inputs(queries=5, keys=5)]
    bias = torch.randn(5, 5, dtype=torch.float64).requires_grad_()
    output, _ = decode(attn, call, [1] * 5, lambda a, b: Mask(bias=bias[a:b, :b]))
    output.sum().backward()
    assert bias.grad.tril().any()


def test_a_state_of_inference_mode_continues_outside():
    attn = build("cosine")
    call = [t.detach() for t in make_inputs(queries=6, keys=6)]
    with torch.inference_mode():
        _, state = decode(attn, call, [3, 1])
    with torch.no_grad():
        output, _ = decode(attn, [t[:, :, 4:] for t in call], [2], state=state)
        expected, _ = decode(attn, call, [6])
    torch.testing.assert_close(output, expected[:, :, 4:])


def test_select_takes_indices_of_the_batch():
    _, state = build("cosine").step(*(t.detach() for t in make_inputs(queries=4, keys=4)))
    for wrong in ([2], [-1], torch.tensor([0.0]), torch.tensor([True, False]), "a", None):
        with pytest.raises(attnreg.AttnregError, match="batch_index must be"):
            state.select(wrong)
    assert state.select([]).tensors()[0].shape[0] == 0


def test_a_recurrent_state_does_not_grow():
    attn = build("linear")
    call = [t.detach() for t in make_inputs(queries=40, keys=40)]
    _, short = decode(attn, call, [2])
    _, long = decode(attn, call, [40])
    assert [t.shape for t in short.tensors()] == [t.shape for t in long.tensors()]
    assert [tuple(t.shape) for t in long.tensors()] == [
        (2, HEADS, 8, VALUE_DIM),
        (2, HEADS, 8),
    ]


def test_states_are_kept_in_float32_or_wider():
    for name in ("linear", "performer"):
        attn = attnreg.create(name, num_heads=1, head_dim=4, dtype=torch.bfloat16)
        _, state = attn.step(*[torch.randn(1, 1, 3, 4).bfloat16()] * 3)
        assert {t.dtype for t in state.tensors()} == {torch.float32}


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_misuse_is_refused(name):
    attn = build(name)
    call = [t.detach() for t in make_inputs(queries=4, keys=4)]
    _, state = attn.step(*call)
    with pytest.raises(ValueError, match="leave query_offset out"):
        attn.step(*call, state, Mask(query_offset=0))
    with pytest.raises(attnreg.UnsupportedMask, match="packing"):
        attn.step(*(t[:1] for t in call), None, Mask.packed([4]))
    with pytest.raises(attnreg.ShapeError, match="as many keys"):
        attn.step(call[0][:, :, :2], call[1], call[2])
    with pytest.raises(attnreg.ShapeError, match=r"n >= 1"):
        attn.step(*(t[:, :, :0] for t in call))
    with pytest.raises(attnreg.ShapeError, match="batch of 2 and query one of 1"):
        attn.step(*(t[:1] for t in call), state)
    with pytest.raises(attnreg.ShapeError, match="earlier step"):
        attn.step(*call, call[0])
    with pytest.raises(attnreg.ShapeError, match="key_valid"):
        attn.step(*call, state, Mask(key_valid=torch.ones(2, 8).bool()))
    other = "cosine" if name == "linear" else "linear"
    narrow = build(name, head_dim=4, value_dim=3).step(
        torch.randn(2, 6, 4, 4).double(), *(torch.randn(2, 2, 4, n).double() for n in (4, 3))
    )[1]
    with pytest.raises(attnreg.ShapeError, match="between modules of different sizes"):
        attn.step(*call, narrow)
    with pytest.raises(attnreg.ShapeError, match="earlier step"):
        build(other).step(*call, state)
    assert call[1].shape[1] == KV_HEADS
