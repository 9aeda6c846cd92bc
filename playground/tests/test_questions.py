"""Every question card: its numbers recomputed without the app, in NumPy wherever that can be."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
import torch

import attnreg
from attnreg import AttentionLayer
from attnreg_playground import draw, inputs
from attnreg_playground.pages.index import PAGES
from attnreg_playground.questions import CARDS, dependence, order
from attnreg_playground.questions.common import draw_heads
from attnreg_playground.questions.padding import lengths_of

SLOW = {"q_vision"}


def softmax(scores):
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def heads_of(text, seed, width=32):
    """Query, key and value of a sentence, from the embedding and the projection of a layer."""
    x = inputs.embed(text, 1, seed).x
    torch.manual_seed(seed)
    layer = AttentionLayer(width, 1)
    with torch.no_grad():
        parts = layer.projection(x, x, x)
    return [one[0, 0].double().numpy() for one in parts]


def test_every_question_of_the_text_has_a_card():
    assert len(CARDS) == 19
    assert len({card.id for card in CARDS}) == 19


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.id)
def test_a_card_draws_with_its_presets_and_says_what_it_lacks(card, shown, refused):
    if card.id not in SLOW:
        for values in ({}, *card.presets.values()):
            found = shown(card.id, **values)
            assert found.figures
            assert found.said is not None
            assert found.formula
            assert found.arrays
    if card.id != "q_bottleneck":  # it leaves out what is not installed
        assert "Install its plugin" in refused(card.id, attnreg.Registry())["detail"]


def test_formula():
    found = draw("q_formula", length=6, width=10, seed=4)
    scores = found["query"].astype(float) @ found["key"].T / np.sqrt(10)
    assert np.allclose(found["scores"], scores, atol=1e-5)
    assert np.allclose(found["weights"], softmax(scores), atol=1e-6)
    assert np.allclose(found["output"], softmax(scores) @ found["value"], atol=1e-6)


def test_dependence_is_the_gradient_of_the_last_output():
    model = dependence.Attending(attnreg.get_variant("scaled_dot_product"))
    x, first = dependence.batch(7, torch.Generator().manual_seed(0))
    assert x.shape == (dependence.BATCH, 7, dependence.WIDTH)
    found = dependence.gradients(model, x)
    place, step = 3, 1e-3  # a finite difference along one direction, for one input of one sequence
    alone = x[:1].double()
    model = model.double()
    exact = dependence.gradients(model, alone)
    total = 0.0
    for coordinate in range(dependence.WIDTH):
        moved = alone.clone()
        moved[0, place, coordinate] += step
        back = alone.clone()
        back[0, place, coordinate] -= step
        with torch.no_grad():
            slope = (model(moved).norm() - model(back).norm()) / (2 * step)
        total += float(slope) ** 2
    assert float(exact[place]) == pytest.approx(total**0.5, rel=1e-4)
    assert found.shape == (7,)
    assert set(first.tolist()) <= set(range(dependence.SYMBOLS))
    drawn = draw("q_dependence", length=16)
    assert drawn["right"][1] > 0.95  # attention finds the first symbol
    assert drawn["attention"][0] > 10 * drawn["attention"][7]


def test_complexity_counts_two_products():
    found = draw("q_complexity", length=24, width=12)
    assert found["by_length"].tolist() == [4 * one * one * 12 for one in found["lengths"]]
    assert found["by_width"].tolist() == [4 * 24 * 24 * one for one in found["widths"]]


def test_temperature():
    found = draw("q_temperature", temperature=0.5, row=2, text="缩放点积", seed=1)
    query, key, _ = heads_of("缩放点积", 1)
    scores = query @ key.T / np.sqrt(32)
    for name, warm in (("row", 0.5), ("plain", 1.0)):
        assert np.allclose(found[name], softmax(scores / warm)[2], atol=1e-5)
    for warm, entropy in zip(found["temperatures"], found["entropies"], strict=True):
        row = softmax(scores / warm)[2]
        row = row[row > 1e-30]
        assert entropy == pytest.approx(-(row * np.log(row)).sum(), abs=1e-4)


@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_roles(part):
    found = draw("q_roles", part=part, token=2, source_token=0, text="缩放点积", seed=3)
    heads = dict(zip(("query", "key", "value"), heads_of("缩放点积", 3), strict=True))
    before = softmax(heads["query"] @ heads["key"].T / np.sqrt(32))
    assert np.allclose(found["before"], before, atol=1e-5)
    heads[part][2] = heads[part][0]
    after = softmax(heads["query"] @ heads["key"].T / np.sqrt(32))
    assert np.allclose(found["after"], after, atol=1e-5)
    assert np.allclose(found["output_after"], after @ heads["value"], atol=1e-5)
    changed = np.abs(after - before).max(axis=1) > 1e-6
    assert changed.tolist() == {"query": [False, False, True, False], "key": [True] * 4,
                                "value": [False] * 4}[part]  # fmt: skip


def test_rows():
    found = draw("q_rows", row=1, text="我爱你", seed=5)
    query, key, value = heads_of("我爱你", 5)
    weights = softmax(query @ key.T / np.sqrt(32))
    assert np.allclose(found["weights"], weights, atol=1e-5)
    assert np.allclose(found["output"], weights[1] @ value, atol=1e-5)


def test_dynamic(refused):
    found = draw("q_dynamic", first="我爱你", second="他恨她", seed=2)
    for name, text in (("first", "我爱你"), ("second", "他恨她")):
        query, key, _ = heads_of(text, 2)
        assert np.allclose(found[name], softmax(query @ key.T / np.sqrt(32)), atol=1e-5)
    kernel = found["convolution"]
    assert kernel[0, 0] == kernel[1, 1] == kernel[2, 2]  # the same weights at every place
    assert kernel[0, 1] == kernel[1, 2]
    assert kernel[0, 2] == kernel[2, 0] == 0
    assert "1" in refused("q_dynamic", first="我", second="他恨")["detail"]


def test_bottleneck_holds_two_squares_and_grows_as_they_do():
    found = draw("q_bottleneck", longest="512", variants=["linear"])
    length = found["lengths"].astype(float)
    squares = 4 * length**2 * 4  # four heads of float32
    assert (found["textbook_bytes"] >= 2 * squares).all()
    assert (found["textbook_bytes"] < 3.2 * squares).all()
    slope = np.polyfit(np.log(length), np.log(found["linear_bytes"]), 1)[0]
    assert slope < 1.2
    assert (found["textbook_seconds"] > 0).all()


def test_additive():
    found = draw("q_additive", size="64", text="我爱你", seed=1)
    query, key, _ = heads_of("我爱你", 1)
    expected = softmax(query @ key.T / np.sqrt(32))
    assert np.allclose(found["scaled_dot_product"], expected, atol=1e-5)
    torch.manual_seed(1)
    module = attnreg.create("additive", num_heads=1, head_dim=32).module
    drawn = inputs.embed("我爱你", 1, 1)
    query, key, _ = (one[0, 0].double().numpy() for one in inputs.project(
        drawn, attnreg.create("additive", num_heads=1, head_dim=32), 1))  # fmt: skip
    reference = attnreg.get_variant("additive").reference
    output = reference(
        module.double(), query[None, None], key[None, None], np.eye(3)[None, None],
        np.ones((1, 1, 3, 3), bool), None, np.arange(3), np.arange(3),
    )  # fmt: skip
    assert np.allclose(found["additive"], output[0, 0], atol=1e-5)
    assert found["parameters"][0] == 0
    assert found["parameters"][1] > 0


@pytest.mark.parametrize("scaled", [True, False])
def test_worked(scaled):
    found = draw("q_worked", row="second", scaled=scaled, temperature=2.0)
    x = np.array([[1, 0, 1, 0], [0, 2, 0, 1], [1, 1, 0, 2]], float)
    query, key, value = x @ found["w_q"], x @ found["w_k"], x @ found["w_v"]
    scores = query[1] @ key.T / (np.sqrt(3) if scaled else 1) / 2.0
    assert np.allclose(found["weights"][1], softmax(scores), atol=1e-12)
    assert np.allclose(found["output"][1], softmax(scores) @ value, atol=1e-12)


def test_parallel():
    found = draw("q_parallel", size="64", seed=3)
    query, key, value = (one[0, 0].double().numpy() for one in draw_heads(64, 1, 32, 3))
    expected = softmax(query @ key.T / np.sqrt(32)) @ value
    assert np.allclose(found["at_once"], expected, atol=1e-5)
    assert np.allclose(found["one_by_one"], expected, atol=1e-5)
    assert found["steps"].tolist() == [1, 64, 64]
    assert (found["seconds"] > 0).all()


@pytest.mark.parametrize("kind", order.POSITIONS)
@pytest.mark.parametrize("moved", order.ORDERS)
def test_order_shows_only_where_positions_are(kind, moved):
    found = draw("q_order", position=kind, order=moved, text="缩放点积注", seed=1)
    apart = np.abs(found["output"] - found["moved_output"]).max()
    assert (apart < 1e-5) == (kind == "none" or moved == "as_is")
    assert sorted(found["order"].tolist()) == [0, 1, 2, 3, 4]


def test_relative_positions_are_those_of_the_papers():
    buckets = order.t5_buckets(300).numpy()
    for query, key in ((5, 5), (5, 4), (5, 6), (200, 193), (200, 190), (10, 150), (299, 0)):
        distance = key - query
        size = abs(distance)
        bucket = size if size < 8 else min(15, 8 + int(np.log(size / 8) / np.log(16) * 8))
        assert buckets[query, key] == bucket + (16 if distance > 0 else 0)
    found = draw("q_order", position="xl", text="缩放点积", seed=2)
    x = inputs.embed("缩放点积", 1, 2).x[0] - inputs.sinusoids(4, 32)
    torch.manual_seed(2)
    projection = AttentionLayer(32, 1).projection
    query, key, _ = (one[0, 0].detach().double().numpy() for one in projection(*[x[None]] * 3))
    u, v = (torch.randn(2, 32, generator=torch.Generator().manual_seed(2)) * 0.5).double().numpy()
    rate = 10000 ** (-np.arange(0, 32, 2) / 32)
    for i in range(4):
        for j in range(4):
            r = np.stack([np.sin((i - j) * rate), np.cos((i - j) * rate)], axis=-1).ravel()
            expected = (query[i] @ r + u @ key[j] + v @ r) / np.sqrt(32)
            assert found["bias"][i, j] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("tie", ["separate", "qk", "kv", "qkv"])
def test_shared(tie):
    found = draw("q_shared", tie=tie, text="缩放点积", seed=4)
    assert int(found["parameters"]) == {"separate": 3, "qk": 2, "kv": 2, "qkv": 1}[tie] * 32 * 33
    symmetric = np.abs(found["scores"] - found["scores"].T).max() < 1e-5
    assert symmetric == (tie in ("qk", "qkv"))
    assert np.allclose(found["weights"], softmax(found["scores"].astype(float)), atol=1e-5)
    hidden = draw("q_shared", tie="qkv", exclude_self=True, text="缩放点积", seed=4)
    assert not np.diag(hidden["weights"]).any()


def test_saturation():
    found = draw("q_saturation", power=6, seed=2)
    for name, scaled in (("scaled", True), ("plain", False)):
        for at, width in enumerate(found["widths"]):
            query, key, _ = (one[0, 0].double().numpy() for one in draw_heads(16, 1, int(width), 2))
            weights = softmax(query @ key.T / (np.sqrt(width) if scaled else 1.0))
            assert found[f"{name}_largest"][at] == pytest.approx(weights.max(1).mean(), abs=1e-4)
            slopes = [np.diag(row) - np.outer(row, row) for row in weights]
            size = np.mean([np.linalg.norm(one) for one in slopes])
            assert found[f"{name}_gradient"][at] == pytest.approx(size, rel=1e-3, abs=1e-5)
            if width == 64:
                assert np.allclose(found[f"{name}_row"], weights[0], atol=1e-4)


def test_reorder():
    found = draw("q_reorder", length=48, width=12, seed=1)
    query, key, value = (one[0, 0].numpy() for one in draw_heads(48, 1, 12, 1, torch.float64))
    assert np.allclose(found["left"], query @ key.T @ value, atol=1e-9)
    assert np.allclose(found["right"], query @ key.T @ value, atol=1e-9)
    assert found["flops"].tolist() == [4 * 48 * 48 * 12, 4 * 48 * 12 * 12]
    assert np.allclose(found["softmax"], softmax(query @ key.T / np.sqrt(12)) @ value, atol=1e-9)
    lifted = [np.where(one > 0, one + 1, np.exp(np.minimum(one, 0))) for one in (query, key)]
    kernel = lifted[0] @ lifted[1].T
    expected = kernel @ value / kernel.sum(axis=1, keepdims=True)
    assert np.allclose(found["linear"], expected, atol=1e-9)


def test_similarity():
    points = [[1.0, 2.0], [0.5, -1.0], [2.0, 2.0], [-1.0, 3.0]]
    found = draw("q_similarity", points=points)
    query, keys = np.array(points[0]), np.array(points[1:])
    cosine = keys @ query / np.linalg.norm(query) / np.linalg.norm(keys, axis=1)
    expected = {
        "dot": softmax(keys @ query / np.sqrt(2)),
        "cosine": softmax(4.0 * cosine),
        "euclidean": softmax(-((keys - query) ** 2).sum(axis=1)),
    }
    for kind, weights in expected.items():
        assert np.allclose(found[kind], weights, atol=1e-6)
    default = draw("q_similarity")
    best = {kind: int(default[kind].argmax()) for kind in expected}
    assert len(set(best.values())) == 3  # each prefers another key


def test_padding():
    found = draw("q_padding", share=60, size="64", seed=3)
    lengths = found["lengths"].tolist()
    assert lengths == lengths_of(64, 0.6)
    assert abs(1 - sum(lengths) / (8 * 64) - 0.6) < 0.05
    generator = torch.Generator().manual_seed(3)
    packed = [torch.randn(1, 4, sum(lengths), 32, generator=generator) for _ in range(3)]
    query, key, value = (one[0].double().numpy() for one in packed)
    start = 0
    for length in lengths:
        part = slice(start, start + length)
        scores = query[:, part] @ key[:, part].transpose(0, 2, 1) / np.sqrt(32)
        expected = softmax(scores) @ value[:, part]
        for name in ("padded", "packed"):
            assert np.allclose(found[name][:, part], expected, atol=1e-5)
        start += length
    assert np.abs(found["unmasked"] - found["packed"]).max() > 0.1


def test_rank():
    found = draw("q_rank", source="chance", rank=5, head=3, seed=1)
    weights, values = found["weights"], found["values"]
    assert np.allclose(values, np.linalg.svd(weights)[1], atol=1e-9)
    assert np.linalg.matrix_rank(found["low"], tol=1e-8) == 5
    # The best approximation of rank 5 misses exactly the other singular values.
    assert np.linalg.norm(weights - found["low"]) == pytest.approx(
        np.sqrt((values[5:] ** 2).sum()), abs=1e-9
    )
    errors = dict(zip(found["names"].tolist(), found["errors"].tolist(), strict=True))
    assert set(errors) == {"truncated", "linformer", "performer", "sparse_window"}
    assert errors["truncated"] == min(errors.values())
    share = values / values.sum()
    assert found["heads"][2] == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-6)


def test_vision_names_what_a_model_of_its_own_would():
    from attnreg_playground.questions import vision
    from attnreg_playground.real import digits

    found = draw("q_vision", rounds=20, seed=1)
    assert len(found["vit"]) == len(found["cnn"]) == 3
    images, labels = digits.load()
    order_ = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    images, labels = images[order_], labels[order_]
    torch.manual_seed(1)
    model = vision.convolutional()
    for _ in vision.train(model, images[:50], labels[:50], 20, 1):
        pass
    with torch.no_grad():
        named = model.eval()(images[-500:]).argmax(-1)
    assert found["cnn"][0] == pytest.approx(float((named == labels[-500:]).float().mean()))


def test_the_two_models_of_the_vision_card_are_as_large():
    from attnreg_playground.questions import vision
    from attnreg_playground.real.digits import VisionTransformer

    sizes = [
        sum(one.numel() for one in model.parameters())
        for model in (
            vision.convolutional(), VisionTransformer(attnreg.get_variant("scaled_dot_product"))
        )
    ]  # fmt: skip
    assert 0.9 < sizes[0] / sizes[1] < 1.1


@pytest.mark.parametrize(
    "card", [one for one in CARDS if not (one.started or one.measured)], ids=lambda card: card.id
)
def test_python_gives_the_numbers_of_a_card(card, shown):
    from attnreg_playground.work import python_of

    values = {"seed": 3} if any(one.name == "seed" for one in card.controls) else {}
    found = shown(card.id, **values)
    space: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(python_of(card.id, values, found), space)
    assert set(space["found"]) == set(found.arrays)
    for name, numbers in found.arrays.items():
        if not (card.measured and name.endswith(("seconds", "bytes"))):
            assert np.array_equal(
                space["found"][name], numbers, equal_nan=numbers.dtype.kind == "f"
            )


@pytest.mark.parametrize(
    ("card", "values", "key"),
    [
        ("q_order", {"order": "as_is"}, "order.said_still"),
        ("q_order", {"position": "sinusoidal"}, "order.said_differ"),
        ("q_order", {"position": "none"}, "order.said_same"),
        ("q_shared", {"tie": "separate"}, "shared.said"),
        ("q_shared", {"tie": "kv"}, "shared.said"),
        ("q_shared", {"exclude_self": True}, "shared.said_excluded"),
        ("q_rank", {"source": "chance", "rank": 64}, "rank.said_full"),
        ("q_dynamic", {"second": "我爱你"}, "dynamic.said_same"),
    ],
)
def test_sentences_fit_the_numbers(card, values, key, shown):
    assert shown(card, **values).said.key == key


def test_sentences_say_the_numbers(shown):
    found = shown("q_reorder", length=64, width=64)
    assert found.said.fields["part"] == "1"
    found = shown("q_saturation", power=8)
    at = found.arrays["widths"].tolist().index(256)
    part = found.arrays["plain_gradient"][at] / found.arrays["scaled_gradient"][at]
    assert found.said.fields["part"] == f"{part:.0%}"
    found = shown("q_padding", share=0, size="64")
    seconds = found.arrays["seconds"]
    assert found.said.fields["part"] == f"{seconds[2] / seconds[1]:.0%}"


def test_pages_of_cards_are_pages():
    assert {card.id for card in CARDS} <= set(PAGES)
