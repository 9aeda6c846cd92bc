"""``Oracle``: what a call should give, in float64, and how exactly a dtype can be asked for it."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from attnreg.conformance.case import Trial
from attnreg.conformance.measure import LIMITS, Failure, relative
from attnreg.mask import Mask


def on_cpu(mask: Mask) -> Mask:
    """Move every tensor of a mask to the CPU."""
    names = ("key_valid", "allowed", "bias", "cu_seqlens", "key_cu_seqlens")
    tensors = {name: getattr(mask, name) for name in names}
    if all(t is None or t.device.type == "cpu" for t in tensors.values()):
        return mask
    return mask.replace(**{k: None if t is None else t.cpu() for k, t in tensors.items()})


class Oracle:
    """The output that a trial should give, in float64 on the CPU.

    It is the variant's NumPy reference where there is one, and else a copy of the module itself
    in float64, in its eager implementation: what a dtype may change is the last digits.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.case = trial.case
        with self.case.running("copy.deepcopy(attn).double()"):
            self.attn = copy.deepcopy(trial.attn).cpu().double()
        self.attn.implementation = "eager"

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None = None
    ) -> Tensor:
        """Compute the output of these inputs."""
        mask = on_cpu(self.trial.mask if mask is None else mask)
        query, key, value = (t.detach().cpu().double() for t in (query, key, value))
        if self.case.variant.reference is not None:
            return self.case.reference(self.attn, query, key, value, mask)
        with torch.no_grad():
            return self.case.call(self.attn, query, key, value, mask)

    def moved(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None = None
    ) -> Iterator[Tensor]:
        """Outputs of inputs that are off by one rounding of their dtype."""
        half = torch.finfo(query.dtype).eps / 2
        for seed in range(4):
            generator = torch.Generator().manual_seed(seed)
            near = [nudged(t, half, generator) for t in (query, key, value)]
            yield self(near[0], near[1], near[2], mask)

    def conditioning(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        expected: Tensor,
        mask: Mask | None = None,
    ) -> float:
        """How far the output moves, at most, when every input is off by one rounding of its dtype.

        What a formula makes of its inputs' last digits cannot be held against an implementation.
        """
        return max(relative(output, expected) for output in self.moved(query, key, value, mask))


def nudged(tensor: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Change every entry by a relative amount, up or down, in float64 on the CPU."""
    signs = torch.randint(2, tensor.shape, generator=generator) * 2 - 1
    return tensor.detach().cpu().double() * (1 + amount * signs)


def in_range(expected: Tensor, dtype: torch.dtype) -> bool:
    """Whether a result is finite, and far enough from the end of a dtype's range to be asked."""
    return bool(expected.isfinite().all()) and not bool(
        (expected.abs() > torch.finfo(dtype).max / 64).any()
    )


def agrees(
    trial: Trial,
    *inputs: Tensor,
    mask: Mask | None = None,
    slack: float = 4.0,
    limit: float | None = None,
    blank: bool = False,
    what: str = "output against float64",
) -> None:
    """Compare the output for these inputs (none: the trial's) with the oracle's.

    The limit is that of the dtype, or the one given. Where the output is beyond it, what ``slack``
    roundings of the inputs change is added. An output out of the dtype's range is not asked for.
    ``blank`` lets rows of exact zeros be where weights are implied: their normaliser may underflow.
    """
    query, key, value = inputs or trial.inputs
    oracle = Oracle(trial)
    expected = oracle(query, key, value, mask)
    if not in_range(expected, query.dtype):
        return
    found = trial.run(query, key, value, mask)
    limit = LIMITS[query.dtype] if limit is None else limit
    if blank and trial.case.able.weights != "exact":
        expected = expected.masked_fill((found == 0).all(dim=-1, keepdim=True).cpu(), 0.0)
    if not relative(found, expected) <= limit:
        limit += slack * oracle.conditioning(query, key, value, expected, mask)
    trial.close(found.cpu(), expected, limit, what)


def finite(trial: Trial, found: Tensor, what: str) -> None:
    """Raise ``Failure`` unless every entry is finite."""
    bad = int((~found.isfinite()).sum())
    trial.case.holds(True, what)
    if bad:
        raise Failure(
            f"{what}: {bad} of {found.numel()} entries are NaN or infinite", actual=found.detach()
        )
