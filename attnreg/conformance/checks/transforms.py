"""T: compilers and function transforms see the same attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnreg.conformance.case import MAX_LENGTH, Case, Inputs, Sample, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.masks import Sizes
from attnreg.conformance.measure import LIMITS
from attnreg.conformance.recording import Recording
from attnreg.mask import Mask

LAWS = Laws()


@contextmanager
def _compilers() -> Iterator[None]:
    """Forget what was compiled before and after, so that no check sees another's."""
    torch.compiler.reset()
    try:
        yield
    finally:
        torch.compiler.reset()


def _square(case: Case, length: int, batch: int = 2) -> Sizes:
    return replace(case.sizes, batch=batch, queries=length, keys=length)


def gradients(output: Tensor, inputs: Inputs) -> tuple[Tensor, ...]:
    arriving = torch.linspace(-1, 1, output.numel(), dtype=torch.float64, device="cpu")
    arriving = arriving.reshape(output.shape).to(output)
    found = torch.autograd.grad(output, inputs, arriving, allow_unused=True)
    return tuple(
        torch.zeros_like(t) if g is None else g for g, t in zip(found, inputs, strict=True)
    )


def _same_in_both(trial: Trial, compiled: Callable[..., Tensor], what: str) -> None:
    """Compare output, and gradients where there are some, with the plain module's."""
    case = trial.case
    if not case.able.differentiable:
        found = case.call(compiled, *trial.inputs, trial.mask)
        trial.close(found, trial.run(), what=f"{what}: output")
        return
    mine, theirs = trial.tracked(), trial.tracked()
    found = case.call(compiled, *mine, trial.mask)
    expected = trial.run(*theirs)
    trial.close(found, expected, what=f"{what}: output")
    if expected.requires_grad:
        with case.running(f"the backward pass, {what}"):
            grads = gradients(found, mine)
        for name, grad, other in zip(
            ("query", "key", "value"), grads, gradients(expected, theirs), strict=True
        ):
            trial.close(grad, other, 4 * trial.limit, what=f"{what}: gradient of {name}")


@LAWS.law("T-01", "claimed", needs=("compile",))
def compiles(case: Case) -> None:
    """``torch.compile(fullgraph=True)`` takes it whole, with the numbers of the plain call.

    Backend "aot_eager", forward and gradients, causal and padded at once where it can be (in the
    full profile many kinds of masks, and some settings). A graph break, a value read on the
    host, a path of its own for tracers: each shows here.
    """
    suited = [s.mask for s in case.samples(masks=("causal-padding", "padding-left", "causal"))]
    few = suited[:1] or ("none",)
    every = ("none", "causal-padding", "allowed-padding", "bias-causal")
    samples = list(case.samples(masks=every if case.full else few, implementations=("auto",)))
    if case.full:
        samples += list(case.samples(settings=case.usual[1:3], implementations=("auto",)))
    for sample in samples:
        with _compilers():
            case.each(_compiled, [sample])


def _compiled(trial: Trial) -> None:
    torch.compiler.reset()
    compiled = torch.compile(trial.attn, fullgraph=True, backend="aot_eager")
    _same_in_both(trial, compiled, "compiled")


@LAWS.law("T-02", "claimed", needs=("compile",), full=True)
def few_compilations(case: Case) -> None:
    """Three lengths take at most two compilations: the second one is for any length.

    Lengths 12, 7 and 9, causal where it can be; each with the numbers of the plain call. A length
    that is a constant in the graph compiles anew at every step of a batch of real text.
    """
    names = ("causal",) if case.able.causal else ("none",)
    for name in (*names, "padding") if case.full else names:
        for sample in case.samples(masks=(name,), implementations=("auto",)):
            with _compilers():
                _count_compilations(case, sample)


def _count_compilations(case: Case, sample: Sample) -> None:
    graphs: list[Any] = []

    def counting(graph: Any, example_inputs: Any) -> Callable[..., Any]:
        graphs.append(graph)
        forward: Callable[..., Any] = graph.forward
        return forward

    attn = Trial(case, sample).attn
    compiled = torch.compile(attn, fullgraph=True, backend=counting)
    for length in (12, 7, 9):
        sizes = _square(case, length)
        call, mask = case.inputs(sizes), case.mask(sample.mask, sizes)
        found = case.call(compiled, *call, mask)
        case.close(found, case.call(attn, *call, mask), LIMITS[case.dtype], f"compiled at {length}")
    case.holds(
        len(graphs) <= 2,
        f"three lengths took {len(graphs)} compilations (mask: {sample.mask}), allowed are 2",
        measured=len(graphs),
        limit=2,
    )


class _Calling(nn.Module):
    """A model that makes its mask inside, as models do."""

    def __init__(self, attn: nn.Module, causal: bool) -> None:
        super().__init__()
        self.attn = attn
        self.causal = causal

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None
    ) -> Tensor:
        """Attend with padding, and causally where it was asked for."""
        output: Tensor = self.attn(query, key, value, Mask(causal=self.causal, key_valid=keep))
        return output


@LAWS.law("T-03", "claimed", needs=("compile",), full=True)
def exports(case: Case) -> None:
    """``torch.export`` with a free length gives a program that is right at other lengths.

    Exported at 9 positions, causal and not, with padding where it can be; run at 5, 64 and 79.
    A mask is an input of a program too.
    """
    able = case.able
    for causal in (False, True):
        if (causal and not able.causal) or not (causal or able.noncausal):
            continue
        with _compilers():
            model = _Calling(case.build(), causal)
            length = torch.export.Dim("length", min=2, max=MAX_LENGTH)
            call = _padded(case, 9)
            axes = ({2: length}, {2: length}, {2: length}, {1: length})[: len(call)]
            with case.running("torch.export.export"):
                program = torch.export.export(model, call, dynamic_shapes=axes).module()
            for other in (5, 64, 79):
                again = _padded(case, other)
                with case.running(f"the exported program at {other}"), torch.no_grad():
                    found, expected = program(*again), model(*again)
                case.close(found, expected, LIMITS[case.dtype], f"exported, run at {other}")
    if able.key_valid:
        attn, mask, inputs = case.build(), case.mask("padding"), case.inputs()
        with _compilers(), case.running("torch.export.export with a mask as input"):
            program = torch.export.export(attn, (*inputs, mask)).module()
            found = program(*inputs, mask)
        case.close(
            found, case.call(attn, *inputs, mask), LIMITS[case.dtype], "exported with a mask"
        )


def _padded(case: Case, length: int) -> tuple[Tensor, ...]:
    call = case.inputs(_square(case, length))
    if not case.able.key_valid:
        return call
    ends = torch.tensor([[length], [max(1, length - 3)]], device=case.device)
    return (*call, torch.arange(length, device=case.device) < ends)


@LAWS.law("T-04", "claimed", needs=("compile",))
def function_transforms(case: Case) -> None:
    """``torch.func.vmap`` over one more axis equals a loop; so do ``grad`` and ``vmap(grad)``.

    Over query, key and value, over the query alone, and over padding; 1e-11 in float64.
    """
    settings = case.usual if case.full else case.usual[:2]
    masks = ("none", "causal", "padding", "bias", "window-causal")
    case.each(_mapped, case.samples(settings=settings, implementations=("auto",)))
    case.each(
        _mapped, case.samples(masks=masks if case.full else masks[1:3], implementations=("auto",))
    )


def _mapped(trial: Trial) -> None:
    case, attn, mask = trial.case, trial.attn, trial.mask
    vmap: Callable[..., Any] = torch.func.vmap
    many = [torch.stack([t, t.flip(2), 2 * t]) for t in trial.inputs]

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output: Tensor = attn(query, key, value, mask)
        return output

    with case.running("vmap"), torch.no_grad():
        found = vmap(attend, randomness="same")(*many)
        shared = vmap(attend, (0, None, None), randomness="same")(many[0], *trial.inputs[1:])
    for index in range(3):
        query, key, value = (t[index] for t in many)
        expected = trial.run(query, key, value)
        trial.close(found[index], expected, case.same, "vmap over query, key and value")
        expected = trial.run(query=many[0][index])
        trial.close(shared[index], expected, case.same, "vmap over the query alone")
    if mask.key_valid is not None:
        keeps = torch.stack([mask.key_valid, mask.key_valid.flip(1)])
        with case.running("vmap over padding"), torch.no_grad():
            found = vmap(
                lambda keep: attn(*trial.inputs, mask.replace(key_valid=keep)), randomness="same"
            )(keeps)
        for index in range(2):
            expected = trial.run(mask=mask.replace(key_valid=keeps[index]))
            trial.close(found[index], expected, case.same, "vmap over padding")
    if case.able.differentiable:
        _mapped_gradients(trial, attend, many)


def _mapped_gradients(trial: Trial, attend: Callable[..., Tensor], many: list[Tensor]) -> None:
    case = trial.case

    def total(*inputs: Tensor) -> Tensor:
        return attend(*inputs).sin().sum()

    tracked = trial.tracked()
    output = trial.run(*tracked).sin().sum()
    if not output.requires_grad:
        return
    expected = torch.autograd.grad(output, tracked, allow_unused=True)
    with case.running("torch.func.grad"):
        found = torch.func.grad(total, (0, 1, 2))(*trial.inputs)
        each = torch.func.vmap(torch.func.grad(total, (0, 1, 2)), randomness="same")(*many)
    for place, name in enumerate(("query", "key", "value")):
        right = expected[place]
        right = torch.zeros_like(tracked[place]) if right is None else right
        trial.close(found[place], right, trial.limit, f"torch.func.grad of {name}")
        trial.close(each[place][0], right, trial.limit, f"vmap(grad) of {name}")


@LAWS.law("T-07", "quality", needs=("compile", "differentiable"))
def forward_derivatives(case: Case) -> None:
    """Forward and reverse derivatives agree: the dot product test of ``torch.func.jvp``.

    <g, J t> = <J^T g, t> for random t, for output and every input at once; 1e-9 in float64. A
    formula that has no forward derivative has none to compare.
    """
    settings = case.usual if case.full else case.usual[:3]
    case.each(_forward, case.samples(settings=settings, implementations=("auto",)))
    case.each(
        _forward,
        case.samples(masks=("causal", "padding", "bias"), implementations=("auto",)),
    )
    if not case.compared:
        case.skip("it has no forward derivative")


def _forward(trial: Trial) -> None:
    case, attn, mask = trial.case, trial.attn, trial.mask
    tangents = case.inputs(trial.sizes, seed=5)

    def total(*inputs: Tensor) -> Tensor:
        output: Tensor = attn(*inputs, mask)
        return output.sin().sum()

    tracked = trial.tracked()
    output = trial.run(*tracked).sin().sum()
    if not output.requires_grad:
        return
    grads = torch.autograd.grad(output, tracked, allow_unused=True)
    with case.running("torch.func.jvp"):
        try:
            found = torch.func.jvp(total, trial.inputs, tangents)[1]
        except NotImplementedError:  # an operator without one, such as torch.cdist
            return
    pairs = zip(grads, tangents, strict=True)
    terms = torch.stack([(g * t).sum() for g, t in pairs if g is not None])
    # Terms may cancel: the error is relative to what they are made of.
    error = float((found - terms.sum()).abs() / terms.abs().sum().clamp(min=1e-3))
    case.holds(
        error <= trial.limit,
        f"forward and reverse derivatives differ by {error:.2g}, allowed is {trial.limit:.2g}",
        measured=error,
        limit=trial.limit,
    )


@LAWS.law("T-11", "claimed", needs=("compile",))
def custom_operators(case: Case) -> None:
    """Every operator of its own passes ``torch.library.opcheck``, where it calls any.

    Operators are seen as they are called, in every implementation; each is then checked with the
    arguments that it got: its schema, its fake form, its gradient's registration.
    """
    seen: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}
    for sample in case.samples(masks=("none", "causal", "padding")):
        trial = Trial(case, sample)
        inputs = trial.tracked() if case.able.differentiable else trial.inputs
        if trial.attn.explain(*inputs, trial.mask).chosen is None:
            inputs = trial.inputs
        if trial.attn.explain(*inputs, trial.mask).chosen is None:
            continue
        with Recording() as recorded:
            output = trial.run(*inputs)
        case.holds(output.isfinite().all(), "the output is not finite")
        seen = recorded.foreign | seen
    for name, (packet, args, kwargs) in seen.items():
        with case.running(f"torch.library.opcheck of {name}"):
            torch.library.opcheck(
                packet,
                tuple(_fresh(a, case) for a in args),
                {k: _fresh(v, case) for k, v in kwargs.items()},
            )
    case.notes["operators"] = sorted(seen)


def _fresh(value: Any, case: Case) -> Any:
    if isinstance(value, Tensor):
        grad = value.requires_grad and case.able.differentiable
        return value.detach().clone().requires_grad_(grad)
    if isinstance(value, (list, tuple)):
        return type(value)(_fresh(one, case) for one in value)
    return value


@LAWS.law("T-13", needs=("parameters",))
def functional_call(case: Case) -> None:
    """``torch.func.functional_call`` attends with the parameters it is given.

    Those of another module, against that module: what was derived from a parameter when the
    module was built, or first called, goes stale.
    """
    case.each(_given, case.samples(masks=("none", "causal", "padding"), implementations=("auto",)))


def _given(trial: Trial) -> None:
    case, sample = trial.case, trial.sample
    other = case.build(sample.options, dtype=sample.dtype, sizes=sample.sizes, seed=23)
    state = {**dict(other.named_parameters()), **dict(other.named_buffers())}
    state = {name: tensor.detach() for name, tensor in state.items()}
    expected = case.call(other, *trial.inputs, trial.mask)

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        call = (query, key, value, mask)
        output: Tensor = torch.func.functional_call(trial.attn, state, call)
        return output

    trial.run()  # with its own first: what it keeps of them must not be used
    found = case.call(attend, *trial.inputs, trial.mask)
    trial.close(found, expected, case.same, "functional_call")
