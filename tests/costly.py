"""Variants whose costs are known: what a call takes grows with its length as written here."""

from __future__ import annotations

import time

import torch
from torch import nn

from attnreg import Capabilities, Complexity, Variant


class Costly(nn.Module):
    capabilities = Capabilities(causal=True)

    def __init__(self, dims):
        super().__init__()
        self.dims = dims

    def spend(self, length):
        raise NotImplementedError

    def forward(self, query, key, value, mask):
        self.spend(query.shape[2])
        return value * 1.0


class Sleeps(Costly):
    """Takes 2 ms per position."""

    def spend(self, length):
        time.sleep(2e-3 * length)


class Fills(Costly):
    """Takes a MiB per position."""

    def spend(self, length):
        torch.ones(length * 2**18)


class SleepsOnce(Costly):
    """Takes 0.4 s at the first call of a module, as what compiles does."""

    def spend(self, length):
        if not getattr(self, "warm", False):
            time.sleep(0.4)
        self.warm = True


class BreaksLater(Costly):
    """Works four times, and then no more."""

    calls = 0

    def spend(self, length):
        self.calls += 1
        if self.calls > 4 and length < 10**6:
            raise ArithmeticError("worn out")


class NoGradient(Costly):
    def forward(self, query, key, value, mask):
        return value.detach() * 1.0


SLEEPS, FILLS, SLEEPS_ONCE, BREAKS_LATER, NO_GRADIENT = (
    Variant(
        name,
        factory,
        summary="costly",
        complexity=Complexity(time="L", memory="L"),
        flops=None,
    )
    for name, factory in (
        ("sleeps", Sleeps),
        ("fills", Fills),
        ("sleeps_once", SleepsOnce),
        ("breaks_later", BreaksLater),
        ("no_gradient", NoGradient),
    )
)
