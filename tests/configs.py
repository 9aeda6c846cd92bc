"""Settings of every variant that the tests run: each option moves at least once."""

from __future__ import annotations

import torch

from attnreg import Mask

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


def make_masks(queries=QUERIES, keys=KEYS, batch=BATCH, heads=HEADS, dtype=torch.float64):
    """Masks of every kind for a call of these sizes, by name, from a fixed seed."""
    generator = torch.Generator().manual_seed(7)

    def some(*shape):
        return torch.rand(*shape, generator=generator) > 0.4

    bias = torch.randn(batch, heads, queries, keys, generator=generator, dtype=dtype)
    bias = bias.masked_fill(~some(batch, heads, queries, keys), -torch.inf)
    bias[0, 1, 0] = -torch.inf
    padding = Mask.from_lengths([keys, max(keys // 2, 1)], keys)
    return {
        "none": Mask(),
        "causal": Mask(causal=True),
        "causal-top-left": Mask(causal=True, query_offset=0),
        "causal-blind-rows": Mask(causal=True, query_offset=-2),
        "causal-far": Mask(causal=True, query_offset=keys - 2),
        "padding": padding,
        "padding-empty": Mask.from_lengths([0, keys], keys),
        "padding-left": Mask(key_valid=torch.arange(keys) >= torch.tensor([[1], [0]])),
        "causal-padding": Mask(causal=True) & Mask.from_lengths([2, keys - 2], keys),
        "allowed-past": Mask(allowed=torch.ones(queries, keys).bool().tril(keys - queries)),
        "far-queries": Mask(query_offset=keys + 3),
        "padding-first": Mask.from_lengths([1, 1], keys),
        "allowed": Mask(allowed=some(batch, heads, queries, keys)),
        "allowed-by-head": Mask(allowed=some(1, heads, 1, keys)),
        "allowed-square": Mask(allowed=some(queries, keys)),
        "bias": Mask(bias=bias),
        "bias-float32": Mask(bias=torch.randn(heads, 1, keys, generator=generator)),
        "bias-causal": Mask(bias=bias, causal=True),
        "window": Mask(window=(2, 1)),
        "window-causal": Mask(window=(2, None), causal=True),
        "window-off": Mask(window=(0, 0), query_offset=1),
    }


def make_packed(queries=QUERIES, keys=KEYS, heads=HEADS):
    """Packed masks, with an empty sequence and rows past the end, for a batch of one."""
    generator = torch.Generator().manual_seed(8)
    cross = Mask.packed([2, 0, queries - 3], [3, 1, keys - 6])
    allowed = torch.rand(1, heads, queries, keys, generator=generator) > 0.3
    return {
        "packed": cross,
        "packed-causal": cross & Mask(causal=True),
        "packed-top-left": cross & Mask(causal=True, query_offset=0),
        "packed-window": cross & Mask(window=(1, 0)),
        "packed-allowed": cross & Mask(allowed=allowed),
        "packed-padding": cross & Mask.from_lengths([keys - 4], keys),
    }


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
