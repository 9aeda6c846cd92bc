"""L: the life of a module: saved, loaded, copied, moved, trained, built without memory."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnreg.checked import CheckedAttention
from attnreg.conformance.case import Case, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.checks.shapes import alike, three
from attnreg.conformance.measure import reseed
from attnreg.conformance.trial import takes
from attnreg.errors import AttnregError

LAWS = Laws()


def build_like(trial: Trial, seed: int = 12, **more: Any) -> CheckedAttention:
    """Another module of the trial's settings, with other parameters and draws."""
    sample = trial.sample
    made: dict[str, Any] = {"options": sample.options, "dtype": sample.dtype, **more}
    return trial.case.build(
        implementation=sample.implementation, sizes=sample.sizes, seed=seed, **made
    )


def load(case: Case, attn: nn.Module, state: Mapping[str, Any], **more: Any) -> None:
    """Load a state dict; ``Failure`` where it does not fit."""
    with case.running("load_state_dict"):
        attn.load_state_dict(state, **more)


def some_settings(case: Case) -> list[Any]:
    """Settings that do not fix the draws; in the fast profile those of the bounds are left out."""
    chosen = case.settings.all if case.full else case.usual
    return [s for s in chosen if s.options.get("seed") is None]  # those would draw the same anyway


@LAWS.law("L-01")
def state_dict_round_trip(case: Case) -> None:
    """A module that loads another's ``state_dict`` becomes that module.

    Into one built with another seed, before and after calls in both modes, in every setting:
    outputs are equal to the last digits, also with ``assign=True``; a call adds and takes no entry.
    A random feature or a cache outside the state dict shows here.
    """

    def probe(trial: Trial) -> None:
        names = set(trial.attn.state_dict())
        for used in (False, True):
            state = {k: _copied(v) for k, v in trial.attn.state_dict().items()}
            for assign in (False, True) if used else (False,):
                other = build_like(trial)
                case.call(other, *trial.inputs, trial.mask)
                load(case, other, state, strict=True, assign=assign)
                expected = case.call(other, *trial.inputs, trial.mask)
                alike(trial, trial.run(), expected, "output of a module that loaded the state")
            if not used:
                trial.attn.train()
                trial.run()
                trial.attn.eval()
                now = set(trial.attn.state_dict())
                case.holds(now == names, f"calls changed the state dict's names: {now ^ names}")

    names = None if case.full else ("auto",)
    case.each(probe, case.samples(settings=some_settings(case), implementations=names))
    case.each(probe, case.samples(masks=("none", "causal")))


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


@LAWS.law("L-02")
def saved_and_loaded(case: Case) -> None:
    """The state dict is saved and loaded without pickled code: plain tensors.

    By ``torch.save`` and ``torch.load(weights_only=True)``, and by safetensors where that is
    installed, into a module built with another seed.
    """

    def probe(trial: Trial) -> None:
        state = trial.attn.state_dict()
        buffer = io.BytesIO()
        with case.running("torch.save and torch.load(weights_only=True)"):
            torch.save(state, buffer)
            buffer.seek(0)
            loaded = [torch.load(buffer, weights_only=True)]
        tensors = {k: v for k, v in state.items() if isinstance(v, Tensor)}
        name = "safetensors.torch"
        if importlib.util.find_spec("safetensors") and len(tensors) == len(state):
            safe = importlib.import_module(name)
            plain = {k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}
            with case.running("safetensors"):
                loaded.append(safe.load(safe.save(plain)))
        for made in loaded:
            other = build_like(trial)
            load(case, other, made, strict=True)
            expected = case.call(other, *trial.inputs, trial.mask)
            alike(trial, trial.run(), expected, "output of a module that was loaded from a file")

    case.each(probe, case.samples(settings=some_settings(case)[: None if case.full else 3]))


@LAWS.law("L-03")
def deepcopy(case: Case) -> None:
    """``copy.deepcopy`` works at any time and gives an equal, independent module.

    Before and after calls in both modes with gradients and a backward pass: the outputs are
    equal, and changing the copy's state does not change the original. (No pickle: this project
    saves state dicts only.)
    """

    def probe(trial: Trial) -> None:
        for used in (False, True):
            if used:
                use(trial)
            with case.running("copy.deepcopy"):
                other = copy.deepcopy(trial.attn)
            expected = trial.run()
            found = case.call(other, *trial.inputs, trial.mask)
            alike(trial, found, expected, "output of a copy")
            with torch.no_grad():
                for tensor in [*other.parameters(), *other.buffers()]:
                    tensor.copy_(tensor + 1)
            alike(trial, trial.run(), expected, "output after its copy was changed")

    case.each(probe, case.samples(settings=some_settings(case)[: None if case.full else 2]))


def use(trial: Trial) -> None:
    """Use a module as training and evaluation do: gradients where it has them."""
    case, attn = trial.case, trial.attn
    for train in (True, False):
        attn.train(train)
        inputs = trial.tracked() if case.able.differentiable else trial.inputs
        if not takes(attn, *inputs, trial.mask):
            continue
        output = trial.run(*inputs)
        if output.requires_grad:
            with case.running("the backward pass"):
                output.square().mean().backward()
        if case.able.weights != "none":
            with case.running("attn.weights"):
                attn.weights(*inputs[:2], trial.mask)
    attn.zero_grad(set_to_none=True)


def loose(attn: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors held in plain attributes, of instances or classes, with their names."""
    known = {id(t) for t in [*attn.parameters(), *attn.buffers()]}  # torch's RNNs list them again
    for where, module in attn.named_modules():
        kept = {k: v for k, v in vars(module).items() if k not in TABLES}
        for kind in type(module).__mro__:
            if kind.__module__.partition(".")[0] not in ("torch", "builtins", "attnreg"):
                kept |= {f"{kind.__name__}.{k}": v for k, v in vars(kind).items()}
        for name, value in kept.items():
            for tensor in _inside(value, 4):
                if id(tensor) not in known:
                    yield f"{where or 'the module'}.{name}", tensor


TABLES = ("_parameters", "_buffers", "_modules")


def _inside(value: object, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth and not isinstance(value, (str, bytes, type, nn.Module)):
        parts: Iterable[object] = ()
        if isinstance(value, Mapping):
            parts = list(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            parts = list(value)
        elif hasattr(value, "__dict__") and not callable(value):
            parts = list(vars(value).values())
        for part in parts:
            yield from _inside(part, depth - 1)


@LAWS.law("L-05")
def moved_as_a_whole(case: Case) -> None:
    """``.to(dtype)`` and ``.to(device)`` move everything that a module computes with.

    No floating tensor of several numbers lies in a plain attribute, where ``.to`` does not find
    it; parameters and floating buffers have the new dtype; and a module that was used and then
    moved gives what one gives that was moved before it was used.
    """
    attn = case.build()
    for name, tensor in loose(attn):
        case.holds(
            not tensor.is_floating_point() or tensor.dim() == 0,  # one number goes with any tensor
            f"{name} is a floating tensor and neither parameter nor buffer: .to() leaves it behind",
        )

    def probe(trial: Trial) -> None:
        for dtype in case.dtypes:
            if dtype is trial.sample.dtype:
                continue
            trial.run()
            with case.running(f".to({dtype})"):
                moved = copy.deepcopy(trial.attn).to(dtype)
            for name, tensor in [*moved.named_parameters(), *moved.named_buffers()]:
                case.holds(
                    not tensor.is_floating_point() or tensor.dtype == dtype,
                    f"{name} is {tensor.dtype} after .to({dtype})",
                )
            inputs = three(t.to(dtype) for t in trial.inputs)
            if not takes(moved, *inputs, trial.mask):
                continue
            fresh = build_like(trial, seed=11).to(dtype)
            load(case, fresh, moved.state_dict())
            expected = case.call(fresh, *inputs, trial.mask)
            found = case.call(moved, *inputs, trial.mask)
            alike(trial, found, expected, f"output of a module moved to {dtype}")

    if len(case.dtypes) > 1:
        case.each(probe, case.samples(settings=case.usual[: None if case.full else 3]))
        low = case.dtypes[-1:]
        case.each(probe, case.samples(dtypes=low))
    case.holds(True, "scanned")


@LAWS.law("L-06", "claimed", needs=("random",))
def what_is_drawn_is_a_buffer(case: Case) -> None:
    """What a ``seed`` or ``redraw()`` decides is a buffer, which no optimiser changes.

    Modules built with equal parameters and other seeds have equal parameters, and ``redraw()``
    changes none.
    """
    draws = []
    if any(option.name == "seed" for option in case.variant.options):
        for seed in (3, 4):
            try:
                draws.append(case.build({"seed": seed}, jitter=False))
            except AttnregError as error:
                case.skip(f"seed={seed} is refused: {error}")
        _same_parameters(case, *({n: p for n, p in one.named_parameters()} for one in draws))
    attn = case.build(jitter=False)
    if hasattr(attn.module, "redraw"):
        before = {n: p.detach().clone() for n, p in attn.named_parameters()}
        with case.running("redraw()"):
            attn.redraw()
        _same_parameters(case, before, dict(attn.named_parameters()))
    case.holds(True, "compared")


def _same_parameters(case: Case, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    case.holds(set(a) == set(b), "other seeds give other parameters")
    for name, tensor in a.items():
        case.holds(
            torch.equal(tensor, b[name]) or not b[name].requires_grad,
            f"{name} is drawn at random and is a parameter: training would change it",
        )


@LAWS.law("L-07", "claimed", needs=("compile",))
def without_memory(case: Case) -> None:
    """On the meta device, where there are shapes and no values, a call gives the right shape.

    With several masks, and where it is differentiable with a backward pass; so that a model too
    large for this machine can be planned.
    """
    meta = torch.device("meta")

    def probe(trial: Trial) -> None:
        with case.running(".to('meta')"):
            attn = copy.deepcopy(trial.attn).to(meta)
        inputs = three(t.to(meta).requires_grad_(case.able.differentiable) for t in trial.inputs)
        mask = trial.mask
        moved = {
            name: tensor.to(meta)
            for name in ("key_valid", "allowed", "bias")
            if (tensor := getattr(mask, name)) is not None
        }
        output = case.call(attn, *inputs, mask.replace(**moved))
        case.holds(output.device == meta, f"the output is on {output.device}, not on meta")
        if case.able.differentiable:
            with case.running("the backward pass on meta"):
                output.sum().backward()

    masks = ("none", "causal", "padding", "bias", "window")
    case.each(probe, case.samples(implementations=("auto",), masks=masks))


@LAWS.law("L-12", "claimed", needs=("compile", "reset"))
def reset_after_no_memory(case: Case) -> None:
    """``reset_parameters`` of a module and its parts sets all that ``to_empty`` left undefined.

    From the same seed, a module that was emptied and reset has the state, bit by bit, of one that
    was built and reset: as large models are built, on the meta device first.
    """
    for setting in case.usual:
        made = []
        for emptied in (False, True):
            try:
                attn = case.build(setting.options, jitter=False)
            except AttnregError:
                continue
            if emptied:
                with case.running("to_empty"):
                    attn = attn.to("meta").to_empty(device=case.device)
                with torch.no_grad():
                    for tensor in [*attn.parameters(), *attn.buffers()]:
                        tensor.fill_(7)
            reseed(41)
            # Parts first, as the whole may set what they hold.
            for module in reversed(list(attn.module.modules())):
                if hasattr(module, "reset_parameters"):
                    with case.running("reset_parameters()"):
                        getattr(module, "reset_parameters")()  # noqa: B009  # mypy takes a module's unknown attribute for a tensor
            made.append(attn)
        if len(made) < 2:
            continue
        first, second = made
        entries = dict([*first.named_parameters(), *first.named_buffers()])
        for name, tensor in [*second.named_parameters(), *second.named_buffers()]:
            case.equal(tensor, entries[name], f"{name} after to_empty and reset_parameters")
        outputs = [case.call(one, *case.inputs(), case.mask()) for one in made]
        case.equal(outputs[1], outputs[0], "output after to_empty and reset_parameters")
