"""What goes in: tokens, embeddings, random numbers, patches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnreg_playground.inputs import Given, digit, embed, random, sinusoids, sinusoids_at
from attnreg_playground.tokens import MAX_TOKENS, tokenise


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
    assert isinstance(first, Given)
    assert isinstance(second, Given)
    positions = sinusoids(3, 64)
    assert torch.allclose(first.x[0, 0] - positions[0], second.x[0, 2] - positions[2], atol=1e-6)
    other = embed("我爱你", 2, 1)
    assert isinstance(other, Given)
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


def test_positions_before_the_first_are_mirrored():
    back = sinusoids_at(torch.tensor([-3]), 8)[0]
    forth = sinusoids(4, 8)[3]
    assert torch.allclose(back[0::2], -forth[0::2], atol=1e-6)
    assert torch.allclose(back[1::2], forth[1::2], atol=1e-6)


@pytest.mark.parametrize("text", ["", "   "])
@pytest.mark.parametrize("source", ["text", "real"])
def test_nothing_typed_is_a_sentence(text, source, refused):
    assert "at least one" in refused("explore", source=source, text=text, passage=text)["detail"]


def test_chance_gives_other_keys_where_they_are_asked_for():
    same, other = random(5, 0, 2, 3), random(5, 9, 2, 3)
    assert same.x is same.context
    assert torch.equal(same.x, other.x)
    assert other.context.shape == (1, 9, 64)
    assert (len(other.queries), len(other.keys)) == (5, 9)


def test_patches_are_those_of_the_image():
    from sklearn.datasets import load_digits

    from attnreg_playground.real import digits

    image = torch.tensor(load_digits().images[3], dtype=torch.float32) / 16
    cut = digits.patches(image[None])[0]
    assert cut.shape == (16, 4)
    for row in range(4):
        for column in range(4):
            part = image[2 * row : 2 * row + 2, 2 * column : 2 * column + 2].flatten()
            assert torch.equal(cut[4 * row + column], part)
    assert digit(3, 2, 0).image["rows"] == 4
