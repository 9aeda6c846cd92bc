"""The faster ways to compute additive attention: eager tiles and compiled ones."""

from __future__ import annotations

import logging

import pytest
import torch

import attnreg
from attnreg import Mask
from attnreg_additive import compiled
from attnreg_additive.compiled import COMPILED, WORTH, CompiledTiles
from attnreg_additive.tiled import TILED
from attnreg_additive.tiles import EAGER_TILES

has_compiler = pytest.mark.skipif(not compiled._compiler(), reason="no C++ compiler")


def build(dtype=torch.float64, **options):
    """Build a module of awkward sizes from a fixed seed, computed by its formula."""
    torch.manual_seed(3)
    sizes = {"num_heads": 6, "num_kv_heads": 3, "head_dim": 7, "value_dim": 5, "hidden": 11}
    attn = attnreg.create("additive", implementation="eager", **{**sizes, **options}).to(dtype)
    with torch.no_grad():
        attn.bias.add_(0.1)
    return attn


def inputs(rows, columns, dtype=torch.float64, batch=2, factor=1.0):
    """Query, key and value from a fixed seed, which ask for gradients."""
    generator = torch.Generator().manual_seed(rows + columns)
    shapes = ((batch, 6, rows, 7), (batch, 3, columns, 7), (batch, 3, columns, 5))
    drawn = (torch.randn(s, generator=generator, dtype=torch.float64) * factor for s in shapes)
    return [t.to(dtype).requires_grad_() for t in drawn]


def results(run, call, mask, parameters):
    """The output and all gradients of a call, with those of the mask's bias."""
    sources = [*call, *parameters, *([] if mask.bias is None else [mask.bias])]
    output = run(*call, mask)
    arriving = torch.randn(output.shape, generator=torch.Generator().manual_seed(5)).to(output)
    return [output, *torch.autograd.grad(output, sources, arriving)]


def close(found, expected, limit):
    """Compare by root mean square."""
    for one, other in zip(found, expected, strict=True):
        error = (one - other).double().square().mean().sqrt()
        assert error <= limit * other.double().square().mean().sqrt().clamp(min=1e-3)


def masks(rows, columns, dtype):
    """One mask of each kind, some of which leave a row without a key."""
    generator = torch.Generator().manual_seed(7)
    allowed = torch.rand(rows, columns, generator=generator) < 0.4
    allowed[1] = False
    bias = torch.randn(6, 1, columns, generator=generator, dtype=torch.float64)
    bias[:, :, 4] = -torch.inf
    kept = torch.ones(2, columns, dtype=torch.bool)
    kept[1, 3:] = False
    return [
        Mask(),
        Mask(causal=True),
        Mask(causal=True, query_offset=-3),
        Mask(window=(5, 2)),
        Mask(allowed=allowed, key_valid=kept),
        Mask(bias=bias.to(dtype).requires_grad_()),
    ]


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("columns", [3, 37, 533])
def test_tiles_give_what_the_formula_gives(monkeypatch, columns, number):
    monkeypatch.setattr(type(EAGER_TILES), "pairs", 12 * 150)  # several tiles, units one by one
    attn, call = build(temperature=0.7, scale=1.3), inputs(23, columns)
    mask = masks(23, columns, torch.float64)[number] if columns > 4 else Mask(causal=True)
    expected = results(attn, call, mask, attn.parameters())
    found = results(
        lambda *given: TILED.forward(attn.module, *given), call, mask, attn.parameters()
    )
    close(found, expected, 1e-12)


@has_compiler
def test_compiled_tiles_give_what_the_formula_gives():
    attn = build(torch.float32)
    for rows, columns in ((1, 2), (23, 37), (67, 533)):
        call = inputs(rows, columns, torch.float32)
        some = masks(rows, columns, torch.float32) if columns > 4 else [Mask()]
        for mask in some:
            expected = results(attn, call, mask, attn.parameters())
            found = results(
                lambda *given: COMPILED.forward(attn.module, *given), call, mask, attn.parameters()
            )
            close(found, expected, 5e-6)
    with torch.inference_mode():
        plain = [t.detach() for t in call]
        close([COMPILED.forward(attn.module, *plain, Mask())], [attn(*plain)], 2e-6)
    assert compiled.COMPILED_TILES.failure is None


@pytest.mark.parametrize("way", [TILED, pytest.param(COMPILED, marks=has_compiler)])
@pytest.mark.parametrize("factor", [4.0, 30.0, 1e4])
def test_large_inputs_saturate_as_the_formula_does(way, factor):
    attn = build(torch.float32)
    call = inputs(23, 37, torch.float32, factor=factor)
    exact, wide = build(), [t.double().detach() for t in call]
    expected = exact(*wide)
    error = (attn(*call) - expected).square().mean()
    found = (way.forward(attn.module, *call, Mask()) - expected).square().mean()
    assert found <= 9 * error + 1e-13
    # One head far out of range changes no bit of the others.
    moved = [t.detach().clone() for t in call]
    moved[0][1, 2] = torch.nan
    first, second = (way.forward(attn.module, *given, Mask()) for given in (call, moved))
    others = [(b, h) for b in range(2) for h in range(6) if (b, h) != (1, 2)]
    assert all(torch.equal(first[at], second[at]) for at in others)


def test_the_gradient_of_the_gradient():
    attn = build(num_heads=2, num_kv_heads=1, head_dim=3, value_dim=2, hidden=4)
    generator = torch.Generator().manual_seed(9)
    shapes = ((1, 2, 3, 3), (1, 1, 4, 3), (1, 1, 4, 2))
    call = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]

    def run(*given):
        return TILED.forward(attn.module, *given, Mask(causal=True))

    assert torch.autograd.gradgradcheck(run, [t.requires_grad_() for t in call])


def test_a_short_call_waits_for_no_compiler():
    attn = attnreg.create("additive", num_heads=8, head_dim=64)
    short, long = (torch.empty(1, 8, length, 64) for length in (64, 4096))
    assert attn.explain(short, short, short).chosen == "tiled"
    assert "wait" in attn.explain(short, short, short).refused["compiled"][0]
    assert WORTH < 8 * 64 * 4096**2
    step = attn.explain(short[:, :, :1], long, long)
    assert step.chosen == "tiled"
    assert "decoding" in step.refused["compiled"][0]


def test_a_compiler_that_is_missing_or_fails_shows_in_explain(monkeypatch, caplog):
    attn = attnreg.create("additive", num_heads=8, head_dim=64)
    long = torch.empty(1, 8, 4096, 64)
    monkeypatch.setattr(compiled, "_compiler", lambda: False)
    assert "no C++ compiler" in attn.explain(long, long, long).refused["compiled"][0]
    monkeypatch.setattr(compiled, "_compiler", lambda: True)
    assert attn.explain(long, long, long).chosen == "compiled"

    def fails(*given, **options):
        raise OSError("the compiler broke")

    broken = CompiledTiles()
    monkeypatch.setattr(compiled, "COMPILED_TILES", broken)
    monkeypatch.setattr(torch, "compile", fails)
    small, call = build(torch.float32), inputs(5, 9, torch.float32)
    with caplog.at_level(logging.INFO):
        found = COMPILED.forward(small.module, *call, Mask())
    close([found], [small(*call)], 2e-6)
    assert "compiling scores" in caplog.text
    assert "the compiler broke" in caplog.text
    assert "the compiler broke" in attn.explain(long, long, long).refused["compiled"][0]
    assert attn.explain(long, long, long).chosen == "tiled"


@pytest.mark.parametrize("temperature", [1e-30, 1e-10, 1.0, 1e10, 1e30])
@pytest.mark.parametrize("implementation", ["tiled", pytest.param("compiled", marks=has_compiler)])
def test_weights_of_any_size_stay_in_range(implementation, temperature):
    call = [t.detach() for t in inputs(7, 9)]
    expected = build(temperature=temperature)(*call)
    attn = build(torch.float32, temperature=temperature)
    attn.implementation = implementation
    found = attn(*(t.float() for t in call))
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
