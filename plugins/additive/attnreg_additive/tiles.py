"""The two sums over hidden units that additive attention spends its time on, for one tile.

tanh(a + b) = 1 - 2 / (1 + exp(2a) exp(2b)), so with
left = exp(2a) and right = exp(2b), found once for each query and key, a pair and hidden unit
costs r = 1 / (1 + left right), and the derivative of tanh is 4 (r - r^2). Sums are taken of
r - 1/2, which is -tanh / 2, so that large weights cost no digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor


class Tiles(Protocol):
    """A way to compute the two sums; ``multiple`` must divide the number of hidden units."""

    multiple: int
    pairs: int
    """How many pairs of query and key a tile may hold."""

    def reach(self, dtype: torch.dtype) -> tuple[float, float]:
        """Up to which |a| and |b|, and up to which a + b, no number leaves the range of a dtype."""

    def scores(self, left: Tensor, right: Tensor, weight: Tensor) -> Tensor:
        """Sum weight * (r - 1/2) over the units.

        left (n, rows, units), right (n, units, columns), weight (n, units) to (n, rows, columns).
        """

    def slopes(self, grad: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sum grad (r - r^2) over columns and over rows, and grad r over both.

        grad (n, rows, columns) to (n, rows, units), (n, units, columns), (n, units).
        """


class EagerTiles:
    """A group of hidden units after another, so that each pass stays in the cache.

    A full tile takes them one by one; a decoding step, all at once.
    """

    multiple = 1
    pairs = 2**18

    def reach(self, dtype: torch.dtype) -> tuple[float, float]:
        """Both exponentials must be normal numbers; of an infinite product the reciprocal is 0."""
        return -0.49 * math.log(torch.finfo(dtype).tiny), math.inf

    def scores(self, left: Tensor, right: Tensor, weight: Tensor) -> Tensor:
        """Sum weight * (r - 1/2): a product, a sum and a division for each unit."""
        total = left.new_zeros(left.shape[0], left.shape[1], right.shape[2])
        if self._group(left, right) > 4:  # with fewer the product with the weights is slow
            for units in self._groups(left, right):
                work = torch.mul(left[:, :, units, None], right[:, None, units]).add_(1.0)
                total += (weight[:, None, None, units] @ work.reciprocal_().sub_(0.5))[:, :, 0]
            return total
        work = torch.empty_like(total)
        lefts, rights = left.unsqueeze(3).unbind(2), right.unsqueeze(1).unbind(2)
        weights = weight[..., None, None].unbind(1)
        for unit, each in enumerate(weights):
            total.addcdiv_(each, torch.mul(lefts[unit], rights[unit], out=work).add_(1.0))
            if unit % 4 == 3 or unit == len(weights) - 1:
                # Not once at the end: that would cancel, and cost a digit where weights are large.
                total -= 0.5 * torch.stack(weights[unit // 4 * 4 : unit + 1]).sum(dim=0)
        return total

    def slopes(self, grad: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sum grad (r - r^2) over columns and over rows, and grad r over both."""
        by_row, by_column = torch.empty_like(left), torch.empty_like(right)
        by_unit = left.new_empty(left.shape[0], left.shape[2])
        for units in self._groups(left, right):
            reciprocal = torch.mul(left[:, :, units, None], right[:, None, units])
            reciprocal.add_(1.0).reciprocal_()
            slope = grad[:, :, None] * reciprocal
            by_unit[:, units] = slope.sum(dim=(1, 3))
            slope.addcmul_(slope, reciprocal, value=-1.0)
            by_row[:, :, units] = slope.sum(dim=3)
            by_column[:, units] = slope.sum(dim=1)
        return by_row, by_column, by_unit

    def _group(self, left: Tensor, right: Tensor) -> int:
        """How many units are taken at a time."""
        return max(1, self.pairs // max(1, left.shape[0] * left.shape[1] * right.shape[2]))

    def _groups(self, left: Tensor, right: Tensor) -> Iterator[slice]:
        size = self._group(left, right)
        return (slice(u, u + size) for u in range(0, left.shape[2], size))


EAGER_TILES = EagerTiles()
