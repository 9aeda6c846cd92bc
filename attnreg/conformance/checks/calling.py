"""R: what a call gives back, and how it is explained."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnreg.conformance.case import Case, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.checks.refusal import finite, says
from attnreg.conformance.measure import relative
from attnreg.conformance.recording import At, places
from attnreg.errors import (
    AttnregError,
    UnsupportedFeature,
)

LAWS = Laws()


@LAWS.law("R-02")
def output_contract(case: Case) -> None:
    """The output has the query's shape, dtype and device, and storage of its own.

    It asks for a gradient where an input does and gradients are on, and nowhere else. It shares
    no storage with an input (also where attention copies one: a single key, a window of the
    position itself), and no later call writes into it.
    """
    s = case.sizes
    one = replace(s, queries=1, keys=1)
    sizes = [one, s, replace(s, batch=1, queries=7, keys=3)] if case.full else [one, s]
    masks = ("none", "causal", "window-self", "padding-one")
    settings = case.usual if case.full else case.usual[:3]
    case.each(_owned, case.samples(settings=settings, sizes=sizes[:1]))
    case.each(_owned, case.samples(masks=masks, sizes=sizes))
    case.each(_owned, case.samples(dtypes=case.dtypes[1:]))
    if case.able.differentiable:
        case.each(_tracked, case.samples(masks=("none", "causal", "bias-keys")))
        case.each(_tracked, case.samples(dtypes=case.dtypes[1:]))


def _owned(trial: Trial) -> None:
    case, attn = trial.case, trial.attn
    attn.requires_grad_(False)
    output = trial.run()
    case.holds(
        output.device == trial.query.device and output.dtype == trial.query.dtype,
        f"the output is {output.dtype} on {output.device}, the query {trial.query.dtype} on "
        f"{trial.query.device}",
    )
    with case.running("the call"):
        output = attn(*trial.inputs, trial.mask)
    case.holds(not output.requires_grad, "the output asks for a gradient that nothing asked for")
    if not output.numel():
        return
    for name, tensor in zip(("query", "key", "value"), trial.inputs, strict=True):
        case.holds(
            output.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr(),
            f"the output shares its storage with {name}: writing into one changes the other",
        )
    kept = output.clone()
    trial.run(-trial.query, -trial.key, -trial.value)
    case.holds(torch.equal(output, kept), "a later call changed the output of an earlier one")


def _tracked(trial: Trial) -> None:
    case, tracked = trial.case, trial.tracked()
    if trial.attn.explain(*tracked, trial.mask).chosen is None:
        return  # an implementation that has no gradient in this dtype
    case.holds(
        trial.run(*tracked).requires_grad,
        "the output asks for no gradient although query, key and value do",
    )
    if case.able.weights != "none":
        value = trial.value.detach().clone().requires_grad_()
        case.holds(
            trial.run(value=value).requires_grad,
            "the output asks for no gradient although value does",
        )
    with torch.no_grad():
        output = trial.run(*trial.tracked())
    case.holds(not output.requires_grad, "the output asks for a gradient under no_grad")
    with torch.inference_mode():
        finite(
            case,
            trial.run(trial.query.clone(), trial.key.clone(), trial.value.clone()),
            "under inference_mode",
        )


class _Interrupted(Exception):
    """What stops a call in its middle here."""


def _stop() -> None:
    raise _Interrupted


@LAWS.law("R-08")
def usable_after_an_error(case: Case) -> None:
    """A call that fails, or is interrupted at any point, leaves the module as it was.

    Refused calls, and calls stopped in the middle of their computation; afterwards a good call
    gives the same bits as before. What is half written into a cache would show.
    """
    attn, call, mask = case.build(), case.inputs(), case.mask()
    before = case.call(attn, *call, mask)
    again = case.call(attn, *call, mask)
    if not case.able.deterministic and not torch.equal(before, again):
        finite(case, again, "a second call")
        return
    state = copy.deepcopy(attn.state_dict())
    other = replace(case.sizes, batch=1, queries=3, keys=3)
    stopped = [
        (*case.inputs(other, seed=3), case.mask("none", other)),
        (*case.inputs(seed=3), mask),
    ]
    for wrong in ((call[0], call[1][..., 1:], call[2]), (call[0], call[1], call[2][:, :, 1:])):
        case.refuses(AttnregError, "a wrong shape", partial(attn, *wrong, mask))
    case.equal(case.call(attn, *call, mask), before, "a call after a refused one")
    for short in stopped:
        with At() as counted:
            right = case.call(attn, *short)
        for place in places(counted.calls, 200 if case.full else 50):
            try:
                with At(place, _stop), torch.no_grad():
                    attn(*short)
            except _Interrupted:
                pass
            case.equal(case.call(attn, *short), right, "an interrupted call made again")
            case.equal(case.call(attn, *call, mask), before, "a call after an interrupted one")
    case.holds(attn.training is False, "an interrupted call changed the module's mode")
    for name, tensor in attn.state_dict().items():
        if isinstance(tensor, Tensor):
            case.equal(tensor, state[name], f"{name} after an interrupted call")


@LAWS.law("R-12")
def explained(case: Case) -> None:
    """``explain`` names the implementation that runs, and every other one with its reasons.

    What it names gives the same bits when asked for by name; what it refuses is refused, with
    those reasons, when asked for by name.
    """
    masks = ("none", "causal", "padding", "allowed", "bias", "window", "packed-full")
    settings = case.usual
    for dtype in case.dtypes[:1] if not case.full else case.dtypes:
        case.each(
            _explained,
            case.samples(settings=settings, dtypes=(dtype,), implementations=("auto",)),
        )
        case.each(_explained, case.samples(masks=masks, dtypes=(dtype,), implementations=("auto",)))


def _explained(trial: Trial) -> None:
    case, s = trial.case, trial.sample
    with case.running("explain"), torch.no_grad():  # as the calls below, which ask for no gradient
        chosen, refused = trial.attn.explain(*trial.inputs, trial.mask)
    names = set(case.implementations())
    case.holds(chosen in names, f"explain chose {chosen!r}")
    case.holds(
        set(refused) == names - {chosen},
        f"explain gives reasons for {sorted(refused)} of {sorted(names)}, and chose {chosen}",
    )
    for name, reasons in refused.items():
        case.holds(
            isinstance(reasons, list) and reasons and all(isinstance(r, str) for r in reasons),
            f"the reasons against {name} are {reasons!r}, expected a list of texts",
        )
    if len(names) == 1:
        return
    for name in names:
        named = case.build(
            s.options, implementation=name, dtype=s.dtype, scale=s.scale, sizes=s.sizes
        )
        with torch.no_grad():
            said = named.explain(*trial.inputs, trial.mask)
        if said.chosen is None:
            error = case.refuses(
                UnsupportedFeature, name, partial(named, *trial.inputs, trial.mask)
            )
            says(case, error, name, *said.refused[name])
        elif name == chosen and case.able.deterministic:
            found = case.call(named, *trial.inputs, trial.mask)
            case.holds(
                relative(found, trial.run()) == 0,
                f"the output of {name} by name is not that of the call that chose it",
            )
