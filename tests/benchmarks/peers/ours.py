"""Our variants, set so that they compute what the peer beside them computes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import attnreg
from attnreg import CheckedAttention, Mask
from tests.benchmarks.peers.adapters import PEERS
from tests.benchmarks.peers.setting import (
    BLOCK,
    COSINE_SCALE,
    FEATURES,
    RANDOM_BLOCKS,
    RANK,
    TAU,
    WINDOW,
    Core,
    Setting,
    mixtures,
    score_weights,
)

CACHED = ("scaled_dot_product", "additive", "cosine", "euclidean", "shared_qkv", "sparse_window")
"""Those that decode from a cache of keys and values."""

OURS: dict[str, Callable[[Setting], Core]] = {}


def our(name: str) -> Callable[..., Callable[[Setting], Core]]:
    """Register a way to set one of our variants, under the name that a target asks for."""

    def register(build: Callable[[Setting], Core]) -> Callable[[Setting], Core]:
        OURS[name] = build
        return build

    return register


def create(variant: str, setting: Setting, **options: object) -> CheckedAttention:
    """Build a variant whose parameters are fixed, as those of the peers are."""
    attn = attnreg.create(
        variant,
        num_heads=setting.heads,
        head_dim=setting.head_dim,
        max_length=setting.length,
        dtype=setting.torch_dtype,
        **options,
    )
    return attn.eval().requires_grad_(False)


def core(attn: CheckedAttention, setting: Setting) -> Core:
    mask = Mask(causal=setting.causal)
    return lambda q, k, v: attn(q, k, v, mask)


@our("scaled_dot_product")
def scaled_dot_product(setting: Setting) -> Core:
    return core(create("scaled_dot_product", setting), setting)


@our("cosine")
def cosine(setting: Setting) -> Core:
    return core(create("cosine", setting, init_scale=COSINE_SCALE), setting)


@our("euclidean")
def euclidean(setting: Setting) -> Core:
    return core(create("euclidean", setting, tau=TAU), setting)


def additive_as(setting: Setting, implementation: str) -> Core:
    attn = create("additive", setting, implementation=implementation)
    with torch.no_grad():  # tanh(q + k) weighed by a vector: the network without its projections
        unit = torch.eye(setting.head_dim).expand_as(attn.query_weight)
        attn.query_weight.copy_(unit)
        attn.key_weight.copy_(unit)
        attn.bias.zero_()
        attn.score_weight.copy_(score_weights(setting).expand_as(attn.score_weight))
    return core(attn, setting)


@our("additive")
def additive(setting: Setting) -> Core:
    return additive_as(setting, "auto")


@our("additive without a compiler")
def additive_interpreted(setting: Setting) -> Core:
    ranked = attnreg.get_variant("additive").implementations
    return additive_as(setting, next(one.name for one in ranked if one.name != "compiled"))


@our("shared_qkv")
def shared_qkv(setting: Setting) -> Core:
    attend = core(create("shared_qkv", setting), setting)
    return lambda q, k, v: attend(q, q, q)


@our("linear")
def linear(setting: Setting) -> Core:
    return core(create("linear", setting), setting)


@our("performer")
def performer(setting: Setting) -> Core:
    return core(create("performer", setting, features=FEATURES, seed=0), setting)


@our("linformer")
def linformer(setting: Setting) -> Core:
    return core(create("linformer", setting, rank=RANK), setting)


@our("linformer, one mixture for all heads")
def linformer_shared(setting: Setting) -> Core:
    attn = create("linformer", setting, rank=RANK, sharing="heads")
    with torch.no_grad():
        key, value = mixtures(setting)
        attn.key_projection.copy_(key)
        attn.value_projection.copy_(value)
    return core(attn, setting)


@our("sparse_window")
def sparse_window(setting: Setting) -> Core:
    right = 0 if setting.causal else WINDOW
    return core(create("sparse_window", setting, left=WINDOW, right=right), setting)


@our("sparse_window as BigBird")
def bigbird(setting: Setting) -> Core:
    attn = create(
        "sparse_window",
        setting,
        left=1,
        right=1,
        block_size=BLOCK,
        random_blocks=RANDOM_BLOCKS,
        global_tokens=2 * BLOCK,  # its first and its last block are global, here the first two
        seed=0,
    )
    return core(attn, setting)


def stepping(variant: str, setting: Setting) -> Core:
    """One token at a time, after ``setting.length`` tokens; each call continues the last."""
    attn = create(variant, setting._replace(length=2 * setting.length))
    state = None
    with torch.no_grad():
        for start in range(0, setting.length, 4096):  # a chunk's own cost does not matter here
            size = min(4096, setting.length - start)
            chunk = setting.inputs(3, length=size)
            _, state = attn.step(*chunk, state)

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        nonlocal state
        output, state = attn.step(q[:, :, -1:], k[:, :, -1:], v[:, :, -1:], state)
        return output

    return step


for _variant in CACHED:
    OURS[f"{_variant}, a step on a cache"] = partial(stepping, _variant)


def cache_mib(setting: Setting) -> float:
    """MiB of the keys and values of all tokens."""
    size = setting.torch_dtype.itemsize
    return 2 * setting.batch * setting.width * setting.length * size / 2**20


def build(name: str, setting: Setting) -> Core:
    """Build one of ours or a peer's core by name; what a peer prints meanwhile is no result."""
    with contextlib.redirect_stdout(sys.stderr):
        return OURS[name](setting) if name in OURS else PEERS[name].build(setting)
