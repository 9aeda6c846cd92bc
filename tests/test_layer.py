"""``AttentionLayer``: projections around any variant."""

from __future__ import annotations

import math

import pytest
import torch

import attnreg
from attnreg import AttentionLayer, Mask

NAMES = attnreg.list_variants()


def build(name="scaled_dot_product", embed_dim=24, num_heads=6, **changes):
    torch.manual_seed(0)
    options = {"left": 3, "right": 3} if name == "sparse_window" else {}
    options |= {"max_length": 32, "dtype": torch.float64}
    return AttentionLayer(embed_dim, num_heads, name, **{**options, **changes})


def tokens(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_equals_torch_multihead_attention():
    layer = build()
    theirs = torch.nn.MultiheadAttention(24, 6, batch_first=True, dtype=torch.float64)
    theirs.in_proj_weight.data = layer.projection.qkv.weight.data
    theirs.in_proj_bias.data = layer.projection.qkv.bias.data
    theirs.out_proj.load_state_dict(layer.output.state_dict())
    x, context = tokens(2, 5, 24), tokens(2, 7, 24)
    for source in (x, context):
        expected, weights = theirs(x, source, source, average_attn_weights=False)
        torch.testing.assert_close(layer(x, source), expected)
        torch.testing.assert_close(layer.weights(x, source), weights)
    torch.testing.assert_close(layer(x), theirs(x, x, x)[0])


@pytest.mark.parametrize("name", NAMES)
def test_any_variant_by_name(name):
    layer = build(name)
    x, context = tokens(2, 9, 24), tokens(2, 7, 24)
    assert layer(x).shape == (2, 9, 24)
    assert layer(x, context).shape == (2, 9, 24)
    assert layer.weights(x, context).shape == (2, 6, 9, 7)
    padded = Mask.from_lengths([7, 3], 7)
    expected = layer(x, context, padded)
    dirty = context.clone()
    dirty[1, 3:] = math.nan
    dirty.requires_grad_()
    output = layer(x, dirty, padded)
    assert torch.equal(output, expected)
    output.sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()
    assert not dirty.grad[1, 3:].any()
    itself = layer(x, mask=Mask.from_lengths([9, 4], 9))
    x[1, 4:] = math.inf
    torch.testing.assert_close(layer(x, mask=Mask.from_lengths([9, 4], 9))[:, :4], itself[:, :4])


def test_padded_values_are_zeroed_beside_keys_that_are_the_input_itself():
    layer, x = build(), tokens(2, 9, 24)
    padded = Mask.from_lengths([9, 4], 9)
    values = x.clone()
    expected = layer(x, (x, values), padded)
    torch.testing.assert_close(expected, layer(x, x, padded))
    values[1, 4:] = math.nan
    output = layer(x, (x, values), padded)
    torch.testing.assert_close(output, expected)
    output.sum().backward()
    for parameter in layer.parameters():
        assert torch.isfinite(parameter.grad).all()


@pytest.mark.parametrize("name", [n for n in NAMES if n != "shared_qkv"])
def test_sizes(name):
    sizes = {"num_kv_heads": 2, "head_dim": 5, "value_dim": 3, "kdim": 11, "vdim": 7}
    layer = build(name, bias=False, **sizes)
    x, key, value = tokens(2, 9, 24), tokens(2, 8, 11), tokens(2, 8, 7)
    assert layer(x, (key, value)).shape == (2, 9, 24)
    assert layer.projection.key.weight.shape == (10, 11)
    assert layer.projection.value.weight.shape == (6, 7)
    assert layer.output.weight.shape == (24, 18)
    assert layer.output.bias is None
    assert not any("bias" in n for n, _ in layer.projection.named_parameters())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("position", [None, "rotary", "alibi"])
def test_decoding_equals_one_pass(name, position):
    able = attnreg.get_variant(name).capabilities
    layer = build(name, position=position)
    x = tokens(2, 9, 24)
    if position == "alibi" and not able.bias:
        with pytest.raises(attnreg.UnsupportedMask, match="'bias'"):
            layer(x)
        return
    if able.decode == "none":
        with pytest.raises(attnreg.UnsupportedFeature, match="cannot decode"):
            layer.step(x)
        return
    keep = torch.arange(9) >= torch.tensor([[3], [0]])
    for padding in (None, keep):
        full, state, outputs = layer(x, mask=Mask(causal=True, key_valid=padding)), None, []
        for start, stop in ((0, 4), (4, 5), (5, 9)):
            part = Mask(key_valid=None if padding is None else padding[:, start:stop])
            output, state = layer.step(x[:, start:stop], state, part)
            outputs.append(output)
        torch.testing.assert_close(torch.cat(outputs, 1), full)


def test_positions_know_distance():
    x = tokens(1, 9, 24)
    for position in ("rotary", "alibi"):
        layer = build(position=position)
        assert not torch.allclose(layer(x.flip(1)).flip(1), build()(x))
    same = torch.ones(1, 9, 24, dtype=torch.float64)
    weights = build(position="alibi").weights(same)[0]
    for head in range(6):
        ratio = weights[head, 4, 4] / weights[head, 4, 3]
        assert ratio.item() == pytest.approx(math.exp(2 ** (-8 * (head + 1) / 6)))
    # Rotary scores depend on the distance alone.
    turned = build(position="rotary").weights(same)[0]
    scores = turned.log() - turned.log().diagonal(dim1=-2, dim2=-1)[..., None]
    for shift in (1, 3):
        diagonal = scores.diagonal(offset=shift, dim1=-2, dim2=-1)
        torch.testing.assert_close(diagonal, diagonal[:, :1].expand_as(diagonal))


def test_packed_positions_restart():
    layer = build(position="rotary")
    x = tokens(1, 7, 24)
    packed = layer(x, mask=Mask.packed([3, 4]))
    torch.testing.assert_close(packed[:, 3:], layer(x[:, 3:]))
    dirty = tokens(1, 9, 24)
    dirty[:, :7] = x
    dirty[:, 7:] = math.nan
    output = layer(dirty, mask=Mask.packed([3, 4]))
    torch.testing.assert_close(output[:, :7], packed)
    output.sum().backward()
    for parameter in layer.parameters():
        assert torch.isfinite(parameter.grad).all()


def test_wrong_inputs():
    layer, x = build(), tokens(2, 5, 24)
    for wrong in (x.float(), x.long(), x.to("meta")):
        with pytest.raises(attnreg.DtypeError, match="convert one of them"):
            layer(wrong)
    for call in (lambda: layer(x, None, x > 0), lambda: layer.step(x, None, x > 0)):
        with pytest.raises(attnreg.MaskTypeError, match=r"must be an attnreg\.Mask"):
            call()
    with pytest.raises(attnreg.ShapeError, match=r"pass it by name: layer\(x, mask=mask\)"):
        layer(x, Mask(causal=True))
    with pytest.raises(attnreg.ShapeError, match="a tensor or a pair"):
        layer(x, (x,))
    for sizes in ((8, 0), ("8", 2), (8, 2.0), (0, 1)):
        with pytest.raises(attnreg.ShapeError, match="must be a positive integer"):
            AttentionLayer(*sizes)
    with pytest.raises(attnreg.ShapeError, match="kdim must be a positive integer"):
        build(kdim=-1)
    with pytest.raises(attnreg.UnknownVariant, match="by its name, got 5"):
        AttentionLayer(8, 2, 5)


def test_errors():
    with pytest.raises(
        attnreg.ShapeError,
        match=r"context must be \(batch, length, kdim\)|context must be \(batch, length, vdim\)",
    ):
        build()(tokens(2, 5, 24), (tokens(2, 5, 24), None))
    with pytest.raises(attnreg.ShapeError, match="embed_dim=24 is not a multiple of num_heads=5"):
        build(num_heads=5)
    with pytest.raises(attnreg.OptionError, match=r"unknown position 'rotery'.*'rotary'"):
        build(position="rotery")
    with pytest.raises(attnreg.OptionError, match="even head_dim, got 3"):
        build(position="rotary", head_dim=3)
    with pytest.raises(attnreg.OptionError, match="no option 'features'"):
        build(features=3)
    with pytest.raises(attnreg.ShapeError, match="key_valid"):
        build()(tokens(2, 5, 24), mask=Mask.from_lengths([3, 2], 4))
    with pytest.raises(attnreg.ShapeError, match=r"embed_dim.*24.*got"):
        build()(tokens(2, 5, 23))
    with pytest.raises(attnreg.ShapeError, match=r"x must be \(batch, length, embed_dim\)"):
        build()(tokens(5, 24))


def test_dropout_scale_and_implementation_reach_the_core():
    layer = build(dropout=0.5, scale=0.25, implementation="eager")
    assert layer.attention.dropout == 0.5
    assert layer.attention.scale == 0.25
    assert layer.attention.implementation == "eager"
    x = tokens(2, 5, 24)
    assert torch.equal(layer.eval()(x), layer(x))
    assert not torch.equal(layer.train()(x), layer(x))


def test_trains_compiles_and_exports():
    layer = build("linear", dtype=torch.float32)
    x = tokens(2, 9, 24).float()
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    length = torch.export.Dim("length", min=2, max=64)
    exported = torch.export.export(layer, (x,), dynamic_shapes=({1: length},)).module()
    longer = tokens(2, 20, 24).float()
    torch.testing.assert_close(exported(longer), layer(longer))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        loss = (layer(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
