"""Explore, Compare, Three tokens: pictures, refusals, live checks, the Python beside them."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import attnreg
from attnreg_playground import cost
from attnreg_playground.attend import Setting, attend
from attnreg_playground.figures import encode
from attnreg_playground.given import gates
from attnreg_playground.heat import (
    LARGEST,
    MASKED,
    MEAN,
    MISSING,
    NO_LEVEL,
    PADDED,
    VISIBLE,
    distance,
    effective_rank,
    entropy,
    heat,
)
from attnreg_playground.inputs import Given
from attnreg_playground.pages.explore import PAGE as EXPLORE
from attnreg_playground.texts import LANGUAGES, Problem, localise
from attnreg_playground.worker import finite

NAMES = attnreg.list_variants()


def sent(found, language="en"):
    """What the browser gets, as it gets it."""
    return json.loads(json.dumps(finite(found.to_json(language)), allow_nan=False))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("padding", [0, 2, 5, 9])
def test_every_variant_draws_a_sentence(name, padding, shown):
    found = shown("explore", variant=name, text="缩放点积注", padding=padding)
    weights = found.arrays["weights"]
    assert {one.tone for one in found.findings} <= {"good", "plain"}, found.findings
    if attnreg.get_variant(name).capabilities.normalized and padding < 5:
        assert np.allclose(weights.sum(-1), 1, atol=1e-3)
    if padding:
        assert (weights[:, :, 5 - min(padding, 5) :] == 0).all()
    if padding >= 5:
        assert (weights == 0).all()
        assert any(note.key == "note.hidden" and note.fields["count"] == 5 for note in found.notes)
    for language in LANGUAGES:
        assert sent(found, language)["figures"][0]["queries"] == list("缩放点积注")


@pytest.mark.parametrize("name", NAMES)
def test_masks_are_honoured_or_refused_with_the_reason_of_the_gate(name, shown, refused):
    variant = attnreg.get_variant(name)
    closed, able = gates(variant), variant.capabilities
    asked = {"causal": True, "padding": 2, "window": 1, "border": 4}
    can = {"causal": able.causal, "padding": able.key_valid, "window": able.window,
           "border": able.packed}  # fmt: skip
    place = np.arange(9)
    apart = place[:, None] - place
    hidden = {"causal": apart < 0, "padding": np.tile(place >= 7, (9, 1)),
              "window": abs(apart) > 1, "border": (place[:, None] < 4) != (place < 4)}  # fmt: skip
    for field, value in asked.items():
        values = {"variant": name, "source": "chance", "length": 9, field: value}
        if can[field]:
            assert field not in closed
            found = shown("explore", **values)
            assert (found.arrays["weights"][:, hidden[field]] == 0).all()
            assert any(one.sentence.key == "check.masked" for one in found.findings)
        else:
            assert closed[field]["reason"]
            assert name in refused("explore", **values)["title"]


def test_a_seed_makes_a_picture_again_and_the_generator_is_left_alone(shown):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = shown("explore", variant="performer", seed=7)
    assert torch.equal(torch.rand(3), expected)
    again = shown("explore", variant="performer", seed=7)
    assert np.array_equal(first.arrays["weights"], again.arrays["weights"])
    other = shown("explore", variant="performer", seed=8)
    assert not np.array_equal(first.arrays["weights"], other.arrays["weights"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("source", ["text", "chance", "digit", "real"])
def test_python_prints_the_weights_that_are_shown(name, source, shown):
    values = {"variant": name, "source": source, "heads": 3, "seed": 2, "length": 7}
    if name == "linear":
        values["options"] = {"feature_map": "relu"} if source == "text" else {}
    if attnreg.get_variant(name).capabilities.window:
        values |= {"window": 2, "causal": True, "padding": 1}
    _same_when_pasted(shown("explore", **values))


def test_python_of_crossing_and_packed_inputs(shown):
    _same_when_pasted(shown("explore", source="chance", length=5, keys=9, padding=2))
    _same_when_pasted(shown("explore", source="chance", length=9, border=4))


def _same_when_pasted(found):
    space: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(found.python, space)
    assert np.array_equal(space["weights"][0].numpy(), found.arrays["weights"])
    assert "tensor(" in printed.getvalue()


def test_too_large_is_refused_before_it_exists(refused):
    names = tuple("x" * 4096)
    given = Given(names, names, 16, (), "", torch.zeros(1), torch.zeros(1))
    found = attend(attnreg.get_variant("linear"), "linear", given, Setting({}))
    assert isinstance(found, Problem)
    assert "MiB" in localise(found, "zh")["detail"]
    assert cost.estimate(16, 512, 512) <= cost.LIMIT < cost.estimate(16, 4096, 4096)
    for heads in (0, 17, 10**9, 2.5, float("nan"), None, "4"):
        assert refused("explore", heads=heads)["control"] == "heads"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "RuntimeError"), ("raises_in_weights", "KeyError"), ("quits", "SystemExit"),
        ("wrong_output", "(1, 4, 1, 32)"), ("wrong_weights", "(1, 1, 3, 3)"),
    ],
)  # fmt: skip
def test_a_failing_plugin_is_named(name, said, fakes, refused):
    found = refused("explore", fakes.registry(), variant=name)
    assert "fakes-distribution" in found["title"]
    assert said in found["detail"]


def test_what_is_not_installed_is_said(fakes, refused):
    assert "no_such" in refused("explore", variant="no_such")["detail"]
    assert refused("explore", attnreg.Registry())["title"] == "No variant is installed"
    for name in ("os:system", "../x", "scaled_dot_product/x", "Scaled_dot_product"):
        assert refused("explore", variant=name)["control"] == "variant"
    found = refused("explore", fakes.registry(), variant="twin")
    assert "twin-a" in found["detail"]
    assert (
        "declares that it has no weights"
        in refused("explore", fakes.registry(), variant="silent")["detail"]
    )


def test_a_causal_variant_is_made_causal(fakes, shown):
    closed = gates(fakes.registry().variant("causal_only"))["causal"]
    assert closed["forced"]
    for ticked in (True, False):
        found = shown("explore", fakes.registry(), variant="causal_only", causal=ticked)
        assert (np.triu(found.arrays["weights"], 1) == 0).all()


def test_a_leak_is_found(fakes, shown):
    found = shown("explore", fakes.registry(), variant="leaky", causal=True)
    leak = [one for one in found.findings if one.sentence.key == "check.leak"]
    assert leak[0].tone == "bad"
    assert leak[0].sentence.fields["count"] == 4 * 3


def test_honest_labels(shown):
    said = {note.key for note in shown("explore", variant="linear").notes}
    assert {"note.random", "note.implied"} <= said
    assert "note.recomputed" in {note.key for note in shown("explore").notes}
    signed = sent(shown("explore", variant="linformer"))
    assert signed["figures"][0]["signed"]
    assert signed["figures"][0]["tag"] == "implied weights"
    assert any(one["text"].startswith("Signed") for one in signed["findings"])


def test_payload_holds_the_exact_weights_and_what_each_cell_is(shown):
    found = shown("explore", causal=True, padding=1, head=2)
    figure = sent(found)["figures"][0]
    exact = np.frombuffer(base64.b64decode(figure["exact"]), "<f4").reshape(3, 3)
    assert np.array_equal(exact, found.arrays["weights"][2])
    cells = np.frombuffer(base64.b64decode(figure["states"]), np.uint8).reshape(3, 3)
    assert cells.tolist() == [
        [VISIBLE, MASKED, PADDED], [VISIBLE, VISIBLE, PADDED], [VISIBLE, VISIBLE, PADDED]
    ]  # fmt: skip
    assert figure["padded"] == [False, False, True]
    for head, together in ((MEAN, np.mean), (LARGEST, np.max)):
        figure = sent(shown("explore", head=head))["figures"][0]
        exact = np.frombuffer(base64.b64decode(figure["exact"]), "<f4").reshape(3, 3)
        weights = shown("explore").arrays["weights"]
        assert np.allclose(exact, together(weights, axis=0), atol=1e-7)


def test_payload_of_weights_that_are_not_numbers(fakes, shown):
    figure = sent(shown("explore", fakes.registry(), variant="not_numbers"), "zh")["figures"][0]
    cells = np.frombuffer(base64.b64decode(figure["states"]), np.uint8).reshape(3, 3)
    assert cells[0, 0] == cells[1, 1] == MISSING
    assert all(one["entropy"] is None and one["rank"] is None for one in figure["heads"])


def test_payload_of_rows_that_see_nothing(shown):
    figure = sent(shown("explore", padding=3))["figures"][0]
    assert figure["low"] == figure["high"] == 0.0
    assert figure["heads"][0]["entropy"] is None
    assert set(base64.b64decode(figure["heads"][0]["cells"])) == {NO_LEVEL}


def test_thumbnails_keep_the_largest_weight_of_a_block(shown):
    figure = sent(shown("explore", source="chance", length=500, heads=2))["figures"][0]
    thumbnail = figure["heads"][0]
    assert thumbnail["rows"] == thumbnail["columns"] == 84  # blocks of 6
    cells = np.frombuffer(base64.b64decode(thumbnail["cells"]), np.uint8)
    assert cells.max() == 254


def test_statistics_are_those_of_their_formulas():
    rows = np.array([[0.5, 0.5], [1.0, 0.0]], np.float32)
    kept = np.array([True, True])
    assert entropy(rows, kept) == pytest.approx(np.log(2) / 2, abs=1e-6)
    assert entropy(-rows, kept) is None
    assert entropy(rows * 2, kept) is None
    assert distance(rows) == pytest.approx((0.5 + 1.0) / 2)
    assert effective_rank(np.ones(7)) == pytest.approx(7)
    assert effective_rank(np.array([1.0, 0.0])) == pytest.approx(1)
    figure = heat(np.eye(3, dtype=np.float32)[None], "abc", "abc", name="w", title="t")
    assert figure["exact"] == encode(np.eye(3, dtype="<f4"))


@pytest.mark.parametrize("name", NAMES)
def test_a_variant_does_not_differ_from_itself(name, shown):
    found = shown("compare", variant=name, other=name)
    assert not found.arrays["difference"].any()
    assert found.said.key == "compare.same"


def test_comparison_is_the_difference_of_both(shown):
    found = shown("compare", variant="cosine", other="euclidean", text="缩放点积", seed=3)
    alone = {name: shown("explore", variant=name, text="缩放点积", seed=3).arrays
             for name in ("cosine", "euclidean")}  # fmt: skip
    assert np.array_equal(found.arrays["a"], alone["cosine"]["weights"])
    assert np.array_equal(found.arrays["b"], alone["euclidean"]["weights"])
    expected = np.abs(alone["cosine"]["weights"] - alone["euclidean"]["weights"]).max()
    assert f"{expected:.3g}" in [row["value"] for row in found.figures[0]["rows"]]
    space: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(found.python, space)
    assert np.array_equal(space["a"][0].numpy(), found.arrays["a"])
    assert np.array_equal(space["b"][0].numpy(), found.arrays["b"])


@pytest.mark.parametrize("step", range(1, 8))
def test_three_tokens_are_what_numpy_makes_of_them(step, shown):
    values = {"temperature": 0.7, "causal": True, "hide": "first", "step": step, "row": "third"}
    found = shown("three", **values).arrays
    query, key, value = (found["x"] @ found[name] for name in ("w_q", "w_k", "w_v"))
    scores = query @ key.T / np.sqrt(3) / 0.7
    hidden = np.triu(np.ones((3, 3), bool), 1)
    hidden[:, 0] = True
    raised = np.where(hidden, 0.0, np.exp(scores - scores.max(axis=1, keepdims=True)))
    total = raised.sum(axis=1, keepdims=True)
    weights = np.divide(raised, total, out=np.zeros_like(raised), where=total > 0)
    assert np.allclose(found["scaled"], scores, atol=1e-12)
    assert np.allclose(found["weights"], weights, atol=1e-12)
    assert np.allclose(found["output"], weights @ value, atol=1e-12)


def test_python_of_three_tokens(shown):
    found = shown("three", row="first", causal=True, scaled=False)
    space: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(found.python, space)
    assert np.array_equal(space["weights"].numpy(), found.arrays["weights"])


def test_a_token_that_sees_nothing_is_no_fault(shown):
    found = shown("three", causal=True, hide="first", row="first")
    assert [one.tone for one in found.findings] == ["good"]
    assert found.said.key == "three.said_blind"
    assert not found.arrays["output"][0].any()


def test_a_picture_takes_no_more_than_was_estimated():
    program = (
        "import torch, attnreg\n"
        "from pathlib import Path\n"
        "from attnreg_playground import cost, draw\n"
        "def held(key):\n"
        "    lines = Path('/proc/self/status').read_text().splitlines()\n"
        "    return next(int(one.split()[1]) for one in lines if one.startswith(key)) * 1024\n"
        "torch.set_num_threads(1)\n"
        "for name in ('scaled_dot_product', 'performer', 'euclidean'):\n"
        "    draw('explore', variant=name, source='chance', length=64)\n"
        "    before = held('VmRSS')\n"
        "    Path('/proc/self/clear_refs').write_text('5')\n"
        "    draw('explore', variant=name, source='chance', length=512, heads=8)\n"
        "    taken = held('VmHWM') - before\n"
        "    assert taken < 1.5 * cost.estimate(8, 512, 512), (name, taken)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_presets_are_values_of_the_controls(shown):
    for values in EXPLORE.presets.values():
        if values.get("length", 0) < 500:
            shown("explore", **values)
