"""The right numbers, by way of more memory or more work than declared."""

from __future__ import annotations

import torch

from attnreg import Complexity, Mask
from attnreg.functional import expand_heads
from attnreg_additive.module import Additive
from attnreg_cosine.module import Cosine
from attnreg_linformer.module import Linformer
from attnreg_performer.module import Performer
from attnreg_shared_qkv.module import SharedQKV
from attnreg_sparse_window.module import SparseWindow
from tests.mutants.agreement import (
    ADDITIVE,
    COSINE,
    LINEAR,
    LINFORMER,
    PERFORMER,
    SHARED,
    SPARSE,
    Dense,
    dense,
)
from tests.mutants.approximation import Quadratic
from tests.mutants.mutant import Mutant, wrong


class DenseMask(Cosine):
    """Causality as a matrix, on its way into the fused kernel."""

    def attend_fused(self, query, key, value, mask):
        if mask.causal and mask.cu_seqlens is None:
            mask = mask.replace(causal=False, allowed=self.past(mask, query, key))
        return super().attend_fused(query, key, value, mask)

    def past(self, mask, query, key):
        seen = Mask(causal=True, query_offset=mask.query_offset)
        seen = seen.dense(query.shape[2], key.shape[2], device=query.device)
        return seen if mask.allowed is None else seen & mask.allowed


class OneTile(Additive):
    """One tile for everything."""

    def __init__(self, dims, *, hidden: int | None = None, temperature: float = 1.0, **common):
        super().__init__(dims, hidden=hidden, temperature=temperature, **common)
        self.tile_elements = 2**40


class Rows(Quadratic):
    """The matrix of linear attention, 64 rows at a time: lean, and quadratic in time."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if mask.used() or mask.query_offset is not None:
            return super().forward(query, key, value, mask)
        parts = [super(Rows, self).forward(q, key, value, mask) for q in query.split(64, dim=2)]
        return torch.cat(parts, dim=2) if parts else super().forward(query, key, value, mask)


class Recounted(Performer):
    """Sums from the start again for every chunk of the causal form."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        length = query.shape[2]
        plain = mask.query_offset is None and mask.cu_seqlens is None and length == key.shape[2]
        if not (mask.causal and plain and length > 64):
            return super().forward(query, key, value, mask)
        parts = []
        for end in range(64, length + 64, 64):
            valid = None if mask.key_valid is None else mask.key_valid[:, :end]
            inner = Mask(causal=True, key_valid=valid)
            upto = (t[:, :, :end] for t in (query, key, value))
            parts.append(super().forward(*upto, inner)[:, :, end - 64 :])
        return torch.cat(parts, dim=2)


class WholeProjections(Linformer):
    """A diagonal matrix to mask with."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if mask.key_valid is not None:
            kept = torch.diag_embed(mask.key_valid.to(value.dtype))
            key, value = (kept[:, None] @ t for t in (key, value))
        return super().forward(query, key, value, mask)


class KeptTiles(Dense):
    """Tiles of rows, and every one of them kept for the backward pass."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        plain = not (mask.used() or mask.query_offset is not None)
        rows = 128
        if plain and query.shape[2] > rows:
            parts = [super(KeptTiles, self).forward(q, key, value) for q in query.split(rows, 2)]
            return torch.cat(parts, dim=2)
        if mask.used() == ("causal",) and query.shape[2] == key.shape[2] > rows:
            parts = []
            for start in range(0, query.shape[2], rows):
                part = (
                    query[:, :, start : start + rows],
                    *(t[:, :, : start + rows] for t in (key, value)),
                )
                parts.append(super().forward(*part, Mask(causal=True)))
            return torch.cat(parts, dim=2)
        return super().forward(query, key, value, mask)


class Outer(SharedQKV):
    """Sees whether there is a NaN by comparing everything with everything."""

    def attend_fused(self, query, key, value, mask):
        first, second = query[..., :1], expand_heads(key, query.shape[1])[..., :1]
        odd = (first != first) & (second != second).mT
        return super().attend_fused(query, key, value, mask) + odd.any()


def mutant(name, variant, factory, kills, spares=("N-01", "R-00"), **changes):
    return Mutant(f"complexity: {name}", wrong(variant, factory, **changes), kills, spares)


MUTANTS = [
    mutant("the matrix of linear attention", LINEAR, Quadratic, ("Q-01", "Q-02")),
    mutant("a dense causal mask", COSINE, DenseMask, ("Q-01",), ("N-01", "Q-02")),
    mutant("one tile", ADDITIVE, OneTile, ("Q-01",), ("N-01", "Q-02")),
    mutant("a diagonal to mask with", LINFORMER, WholeProjections, ("Q-01", "Q-02")),
    mutant("everything with everything", SHARED, Outer, ("Q-01",), ("N-01", "Q-02")),
    mutant("the matrix by rows", LINEAR, Rows, ("Q-02",)),
    mutant("sums from the start", PERFORMER, Recounted, ("Q-02",)),
    mutant("a window in a full matrix", SPARSE, SparseWindow, ("Q-02",), ("N-01", "Q-01")),
    mutant(
        "a complexity in words",
        PERFORMER,
        Performer,
        ("Q-02",),
        ("N-01", "Q-01"),
        complexity=Complexity(time="linear", memory="L"),
    ),
    mutant(
        "another symbol",
        PERFORMER,
        Performer,
        ("Q-01",),
        ("N-01", "Q-02"),
        complexity=Complexity(time="L", memory="n^2"),
    ),
    dense("complexity: tiles that are kept", KeptTiles, ("Q-05",)),
]
