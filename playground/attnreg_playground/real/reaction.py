"""A transformer that reads chemical reactions: one head tells which atom became which.

The weights are those of RXNMapper (Schwaller et al. 2021), from the package ``rxnmapper``, whose
code is not imported.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnreg_playground.real.missing import EXTRA, Failed, Missing, alone, folder_of
from attnreg_playground.real.swap import Heads, Parts, Replace, overheard

NUM_LAYERS, NUM_HEADS, HEAD_DIM = 12, 8, 32
MAPPING_LAYER, MAPPING_HEAD = 10, 5
MAX_LENGTH = 200

_FOLDER = "models/transformers/albert_heads_8_uspto_all_1310k"
_TOKEN = re.compile(r"\[[^\]\s]+\]|Br|Cl|>>|%\d\d|[BCNOPSFIbcnops]|[0-9]|[()=#\-+\\/:~@?.*$]")
_ATOM = re.compile(r"\[[^\]\s]+\]|Br|Cl|[BCNOPSFIbcnops]")


class Reaction(NamedTuple):
    """A reaction as the model reads it: tokens without the two at the ends, and their heads."""

    tokens: tuple[str, ...]
    heads: list[Heads]
    states: Tensor
    """What the last layer gives, (L, 256)."""


def tokenise(smiles: str) -> list[str] | None:
    """Cut a reaction ``A.B>>C`` into tokens, or return None where it is none."""
    text = "".join(smiles.split())
    found = _TOKEN.findall(text)
    whole = "".join(found) == text and found.count(">>") == 1 and len(found) <= MAX_LENGTH
    return found if whole and found[0] != ">>" and found[-1] != ">>" else None


def is_atom(token: str) -> bool:
    """Whether a token is an atom."""
    return _ATOM.fullmatch(token) is not None


def read(tokens: list[str], replace: Replace | None = None) -> Reaction:
    """Run the model; ``replace`` puts another attention in the place of its own.

    Raises ``Missing`` and ``Failed``.
    """
    words, model = _load()
    unknown = words["[UNK]"]
    ids = [words["[CLS]"], *(words.get(one, unknown) for one in tokens), words["[SEP]"]]
    layer = model.encoder.albert_layer_groups[0].albert_layers[0].attention
    parts = [Parts(layer.query, layer.key, layer.value, layer.dense)]
    with overheard(parts, NUM_HEADS, replace) as heard:
        states = model(input_ids=torch.tensor([ids])).last_hidden_state
    return Reaction(tuple(tokens), heard, states[0, 1:-1])


def mapping(weights: Tensor, tokens: tuple[str, ...]) -> dict[int, tuple[int, float]]:
    """Return for each atom of the products the atom of the reactants it looks at, and how sure.

    ``weights`` (L, L) are those of the head that maps, between tokens; both directions are added,
    and a pair counts by its share among atoms of the same element where there are any.
    """
    arrow = tokens.index(">>")
    left = [at for at in range(arrow) if is_atom(tokens[at])]
    both = weights + weights.T
    found: dict[int, tuple[int, float]] = {}
    for at in range(arrow + 1, len(tokens)):
        if not is_atom(tokens[at]):
            continue
        same = [one for one in left if _element(tokens[one]) == _element(tokens[at])] or left
        shares = both[at, same]
        best = int(shares.argmax())
        total = float(shares.sum())
        found[at] = (same[best], float(shares[best]) / total if total > 0 else 0.0)
    return found


def _element(token: str) -> str:
    found = re.search(r"[A-Z][a-z]?|[bcnops]", token.strip("[]"))
    letters = found.group() if found else token
    return letters if letters in ("Br", "Cl") else letters[:1].upper()


@lru_cache(maxsize=1)
def _load() -> tuple[dict[str, int], Any]:
    place = folder_of("rxnmapper", f"{_FOLDER}/config.json")
    if place is None:
        raise Missing("rxnmapper", alone("rxnmapper"))
    folder = place / _FOLDER
    try:
        from transformers import AlbertConfig, AlbertModel
    except ImportError as error:
        raise Missing("transformers", EXTRA) from error
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model = AlbertModel(AlbertConfig(**config), add_pooling_layer=False)
        # Tensors and nothing else: torch refuses whatever else such a file may hold.
        held = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
        own = {k.removeprefix("albert."): v for k, v in held.items() if k.startswith("albert.")}
        own = {name: value for name, value in own.items() if not name.startswith("pooler")}
        model.load_state_dict(own, strict=False)
        missing = set(model.state_dict()) - set(own) - {"embeddings.position_ids"}
        if missing - {"embeddings.token_type_ids"}:
            raise ValueError(f"the weights lack {', '.join(sorted(missing))}")
        lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    except Exception as error:
        raise Failed(f"{type(error).__name__}: {error}") from error
    return {word: place for place, word in enumerate(lines)}, model.eval()
