"""``Sample``: one call in words. ``Trial``: that call made real, for a law to try and compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnreg.checked import CheckedAttention
from attnreg.conformance.masks import Sizes
from attnreg.conformance.measure import LIMITS, SAME
from attnreg.conformance.plainmask import lower
from attnreg.mask import Mask

if TYPE_CHECKING:
    from attnreg.conformance.case import Case

Inputs = tuple[Tensor, Tensor, Tensor]
"""Query, key and value."""


@dataclass(frozen=True)
class Sample:
    """One call in words: all that is needed to make it again, at other sizes too."""

    sizes: Sizes
    dtype: torch.dtype
    options: Mapping[str, Any] = field(default_factory=dict)
    implementation: str = "auto"
    mask: str = "none"
    seed: int = 0
    scale: float | None = None
    values: tuple[Tensor, ...] | None = None
    """Query, key and value themselves, where shrinking has found simpler ones."""


class Trial:
    """A sample made real: a module, query, key, value and mask, and the comparisons of a law."""

    def __init__(self, case: Case, sample: Sample) -> None:
        self.case = case
        self.sample = sample
        self.sizes = sample.sizes
        self.attn = case.build(
            sample.options,
            implementation=sample.implementation,
            dtype=sample.dtype,
            scale=sample.scale,
            sizes=sample.sizes,
        )
        made = case.inputs(sample.sizes, dtype=sample.dtype, seed=sample.seed)
        self.query, self.key, self.value = sample.values or made
        self.mask = case.mask(sample.mask, sample.sizes)
        self.last: tuple[Tensor, Tensor, Tensor, Mask] = (*self.inputs, self.mask)

    @property
    def inputs(self) -> Inputs:
        """Query, key and value."""
        return self.query, self.key, self.value

    @property
    def limit(self) -> float:
        """How far an output of this dtype may be from its reference."""
        return LIMITS[self.sample.dtype]

    def near(self, factor: float = 1.0) -> float:
        """How far two ways to compute one thing may round apart in this dtype."""
        dtype = self.sample.dtype
        return SAME if dtype is torch.float64 else factor * LIMITS[dtype]

    def takes(self, inputs: Inputs) -> bool:
        """Whether the implementation that the sample names can run a call with other inputs."""
        return takes(self.attn, *inputs, self.mask)

    def visible(self) -> Tensor:
        """Who may attend to whom by the mask's definition, bool (B, Hq, Lq, Lk)."""
        s = self.sizes
        seen = lower(self.mask, s.batch, s.heads, s.queries, s.keys)[0]
        return torch.from_numpy(seen).to(self.query.device)

    def run(
        self,
        query: Tensor | None = None,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Mask | None = None,
    ) -> Tensor:
        """Call the attention, with other inputs where given; the call is what evidence shows."""
        self.last = (
            self.query if query is None else query,
            self.key if key is None else key,
            self.value if value is None else value,
            self.mask if mask is None else mask,
        )
        return self.case.call(self.attn, *self.last)

    def tracked(self) -> Inputs:
        """Fresh copies of the inputs that ask for gradients."""
        query, key, value = (t.detach().clone().requires_grad_() for t in self.inputs)
        return query, key, value

    def reference(self, *inputs: Tensor) -> Tensor:
        """The variant's NumPy reference on these inputs (none: the trial's), float64."""
        query, key, value = inputs or self.inputs
        return self.case.reference(self.attn, query, key, value, self.mask)

    def close(
        self, found: Tensor, expected: Tensor, limit: float | None = None, what: str = "output"
    ) -> float:
        """Compare by relative error; the limit is the dtype's where none is given."""
        return self.case.close(found, expected, self.limit if limit is None else limit, what)

    def equal(self, found: Tensor, expected: Tensor, what: str = "output") -> None:
        """Compare bit by bit."""
        self.case.equal(found, expected, what)


def takes(attn: CheckedAttention, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> bool:
    """Whether the implementation that was asked for can run a call."""
    tracked = any(t.requires_grad for t in (query, key, value))
    with torch.set_grad_enabled(tracked):
        return attn.explain(query, key, value, mask).chosen is not None


Probe = Callable[[Trial], None]
"""A law about one call, which `Case.each` tries on many."""
