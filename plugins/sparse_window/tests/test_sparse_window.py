"""What only sparse window attention promises."""

from __future__ import annotations

import pytest
import torch

import attnreg
from attnreg import Mask
from attnreg.conformance import pytest_suite
from attnreg_sparse_window import VARIANT
from attnreg_sparse_window.draws import draw_blocks

SIZES = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}

test_conformance = pytest_suite(VARIANT)


def build(dtype=torch.float64, **options):
    """Build the module with parameters from a fixed seed."""
    torch.manual_seed(0)
    return attnreg.create("sparse_window", **{**SIZES, **options}).to(dtype)


def tensors(*shapes, dtype=torch.float64, seed=1):
    """Normal numbers from a fixed seed, which ask for gradients."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return [t.to(dtype).requires_grad_() for t in drawn]


SETTINGS = [
    {"left": 2, "right": 1},
    {"left": 1, "right": 0, "dilation": 2, "global_tokens": (1, 7)},
    {"left": 0, "right": 1, "block_size": 2, "random_blocks": 1, "seed": 3},
]


def pattern(attn, queries, keys=None, mask=Mask()):  # noqa: B008  # Mask() is immutable
    """Who sees whom, head by head, from values that are one-hot: bool (6, queries, keys)."""
    keys = queries if keys is None else keys
    query = torch.zeros(1, 6, queries, 8, dtype=torch.float64)
    key = torch.zeros(1, 2, keys, 8, dtype=torch.float64)
    seen = []
    for start in range(0, keys, 6):
        value = torch.zeros(1, 2, keys, 6, dtype=torch.float64)
        for column in range(start, min(start + 6, keys)):
            value[:, :, column, column - start] = 1.0
        with torch.no_grad():
            seen.append(attn(query, key, value, mask)[0] > 0)
    return torch.cat(seen, dim=-1)[..., :keys]


def rows(found):
    """The keys of each query, of a pattern that is the same in all heads."""
    assert torch.equal(found, found[:1].expand_as(found))
    return [row.nonzero().flatten().tolist() for row in found[0]]


IMPLEMENTATIONS = ("blocked", "fused", "eager")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("left", "right", "dilation", "block"),
    [(0, 0, 1, 1), (3, 0, 1, 1), (1, 2, 1, 1), (2, 1, 3, 1), (1, 0, 1, 4), (1, 1, 2, 3)],
)
def test_the_edges_of_the_window(left, right, dilation, block, implementation):
    attn = build(
        left=left, right=right, dilation=dilation, block_size=block, implementation=implementation
    )
    steps = [step * dilation for step in range(-left, right + 1)]
    for queries, keys in ((17, 17), (5, 17)):
        expected = [
            [j for j in range(keys) if j // block - i // block in steps]
            for i in range(keys - queries, keys)
        ]
        assert rows(pattern(attn, queries, keys)) == expected


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("tokens", [0, 2, (0, 1), (5,), (9, 3, 9), (), 40, (40,)])
def test_global_tokens_see_all_and_are_seen_by_all(tokens, implementation):
    attn = build(left=1, right=0, global_tokens=tokens, implementation=implementation)
    chosen = range(tokens) if isinstance(tokens, int) else tokens
    expected = [
        [j for j in range(12) if i - 1 <= j <= i or i in chosen or j in chosen] for i in range(12)
    ]
    assert rows(pattern(attn, 12)) == expected
    causal = [[j for j in row if j <= i] for i, row in enumerate(expected)]
    assert rows(pattern(attn, 12, mask=Mask(causal=True))) == causal


def drawn(attn, length, mask=Mask()):  # noqa: B008  # Mask() is immutable
    """The random blocks of each head and block of rows, for a window of nothing else."""
    size, found = attn.block_size, pattern(attn, length, mask=mask)
    blocks = found[:, ::size, ::size].clone()
    blocks.diagonal(dim1=1, dim2=2).fill_(False)  # the window: the row's own block
    return [[row.nonzero().flatten().tolist() for row in head] for head in blocks]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_random_blocks(implementation):
    options = {"left": 0, "right": 0, "block_size": 4, "random_blocks": 3, "seed": 9}
    attn = build(implementation=implementation, **options)
    free, causal = drawn(attn, 80), drawn(attn, 80, Mask(causal=True))
    for head in range(6):
        for block, row in enumerate(free[head]):
            before = [other for other in row if other < block]
            after = [other for other in row if other > block]
            assert causal[head][block] == before
            assert len(before) == min(2, block)  # all there are, where there are fewer
            assert len(after) == 1 or (not after and 2 * block + 8 >= 20)  # or past the end
            assert all(other <= 2 * block + 8 for other in after)
    assert len({str(head) for head in free}) == 6
    assert len({str(row) for row in free[0]}) > 10
    # Those of a block of rows depend on nothing but seed, head and block.
    short = [[[other for other in row if other < 5] for row in head[:5]] for head in free]
    assert drawn(attn, 20) == short
    assert drawn(build(**options), 80) == free
    assert drawn(build(**{**options, "seed": 10}), 80) != free


RANDOM = {"left": 1, "right": 0, "random_blocks": 3, "seed": 6}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("block", [1, 4])
def test_padding_changes_no_random_block(block, implementation):
    attn = build(implementation=implementation, block_size=block, **RANDOM)
    call = [t.detach() for t in tensors((1, 6, 20, 8), (1, 2, 20, 8), (1, 2, 20, 6))]
    padded = [torch.nn.functional.pad(t, (0, 0, 0, 20), value=5.0) for t in call]
    valid = (torch.arange(40) < 20)[None]
    expected = attn(*call, Mask(query_offset=0))
    found = attn(*padded, Mask(query_offset=0, key_valid=valid))
    torch.testing.assert_close(found[:, :, :20], expected)
    found = attn(*padded[:1], *call[1:], Mask(query_offset=0))  # more queries than keys
    torch.testing.assert_close(found[:, :, :20], expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("block", [1, 4])
def test_causality_is_a_mask_like_any_other(block, implementation):
    attn = build(implementation=implementation, block_size=block, **RANDOM)
    call = [t.detach() for t in tensors((1, 6, 40, 8), (1, 2, 40, 8), (1, 2, 40, 6))]
    expected = attn(*call, Mask(causal=True))
    allowed = torch.ones(40, 40, dtype=torch.bool).tril()
    torch.testing.assert_close(attn(*call, Mask(allowed=allowed)), expected)
    torch.testing.assert_close(attn(*call, Mask(window=(None, 0))), expected)


def test_draws_are_without_replacement():
    row_block = torch.arange(-2, 80)
    for seed in range(5):
        for count in (0, 1, 2, 5, 64):
            found = draw_blocks(torch.tensor(seed), 6, row_block, count)
            assert found.shape == (6, 82, count)
            assert (found[:, :2] == -1).all()  # positions before 0 have none
            for row in found.flatten(0, 1).tolist():
                real = [block for block in row if block >= 0]
                assert len(set(real)) == len(real)


def test_neighbouring_seeds_share_no_draws():
    first, second, third = (draw_blocks(torch.tensor(s), 6, torch.arange(60), 4) for s in range(3))
    tables = [*first, *second, *third]
    for index, table in enumerate(tables):
        for other in tables[:index]:
            # Two rows agree by chance where few blocks are before them, and seldom elsewhere.
            assert (table[20:] == other[20:]).all(dim=-1).float().mean() < 0.1


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 12])
def test_random_blocks_are_spread_evenly(count):
    """Block 10 draws from the 10 blocks before it and the 18 after it."""
    seeds, heads = 400, 6
    counts = torch.zeros(29)
    for seed in range(seeds):
        found = draw_blocks(torch.tensor(seed), heads, torch.tensor([10]), count)
        counts += torch.bincount(found.flatten(), minlength=29)
    assert counts[10] == 0
    before = (count + 1) // 2
    for part, share in ((counts[:10], before / 10), (counts[11:], (count - before) / 18)):
        expected, variance = seeds * heads * share, seeds * heads * share * (1 - share)
        assert ((part - expected).abs() <= 4 * variance**0.5).all()


def test_the_seed_is_stored():
    attn, other = (build(left=0, right=0, random_blocks=2, seed=s) for s in (4, None))
    assert attn.seed.item() == 4
    assert attn.seed.dtype == torch.int64
    assert drawn(other, 12) != drawn(attn, 12)
    other.load_state_dict(attn.state_dict())
    assert drawn(other, 12) == drawn(attn, 12)
    torch.manual_seed(1)
    unlike = [attnreg.create("sparse_window", num_heads=1, head_dim=1).seed for _ in range(2)]
    assert unlike[0] != unlike[1]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("causal", [False, True])
def test_a_window_over_everything_is_full_attention(causal, implementation):
    attn = build(left=33, right=33, implementation=implementation)
    call = [t.detach() for t in tensors((2, 6, 33, 8), (2, 2, 33, 8), (2, 2, 33, 6))]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *call, is_causal=causal, enable_gqa=True
    )
    torch.testing.assert_close(attn(*call, Mask(causal=causal)), expected)


def test_the_names_in_the_state_dict():
    assert sorted(build().state_dict()) == ["module.seed"]
