"""What only additive attention promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode  # torch has no public way to count
from torch.utils._pytree import tree_leaves

import attnreg
from attnreg import Mask
from attnreg.conformance import pytest_suite
from attnreg_additive import VARIANT

SIZES = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}

test_conformance = pytest_suite(VARIANT)


def build(dtype=torch.float64, **options):
    """Build the module with parameters from a fixed seed."""
    torch.manual_seed(0)
    return attnreg.create("additive", **{**SIZES, **options}).to(dtype)


def tensors(*shapes, dtype=torch.float64, seed=1):
    """Normal numbers from a fixed seed, which ask for gradients."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return [t.to(dtype).requires_grad_() for t in drawn]


class Allocated(TorchDispatchMode):
    """Record the bytes of the largest tensor that any operation makes, and of all of them."""

    def __init__(self):
        super().__init__()
        self.largest = self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.largest = max(self.largest, leaf.untyped_storage().nbytes())
                self.total += leaf.numel() * leaf.itemsize
        return result


def test_parameters_are_per_head():
    shapes = {name: tuple(p.shape) for name, p in build(hidden=3).module.named_parameters()}
    assert shapes == {
        "query_weight": (6, 3, 8),
        "key_weight": (6, 3, 8),
        "bias": (6, 3),
        "score_weight": (6, 3),
    }
    assert build().hidden == 8  # head_dim, unless given
    assert not build().bias.any()
    for hidden in (0, 4097, 2.0):
        with pytest.raises(attnreg.OptionError, match="hidden must be"):
            build(hidden=hidden)


def test_every_parameter_acts():
    attn = build(hidden=3)
    call = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6))
    before = attn(*call)
    for parameter in attn.parameters():
        with torch.no_grad():
            kept = parameter.clone()
            parameter[2].add_(0.5)
            after = attn(*call)
            parameter.copy_(kept)
        heads = [h for h in range(6) if not torch.equal(before[:, h], after[:, h])]
        assert heads == [2]


def test_one_score_by_hand():
    attn = build(num_heads=1, num_kv_heads=1, head_dim=1, value_dim=1, hidden=1, temperature=0.5)
    with torch.no_grad():
        for name, value in (("query_weight", 2), ("key_weight", 3), ("bias", 0.5)):
            getattr(attn, name).fill_(value)
        attn.score_weight.fill_(0.25)
    query, key = (torch.full((1, 1, 1, 1), x, dtype=torch.float64) for x in (0.1, 0.2))
    score = attn.module.score(query, key)
    assert score.item() == pytest.approx(0.25 * np.tanh(0.2 + 0.6 + 0.5) / 0.5, rel=1e-12)


def test_initial_scores_have_unit_order():
    attn = attnreg.create("additive", num_heads=4, head_dim=64)
    query, key = tensors((1, 4, 64, 64), (1, 4, 64, 64), dtype=torch.float32)
    spread = attn.module.score(query, key).std().item()
    assert 0.2 < spread < 1.0  # tanh has size below 1, and its weights variance 1 / hidden


@pytest.mark.parametrize("causal", [False, True])
def test_hidden_activations_are_never_held_whole(causal):
    attn = build(torch.float32, num_heads=2, num_kv_heads=2, hidden=16)
    for length in (256, 1024):
        call = tensors(*[(1, 2, length, 8)] * 2, (1, 2, length, 6), dtype=torch.float32)
        with Allocated() as seen:
            attn(*call, Mask(causal=causal)).sum().backward()
        # One tile of (rows, columns, hidden), whatever the length; the whole takes 2**27 bytes.
        assert seen.largest <= 2**24


def test_a_tile_shrinks_as_hidden_grows():
    for hidden in (1, 16, 4096):
        assert build(hidden=hidden).module.tile_elements * hidden * 4 <= 2**24


@pytest.mark.parametrize("tile", [2**20, 16])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_saturation_is_finite(dtype, tile):
    attn = build(dtype)
    attn.module.tile_elements = tile
    call = tensors((2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6), dtype=dtype)
    large = [(t.detach().sign() * 1e4).requires_grad_() for t in call[:2]]
    output = attn(*large, call[2])
    output.sum().backward()
    assert torch.isfinite(output).all()
    for tensor in (*large, call[2], *attn.parameters()):
        assert torch.isfinite(tensor.grad).all()


def test_the_names_in_the_state_dict():
    assert sorted(build().state_dict()) == [
        f"module.{n}" for n in ("bias", "key_weight", "query_weight", "score_weight")
    ]
