"""P: what may be random and what may not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnreg.checked import CheckedAttention
from attnreg.conformance.case import Case, Inputs, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.measure import reseed
from attnreg.conformance.trial import takes
from attnreg.errors import AttnregError
from attnreg.mask import Mask

LAWS = Laws()

MASKS = ("none", "causal", "padding", "bias-causal")


def generators(case: Case) -> list[bytes]:
    """The state of every generator that code may share with its caller, as comparable bytes."""
    arrays: Any = np.random.get_state()
    found = [
        torch.get_rng_state().numpy().tobytes(),
        repr(random.getstate()).encode(),
        arrays[1].tobytes() + repr(arrays[2:]).encode(),
    ]
    if case.device.type not in ("cpu", "meta"):
        module = torch.get_device_module(case.device)
        found.append(module.get_rng_state(case.device).cpu().numpy().tobytes())
    return found


NAMES = ("torch's generator", "Python's random", "numpy.random", "the device's generator")


def seed_all(seed: int) -> None:
    """Seed every generator that code may share with its caller."""
    reseed(seed)
    random.seed(seed)
    np.random.seed(seed)  # the global state itself is what is meant


def uses(case: Case, attn: CheckedAttention, call: Inputs, mask: Mask) -> Iterator[tuple[str, Any]]:
    """Every way to use a module that is declared: the call, its weights, a step; with its name."""
    query, key, value = call
    yield "the call", lambda: attn(query, key, value, mask)
    if case.able.weights != "none" and not (attn.training and case.able.dropout):
        yield "attn.weights", lambda: attn.weights(query, key, mask)
    if case.able.decode != "none" and case.able.causal:
        first = [t[:, :, :1] for t in call]
        yield "attn.step", lambda: attn.step(first[0], first[1], first[2])


def run(case: Case, what: str, use: Callable[[], Any]) -> Any:
    """Use a module without seeding anything and without gradients."""
    with case.running(what), torch.no_grad():
        return use()


@LAWS.law("P-05", "claimed", needs=("deterministic",))
def evaluation_draws_nothing(case: Case) -> None:
    """In evaluation mode nothing touches a global generator: torch's, numpy's or Python's.

    Of the call, of ``weights`` and of ``step``, in every implementation, with dropout configured
    where it is declared, and of a training call without dropout: the generators' states are the
    same bytes before and after.
    """

    def probe(trial: Trial) -> None:
        settings: list[dict[str, Any]] = [{}, {"train": True}]
        settings += [{"dropout": 0.5}] if case.able.dropout else []
        for setting in settings:
            attn = _built(trial, **setting)
            if not takes(attn, *trial.inputs, trial.mask):
                continue
            for what, use in uses(case, attn, trial.inputs, trial.mask):
                before = generators(case)
                run(case, what, use)
                for name, old, new in zip(NAMES, before, generators(case), strict=False):
                    case.holds(old == new, f"{what} moved {name}, built with {setting}")

    case.each(probe, case.samples(masks=MASKS))


def _built(trial: Trial, **more: Any) -> CheckedAttention:
    """The trial's module once more, with dropout or in training mode."""
    sample = trial.sample
    return trial.case.build(
        sample.options,
        implementation=sample.implementation,
        dtype=sample.dtype,
        sizes=sample.sizes,
        **more,
    )


@LAWS.law("P-06")
def generators_are_never_reset(case: Case) -> None:
    """No call sets a global generator to a state of its own.

    After seeds 5 and 6 the generators differ before a call, in evaluation and in training mode,
    and so they must after it; a call with dropout also moves torch's.
    """
    attn = case.build()
    droppers = [case.build(dropout=0.5, train=True)] if case.able.dropout else []
    call, mask = case.inputs(), case.mask()
    for one in (attn, case.build(train=True), *droppers):
        for what, use in uses(case, one, call, mask):
            after = []
            for seed in (5, 6):
                seed_all(seed)
                if case.device.type not in ("cpu", "meta"):
                    torch.get_device_module(case.device).manual_seed(seed)
                run(case, what, use)
                after.append(generators(case))
            for name, first, second in zip(NAMES, *after, strict=False):
                mode = "training" if one.training else "evaluation"
                case.holds(first != second, f"{what} in {mode} mode reset {name}")
    for one in droppers:
        before = generators(case)
        case.call(one, *call, mask)
        case.holds(
            not case.able.deterministic or before != generators(case),
            "a call with dropout moved no generator",
        )


@LAWS.law("P-07", "claimed", needs=("deterministic",))
def equal_calls(case: Case) -> None:
    """Equal calls give equal outputs, fifty times, and in a fresh module of the same seed.

    Bit by bit on the CPU, whatever torch's generator holds, with other calls in between, in
    evaluation mode and in training mode without dropout; and the module's state does not change.
    """
    count = 50 if case.full else 12

    def probe(trial: Trial) -> None:
        other = case.inputs(trial.sizes, dtype=trial.sample.dtype, seed=3)
        for train in (False, True):
            trial.attn.train(train)
            state = {k: v.clone() for k, v in _state(trial.attn).items()}
            first = trial.run()
            for n in range(count if not train else 5):
                reseed(n)
                if n % 5 == 0:
                    trial.run(*other)
                _bits(trial, trial.run(), first, f"output of equal call {n + 2}")
            fresh = _built(trial, train=train)
            _bits(trial, case.call(fresh, *trial.inputs, trial.mask), first, "a fresh module")
            for name, tensor in _state(trial.attn).items():
                if name in state:
                    trial.equal(tensor, state[name], f"{name} after calls")

    case.each(probe, case.samples(masks=MASKS))


def _state(attn: CheckedAttention) -> dict[str, Tensor]:
    return {k: v for k, v in attn.state_dict().items() if isinstance(v, Tensor)}


def _bits(trial: Trial, found: Tensor, expected: Tensor, what: str) -> None:
    if trial.case.device.type == "cpu":
        trial.equal(found, expected, what)
    else:
        trial.close(found, expected, trial.near(), what)


@LAWS.law("P-08", "claimed", needs=("accelerator", "deterministic"), full=True)
def no_race(case: Case) -> None:
    """On an accelerator 250 equal calls give the same bits.

    At a length of 257, in every implementation and dtype, where blocks of threads meet.
    """
    sizes = replace(case.sizes, queries=257, keys=257) if not case.able.fixed_length else None

    def probe(trial: Trial) -> None:
        first = trial.run()
        for n in range(250):
            trial.equal(trial.run(), first, f"output of equal call {n + 2}")

    where = None if sizes is None else (sizes,)
    case.each(probe, case.samples(sizes=where, dtypes=case.dtypes, masks=("none", "causal")))


@LAWS.law("P-09")
def inputs_are_not_modified(case: Case) -> None:
    """Neither query, key and value nor a tensor of the mask is written to.

    Values bit by bit and autograd's version counters, for every kind of mask and every
    implementation, of the call in both modes, of ``weights``, of ``step`` and of a backward pass.
    """
    masks = (*MASKS, "allowed", "bias", "padding-left", "bias-float32", "packed", "window-causal")

    def probe(trial: Trial) -> None:
        given = [*trial.inputs]
        for name in ("key_valid", "allowed", "bias", "cu_seqlens", "key_cu_seqlens"):
            tensor = getattr(trial.mask, name)
            given += [tensor] if tensor is not None else []
        before = [(t.clone(), t._version) for t in given]
        for train in (False, True):
            trial.attn.train(train)
            for what, use in uses(case, trial.attn, trial.inputs, trial.mask):
                if what != "the call" and trial.sample.mask.startswith("packed"):
                    continue
                run(case, what, use)
                _untouched(case, given, before, what)
        trial.attn.eval()
        inputs = trial.tracked()
        if case.able.differentiable and takes(trial.attn, *inputs, trial.mask):
            whole = [t.detach().clone() for t in inputs]
            output = trial.run(*inputs)
            grad = torch.ones_like(output)
            with case.running("the backward pass"):
                torch.autograd.grad(output, inputs, grad, allow_unused=True)
            for tensor, old in zip(inputs, whole, strict=True):
                trial.equal(tensor.detach(), old, "an input after the backward pass")
            trial.equal(
                grad, torch.ones_like(grad), "the arriving gradient after the backward pass"
            )
            _untouched(case, given, before, "the backward pass")

    case.each(probe, case.samples(masks=masks))
    if len(case.dtypes) > 1:
        case.each(probe, case.samples(dtypes=case.dtypes[1:]))


def _untouched(
    case: Case, given: list[Tensor], before: list[tuple[Tensor, int]], what: str
) -> None:
    for tensor, (old, version) in zip(given, before, strict=True):
        shape = tuple(tensor.shape)
        case.equal(tensor, old, f"a tensor of shape {shape} given to {what}")
        case.holds(tensor._version == version, f"{what} wrote to a tensor of shape {shape}")


@LAWS.law("P-10", "claimed", needs=("redraw",))
def redraw(case: Case) -> None:
    """What is drawn at random changes by ``redraw()``, and by nothing else.

    Calls in both modes leave the state as it is; ``redraw()`` changes it, from torch's generator:
    equal seeds, equal draws; and a new draw is saved in the state dict.
    """
    attn, call, mask = case.build(), case.inputs(), case.mask()
    start = {k: v.clone() for k, v in _state(attn).items()}
    first = case.call(attn, *call, mask)
    for train in (False, True):
        attn.train(train)
        for n in range(20):
            reseed(n)
            case.call(attn, *call, mask)
        for name, tensor in _state(attn).items():
            case.equal(tensor, start[name], f"{name} after calls, training {train}")
    attn.eval()
    drawn = []
    for seed in (3, 3, 4):
        reseed(seed)
        with case.running("redraw()"):
            attn.redraw()
        drawn.append({k: v.clone() for k, v in _state(attn).items()})
        if not drawn[1:]:
            second = case.call(attn, *call, mask)
    changed = any(not torch.equal(start[k], v) for k, v in drawn[0].items())
    case.holds(changed or not torch.equal(first, second), "redraw() changed nothing")
    for name, tensor in drawn[0].items():
        case.equal(drawn[1][name], tensor, f"{name}, drawn twice after the same seed")
    case.holds(
        any(not torch.equal(drawn[2][k], v) for k, v in drawn[0].items()) or not changed,
        "redraw() draws the same after another seed: it has a generator of its own",
    )
    other = case.build(seed=12)
    other.load_state_dict(drawn[0])
    case.equal(case.call(other, *call, mask), second, "output of a module that loaded the draw")


@LAWS.law("P-14", "claimed", needs=("seed",))
def an_explicit_seed(case: Case) -> None:
    """An explicit ``seed`` alone decides what is drawn; it leaves torch's generator alone.

    Two modules built with one seed, whatever torch's generator holds, have equal buffers, and,
    where there are no parameters, equal outputs; building them does not touch a global generator.
    """
    made = []
    for seed in (11, 12):
        seed_all(seed)
        before = generators(case)
        try:
            attn = case.build({"seed": 3}, seed=seed, jitter=False)
        except AttnregError as error:
            case.skip(f"seed=3 is refused: {error}")
        if not any(True for _ in attn.parameters()):
            after = generators(case)
            for name, old, new in zip(NAMES, before, after, strict=False):
                case.holds(old == new, f"building with an explicit seed moved {name}")
        made.append(attn)
    first, second = made
    for (name, mine), (_, theirs) in zip(
        first.named_buffers(), second.named_buffers(), strict=True
    ):
        case.equal(mine, theirs, f"buffer {name} of modules with one seed")
    if not any(True for _ in first.parameters()):
        outputs = [case.call(one, *case.inputs(), case.mask()) for one in made]
        case.equal(outputs[0], outputs[1], "output of modules with one seed")
    case.holds(True, "built")
