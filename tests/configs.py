"""Settings of every variant that the tests run: each option moves at least once."""

from __future__ import annotations

import torch

from attnreg.conformance import masks
from attnreg.conformance.masks import Sizes

CPU = torch.device("cpu")

CONFIGS = {
    "scaled_dot_product": [{}, {"temperature": 0.3}],
    "additive": [{}, {"hidden": 3, "temperature": 0.5}],
    "cosine": [{}, {"init_scale": 4.0, "learnable": False}],
    "euclidean": [
        {},
        {"squared": False, "tau": 2.0},
        {"normalize_inputs": True, "learnable": True, "tau": 0.5},
    ],
    "shared_qkv": [{}, {"tie": "qk", "exclude_self": True}],
    "linear": [
        {},
        {"feature_map": "relu"},
        {"feature_map": "exp"},
        {"feature_map": "exp", "normalize": False},
        {"feature_map": "identity"},
        {"feature_map": "elu+1", "normalize": False},
    ],
    "linformer": [
        {"rank": 3},
        {"sharing": "heads", "rank": 4},
        {"sharing": "key-value"},
        {"sharing": "all"},
    ],
    "performer": [
        {"features": 16, "seed": 1},
        {"features": 13, "kernel": "relu", "orthogonal": False, "seed": 2},
    ],
    "sparse_window": [
        {"left": 2, "right": 1},
        {"left": 1, "right": 1, "global_tokens": 2},
        {"left": 1, "right": 0, "dilation": 2, "global_tokens": (1, 7)},
        {"left": 0, "right": 1, "block_size": 2, "random_blocks": 1, "seed": 3},
        {"left": 0, "right": 0, "random_blocks": 2, "seed": 5, "global_tokens": (3,)},
    ],
}
"""Options of each variant; ``max_length`` is always given, and limits only Linformer."""

CASES = [(name, index) for name, configs in CONFIGS.items() for index in range(len(configs))]
IDS = [f"{name}-{index}" for name, index in CASES]

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, DIM, VALUE_DIM = 2, 6, 2, 5, 9, 8, 6
SIZES = {
    "num_heads": HEADS,
    "num_kv_heads": KV_HEADS,
    "head_dim": DIM,
    "value_dim": VALUE_DIM,
    "max_length": 80,
}


MASKS = {
    name: masks.make(name, Sizes(batch=1 if name.startswith("packed") else BATCH), CPU)
    for name in masks.RECIPES
}
"""Masks of every kind that the conformance suite knows, for a call of these sizes."""


def make_inputs(batch=BATCH, queries=QUERIES, keys=KEYS, dtype=torch.float64, seed=0, **sizes):
    """Query, key and value that ask for gradients, from a fixed seed."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {**SIZES, **sizes}
    shapes = (
        (batch, sizes["num_heads"], queries, sizes["head_dim"]),
        (batch, sizes["num_kv_heads"], keys, sizes["head_dim"]),
        (batch, sizes["num_kv_heads"], keys, sizes["value_dim"]),
    )
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in shapes
    ]
