"""Kernels that are not their features, and approximations that do not approach."""

from __future__ import annotations

from unittest.mock import patch

import torch

from attnreg import Features, LengthError, Mask
from attnreg.functional import expand_heads
from attnreg_linear.module import Linear
from attnreg_linformer.module import Linformer
from attnreg_performer.module import Performer
from attnreg_sparse_window.module import SparseWindow
from tests.mutants.agreement import (
    LINEAR,
    LINFORMER,
    PERFORMER,
    SPARSE,
    Dense,
    dense,
)
from tests.mutants.mutant import Mutant, wrong


class Quadratic(Linear):
    """Linear attention by its matrix, for mutants that change one step of it."""

    def shown(self, mask, length, keys):
        visible = mask.dense(length, keys)
        return visible[:, :1] if visible.shape[1] > 1 else visible

    def sums(self, matrix, visible):
        return (matrix * visible).sum(-1, keepdim=True)

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        wide = torch.promote_types(query.dtype, torch.float32)
        key, value = (expand_heads(t, query.shape[1]) for t in (key, value))
        visible = self.shown(mask, query.shape[2], key.shape[2])
        matrix = self.feature_map(query).to(wide) @ self.feature_map(key).to(wide).mT
        total = self.sums(matrix, visible)
        output = (matrix * visible) @ value.to(wide)
        if self.normalize:
            empty = total.abs() < torch.finfo(wide).tiny
            output = (output / total.masked_fill(empty, 1.0)).masked_fill(empty, 0.0)
        return output.to(query.dtype)


class Exclusive(Quadratic):
    """A running sum that leaves the position itself out, but for the first."""

    def shown(self, mask, length, keys):
        visible = super().shown(mask, length, keys)
        if not mask.causal or min(length, keys) < 2:
            return visible
        offset = keys - length if mask.query_offset is None else mask.query_offset
        itself = torch.arange(keys) == torch.arange(length)[:, None] + offset
        return visible & ~(itself & (torch.arange(keys) > 0))


class FutureInNormaliser(Quadratic):
    """A causal numerator over a normaliser of the whole sequence."""

    def sums(self, matrix, visible):
        return matrix.sum(-1, keepdim=True)


class ChunkSeam(Performer):
    """The state is handed on one position late: seen only beyond a chunk."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        output = super().forward(query, key, value, mask)
        if mask.causal and query.shape[2] > self.chunk:
            output[:, :, self.chunk] = 0.99 * output[:, :, self.chunk]
        return output


class WholeSquare(Performer):
    """exp(-|k|^2) for exp(-|k|^2 / 2)"""

    def key_features(self, key):
        values, log_scale = super().key_features(key)
        if log_scale is None:
            return Features(values)
        _, x = self._projected(key)
        return Features(values, log_scale - 0.5 * x.square().sum(dim=-1))


class Unscaled(Performer):
    """The scale of the scores instead of its root, for query and key each."""

    def _projected(self, x):
        dots, x = super()._projected(x)
        return dots * self.scale**0.5, x * self.scale**0.5


class FewDirections(Performer):
    """Sixteen directions, repeated: more features add nothing."""

    def redraw(self, seed=None):
        super().redraw(seed)
        with torch.no_grad():
            few = self.projection[:16].clone()
            self.projection.copy_(few.repeat(-(-self.features // 16), 1)[: self.features])


class FixedLengths(Performer):
    """Rows of length sqrt(D): another distribution, another kernel."""

    def redraw(self, seed=None):
        super().redraw(seed)
        with torch.no_grad():
            lengths = self.projection.norm(dim=1, keepdim=True)
            self.projection.mul_(self.projection.shape[1] ** 0.5 / lengths)


class NotOrthogonal(Performer):
    """Independent rows, whatever the option says."""

    def redraw(self, seed=None):
        with torch.no_grad():
            self.projection.copy_(torch.randn(self.projection.shape))


class PositiveDirections(Performer):
    """The sign of the diagonal put on twice: directions prefer one side of each axis."""

    def redraw(self, seed=None):
        super().redraw(seed)
        with torch.no_grad():
            self.projection.mul_(self.projection[:, :1].sign())


class RankScaled(Linformer):
    """Mixtures are means: divided by the root of the rank."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        return super().forward(query, key / self.rank**0.5, value, mask)


class LastColumns(Linformer):
    """A short call uses the last columns of the projections."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        pad = self.dims.max_length - key.shape[2]
        key, value = (torch.nn.functional.pad(t, (0, 0, pad, 0)) for t in (key, value))
        valid = mask.key_valid
        if valid is not None:
            valid = torch.nn.functional.pad(valid, (pad, 0), value=False)
        return super().forward(query, key, value, mask.replace(key_valid=valid))


class Table(Dense):
    """A table of positions as long as max_length, which it does not say."""

    def __init__(self, dims, *, temperature: float = 1.0, scale=None, dropout=0.0):
        super().__init__(dims, temperature=temperature, scale=scale, dropout=dropout)
        self.register_buffer("table", torch.zeros(dims.max_length or 1, 1))

    def score(self, query, key):
        return super().score(query, key + self.table[: key.shape[2]])


class OnlyKeysMasked(Linformer):
    """Padded values are mixed in."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if mask.key_valid is not None:
            key = key.masked_fill(~mask.key_valid[:, None, :, None], 0.0)
        output = super().forward(query, key, value, mask.replace(key_valid=None))
        if mask.key_valid is not None:
            output = output * mask.key_valid.any(-1)[:, None, None, None]
        return output


class Compacted(Linformer):
    """Real keys are moved to the front before they are mixed."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if mask.key_valid is not None:
            order = (~mask.key_valid).int().argsort(dim=1, stable=True)
            key, value = (
                t.gather(2, order[:, None, :, None].expand(-1, t.shape[1], -1, t.shape[3]))
                for t in (key, value)
            )
            mask = mask.replace(key_valid=mask.key_valid.gather(1, order))
        return super().forward(query, key, value, mask)


class HalfOpen(SparseWindow):
    """``right`` excludes its end."""

    def pattern(self, lowered, rows, columns):
        right, self.right = self.right, max(0, self.right - 1)
        found = super().pattern(lowered, rows, columns)
        self.right = right
        return found


class Capped(SparseWindow):
    """Windows stop at 8, whatever was asked for."""

    def pattern(self, lowered, rows, columns):
        kept = self.left, self.right
        self.left, self.right = min(8, self.left), min(8, self.right)
        found = super().pattern(lowered, rows, columns)
        self.left, self.right = kept
        return found


class Wrapped(SparseWindow):
    """Windows wider than 16 wrap around to narrow ones."""

    def pattern(self, lowered, rows, columns):
        kept = self.left, self.right
        self.left, self.right = self.left % 17, self.right % 17
        found = super().pattern(lowered, rows, columns)
        self.left, self.right = kept
        return found


def longer(variant, dims, key_length, mask):
    """Takes twice the length that the module was built for."""
    if variant.capabilities.fixed_length and key_length > 2 * (dims.max_length or 0):
        raise LengthError(f"{key_length} keys, at most {dims.max_length}")


def mutant(name, variant, factory, kills, spares=("R-00",)):
    return Mutant(f"approximation: {name}", wrong(variant, factory), kills, spares)


MUTANTS = [
    mutant("an exclusive running sum", LINEAR, Exclusive, ("A-01",)),
    mutant("a normaliser of the future", LINEAR, FutureInNormaliser, ("A-01",)),
    mutant("a seam between chunks", PERFORMER, ChunkSeam, ("A-01",), ("R-00", "A-02")),
    mutant("the whole square", PERFORMER, WholeSquare, ("A-02",), ("A-01", "A-04")),
    mutant("the scale for its root", PERFORMER, Unscaled, ("A-02",), ("A-01", "A-04")),
    mutant("few directions", PERFORMER, FewDirections, ("A-03",), ("A-01",)),
    mutant("rows of one length", PERFORMER, FixedLengths, ("A-04",), ("A-01",)),
    mutant("independent rows", PERFORMER, NotOrthogonal, ("A-04",), ("A-01", "A-02", "A-03")),
    mutant("one side of an axis", PERFORMER, PositiveDirections, ("A-04",), ("A-01",)),
    mutant("mixtures by the root of the rank", LINFORMER, RankScaled, ("A-05",), ("A-07",)),
    mutant("the last columns", LINFORMER, LastColumns, ("A-06",), ("A-05",)),
    dense("approximation: a table that ends", Table, ("A-06",)),
    Mutant(
        "approximation: lengths are not checked",
        LINFORMER,
        ("A-06",),
        ("N-01", "R-00"),
        lambda: patch("attnreg.checked.check_length", longer),
    ),
    mutant("padded values are mixed", LINFORMER, OnlyKeysMasked, ("A-07",), ("N-01", "A-05")),
    mutant("real keys first", LINFORMER, Compacted, ("A-07",), ("N-01", "A-05")),
    mutant("a window without its end", SPARSE, HalfOpen, ("A-08",)),
    mutant("a window capped at 8", SPARSE, Capped, ("A-10",), ("A-08",)),
    mutant("wide windows wrap", SPARSE, Wrapped, ("A-10", "A-11")),
]
