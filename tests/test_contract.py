"""Calls are checked before anything is computed, and refusals teach."""

from __future__ import annotations

import pytest
import torch

import attnreg
from attnreg import Mask

NAMES = attnreg.list_variants()


def build(name="scaled_dot_product", **changes):
    sizes = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6, "max_length": 16}
    return attnreg.create(name, **{**sizes, **changes})


def inputs(**changes):
    shapes = {"query": (2, 6, 5, 8), "key": (2, 2, 9, 8), "value": (2, 2, 9, 6)}
    return [torch.randn({**shapes, **changes}[n]) for n in ("query", "key", "value")]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": (2, 5, 8)}, r"query must have 4 dimensions.*\(2, 5, 8\)"),
        ({"key": (2, 2, 9, 8, 1)}, "key must have 4 dimensions"),
        ({"query": (2, 6, 5, 7)}, r"query.*8 in dimension 3 \(head_dim\), got \(2, 6, 5, 7\)"),
        ({"query": (2, 4, 5, 8)}, "num_heads"),
        ({"key": (2, 2, 9, 7)}, r"key.*head_dim"),
        ({"key": (3, 2, 9, 8)}, "the batch of query"),
        ({"key": (2, 4, 9, 8)}, "key has 4 heads, which does not divide the 6 of query"),
        ({"value": (2, 2, 8, 6)}, "value.*the key length"),
        ({"value": (2, 2, 9, 8)}, "value.*value_dim"),
        ({"value": (2, 3, 9, 6)}, "value.*num_kv_heads"),
    ],
)
def test_wrong_shapes(name, changes, message):
    attn = build(name)
    attn(*inputs())  # what was found right before says nothing of another call
    with pytest.raises(attnreg.ShapeError, match=message):
        attn(*inputs(**changes))


@pytest.mark.parametrize("name", NAMES)
def test_wrong_dtypes_and_devices(name):
    query, key, value = inputs()
    attn = build(name)
    attn(query, key, value)
    for wrong, message in (
        ((query.long(), key, value), "query must be floating point, got torch.int64"),
        ((query.bool(), key, value), "query must be floating point"),
        ((query.cfloat(), key, value), "query must be floating point"),
        ((query, key.half(), value), "query is torch.float32, key is torch.float16"),
        ((query, key, value.double()), "value is torch.float64"),
        ((query, key.to("meta"), value), "key on meta"),
        ((query.tolist(), key, value), "query must be a tensor, got list"),
    ):
        with pytest.raises(attnreg.DtypeError, match=message) as caught:
            attn(*wrong)
        assert isinstance(caught.value, TypeError)


def test_module_on_another_device():
    attn = build("additive")
    attn(*inputs())
    attn.to("meta")
    with pytest.raises(attnreg.DtypeError, match="the module is on meta and query on cpu"):
        attn(*inputs())


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (Mask(key_valid=torch.ones(2, 5).bool()), r"\(2, 9\), got \(2, 5\)"),
        (Mask(allowed=torch.ones(5, 8).bool()), r"allowed of shape \(5, 8\) does not broadcast"),
        (Mask(bias=torch.ones(3, 1, 5, 9)), r"bias of shape \(3, 1, 5, 9\)"),
        (Mask(bias=torch.ones(1, 2, 6, 5, 9)), "does not broadcast"),
        (Mask.packed([2, 3]), "a batch of 1, got a batch of 2"),
    ],
)
def test_masks_that_do_not_fit(mask, message):
    attn = build()
    attn(*inputs())
    with pytest.raises(attnreg.ShapeError, match=message):
        attn(*inputs(), mask)


def test_packed_offsets_past_the_end():
    query, key, value = (t[:1] for t in inputs())
    with pytest.raises(attnreg.ShapeError, match="cu_seqlens ends at 6, past the 5 rows"):
        build()(query, key, value, Mask.packed([2, 4], [3, 6]))
    with pytest.raises(attnreg.ShapeError, match="key_cu_seqlens ends at 10, past the 9 rows"):
        build()(query, key, value, Mask.packed([2, 3], [3, 7]))


def test_a_right_call_before_a_wrong_one():
    linear, fixed = build("linear", value_dim=8), build("linformer", max_length=9, value_dim=8)
    call = inputs(value=(2, 2, 9, 8))
    for attn in (linear, fixed):
        attn(*call)
    with pytest.raises(attnreg.UnsupportedMask, match="window"):
        linear(*call, Mask(window=(1, 1)))
    with pytest.raises(attnreg.UnsupportedMask, match="causal"):
        fixed(*call, Mask(causal=True))
    with pytest.raises(attnreg.LengthError, match="max_length=9"):
        fixed(*inputs(key=(2, 2, 10, 8), value=(2, 2, 10, 8)))
    with pytest.raises(attnreg.DtypeError, match="layout torch"):
        linear(call[0].to_sparse(), *call[1:])


def test_something_else_than_a_mask():
    with pytest.raises(attnreg.MaskTypeError, match=r"Mask\(allowed=tensor\)"):
        build()(*inputs(), torch.ones(5, 9).bool())
    with pytest.raises(attnreg.MaskTypeError, match=r"must be an attnreg.Mask"):
        build().step(*inputs(query=(2, 6, 9, 8)), None, torch.ones(9, 9).bool())
    with pytest.raises(TypeError, match="casual"):
        build()(*inputs(), casual=True)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_declared_is_refused(name):
    """Both directions: a declared field is taken, another raises the typed error naming it."""
    attn, able = build(name), attnreg.get_variant(name).capabilities
    square = inputs(query=(2, 6, 9, 8))
    masks = {
        "causal": Mask(causal=True),
        "key_valid": Mask.from_lengths([3, 9], 9),
        "allowed": Mask(allowed=torch.ones(9, 9).bool()),
        "bias": Mask(bias=torch.zeros(9, 9)),
        "window": Mask(window=(1, 1)),
        "packed": Mask.packed([4, 5]),
    }
    for field, mask in masks.items():
        call = [t[:1] for t in square] if field == "packed" else square
        if getattr(able, field):
            assert torch.isfinite(attn(*call, mask)).all()
        else:
            with pytest.raises(attnreg.UnsupportedMask, match=f"{name}.*{field}") as caught:
                attn(*call, mask)
            assert isinstance(caught.value, NotImplementedError)
            assert "Variants that can:" in str(caught.value)
            assert attn.explain(*call, mask).chosen is None
    assert able.cross
    assert able.grouped
    assert able.value_dim
    if not able.dropout:
        with pytest.raises(attnreg.UnsupportedOption, match=f"{name} has no dropout"):
            build(name, dropout=0.1)
    if able.decode == "none":
        with pytest.raises(attnreg.UnsupportedFeature, match=f"{name} cannot decode"):
            attn.step(*square)


def test_declared_limits_of_a_strangers_variant():
    """Capabilities that none of ours lacks are refused all the same."""

    class Plain(torch.nn.Module):
        def __init__(self, dims):
            super().__init__()

        def forward(self, query, key, value, mask):
            return query @ key.transpose(-1, -2) @ value

    variant = attnreg.Variant("plain", Plain, summary="no softmax")
    attn = attnreg.create(variant, num_heads=2, head_dim=4)
    with pytest.raises(attnreg.UnsupportedFeature, match="as many queries as keys"):
        attn(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))
    with pytest.raises(attnreg.UnsupportedFeature, match="num_kv_heads == num_heads"):
        attnreg.create(variant, num_heads=2, num_kv_heads=1, head_dim=4)
    with pytest.raises(attnreg.UnsupportedFeature, match="value_dim == head_dim"):
        attnreg.create(variant, num_heads=2, head_dim=4, value_dim=3)
    with pytest.raises(attnreg.UnsupportedOption, match="plain has no scale"):
        attnreg.create(variant, num_heads=2, head_dim=4, scale=1.0)
    with pytest.raises(attnreg.UnsupportedFeature, match="no weights"):
        attn.weights(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4))
    causal_only = attnreg.Variant(
        "later", Plain, summary="", capabilities=attnreg.Capabilities(causal=True, noncausal=False)
    )
    with pytest.raises(attnreg.UnsupportedMask, match="causal only"):
        attnreg.create(causal_only, num_heads=2, head_dim=4)(*[torch.randn(1, 2, 3, 4)] * 3)
    half = attnreg.Variant(
        "single", Plain, summary="", capabilities=attnreg.Capabilities(dtypes=("float32",))
    )
    with pytest.raises(attnreg.DtypeError, match="single takes float32"):
        attnreg.create(half, num_heads=2, head_dim=4)(*[torch.randn(1, 2, 3, 4).double()] * 3)


def test_lengths():
    with pytest.raises(attnreg.LengthError, match="give max_length"):
        attnreg.create("linformer", num_heads=2, head_dim=4)
    attn = attnreg.create("linformer", num_heads=2, head_dim=4, max_length=6)
    long = [torch.randn(1, 2, 7, 4)] * 3
    with pytest.raises(attnreg.LengthError, match="at most max_length=6 keys, got 7") as caught:
        attn(*long)
    assert isinstance(caught.value, ValueError)
    assert attn(*long, Mask.packed([3, 4])).shape == (1, 2, 7, 4)  # each sequence is short


def test_creation_errors_teach():
    with pytest.raises(attnreg.UnknownVariant, match="Did you mean 'linear'"):
        attnreg.create("liner", num_heads=2, head_dim=4)
    with pytest.raises(attnreg.OptionError, match=r"no option 'temprature'.*'temperature'"):
        build(temprature=1.0)
    with pytest.raises(attnreg.OptionError, match="temperature must be a number, at least 1e-30"):
        build(temperature=0)
    with pytest.raises(attnreg.OptionError, match=r"feature_map must be one of 'elu\+1'"):
        build("linear", feature_map="gelu")
    with pytest.raises(attnreg.OptionError, match=r"no implementation 'fusd'.*'fused'"):
        build(implementation="fusd")
    with pytest.raises(attnreg.ShapeError, match="num_heads=6 is not a multiple of num_kv_heads=4"):
        build(num_kv_heads=4)
    for size in ("head_dim", "num_heads", "num_kv_heads", "value_dim", "max_length"):
        for wrong in (0, -1, 2.0, True):
            with pytest.raises(attnreg.ShapeError, match=f"{size} must be a positive integer"):
                build(**{size: wrong})
    for wrong in (-0.1, 1.0, float("nan"), True, None, "0.1"):
        with pytest.raises(attnreg.OptionError, match="dropout must be at least 0 and below 1"):
            build(dropout=wrong)
    for wrong in (float("inf"), float("nan"), "x", True):
        with pytest.raises(attnreg.OptionError, match="scale must be a finite number"):
            build(scale=wrong)
    with pytest.raises(attnreg.UnsupportedOption, match="linear has no scale"):
        build("linear", scale=1.0)
    with pytest.raises(attnreg.OptionError, match="rank=17 is above max_length=16"):
        build("linformer", rank=17)


def test_explain_and_named_implementations():
    attn, call = build(), inputs()
    explanation = attn.explain(*call)
    assert explanation.chosen == "fused"
    assert explanation.refused == {"eager": ["'fused' ranks higher"]}
    named = build(implementation="eager")
    assert named.explain(*call).chosen == "eager"
    torch.manual_seed(0)
    dropping = build(implementation="fused", dropout=0.5)
    assert any("dropout" in reason for reason in dropping.explain(*call).refused["fused"])
    with pytest.raises(attnreg.UnsupportedFeature, match="'fused' cannot run this call: dropout"):
        dropping(*call)
    torch.testing.assert_close(dropping.eval()(*call), named(*call))


def test_attributes_of_the_wrapper_stay_on_it():
    attn = build()
    original = attn.forward
    attn.forward = lambda *args: original(*args) + 1
    torch.testing.assert_close(attn(*inputs()).shape, (2, 6, 5, 6))
    attn = build("additive")
    attn.compile(backend="eager", fullgraph=True)
    assert attn._compiled_call_impl is not None
    assert attn.module._compiled_call_impl is None
    attn.hidden_note = 1
    assert not hasattr(attn.module, "hidden_note")


def test_a_strangers_variant_of_fixed_length_and_packed_kernels():
    """Decoding honours max_length; an implementation may take packed sequences together."""
    seen = []

    class Cached(torch.nn.Module):
        weights = "not a method"
        capabilities = attnreg.Capabilities(
            causal=True, packed=True, decode="cache", weights="implied", fixed_length=True
        )

        def __init__(self, dims):
            super().__init__()

        def forward(self, query, key, value, mask):
            seen.append(mask.cu_seqlens)
            return value.mean(2, keepdim=True).expand(*query.shape)

    together = attnreg.Implementation("together", Cached.forward, rank=5, packed=True)
    for implementations in ((), (together,)):
        variant = attnreg.Variant("cached", Cached, summary="", implementations=implementations)
        attn = attnreg.create(variant, num_heads=1, head_dim=2, max_length=3)
        call = [torch.randn(1, 1, 4, 2)] * 3
        seen.clear()
        attn(*call, attnreg.Mask.packed([2, 2]))
        assert [s is None for s in seen] == ([False] if implementations else [True, True])
        _, state = attn.step(*(t[:, :, :3] for t in call))
        with pytest.raises(attnreg.LengthError, match="at most max_length=3 keys, got 4"):
            attn.step(*(t[:, :, 3:] for t in call), state)
        assert attn.weights(*(t[:, :, :3] for t in call[:2])).shape == (1, 1, 3, 3)


@pytest.mark.parametrize("name", NAMES)
def test_a_failed_call_leaves_the_module_usable(name):
    attn, call = build(name), inputs()
    before = attn(*call)
    with pytest.raises(attnreg.ShapeError):
        attn(call[0], call[1][:, :, :, :5], call[2])
    assert torch.equal(attn(*call), before)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "linear"])
def test_scale(name):
    variant, call = attnreg.get_variant(name), inputs()
    changed = build(name, scale=0.0)(*call)
    if variant.capabilities.weights == "exact" and name != "sparse_window":
        mean = call[2].mean(dim=2, keepdim=True).repeat_interleave(3, 1).expand_as(changed)
        torch.testing.assert_close(changed, mean)  # zero times any score: uniform weights
    assert torch.isfinite(build(name, scale=1e4)(*call)).all()
