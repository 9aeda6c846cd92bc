"""T: under autocast, with its dtypes and its scaled losses."""

from __future__ import annotations

import torch

from attnreg.conformance.case import Case, Inputs, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.checks.transforms import gradients
from attnreg.conformance.measure import LIMITS

LAWS = Laws()


@LAWS.law("T-05", "claimed", needs=("bfloat16",))
def autocast(case: Case) -> None:
    """Under autocast it takes float32 and mixed inputs, and gives the right bfloat16 output.

    Against the plain module on the rounded inputs, within four units of bfloat16; the backward
    pass, outside of the context as training loops run it, gives finite gradients in the dtypes of
    the inputs, near those of the plain module.
    """
    if torch.float32 not in case.dtypes:
        case.skip("float32 is not declared, or not asked for")
    masks = ("none", "causal", "padding", "bias", "window", "packed")
    case.each(_autocast, case.samples(masks=masks, dtypes=(torch.float32,)))
    settings = case.usual[1:] if case.full else case.usual[1:3]
    case.each(
        _autocast,
        case.samples(settings=settings, dtypes=(torch.float32,), implementations=("auto",)),
    )


def _autocast(trial: Trial) -> None:
    case, low = trial.case, torch.bfloat16
    query, key, value = (0.5 * t for t in trial.inputs)
    call: Inputs = (query, key.to(low), value)
    trained = case.able.differentiable
    if trained:
        query, key, value = (t.detach().requires_grad_() for t in call)
        call = (query, key, value)
    with torch.autocast(case.device.type, low):
        if trial.attn.explain(*call, trial.mask).chosen is None:
            return
    with torch.autocast(case.device.type, low):
        output = trial.run(*call)
    case.holds(
        output.dtype == low,
        f"under autocast to bfloat16 the output is {output.dtype}",
        actual=output.detach(),
    )
    wide = case.build(trial.sample.options, dtype=case.dtype, sizes=trial.sizes)
    wide.load_state_dict(trial.attn.state_dict())
    query, key, value = (t.detach().to(low).to(case.dtype) for t in call)
    if trained:
        query, key, value = (t.requires_grad_() for t in (query, key, value))
    expected = case.call(wide, query, key, value, trial.mask)
    trial.close(output, expected, 2 * LIMITS[low], "under autocast")
    if not trained or not output.requires_grad:
        return
    with case.running("the backward pass after autocast"):
        found = gradients(output, call)
    right = gradients(expected, (query, key, value))
    for name, tensor, grad, other in zip(
        ("query", "key", "value"), call, found, right, strict=True
    ):
        case.holds(grad.dtype == tensor.dtype, f"the gradient of {name} is {grad.dtype}")
        trial.close(grad, other, 12 * LIMITS[low], f"under autocast: gradient of {name}")


@LAWS.law("T-06", "claimed", needs=("float16", "differentiable"))
def loss_scaling(case: Case) -> None:
    """Under float16 autocast a loss scaled by 2^14 gives finite gradients, 2^14 times as large.

    What a gradient scaler does: a mean of squares, scaled before the backward pass and unscaled
    after it, against the plain module's gradients to a tenth.
    """
    if torch.float32 not in case.dtypes:
        case.skip("float32 is not declared, or not asked for")
    try:
        with torch.autocast(case.device.type, torch.float16):
            torch.ones(2, 2, device=case.device) @ torch.ones(2, 2, device=case.device)
    except RuntimeError as error:
        case.skip(f"torch has no float16 autocast on {case.device.type}: {error}")
    case.each(
        _scaled,
        case.samples(
            masks=("none", "causal", "padding"), dtypes=(torch.float32,), implementations=("auto",)
        ),
    )


def _scaled(trial: Trial) -> None:
    case, factor = trial.case, 2.0**14
    query, key, value = (0.5 * t for t in trial.inputs)
    mine: Inputs = (query.clone(), key.clone(), value.clone())
    theirs: Inputs = (
        query.half().to(case.dtype),
        key.half().to(case.dtype),
        value.half().to(case.dtype),
    )
    for tensor in (*mine, *theirs):
        tensor.requires_grad_()
    with torch.autocast(case.device.type, torch.float16):
        output = trial.run(*mine)
    wide = case.build(trial.sample.options, dtype=case.dtype, sizes=trial.sizes)
    wide.load_state_dict(trial.attn.state_dict())
    expected = case.call(wide, *theirs, trial.mask)
    if not expected.requires_grad:
        return
    with case.running("the backward pass of a scaled loss"):
        found = torch.autograd.grad(
            output.float().square().mean() * factor, mine, allow_unused=True
        )
    right = torch.autograd.grad(expected.square().mean(), theirs, allow_unused=True)
    for name, grad, other in zip(("query", "key", "value"), found, right, strict=True):
        if grad is None or other is None:
            case.holds(grad is other, f"only one of two backward passes gives one for {name}")
            continue
        trial.close(grad / factor, other, 0.1, f"scaled loss: gradient of {name}")
