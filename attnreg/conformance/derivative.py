"""Gradients of a trial, and the slopes of its formula by central differences to compare with."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnreg.conformance.case import Trial
from attnreg.conformance.measure import LIMITS
from attnreg.conformance.oracle import on_cpu
from attnreg.mask import Mask

INPUTS = ("query", "key", "value")


@dataclass(frozen=True)
class Gradients:
    """An output, and the gradient of each tensor that asked for one: None where there is none."""

    output: Tensor
    grads: Mapping[str, Tensor | None]

    def of(self, name: str, like: Tensor) -> Tensor:
        """The gradient, zeros where there is none."""
        found = self.grads[name]
        return torch.zeros_like(like) if found is None else found


def cotangent(trial: Trial, dtype: torch.dtype | None = None, seed: int = 3) -> Tensor:
    """What arrives at the output in the backward pass."""
    s = trial.sizes
    generator = torch.Generator().manual_seed(seed)
    shape = (s.batch, s.heads, s.queries, s.value_dim)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
    return drawn.to(trial.sample.dtype).to(trial.query.device, dtype)


def parameters(trial: Trial) -> dict[str, Tensor]:
    """The parameters that are trained, by names that no input has."""
    return named(trial.attn.module, trained=True)


def named(module: nn.Module, *, trained: bool = False) -> dict[str, Tensor]:
    """The parameters of a module, by names that no input has."""
    return {
        f"parameter {name}": parameter
        for name, parameter in module.named_parameters()
        if parameter.requires_grad or not trained
    }


def gradients(
    trial: Trial,
    *,
    arriving: Tensor | None = None,
    inputs: tuple[Tensor, ...] | None = None,
    asking: tuple[str, ...] = (*INPUTS, "bias"),
) -> Gradients | None:
    """Run forward and backward; None where the implementation refuses gradients for this call.

    ``asking`` are the inputs that ask for a gradient; the parameters do too.
    """
    case, made = trial.case, dict(zip(INPUTS, inputs or trial.inputs, strict=True))
    mask = trial.mask
    if mask.bias is not None:
        made["bias"] = mask.bias
    tensors = {n: t.detach().clone().requires_grad_(n in asking) for n, t in made.items()}
    if mask.bias is not None:
        mask = mask.replace(bias=tensors["bias"])
    query, key, value = (tensors[name] for name in INPUTS)
    if trial.attn.explain(query, key, value, mask).chosen is None:
        return None
    output = trial.run(query, key, value, mask)
    wanted = {n: t for n, t in tensors.items() if t.requires_grad} | parameters(trial)
    if not output.requires_grad:
        return Gradients(output, dict.fromkeys(wanted))
    arriving = cotangent(trial) if arriving is None else arriving
    with case.running("the backward pass"):
        found = torch.autograd.grad(output, list(wanted.values()), arriving, allow_unused=True)
    return Gradients(output.detach(), dict(zip(wanted, found, strict=True)))


def in_float64(
    trial: Trial, inputs: tuple[Tensor, ...], arriving: Tensor | None = None
) -> Gradients | None:
    """The gradients of the same module in float64, eager; None where float64 is not declared."""
    if torch.float64 not in trial.case.dtypes:
        return None
    twin = copy.copy(trial)
    with trial.case.running("copy.deepcopy(attn).double()"):
        twin.attn = copy.deepcopy(trial.attn).double()
    twin.attn.implementation = "eager"
    arriving = cotangent(trial) if arriving is None else arriving
    return gradients(twin, arriving=arriving.double(), inputs=tuple(t.double() for t in inputs))


class Slopes:
    """The formula's derivative along a direction, by central differences.

    Of the NumPy reference where there is one, in float64; else of the module's own output, run
    without gradients in float64, or in float32 where that is its widest dtype.
    """

    def __init__(self, trial: Trial, arriving: Tensor) -> None:
        self.trial, self.case = trial, trial.case
        self.by_reference = self.case.variant.reference is not None
        wide = torch.float64 if self.by_reference else self.case.dtype
        device = torch.device("cpu") if self.by_reference else self.case.device
        with self.case.running("copy.deepcopy(attn)"):
            self.attn = copy.deepcopy(trial.attn).to(device, wide)
        if not self.by_reference:
            self.attn.implementation = "eager"
        self.mask = on_cpu(trial.mask) if self.by_reference else trial.mask
        self.arriving = arriving.to(device, torch.float64)
        self.base = {
            n: t.detach().to(device, wide) for n, t in zip(INPUTS, trial.inputs, strict=True)
        }
        if self.mask.bias is not None:
            self.base["bias"] = self.mask.bias.detach().to(wide)
        self.wide = wide
        self.step = 1e-5 if wide is torch.float64 else 0.03
        self.limit = {torch.float64: 1e-6, torch.float32: 1e-4}.get(
            trial.sample.dtype, 8 * LIMITS[trial.sample.dtype]
        )
        if wide is torch.float32:
            self.limit = 2e-2

    def along(self, name: str, direction: Tensor, step: float | None = None) -> float:
        """The derivative of <output, arriving> when ``name`` moves along a direction."""
        step = self.step if step is None else step
        up, down = self._at(name, direction * step), self._at(name, direction * -step)
        return float(((up.double() - down.double()) * self.arriving).sum() / (2 * step))

    def _at(self, name: str, change: Tensor) -> Tensor:
        made, own = dict(self.base), named(self.attn.module)
        change = change.to(self.attn_device, self.wide)
        if name in made:
            made[name] = made[name] + change
            return self._output(made)
        kept = own[name].detach().clone()
        with torch.no_grad():
            own[name].add_(change)
            try:
                return self._output(made)
            finally:
                own[name].copy_(kept)

    @property
    def attn_device(self) -> torch.device:
        """Where the slopes are computed."""
        return self.base["query"].device

    def _output(self, made: Mapping[str, Tensor]) -> Tensor:
        mask: Mask = self.mask.replace(bias=made["bias"]) if "bias" in made else self.mask
        call = [made[name] for name in INPUTS]
        with torch.no_grad():
            if self.by_reference:
                return self.case.reference(self.attn, call[0], call[1], call[2], mask)
            return self.case.call(self.attn, call[0], call[1], call[2], mask)


def check_slopes(trial: Trial, found: Gradients, arriving: Tensor, names: set[str] | None) -> None:
    """Compare gradients with central differences, each along a direction of its own.

    The direction leans towards the gradient, so that the slope is not 0 by chance. Where the two
    are further apart than the limit, what a quarter of the step changes in the difference itself
    is added: a formula with a kink or with steep curves there cannot be asked more exactly.
    """
    slopes = Slopes(trial, arriving)
    own = parameters(trial)
    for name in found.grads:
        if names is not None and name not in names:
            continue
        like = slopes.base[name] if name in slopes.base else own[name]
        grad = found.of(name, like).detach().to(slopes.attn_device, torch.float64)
        direction = _direction(grad, like)
        slope = (grad * direction).sum()
        expected = slopes.along(name, direction)
        limit = slopes.limit
        scale = max(abs(expected), 1e-3)
        if not abs(float(slope) - expected) <= limit * scale:
            finer = slopes.along(name, direction, slopes.step / 4)
            limit += 4 * abs(finer - expected) / scale
        trial.close(
            slope.reshape(1),
            torch.tensor([expected], dtype=torch.float64),
            limit,
            f"slope along {name}: by autograd against differences",
        )


def _direction(grad: Tensor, like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(9)
    drawn = torch.randn(like.shape, generator=generator, dtype=torch.float64).to(grad.device)
    direction = drawn / drawn.norm().clamp(min=1e-30)
    size = grad.norm()
    if bool(size.isfinite()) and float(size) > 0:
        direction = grad / size + 0.5 * direction
    # An entry of -inf (a bias that hides) has no slope, and must get a finite gradient.
    finite = like.detach().to(grad.device).isfinite()
    return torch.where(finite, direction, torch.zeros_like(direction))
