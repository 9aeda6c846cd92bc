"""L, continued: what a module keeps from call to call, and what it shares with others."""

from __future__ import annotations

import gc
from dataclasses import replace

import torch
from torch import Tensor, nn

from attnreg.conformance.case import Case, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.checks.life import build_like, load, loose, some_settings, use
from attnreg.conformance.checks.shapes import alike, three
from attnreg.conformance.measure import reseed
from attnreg.conformance.trial import takes
from attnreg.errors import AttnregError

LAWS = Laws()


@LAWS.law("L-04")
def nothing_is_kept(case: Case) -> None:
    """A call leaves no graph and no growing memory behind.

    After calls and backward passes no tensor that the module holds, in whatever attribute, has a
    history; and between the third and the eleventh call the number of tensors alive stays flat.
    """

    def without_history(trial: Trial) -> None:
        use(trial)
        buffers = ((f"buffer {name}", t) for name, t in trial.attn.named_buffers())
        for name, tensor in [*loose(trial.attn), *buffers]:
            case.holds(tensor.grad_fn is None, f"{name} keeps the graph of a call")
        case.holds(True, "scanned")

    def flat(trial: Trial) -> None:
        for _ in range(3):
            use(trial)
        before = _alive()
        for _ in range(8):
            use(trial)
        after = _alive(1)  # quicker; older garbage would only add to it
        if after - before >= 8:
            after = _alive()
        case.holds(after - before < 8, f"8 more calls left {after - before} tensors behind")

    masks = ("none", "causal", "padding", "bias", "packed")
    case.each(without_history, case.samples(masks=masks))
    names = None if case.full else ("auto",)
    case.each(flat, case.samples(masks=masks[: 2 if case.full else 1], implementations=names))


def _alive(generation: int = 2) -> int:
    gc.collect(generation)
    return sum(issubclass(type(one), Tensor) for one in gc.get_objects())


@LAWS.law("L-11", "required", needs=("parameters",))
def changes_take_effect(case: Case) -> None:
    """A parameter that is changed in place after a call is what the next call uses.

    As an optimiser's step does it, and ``load_state_dict``: the output is that of a fresh module
    with these parameters, in both modes and in every implementation. A projection or
    a transposed copy kept from the first call shows here.
    """

    def probe(trial: Trial) -> None:
        for train in (False, True):
            trial.attn.train(train)
            trial.run()
            with torch.no_grad():
                for parameter in trial.attn.parameters():
                    parameter.mul_(0.9).add_(0.01)
            fresh = build_like(trial, train=train)
            load(case, fresh, trial.attn.state_dict())
            expected = case.call(fresh, *trial.inputs, trial.mask)
            alike(trial, trial.run(), expected, "output after its parameters were changed")

    case.each(probe, case.samples(masks=("none", "causal")))


@LAWS.law("L-08")
def modes_agree(case: Case) -> None:
    """Gradients recorded or not, training or evaluating: the output is the same.

    With gradients, in ``no_grad``, in ``inference_mode`` and with frozen parameters; in training
    mode without dropout, unless that is random by itself. Other kernels may run: relative
    difference below 1e-11 in float64.
    """

    def probe(trial: Trial) -> None:
        attn, mask = trial.attn, trial.mask
        expected = trial.run()
        with torch.inference_mode():
            inside = three(t.clone() for t in trial.inputs)
            found = case.call(attn, *inside, mask).clone()
        trial.close(found.clone(), expected, trial.near(), "output in inference_mode")
        inputs = trial.tracked()
        if case.able.differentiable and takes(attn, *inputs, mask):
            found = trial.run(*inputs).detach()
            trial.close(found, expected, trial.near(), "output with gradients")
        for p in attn.parameters():
            p.requires_grad_(False)
        trial.close(trial.run(), expected, trial.near(), "output with frozen parameters")
        attn.train()
        if not takes(attn, *trial.inputs, mask):
            return
        drawn = []
        for seed in (1, 2):
            reseed(seed)
            with case.running("the call in training mode"), torch.no_grad():
                drawn.append(attn(*trial.inputs, mask))
        if case.able.deterministic or torch.equal(*drawn):
            trial.close(drawn[0], expected, trial.near(), "output in training mode, no dropout")

    masks = ("none", "causal", "padding", "allowed", "bias-causal", "window", "packed")
    case.each(probe, case.samples(masks=masks))
    case.each(probe, case.samples(dtypes=case.dtypes[1:]))
    case.each(probe, case.samples(masks=("none",), sizes=(replace(case.sizes, batch=1),)))


@LAWS.law("L-10")
def two_instances(case: Case) -> None:
    """Two modules share nothing: neither memory nor what one of them has computed.

    No parameter or buffer of two builds lies in the same storage; a module gives the same before
    and after others, with other parameters and options, were built, called and changed.
    """

    def probe(trial: Trial) -> None:
        expected = trial.run()
        mine = {t.untyped_storage().data_ptr(): n for n, t in _tensors(trial.attn) if t.numel()}
        different = case.inputs(trial.sizes, dtype=trial.sample.dtype, seed=9)
        others = [] if trial.sample.options else [s.options for s in case.usual[1:]]
        for setting in ({}, *others):
            try:
                other = build_like(trial, options={**trial.sample.options, **setting})
            except AttnregError:  # the two sets of options do not go together
                continue
            for name, tensor in _tensors(other):
                place = tensor.untyped_storage().data_ptr() if tensor.numel() else None
                case.holds(place not in mine, f"{name} of two modules is one and the same memory")
            for train in (True, False):
                other.train(train)
                if takes(other, *different, trial.mask):
                    case.call(other, *different, trial.mask)
            with torch.no_grad():
                for _, tensor in _tensors(other):
                    tensor.fill_(1)
            alike(trial, trial.run(), expected, "output after another module was used")
        again = build_like(trial)
        load(case, again, trial.attn.state_dict())
        found = case.call(again, *trial.inputs, trial.mask)
        alike(trial, found, expected, "output of a module that loaded the same state later")

    names = None if case.full else ("auto",)
    some = some_settings(case)[1 : None if case.full else 3]
    case.each(probe, case.samples(settings=some, implementations=names))
    case.each(probe, case.samples())
    case.each(probe, case.samples(masks=("causal", "padding"), implementations=names))


def _tensors(attn: nn.Module) -> list[tuple[str, Tensor]]:
    return [*attn.named_parameters(), *attn.named_buffers()]
