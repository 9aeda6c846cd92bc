"""A reaction: one head of the model tells which atom became which, until its attention changes."""

from __future__ import annotations

from typing import Any

import torch

from attnreg import CheckedAttention
from attnreg_playground.controls import Control
from attnreg_playground.drawing import Drawing, Page, Scene
from attnreg_playground.figures import facts, table
from attnreg_playground.given import HEAD
from attnreg_playground.heat import MEAN, together
from attnreg_playground.pages.swapping import (
    VARIANT,
    instead,
    original,
    two_maps,
    weights_of,
    with_variant,
)
from attnreg_playground.real import reaction
from attnreg_playground.real.missing import Failed, Missing
from attnreg_playground.texts import Sentence, problem, sentence

ESTER = "CC(=O)O.OCC>>CC(=O)OCC"
AMIDE = "CC(=O)Cl.NCC>>CC(=O)NCC"
BROMIDE = "CCBr.[OH-]>>CCO"

KNOWN = {ESTER: {12: 0, 13: 1, 16: 4, 18: 8, 19: 9, 20: 10}}
"""Atom maps written down by hand, by the place of the token."""


def draw(scene: Scene) -> Drawing:
    """Show the head that maps atoms, and the map with the model's attention and with another."""
    tokens = reaction.tokenise(scene["smiles"])
    if tokens is None:
        return Drawing(problem=problem("smiles", control="smiles", limit=reaction.MAX_LENGTH))
    try:
        plain = reaction.read(tokens)
    except (Missing, Failed) as error:
        return Drawing(problem=error.problem())

    def show(attention: CheckedAttention) -> Drawing:
        layer, head = scene["layer"], min(scene["head"], reaction.NUM_HEADS - 1)
        changed = reaction.read(tokens, instead(scene, attention))
        before = original(plain.heads[layer])[:, 1:-1, 1:-1]
        found = weights_of(attention, changed.heads[layer])
        after = None if found is None else found[:, 1:-1, 1:-1]
        own, other = (
            {} if one is None
            else reaction.mapping(torch.from_numpy(together(one.numpy(), head)), plain.tokens)
            for one in (before, after)
        )  # fmt: skip
        return _drawing(scene, attention, plain.tokens, own, other, before, after)

    sizes = reaction.NUM_HEADS, reaction.HEAD_DIM, len(tokens) + 2
    return with_variant(scene, *sizes, show)


def _drawing(
    scene: Scene, attention: Any, tokens: Any, own: Any, other: Any, before: Any, after: Any
) -> Drawing:
    name, known = attention.variant.name, KNOWN.get("".join(tokens))
    agree = sum(other.get(at, (-1, 0.0))[0] == found for at, (found, _) in own.items())
    told = [(sentence("reaction.agree", variant=name), f"{agree} / {len(own)}")]
    if known:
        right = sum(known[at] == found for at, (found, _) in own.items())
        told.append((sentence("reaction.known"), f"{right} / {len(known)}"))
    rows, tones = [], []
    for at, (found, share) in own.items():
        there, sure = other.get(at, (-1, 0.0))
        rows.append(
            [
                _atom(tokens, at),
                f"{_atom(tokens, found)} ({share:.0%})",
                f"{_atom(tokens, there)} ({sure:.0%})" if there >= 0 else "–",
                *([_atom(tokens, known[at])] if known else []),
            ]
        )
        tones.append(["", "", "good" if there == found else "bad", ""])
    columns = ["product", "by_model", "by_swap", *(["by_hand"] if known else [])]
    return Drawing(
        figures=(
            facts("facts", sentence("swap.facts", variant=name), told),
            *two_maps(before, after, tokens, scene["head"], name),
            table("map", sentence("reaction.table"),
                  [sentence(f"reaction.{one}") for one in columns], rows, tones=tones),
        ),
        said=sentence("reaction.said", layer=scene["layer"], head=_named(scene["head"])),
        notes=(sentence("note.trained_with"), sentence("reaction.note")),
        formula=attention.variant.formula,
        arrays={
            "own": before.numpy(),
            **({} if after is None else {"swapped": after.numpy()}),
        },
    )  # fmt: skip


def _named(head: int) -> Sentence:
    """Name a head, counted from 1, or what stands for all."""
    if head < 0:
        return sentence("map.mean" if head == MEAN else "map.largest")
    return sentence("reaction.head", number=min(head, reaction.NUM_HEADS - 1) + 1)


def _atom(tokens: Any, place: int) -> str:
    return f"{tokens[place]} {place + 1}"


PAGE = Page(
    "reaction",
    "models",
    (
        Control("smiles", "text", ESTER, limit=600, noted=True),
        *VARIANT,
        Control("layers", "choice", "one", choices=("one", "all")),
        Control("layer", "slider", reaction.MAPPING_LAYER, high=reaction.NUM_LAYERS - 1),
        Control("head", "hidden", reaction.MAPPING_HEAD, low=HEAD.low, high=HEAD.high),
    ),
    draw,
    presets={
        "ester": {},
        "amide": {"smiles": AMIDE},
        "bromide": {"smiles": BROMIDE},
        "every_layer": {"layers": "all"},
    },
    seconds=40.0,
)
