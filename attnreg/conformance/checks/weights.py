"""W: the weights that are shown are those that are used."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnreg.conformance.case import Case, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.masks import RECIPES, Sizes
from attnreg.conformance.measure import LIMITS, relative, reseed
from attnreg.errors import UnsupportedFeature
from attnreg.functional import expand_heads

LAWS = Laws()

FEW = ("none", "causal", "padding", "causal-left", "allowed", "bias", "window-causal", "packed")
DEAD = ("blind-rows", "padding-empty", "allowed-batch", "bias-causal", "packed-padding")
"""Kinds of masks of which some row sees nothing."""


def weigh(trial: Trial, lowered: bool = False) -> Tensor:
    """The weights of a trial's query and key, of the right shape and dtype, and finite."""
    case, s = trial.case, trial.sizes
    if not case.able.deterministic:
        reseed(97)  # as Case.call does before every call
    with case.running("attn.weights"), torch.no_grad():
        found = trial.attn.weights(trial.query, trial.key, trial.mask)
    case.holds(isinstance(found, Tensor), f"weights gave a {type(found).__name__}")
    shape = (s.batch, s.heads, s.queries, s.keys)
    case.holds(
        tuple(found.shape) == shape, f"the weights have shape {tuple(found.shape)}, not {shape}"
    )
    case.holds(
        lowered or found.dtype in (torch.float32, torch.float64),
        f"the weights are {found.dtype}, expected float32 or wider",
    )
    case.holds(found.isfinite().all(), "the weights are not finite", actual=found)
    return found


def _limit(trial: Trial, found: Tensor) -> float:
    """Two ways to one output, in the coarser of the dtypes of output and weights."""
    dtypes = (trial.sample.dtype, found.dtype)
    return max(trial.case.same if d is torch.float64 else LIMITS[d] for d in dtypes)


def not_random(trial: Trial) -> None:
    """Skip a law that a variant which draws anew in every call cannot keep."""
    case = trial.case
    if case.able.deterministic:
        return
    with case.running("the call"):
        first, second = (trial.attn(*trial.inputs, trial.mask) for _ in range(2))
    if not torch.equal(first, second):
        case.skip("it draws random numbers in evaluation mode")


def _sizes(case: Case) -> list[Sizes]:
    """The usual ones, single ones, ones beyond the 64 that is so often a block, one key head."""
    s = case.sizes
    one, long = replace(s, queries=1, keys=1), replace(s, batch=1, queries=7, keys=67)
    return [s, one, long, replace(s, batch=3, kv_heads=1, queries=6, keys=4, head_dim=5)]


@LAWS.law("W-01", "claimed", needs=("weights",))
def rows(case: Case) -> None:
    """Weights are (B, Hq, Lq, Lk), float32 or wider, and their rows sum to 1 where declared.

    For every kind of mask and every dtype. Where ``normalized`` is declared no weight is negative,
    and a row sums to 1, or is exactly 0 where the variant's own pattern or a normaliser of 0
    leaves nothing; a row whose keys are all masked is exactly 0 in every variant.
    """
    case.each(_rows, case.samples(settings=case.usual if case.full else case.usual[:4]))
    masks = RECIPES if case.full else (*FEW, *DEAD)
    sizes = _sizes(case)[1:] if case.full else _sizes(case)[2:3]
    case.each(_rows, case.samples(masks=masks, implementations=("auto",)))
    case.each(_rows, case.samples(sizes=sizes, masks=FEW[:5], implementations=("auto",)))
    case.each(_rows, case.samples(dtypes=case.dtypes[1:], masks=FEW[:3], implementations=("auto",)))


def _rows(trial: Trial) -> None:
    case, found = trial.case, weigh(trial)
    trial.run()
    dead = ~trial.visible().any(dim=-1, keepdim=True)
    case.holds(
        not found.masked_fill(~dead, 0.0).any(),
        "a row whose keys are all masked has weights other than 0",
        actual=found,
    )
    if not case.able.normalized:
        return
    case.holds((found >= 0).all(), "a weight is negative", actual=found)
    total = found.double().sum(dim=-1)
    seen = found.any(dim=-1)
    limit = case.same if found.dtype is torch.float64 else LIMITS[torch.float32]
    case.close(total, seen.double(), limit, "row sums of the weights")
    if trial.sample.mask == "none" and not trial.sample.options:
        case.holds(seen.any(), "no row has any weight", actual=found)


@LAWS.law("W-02", "claimed", needs=("weights",))
def weights_give_the_output(case: Case) -> None:
    """Weights times values is the output, for every mask, setting, implementation and dtype.

    Two draws of the values for each mask, so that no error hides beside them: 1e-11 in float64,
    else the limit of the dtype. A path of its own for the weights is where masks, biases and
    causality get lost.
    """
    settings = case.settings.all if case.full else case.usual[:5]
    one = None if case.full else ("auto",)
    case.each(_product, case.samples(settings=settings))
    case.each(_product, case.samples(masks=RECIPES, implementations=one))
    case.each(
        _product,
        case.samples(
            masks=FEW if case.full else FEW[1:4], settings=settings[1:], implementations=("auto",)
        ),
    )
    masks = FEW if case.full else FEW[:4]
    case.each(_product, case.samples(sizes=_sizes(case)[1:], masks=masks, implementations=one))
    case.each(_product, case.samples(dtypes=case.dtypes[1:], masks=masks[:3], implementations=one))
    scale = 0.7 if "scale" in case.variant.common else None
    case.each(_product, case.samples(scale=scale, implementations=("auto",)))


def _product(trial: Trial) -> None:
    not_random(trial)
    found = weigh(trial)
    limit = _limit(trial, found)
    draws = 1 if trial.sample.options or trial.sample.dtype is not trial.case.dtype else 2
    for seed in range(draws):
        value = trial.value if seed == 0 else _other(trial, seed)
        output = trial.run(value=value)
        wide = expand_heads(value.to(found.dtype), trial.sizes.heads)
        trial.close(found @ wide, output, limit, "weights times values against the output")


def _other(trial: Trial, seed: int) -> Tensor:
    made = trial.case.inputs(trial.sizes, dtype=trial.sample.dtype, seed=trial.sample.seed + seed)
    return made[2]


@LAWS.law("W-03", "claimed", needs=("weights",))
def masked_weights_are_zero(case: Case) -> None:
    """The weight of a masked pair is exactly 0, for every kind of mask, packed ones included.

    What is merely small is multiplied by whatever the value holds.
    """
    case.each(_masked, case.samples(masks=RECIPES, implementations=("auto",)))
    masks, settings = (FEW[1:], case.usual[1:]) if case.full else (FEW[1:4], case.usual[1:3])
    for changes in (
        {"sizes": _sizes(case)[2:]},
        {"settings": settings},
        {"dtypes": case.dtypes[1:]},
    ):
        case.each(_masked, case.samples(masks=masks, implementations=("auto",), **changes))


def _masked(trial: Trial) -> None:
    found = weigh(trial)
    trial.run()
    wrong = found.masked_fill(trial.visible(), 0.0)
    trial.case.holds(
        not wrong.any(),
        f"{int(wrong.count_nonzero())} masked pairs have a weight, up to "
        f"{float(wrong.abs().max()) if wrong.numel() else 0.0:.2g}",
        actual=found,
    )


@LAWS.law("W-04", "claimed", needs=("weights", "dropout"))
def before_dropout(case: Case) -> None:
    """Weights in training mode are those before dropout, bit by bit, or are refused.

    Implied weights, which are seen through the output, are refused while it is dropped.
    """
    for name in ("none", "causal", "padding"):
        for sample in case.samples(masks=(name,), implementations=("auto",)):
            attn = case.build(dropout=0.5, dtype=sample.dtype, sizes=sample.sizes)
            trial = Trial(case, sample)
            attn.load_state_dict(trial.attn.state_dict())
            trial.attn = attn
            if case.able.weights == "implied" or not hasattr(type(attn.module), "weights"):
                attn.train()
                case.refuses(
                    UnsupportedFeature,
                    "weights seen through an output with dropout",
                    partial(attn.weights, trial.query, trial.key, trial.mask),
                )
                continue
            expected = weigh(trial)
            attn.train()
            for _ in range(2):
                case.equal(weigh(trial), expected, "weights in training mode")
            modes = {module.training for module in attn.modules()}
            case.holds(modes == {True}, "weights changed the module's mode")


@LAWS.law("W-05", "claimed", needs=("weights",))
def looking_changes_nothing(case: Case) -> None:
    """To ask for weights changes neither outputs, nor parameters, nor inputs, nor the mode.

    The output after it has the same bits as before it, with a mask and without; so have the
    weights when asked for twice.
    """
    masks = ("none", "causal", "padding", "packed")
    case.each(_looked, case.samples(masks=masks))
    case.each(_looked, case.samples(settings=case.usual[1:], implementations=("auto",)))


def _looked(trial: Trial) -> None:
    case, attn = trial.case, trial.attn
    not_random(trial)
    before, state = trial.run(), copy.deepcopy(attn.state_dict())
    inputs = [t.clone() for t in trial.inputs]
    flags = {name: p.requires_grad for name, p in attn.named_parameters()}
    drawn = torch.get_rng_state()
    first = weigh(trial)
    if case.able.deterministic:
        case.equal(torch.get_rng_state(), drawn, "the state of torch's generator after weights")
    case.equal(weigh(trial), first, "weights asked for twice")
    case.equal(trial.run(), before, "the output after asking for weights")
    for name, tensor in attn.state_dict().items():
        if isinstance(tensor, Tensor):
            case.equal(tensor, state[name], f"{name} after asking for weights")
    for tensor, kept in zip(trial.inputs, inputs, strict=True):
        case.equal(tensor, kept, "an input after asking for weights")
    case.holds(
        flags == {name: p.requires_grad for name, p in attn.named_parameters()},
        "weights changed which parameters are trained",
    )
    modes = {module.training for module in attn.modules()}
    case.holds(modes == {False}, "weights changed the module's mode")


@LAWS.law("W-06", "claimed", needs=("weights",))
def weights_in_every_dtype(case: Case) -> None:
    """The weights are the same in every dtype, implementation and stride, but for rounding.

    Of inputs rounded to each dtype, within its limit; else 1e-11 in float64.
    """
    for name in ("none", "causal", "padding"):
        for sample in case.samples(
            masks=(name,), dtypes=case.dtypes[1:], implementations=("auto",)
        ):
            low = Trial(case, sample)
            not_random(low)
            wide = Trial(case, replace(sample, dtype=case.dtype))
            wide.query, wide.key, wide.value = (t.to(case.dtype) for t in low.inputs)
            wide.attn.load_state_dict(low.attn.state_dict())
            found, expected = weigh(low), weigh(wide)
            low.run()
            error = relative(found, expected)
            case.holds(
                error <= low.limit,
                f"weights in {sample.dtype}: the relative error is {error:.2g}, allowed is "
                f"{low.limit:.2g}",
                measured=error,
                limit=low.limit,
                actual=found,
                expected=expected,
            )
        for sample in case.samples(masks=(name,), implementations=("auto",)):
            trial = Trial(case, sample)
            not_random(trial)
            expected = weigh(trial)
            trial.query, trial.key = (
                t.transpose(1, 3).contiguous().transpose(1, 3) for t in (trial.query, trial.key)
            )
            case.close(weigh(trial), expected, case.same, "weights of strided query and key")
        for sample in case.samples(masks=(name,)):
            trial = Trial(case, sample)
            if trial.attn.explain(*trial.inputs, trial.mask).chosen is None:
                continue
            not_random(trial)
            auto = Trial(case, replace(sample, implementation="auto"))
            case.close(weigh(trial), weigh(auto), case.same, f"weights of {sample.implementation}")


@LAWS.law("W-07", "claimed", needs=("exact", "bfloat16"))
def weights_under_autocast(case: Case) -> None:
    """Under autocast the weights are 0 where masked, and sum to 1 where declared.

    Their dtype is not asked for: autocast lowers the product in the plainest code.
    """
    if not torch.amp.is_autocast_available(case.device.type):
        case.skip(f"torch has no autocast on {case.device.type}")
    dtype = torch.float32 if torch.float32 in case.dtypes else torch.bfloat16
    for sample in case.samples(
        masks=("none", "causal", "padding"), dtypes=(dtype,), implementations=("auto",)
    ):
        trial = Trial(case, sample)
        with torch.autocast(case.device.type, torch.bfloat16):
            found = weigh(trial, lowered=True)
        hidden = found.masked_fill(trial.visible(), 0.0)
        case.holds(not hidden.any(), "a masked pair has a weight under autocast", actual=found)
        if case.able.normalized:
            seen = found.any(dim=-1)
            case.close(found.double().sum(-1), seen.double(), LIMITS[torch.bfloat16], "row sums")
