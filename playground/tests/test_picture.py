"""What comes out: pictures, refusals, live checks, and the payload of the browser."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
import torch

import attnreg
from attnreg_playground import heatmap
from attnreg_playground.attend import MAX_CELLS, Setting, attend
from attnreg_playground.explore import (
    causal_gate,
    look,
    padding_gate,
)
from attnreg_playground.inputs import Embedded, Problem
from attnreg_playground.wording import word_problem

REGISTRY = attnreg.default_registry()
NAMES = list(REGISTRY)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("padding", [0, 2, 5, 9])
def test_every_variant_draws_a_sentence(name, padding, picture):
    shown = picture(name, text="缩放点积注意力"[:5], padding=padding)
    assert shown.tokens == tuple("缩放点积注")
    assert {found.tone for found in shown.findings} <= {"good", "plain"}, shown.findings
    if attnreg.get_variant(name).capabilities.normalized and padding < 5:
        assert np.allclose(shown.weights.sum(-1), 1, atol=1e-3)
    if padding:
        assert (shown.weights[:, :, 5 - min(padding, 5) :] == 0).all()
    if padding >= 5:
        assert (shown.weights == 0).all()
        assert any(note.key == "note.hidden" and note.fields["count"] == 5 for note in shown.notes)
    for head in range(4):
        text = json.dumps(heatmap.payload(shown, head, "en"), allow_nan=False)
        assert "NaN" not in text


@pytest.mark.parametrize("name", NAMES)
def test_causal_hides_the_future_or_is_refused(name, picture, problem):
    variant = attnreg.get_variant(name)
    gate = causal_gate(variant, False)
    assert gate.open == variant.capabilities.causal
    if gate.open:
        shown = picture(name, causal=True)
        assert (np.triu(shown.weights, 1) == 0).all()
        assert any(found.sentence.key == "check.masked" for found in shown.findings)
    else:
        assert "causal" in gate.reason
        assert causal_gate(variant, True).open  # what is ticked can be unticked
        assert "causal" in problem(name, causal=True)["detail"]


def test_a_seed_makes_a_picture_again_and_the_generator_is_left_alone(picture):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = picture("performer", seed=7)
    assert torch.equal(torch.rand(3), expected)
    assert np.array_equal(first.weights, picture("performer", seed=7).weights)
    assert not np.array_equal(first.weights, picture("performer", seed=8).weights)


def test_variants_share_the_projections_of_a_seed(picture):
    plain = picture("scaled_dot_product", seed=3)
    window = picture("sparse_window", seed=3)  # a window wider than the sentence
    assert np.allclose(plain.weights, window.weights, atol=1e-6)


def test_too_large_is_refused_before_it_is_computed():
    inputs = Embedded(tuple("x" * 1024), 2, torch.zeros(1), ())
    assert MAX_CELLS < 2 * 1024**2
    refused = attend(attnreg.get_variant("linear"), "linear", inputs, Setting({}))
    assert isinstance(refused, Problem)
    assert str(MAX_CELLS) in word_problem(refused, "zh")["detail"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "RuntimeError"), ("raises_in_weights", "KeyError"), ("quits", "SystemExit"),
        ("wrong_output", "(1, 4, 1, 32)"), ("wrong_weights", "(1, 1, 3, 3)"),
    ],
)  # fmt: skip
def test_a_failing_plugin_is_named(name, said, fakes, problem):
    found = problem(name, fakes.registry())
    assert "fakes-distribution" in found["title"]
    assert said in found["detail"]


def test_a_variant_without_weights_says_so(fakes, problem):
    found = problem("silent", fakes.registry())
    assert "declares that it has no weights" in found["detail"]
    assert not padding_gate(fakes.registry().variant("silent"), 0).open


def test_a_causal_variant_is_made_causal(fakes, picture):
    gate = causal_gate(fakes.registry().variant("causal_only"), False)
    assert gate.forced
    assert "causal only" in gate.reason
    for ticked in (True, False):
        shown = picture("causal_only", fakes.registry(), causal=ticked)
        assert (np.triu(shown.weights, 1) == 0).all()


def test_a_leak_is_found(fakes, picture):
    shown = picture("leaky", fakes.registry(), causal=True)
    leak = [found for found in shown.findings if found.sentence.key == "check.leak"]
    assert leak[0].tone == "bad"
    assert leak[0].sentence.fields["count"] == 4 * 3


def test_no_variant_at_all(controls):
    shown = look(attnreg.Registry(), controls("x")).shown
    assert isinstance(shown, Problem)
    assert word_problem(shown, "en")["title"] == "No variant is installed"


def test_payload_holds_the_exact_weights_and_what_each_cell_is(picture):
    shown = picture("scaled_dot_product", causal=True, padding=1)
    sent = heatmap.payload(shown, 2, "en")
    exact = np.frombuffer(base64.b64decode(sent["exact"]), "<f4").reshape(3, 3)
    assert np.array_equal(exact, shown.weights[2])
    states = np.frombuffer(base64.b64decode(sent["states"]), np.uint8).reshape(3, 3)
    visible, masked, padded = heatmap.VISIBLE, heatmap.MASKED, heatmap.PADDED
    assert states.tolist() == [
        [visible, masked, padded], [visible, visible, padded], [visible, visible, padded]
    ]  # fmt: skip
    assert sent["padded"] == [False, False, True]
    assert sent["head"] == 2
    assert heatmap.payload(shown, 99, "en")["head"] == 3
    assert heatmap.payload(shown, -1, "en")["head"] == 0


def test_payload_of_weights_that_are_not_numbers(fakes, picture):
    shown = picture("not_numbers", fakes.registry())
    sent = json.loads(json.dumps(heatmap.payload(shown, 0, "zh"), allow_nan=False))
    states = np.frombuffer(base64.b64decode(sent["states"]), np.uint8).reshape(3, 3)
    assert states[0, 0] == states[1, 1] == heatmap.MISSING
    assert any("8 个权重" in note for note in sent["notes"])
    assert all(one["entropy"] is None for one in sent["thumbnails"])


def test_payload_of_rows_that_see_nothing(picture):
    sent = heatmap.payload(picture("scaled_dot_product", padding=3), 0, "en")
    json.dumps(sent, allow_nan=False)
    assert sent["low"] == sent["high"] == 0.0
    assert sent["thumbnails"][0]["entropy"] is None
    assert set(base64.b64decode(sent["thumbnails"][0]["cells"])) == {heatmap.NO_LEVEL}


def test_thumbnails_keep_the_largest_weight_of_a_block(picture):
    shown = picture("scaled_dot_product", text="word " * 128)
    thumbnail = heatmap.payload(shown, 0, "en")["thumbnails"][0]
    assert thumbnail["rows"] == thumbnail["columns"] == 64
    cells = np.frombuffer(base64.b64decode(thumbnail["cells"]), np.uint8)
    assert cells.max() == 254


def test_entropy_is_that_of_the_formula():
    rows = np.array([[0.5, 0.5], [1.0, 0.0]], np.float32)
    kept = np.array([True, True])
    assert heatmap.entropy(rows, kept) == pytest.approx(np.log(2) / 2, abs=1e-6)
    assert heatmap.entropy(-rows, kept) is None
    assert heatmap.entropy(rows * 2, kept) is None


def test_signed_weights_are_drawn_as_signed(picture):
    sent = heatmap.payload(picture("linformer"), 0, "en")
    assert sent["signed"]
    assert sent["kind"] == "implied"
    assert any(one["text"].startswith("Signed") for one in sent["findings"])
