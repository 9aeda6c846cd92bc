"""The attention core of each peer, as a function of (query, key, value), all (B, H, L, D).

An adapter takes a ``Setting`` and returns a ``Core``; it imports its peer only then, so that the
table can be read where no peer is installed. Projections, dropout and masks are left out: what is
timed is what ours is timed on.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


class Adapter(NamedTuple):
    """How the core of one peer is built, and the distribution that it comes from."""

    build: Callable[[Setting], Core]
    distribution: str


PEERS: dict[str, Adapter] = {}


def peer(name: str, distribution: str = "torch") -> Callable[..., Callable[[Setting], Core]]:
    """Register an adapter under the name that the table shows."""

    def register(build: Callable[[Setting], Core]) -> Callable[[Setting], Core]:
        PEERS[name] = Adapter(build, distribution)
        return build

    return register


# ---------------------------------------------------------------------------------------------
# A softmax over all keys
# ---------------------------------------------------------------------------------------------


@peer("torch SDPA")
def sdpa(setting: Setting) -> Core:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=setting.causal)


@peer("normalize + SDPA")
def normalized_sdpa(setting: Setting) -> Core:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=setting.causal, scale=COSINE_SCALE)

    return attend


def x_attend(setting: Setting, **options: object) -> Core:
    from x_transformers.attend import Attend

    module = Attend(causal=setting.causal, heads=setting.heads, flash=True, **options)
    return lambda q, k, v: module(q, k, v)[0]


@peer("x-transformers qk-norm flash", "x-transformers")
def x_qk_norm(setting: Setting) -> Core:
    attend = x_attend(setting, qk_norm=True, scale=COSINE_SCALE)
    # Its layer normalises before it attends.
    return lambda q, k, v: attend(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v)


@peer("x-transformers l2 flash", "x-transformers")
def x_l2(setting: Setting) -> Core:
    return x_attend(setting, l2_distance=True, scale=1.0 / TAU)


@peer("x-transformers flash, tied", "x-transformers")
def x_tied(setting: Setting) -> Core:
    attend = x_attend(setting)
    return lambda q, k, v: attend(q, q, q)


@peer("flash-cosine-sim-attention, plain", "flash-cosine-sim-attention")
def plain_cosine(setting: Setting) -> Core:
    # The package imports its Triton kernels first; the plain form needs none of them.
    file = file_of("flash_cosine_sim_attention", "flash_cosine_sim_attention.py")
    return lambda q, k, v: file.plain_cosine_sim_attention(
        q, k, v, scale=COSINE_SCALE, causal=setting.causal
    )


@peer("additive textbook")
def additive_textbook(setting: Setting) -> Core:
    weights = score_weights(setting).to(setting.torch_dtype)
    future = torch.ones(setting.length, setting.length, dtype=torch.bool).triu(1)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.tanh(q[..., :, None, :] + k[..., None, :, :]) @ weights
        if setting.causal:
            scores = scores.masked_fill(future, float("-inf"))
        return scores.softmax(dim=-1) @ v

    return attend


@peer("Keras AdditiveAttention", "keras")
def keras_additive(setting: Setting) -> Core:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    flat = (setting.batch * setting.heads, setting.length, setting.head_dim)
    layer = keras.layers.AdditiveAttention(use_scale=True, dtype=setting.dtype)
    layer.build([flat] * 3)
    layer.scale.assign(score_weights(setting))
    layer.requires_grad_(False)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        inputs = [t.reshape(flat) for t in (q, v, k)]
        return layer(inputs, use_causal_mask=setting.causal).reshape(q.shape)

    return attend


# ---------------------------------------------------------------------------------------------
# Linear in the length
# ---------------------------------------------------------------------------------------------


def positive(x: Tensor) -> Tensor:
    return F.elu(x) + 1


@peer("performer-pytorch linear", "performer-pytorch")
def performer_linear(setting: Setting) -> Core:
    from performer_pytorch.performer_pytorch import linear_attention

    return lambda q, k, v: linear_attention(positive(q), positive(k), v)


@peer("linear-attention-transformer", "linear-attention-transformer")
def linear_transformer(setting: Setting) -> Core:
    from linear_attention_transformer.linear_attention_transformer import linear_attn

    return linear_attn


@peer("fla naive chunk", "fla-core")
def fla_chunk(setting: Setting) -> Core:
    chunk = file_of("fla", "ops/linear_attn/naive.py").naive_chunk_linear_attn

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        inputs = (t.transpose(1, 2) for t in (positive(q), positive(k), v))
        return chunk(*inputs, normalize=True).transpose(1, 2)

    return attend


@peer("performer-pytorch", "performer-pytorch")
def performer(setting: Setting) -> Core:
    from performer_pytorch.performer_pytorch import FastAttention

    return FastAttention(setting.head_dim, nb_features=FEATURES, causal=setting.causal)


@peer("LinformerSelfAttention", "linformer")
def linformer(setting: Setting) -> Core:
    """What ``LinformerSelfAttention`` does between its projections; it has no such function."""
    batch, heads, width = setting.batch, setting.heads, setting.head_dim
    mix_key, mix_value = (mixture.T.contiguous() for mixture in mixtures(setting))

    def mixed(x: Tensor, mixture: Tensor) -> Tensor:
        rows = x.transpose(1, 2).reshape(batch, setting.length, heads * width)
        rows = torch.einsum("bnd,nk->bkd", rows, mixture)
        return rows.reshape(batch, RANK, heads, width).transpose(1, 2)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = mixed(k, mix_key), mixed(v, mix_value)
        scores = torch.einsum("bhnd,bhkd->bhnk", q, k) * width**-0.5
        return torch.einsum("bhnk,bhkd->bhnd", scores.softmax(dim=-1), v)

    return attend


# ---------------------------------------------------------------------------------------------
# Sparse
# ---------------------------------------------------------------------------------------------


@peer("local-attention", "local-attention")
def local(setting: Setting) -> Core:
    from local_attention import LocalAttention

    return LocalAttention(
        WINDOW, causal=setting.causal, exact_windowsize=True, use_rotary_pos_emb=False
    )


class Handed(nn.Module):
    """Stands where a module projects, and hands it what is already projected."""

    tensor: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.tensor


@peer("Longformer", "transformers")
def longformer(setting: Setting) -> Core:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(
        hidden_size=setting.width,
        num_attention_heads=setting.heads,
        num_hidden_layers=1,
        attention_window=[2 * WINDOW],
        attention_probs_dropout_prob=0.0,
    )
    module = LongformerSelfAttention(config, layer_id=0)
    module.query, module.key, module.value = Handed(), Handed(), Handed()
    rows = (setting.batch, setting.length)
    hidden, none = torch.zeros(*rows, setting.width), torch.zeros(rows, dtype=torch.bool)
    hidden = hidden.to(setting.torch_dtype)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        query, key, value = (t.permute(2, 0, 1, 3).flatten(2) for t in (q, k, v))
        # It scales the query in place: where flattening made no copy, one is made here.
        module.query.tensor = query.clone() if query.data_ptr() == q.data_ptr() else query
        module.key.tensor, module.value.tensor = key, value
        output = module(hidden, torch.zeros(rows), none, none, is_global_attn=False)[0]
        return output.unflatten(2, (setting.heads, setting.head_dim)).transpose(1, 2)

    return attend


@peer("BigBird", "transformers")
def bigbird(setting: Setting) -> Core:
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import (
        BigBirdBlockSparseAttention,
        BigBirdModel,
    )

    batch, heads, length, width = setting.batch, setting.heads, setting.length, setting.head_dim
    config = BigBirdConfig(
        hidden_size=setting.width,
        num_attention_heads=heads,
        block_size=BLOCK,
        num_random_blocks=RANDOM_BLOCKS,
        max_position_embeddings=length,
    )
    module = BigBirdBlockSparseAttention(config, seed=0)  # in training mode it draws its blocks
    keep = torch.ones(batch, length)
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(keep, BLOCK)
    sizes = (heads, RANDOM_BLOCKS, width, BLOCK, BLOCK, batch, length, length)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        output, _ = module.bigbird_block_sparse_attention(
            *(q, k, v),
            *(band, rows, columns, blocked, blocked),
            *sizes,
            seed=0,
            plan_from_length=None,
            plan_num_rand_blocks=None,
        )
        return output.transpose(1, 2)

    return attend


def file_of(package: str, path: str) -> ModuleType:
    """Load one file of a package, without what the package itself imports (such as Triton)."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    spec = importlib.util.spec_from_file_location(
        f"{package}_alone", Path(found.origin).parent / path
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
