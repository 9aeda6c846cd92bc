"""Public bug reports about attention elsewhere, as tests with the right value written out.

Each is named after the project's list of reports (MASK-03 and so on), with the small input there.
"""

from __future__ import annotations

import math

import pytest
import torch

import attnreg
from attnreg import Mask

NAMES = attnreg.list_variants()
# Variants in which equal scores give a plain mean of the visible values.
MEANS = [name for name in NAMES if name != "linformer"]
SETTINGS = {
    "linear": {"feature_map": "elu+1"},
    "sparse_window": {"left": 50, "right": 50},
    "performer": {"features": 32, "seed": 0},
}


def build(name, heads=1, width=1, **changes):
    sizes = {"num_heads": heads, "head_dim": width, "max_length": 64, "dtype": torch.float64}
    return attnreg.create(name, **{**sizes, **SETTINGS.get(name, {}), **changes})


def zeros_and(values, queries=None, width=1, dtype=torch.float64):
    """q = k = 0, so that all scores are equal, and these values."""
    value = torch.tensor(values, dtype=dtype).reshape(1, 1, -1, 1)
    key = torch.zeros(1, 1, value.shape[2], width, dtype=dtype)
    return key[:, :, : queries or value.shape[2]], key, value


def implementations(name):
    return ["auto", *(one.name for one in attnreg.get_variant(name).implementations)]


def declares(name, *fields):
    return all(getattr(attnreg.get_variant(name).capabilities, field) for field in fields)


def flat(output):
    return output.flatten().tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_mask_03_garbage_in_padding_reaches_nothing(name, dtype):
    torch.manual_seed(0)
    attn = build(name, heads=2, width=4, dtype=dtype)
    inputs = [torch.randn(2, 2, 5, 4).to(dtype) for _ in range(3)]
    keep = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]]).bool()
    clean = [t.clone().requires_grad_() for t in inputs]
    expected = attn(*clean, Mask(key_valid=keep))
    wanted = torch.autograd.grad(expected.double().sum(), clean)
    for garbage in (1e4, math.inf, -math.inf, math.nan):
        dirty = [t.clone() for t in inputs]
        for tensor in dirty[1:]:
            tensor.masked_fill_(~keep[:, None, :, None], garbage)
        dirty = [t.requires_grad_() for t in dirty]
        output = attn(*dirty, Mask(key_valid=keep))
        assert torch.equal(output, expected)
        for mine, theirs in zip(
            torch.autograd.grad(output.double().sum(), dirty), wanted, strict=True
        ):
            assert torch.equal(mine, theirs)
        if declares(name, "weights") and attn.variant.capabilities.weights != "none":
            assert torch.isfinite(attn.weights(*dirty[:2], Mask(key_valid=keep))).all()


@pytest.mark.parametrize("name", MEANS)
def test_mask_04_true_means_attend_everywhere(name):
    for implementation in implementations(name):
        attn = build(name, implementation=implementation, dtype=torch.float32)
        q, k, v = zeros_and([1.0, 2.0, 3.0], dtype=torch.float32)
        keep = torch.tensor([[True, True, False]])
        assert flat(attn(q, k, v, Mask(key_valid=keep))) == pytest.approx([1.5] * 3)
        if declares(name, "allowed"):
            assert flat(attn(q, k, v, Mask(allowed=keep))) == pytest.approx([1.5] * 3)
    inverted = Mask.from_torch(key_padding_mask=~keep)
    assert flat(attn(q, k, v, inverted)) == pytest.approx([1.5] * 3)


@pytest.mark.parametrize("name", NAMES)
def test_mask_06_key_padding_has_the_key_length(name):
    torch.manual_seed(0)
    attn = build(name, heads=2, width=8)
    q, k, v = (torch.randn(2, 2, n, 8, dtype=torch.float64) for n in (3, 5, 5))
    output = attn(q, k, v, Mask.from_lengths([5, 2], 5))
    for item, length in enumerate((5, 2)):
        one = slice(item, item + 1)
        # Positions count where the pattern does: query i stands at i + 2, padded or not.
        alone = attn(q[one], k[one, :, :length], v[one, :, :length], Mask(query_offset=2))
        torch.testing.assert_close(output[one], alone)
    with pytest.raises(attnreg.ShapeError, match=r"\(2, 5\), got \(2, 3\)"):
        attn(q, k, v, Mask.from_lengths([3, 2], 3))


@pytest.mark.parametrize("name", [n for n in NAMES if declares(n, "bias")])
def test_mask_08_bias_is_added_after_scaling(name):
    q, k, v = zeros_and([0.0, 1.0], queries=1, width=4)
    attn = build(name, width=4, value_dim=1)
    bias = torch.tensor([0.0, 2.0], dtype=torch.float64)
    assert flat(attn(q, k, v, Mask(bias=bias))) == pytest.approx([0.8808], abs=5e-5)


@pytest.mark.parametrize("name", [n for n in MEANS if declares(n, "causal")])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("with_mask", [False, True])
def test_mask_09_causal_is_never_dropped(name, dropout, with_mask):
    if dropout and not declares(name, "dropout"):
        with pytest.raises(attnreg.UnsupportedOption):
            build(name, dropout=dropout)
        return
    mask = Mask(causal=True)
    if with_mask:
        mask = mask & Mask(key_valid=torch.ones(1, 4).bool())
    for implementation in implementations(name):
        single = {"implementation": implementation, "dtype": torch.float32}
        attn = build(name, dropout=dropout, **single).eval()
        q, k, v = zeros_and([0.0, 1.0, 2.0, 3.0], dtype=torch.float32)
        assert flat(attn(q, k, v, mask)) == pytest.approx([0, 0.5, 1, 1.5])
        assert torch.equal(attn.weights(q, k, mask).triu(1), torch.zeros(1, 1, 4, 4))


@pytest.mark.parametrize("name", [n for n in MEANS if declares(n, "causal")])
def test_mask_10_causal_and_padding_combine(name):
    q, k, v = zeros_and([1.0, 10.0, 100.0])
    mask = Mask(causal=True, key_valid=torch.tensor([[True, False, True]]))
    assert flat(build(name)(q, k, v, mask)) == pytest.approx([1, 1, 50.5])


@pytest.mark.parametrize("name", [n for n in MEANS if declares(n, "causal")])
def test_dec_01_one_query_sees_every_key(name):
    q, k, v = zeros_and(list(map(float, range(8))), queries=1)
    attn = build(name)
    assert flat(attn(q, k, v, Mask(causal=True))) == pytest.approx([3.5])
    assert flat(attn(q, k, v, Mask(causal=True, query_offset=0))) == pytest.approx([0.0])


@pytest.mark.parametrize("name", NAMES)
def test_dec_04_decoding_equals_one_pass(name):
    torch.manual_seed(1)
    attn = build(name, heads=4, width=4)
    q, k, v = (torch.randn(3, 4, 10, 4, dtype=torch.float64) for _ in range(3))
    if not declares(name, "causal"):
        with pytest.raises(attnreg.UnsupportedFeature, match="cannot decode"):
            attn.step(q, k, v)
        return
    full, state = attn(q, k, v, Mask(causal=True)), None
    for i in range(10):
        output, state = attn.step(*(t[:, :, i : i + 1] for t in (q, k, v)), state)
        torch.testing.assert_close(output, full[:, :, i : i + 1])
    assert state.length == 10


@pytest.mark.parametrize("name", [n for n in NAMES if declares(n, "causal")])
def test_dec_05_left_padded_prompts(name):
    torch.manual_seed(2)
    attn = build(name, heads=2, width=4)
    q, k, v = (torch.randn(2, 2, 6, 4, dtype=torch.float64) for _ in range(3))
    pad = torch.tensor([[False, False, True, True, True], [True] * 5])
    for tensor in (q, k, v):
        tensor[0, :, :2] = 1e3
    _, state = attn.step(q[:, :, :5], k[:, :, :5], v[:, :, :5], None, Mask(key_valid=pad))
    output, _ = attn.step(q[:, :, 5:], k[:, :, 5:], v[:, :, 5:], state)
    _, alone = attn.step(q[:1, :, 2:5], k[:1, :, 2:5], v[:1, :, 2:5])
    expected, _ = attn.step(q[:1, :, 5:], k[:1, :, 5:], v[:1, :, 5:], alone)
    torch.testing.assert_close(output[:1], expected)


@pytest.mark.parametrize("name", [n for n in NAMES if declares(n, "allowed", "grouped")])
def test_gqa_02_masks_per_head(name):
    torch.manual_seed(3)
    grouped, wide = (build(name, heads=8, width=16, num_kv_heads=n) for n in (2, 8))
    wide.load_state_dict(grouped.state_dict())
    q, k, v = (torch.randn(3, h, 8, 16, dtype=torch.float64) for h in (8, 2, 2))
    eye = torch.eye(8).bool()
    for shape in ((3, 1, 8, 8), (3, 8, 8, 8)):
        mask = Mask(allowed=(torch.rand(shape) > 0.5) | eye)
        expected = wide(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1), mask)
        torch.testing.assert_close(grouped(q, k, v, mask), expected)


@pytest.mark.parametrize("name", NAMES)
def test_gqa_03_grouped_heads_in_every_variant(name):
    torch.manual_seed(4)
    grouped, wide = (build(name, heads=32, width=8, num_kv_heads=n) for n in (8, 32))
    wide.load_state_dict(grouped.state_dict())
    q, k, v = (torch.randn(1, h, 4, 8, dtype=torch.float64) for h in (32, 8, 8))
    expected = wide(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1))
    torch.testing.assert_close(grouped(q, k, v), expected)
    assert declares(name, "grouped")
    with pytest.raises(ValueError, match="num_heads=6 is not a multiple of num_kv_heads=4"):
        build(name, heads=6, num_kv_heads=4)


@pytest.mark.parametrize("name", [n for n in NAMES if declares(n, "dropout")])
def test_drop_01_and_02_dropout_only_in_training(name):
    torch.manual_seed(5)
    for implementation in ("auto", "eager"):
        attn = build(name, dropout=0.8, width=4, implementation=implementation)
        plain = build(name, width=4)
        plain.load_state_dict(attn.state_dict())
        ones = torch.ones(1, 1, 4, 4, dtype=torch.float64)
        attn.eval()
        assert torch.equal(attn(ones, ones, ones), attn(ones, ones, ones))
        torch.testing.assert_close(attn(ones, ones, ones), plain(ones, ones, ones))
    attn = build(name, dropout=0.5, width=4).train()
    long = [torch.randn(1, 1, 64, 4, dtype=torch.float64) for _ in range(3)]
    attn.eval()(*long)
    attn.train()
    assert not torch.equal(attn(*long), attn(*long))
    assert attn.dropout == 0.5


def test_lin_02_small_features_survive_half_precision():
    attn = build("linear", dtype=torch.bfloat16)
    token = torch.full((1, 1, 1, 1), -8.0, dtype=torch.bfloat16)
    assert flat(attn(token, token, torch.ones_like(token))) == [1.0]
    phi = attn.module.feature_map
    assert phi(torch.tensor(-8.0).bfloat16()).item() == pytest.approx(3.36e-4, rel=0.01)
    assert phi(torch.tensor(-6.0).bfloat16()).item() == pytest.approx(2.48e-3, rel=0.01)
    assert phi(torch.tensor(-20.0)).item() == pytest.approx(2.06e-9, rel=0.01)


@pytest.mark.parametrize("name", ["linear", "performer"])
def test_lin_03_decoding_keeps_the_normaliser(name):
    attn = build(name)
    q, k, v = zeros_and([3.0, 6.0, 9.0])
    _, state = attn.step(q[:, :, :2], k[:, :, :2], v[:, :, :2])
    output, _ = attn.step(q[:, :, 2:], k[:, :, 2:], v[:, :, 2:], state)
    assert flat(output) == pytest.approx([6.0])


@pytest.mark.parametrize("name", [n for n in NAMES if declares(n, "causal")])
def test_lin_04_split_with_state(name):
    torch.manual_seed(6)
    attn = build(name, heads=2, width=4)
    q, k, v = (torch.randn(1, 2, 8, 4, dtype=torch.float64) for _ in range(3))
    whole, final = attn.step(q, k, v)
    for cuts in ([5, 3], [1] * 8):
        state, outputs, start = None, [], 0
        for n in cuts:
            result = attn.step(*(t[:, :, start : start + n] for t in (q, k, v)), state)
            assert isinstance(result, tuple)
            assert len(result) == 2
            output, state = result
            outputs.append(output)
            start += n
        torch.testing.assert_close(torch.cat(outputs, 2), whole)
        for mine, theirs in zip(state.tensors(), final.tensors(), strict=True):
            torch.testing.assert_close(mine, theirs)
    last = [t[:, :, :1] for t in (q, k, v)]
    assert not torch.allclose(attn.step(*last, final)[0], attn.step(*last)[0])


@pytest.mark.parametrize("name", ["linear", "performer"])
def test_lin_05_and_perf_05_masks_of_kernel_attention(name):
    q, k, v = zeros_and([1.0, 3.0, 100.0])
    attn = build(name)
    mask = Mask(key_valid=torch.tensor([[True, True, False]]))
    assert flat(attn(q, k, v, mask)) == pytest.approx([2.0] * 3)
    with pytest.raises(attnreg.UnsupportedMask, match="'allowed'"):
        attn(q, k, v, Mask(allowed=torch.rand(3, 3) > 0.5))


def test_perf_01_features_change_only_on_request():
    attn = attnreg.create("performer", num_heads=4, head_dim=4)
    call = [torch.randn(1, 4, 16, 4) for _ in range(3)]
    first = attn.eval()(*call)
    assert torch.equal(attn(*call), first)
    assert torch.equal(attn.train()(*call), first)
    other = attnreg.create("performer", num_heads=4, head_dim=4)
    assert not torch.equal(other(*call), first)
    other.load_state_dict(attn.state_dict())
    assert torch.equal(other(*call), first)
    attn.redraw()
    assert not torch.equal(attn(*call), first)


def test_perf_03_the_stabiliser_couples_nothing_and_the_error_falls():
    torch.manual_seed(7)
    attn = attnreg.create("performer", num_heads=2, head_dim=4, features=32, seed=0)
    q, k, v = (torch.randn(2, 2, 6, 4) for _ in range(3))
    for causal in (False, True):
        before = attn(q, k, v, Mask(causal=causal))
        bigger = k.clone()
        bigger[1] *= 10
        bigger[0, 1] *= 10
        after = attn(q, bigger, v, Mask(causal=causal))
        assert torch.equal(before[0, 0], after[0, 0])
    exact = attnreg.create("scaled_dot_product", num_heads=2, head_dim=4)(q, k, v)
    errors = []
    for features in (16, 256, 4096, 65536):
        found = [
            attnreg.create("performer", num_heads=2, head_dim=4, features=features, seed=s)(q, k, v)
            for s in range(4)
        ]
        errors.append(torch.stack([(f - exact).abs().mean() for f in found]).mean().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.02 < errors[0]


def test_linf_02_padding_is_masked_before_mixing():
    torch.manual_seed(8)
    attn = build("linformer", width=4, rank=4, max_length=8)
    q, k, v = (torch.randn(1, 1, 8, 4, dtype=torch.float64) for _ in range(3))
    mask = Mask.from_lengths([5], 8)
    expected = attn(q, k, v, mask)
    assert not torch.allclose(expected, attn(q, k, v))
    k[:, :, 5:], v[:, :, 5:] = 100.0, 100.0
    assert torch.equal(attn(q, k, v, mask), expected)


def test_linf_03_causality_is_refused():
    attn = build("linformer", width=4, rank=4)
    with pytest.raises(attnreg.UnsupportedMask, match="field 'causal': every mixture of keys"):
        attn(*[torch.randn(1, 1, 5, 4, dtype=torch.float64)] * 3, Mask(causal=True))


def seen(attn, length, mask):
    """The set of keys that each query sees, from the weights."""
    zeros = torch.zeros(1, 1, length, 1, dtype=torch.float64)
    return [row.nonzero().flatten().tolist() for row in attn.weights(zeros, zeros, mask)[0, 0]]


def test_win_01_exact_windows():
    found = seen(build("sparse_window", left=3, right=0), 8, Mask(causal=True))
    assert found[4] == [1, 2, 3, 4]
    assert found[7] == [4, 5, 6, 7]
    assert found[0] == [0]


def test_win_02_any_length():
    torch.manual_seed(9)
    wide, full = build("sparse_window", left=8, right=8), build("scaled_dot_product")
    short = [torch.randn(1, 1, 2, 1, dtype=torch.float64) for _ in range(3)]
    torch.testing.assert_close(wide(*short), full(*short))
    odd = build("sparse_window", left=1, right=1, block_size=4)
    assert odd(*[torch.randn(1, 1, 5, 1, dtype=torch.float64)] * 3).shape == (1, 1, 5, 1)


def test_win_03_a_window_counts_without_the_position_itself():
    q, k, v = zeros_and([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    for attn, mask in (
        (build("sparse_window", left=2, right=0), Mask(causal=True)),
        (build("scaled_dot_product"), Mask(causal=True, window=(2, None))),
    ):
        assert flat(attn(q, k, v, mask)) == pytest.approx([0, 0.5, 1, 2, 3, 4])
        assert [len(s) for s in seen(attn, 6, mask)] == [1, 2, 3, 3, 3, 3]
    wide = build("sparse_window", left=6, right=0)
    torch.testing.assert_close(
        wide(q, k, v, Mask(causal=True)), build("scaled_dot_product")(q, k, v, Mask(causal=True))
    )


@pytest.mark.parametrize("name", NAMES)
def test_win_06_an_open_mask_is_no_mask(name):
    torch.manual_seed(10)
    settings = {"left": 2, "right": 2} if name == "sparse_window" else {}
    attn = build(name, heads=2, width=4, **settings)
    for queries, keys in ((5, 5), (20, 10)):
        q, k, v = (torch.randn(2, 2, n, 4, dtype=torch.float64) for n in (queries, keys, keys))
        expected = attn(q, k, v)
        open_masks = [Mask(key_valid=torch.ones(2, keys).bool())]
        if declares(name, "allowed"):
            open_masks.append(Mask(allowed=torch.ones(queries, keys).bool()))
        for mask in open_masks:
            torch.testing.assert_close(attn(q, k, v, mask), expected)


def test_win_07_a_short_input_changes_nothing():
    torch.manual_seed(11)
    attn = build("sparse_window", width=4, left=2, right=2, random_blocks=2, block_size=4)
    long = [torch.randn(1, 1, 64, 4, dtype=torch.float64) for _ in range(3)]
    first = attn(*long)
    attn(*(t[:, :, :4] for t in long))
    assert torch.equal(attn(*long), first)


def test_var_02_cosine_has_one_scale_on_every_path():
    q = torch.tensor([2.0, 0, 0, 0], dtype=torch.float64).reshape(1, 1, 1, 4)
    k = torch.tensor([[3.0, 0, 0, 0], [0, 5, 0, 0]], dtype=torch.float64)[None, None]
    v = torch.tensor([1.0, 0.0], dtype=torch.float64).reshape(1, 1, 2, 1)
    for implementation in implementations("cosine"):
        attn = build("cosine", width=4, value_dim=1, init_scale=10.0, implementation=implementation)
        with torch.no_grad():
            assert attn(q, k, v).item() == pytest.approx(0.99995, abs=1e-5)
            assert torch.equal(attn(7 * q, k, v), attn(q, k, v))


@pytest.mark.parametrize("name", NAMES)
def test_var_03_every_parameter_gets_a_gradient(name):
    torch.manual_seed(12)
    options = {"learnable": True} if name in ("cosine", "euclidean") else {}
    attn = build(name, heads=2, width=4, **options)
    call = [torch.randn(1, 2, 5, 4, dtype=torch.float64).requires_grad_() for _ in range(3)]
    attn(*call).square().sum().backward()
    for what, parameter in attn.named_parameters():
        assert parameter.grad.abs().sum() > 0, what
    if name == "cosine":
        with torch.no_grad():
            attn.head_scale.zero_()
        weights = attn.weights(*[torch.randn(1, 2, 5, 4, dtype=torch.float64) for _ in range(2)])
        torch.testing.assert_close(weights, torch.full_like(weights, 0.2))


def test_var_04_squared_or_plain_distance():
    q = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    k = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64).reshape(1, 1, 3, 1)
    for squared, expected in (
        (True, [0.7214, 0.2654, 0.0132]),
        (False, [0.6652, 0.2447, 0.0900]),
    ):
        attn = build("euclidean", squared=squared)
        assert flat(attn.weights(q, k)) == pytest.approx(expected, abs=5e-5)
        assert flat(attn(q, k, torch.eye(3).double()[None, None, :, :1])) == pytest.approx(
            expected[:1], abs=5e-5
        )
    attn = build("euclidean", width=2)
    call = [torch.randn(1, 1, 3, 2, dtype=torch.float64).requires_grad_() for _ in range(3)]
    assert torch.autograd.gradgradcheck(attn, call)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_var_06_shared_attention_without_itself(dtype):
    torch.manual_seed(13)
    attn = build("shared_qkv", width=4, exclude_self=True, dtype=dtype)
    x = torch.randn(1, 1, 3, 4).to(dtype).requires_grad_()
    mask = Mask(causal=True, key_valid=torch.tensor([[True, True, False]]))
    output, weights = attn(x, x, x, mask), attn.weights(x, x, mask)
    assert torch.equal(output[0, 0, 0], x[0, 0, 0])
    assert torch.equal(weights[..., 2], torch.zeros(1, 1, 3))
    assert weights[0, 0, 1].tolist() == [1.0, 0.0, 0.0]
    output.float().sum().backward()
    assert torch.isfinite(output).all()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("name", NAMES)
def test_pack_02_rows_past_the_end_are_zero(name):
    attn = build(name, heads=2, width=4)
    call = [torch.randn(1, 2, 8, 4, dtype=torch.float64) for _ in range(3)]
    for tensor in call:
        tensor[:, :, 5:] = math.nan
    call = [t.requires_grad_() for t in call]
    output = attn(*call, Mask(cu_seqlens=torch.tensor([0, 3, 5], dtype=torch.int32)))
    assert torch.equal(output[:, :, 5:], torch.zeros(1, 2, 3, 4).double())
    assert torch.isfinite(output).all()
    for grad in torch.autograd.grad(output.square().sum(), call):
        assert torch.equal(grad[:, :, 5:], torch.zeros(1, 2, 3, 4).double())
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize("name", [n for n in MEANS if declares(n, "causal", "packed")])
def test_pack_03_an_open_mask_does_not_join_documents(name):
    q, k, v = zeros_and([1.0, 2.0, 3.0, 10.0, 20.0])
    mask = Mask.packed([3, 2]) & Mask(causal=True, key_valid=torch.ones(1, 5).bool())
    assert flat(build(name)(q, k, v, mask)) == pytest.approx([1, 1.5, 2, 10, 15])


@pytest.mark.parametrize("name", MEANS)
def test_pack_05_packed_items_stay_apart(name):
    q, k, v = zeros_and([1.0, 3.0, 10.0, 20.0, 30.0])
    attn = build(name)
    assert flat(attn(q, k, v, Mask.packed([2, 3]))) == pytest.approx([2, 2, 20, 20, 20])
    with pytest.raises(attnreg.ShapeError, match="ends at 20"):
        attn(q, k, v, Mask.packed([10, 10]))


@pytest.mark.parametrize("name", [n for n in NAMES if declares(n, "causal")])
def test_comp_01_causality_compiles_at_every_length(name):
    torch.manual_seed(14)
    attn = build(name, heads=2, width=4, dtype=torch.float32)
    torch._dynamo.reset()
    graphs = 0

    def counting(graph, example_inputs):
        nonlocal graphs
        graphs += 1
        return graph.forward

    compiled = torch.compile(attn, fullgraph=True, backend=counting)
    counts = []
    for length in (12, 7, 9, 1):
        call = [torch.randn(1, 2, length, 4) for _ in range(3)]
        torch.testing.assert_close(
            compiled(*call, Mask(causal=True)), attn(*call, Mask(causal=True))
        )
        counts.append(graphs)
    assert counts[:3] in ([1, 2, 2], [1, 1, 1])
    assert counts[3] <= counts[2] + 1  # a length of 1 is torch's own special case


@pytest.mark.parametrize("name", NAMES)
def test_comp_02_any_strides(name):
    torch.manual_seed(15)
    attn = build(name, heads=2, width=8, dtype=torch.float32)
    base = [torch.randn(1, 16, 2, 8) for _ in range(3)]
    views = [
        [t.transpose(1, 2) for t in base],
        [torch.randn(1, 2, 8, 16).transpose(2, 3) for _ in range(3)],
        [torch.randn(1, 2, 16, 16)[..., ::2] for _ in range(3)],
        [torch.randn(3, 2, 16, 8), *(torch.randn(1, 2, 16, 8).expand(3, -1, -1, -1),) * 2],
        [torch.randn(1, 2, 1, 8).expand(-1, -1, 16, -1) for _ in range(3)],
    ]
    for call in views:
        copies = [t.clone() for t in call]
        output = attn(*call)
        torch.testing.assert_close(output, attn(*(t.contiguous() for t in call)))
        assert all(torch.equal(a, b) for a, b in zip(call, copies, strict=True))
        assert all(t._version == 0 for t in call)
