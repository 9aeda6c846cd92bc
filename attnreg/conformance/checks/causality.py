"""C: with causality nothing comes from the future, and all of the past counts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnreg.conformance.case import Case, Inputs, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.measure import reseed
from attnreg.conformance.visibility import (
    CAUSAL,
    GARBAGE,
    LONG,
    garbage,
    samples,
    spread,
    square,
)

LAWS = Laws()


def after(trial: Trial, row: int) -> tuple[Tensor, Tensor]:
    """Which queries and which keys come after a row's position: bool (Lq,), (Lk,)."""
    sizes, device = trial.sizes, trial.query.device
    given = trial.mask.query_offset
    offset = sizes.keys - sizes.queries if given is None else given
    queries = torch.arange(sizes.queries, device=device) > row
    return queries, torch.arange(sizes.keys, device=device) > row + offset


def moments(trial: Trial, most: int) -> list[int]:
    """Rows after which to change things, the first, the last, and the last but one among them."""
    length = trial.sizes.queries
    return sorted({*spread(max(1, length - 1), most - 1), length - 1})


def replaced(trial: Trial, row: int, other: Callable[[Tensor], Tensor]) -> Inputs:
    """The inputs with other numbers in everything after a row's position."""
    queries, keys = (later[:, None] for later in after(trial, row))
    places = (queries, keys, keys)
    query, key, value = (
        torch.where(later, other(t), t) for later, t in zip(places, trial.inputs, strict=True)
    )
    return query, key, value


def _nothing_leaks(trial: Trial, rows: int, other: Callable[[Tensor], Tensor]) -> None:
    base = trial.run()
    for row in moments(trial, rows):
        moved = trial.run(*replaced(trial, row, other))
        trial.close(
            moved[:, :, : row + 1],
            base[:, :, : row + 1],
            trial.near(),
            f"rows up to {row}, after everything later was replaced",
        )


def nothing_leaks(trial: Trial) -> None:
    """Replace everything after a position by 30 times as much and 100 more."""
    _nothing_leaks(trial, 9 if trial.case.full else 4, garbage)


def nothing_leaks_at_300(trial: Trial) -> None:
    """The same at 300 times."""
    _nothing_leaks(trial, 9 if trial.case.full else 4, lambda t: garbage(t, 300.0))


def nothing_leaks_where_all_is_large(trial: Trial) -> None:
    """The same where all is 10 times as large, and what comes later all but 0."""
    trial.query, trial.key, trial.value = (10.0 * t for t in trial.inputs)
    if not trial.run().isfinite().all():  # too large for the variant, which is another law's
        return
    _nothing_leaks(trial, 4, lambda t: 1e-4 * t)


def nothing_leaks_in_training(trial: Trial) -> None:
    """The same in training mode, and where gradients are asked for."""
    trial.attn.train()
    _nothing_leaks(trial, 3, garbage)
    if trial.case.able.differentiable and trial.takes(trial.tracked()):
        trial.query, trial.key, trial.value = trial.tracked()
        _nothing_leaks(trial, 3, garbage)


@LAWS.law("C-01", "claimed", needs=("causal",))
def no_leak(case: Case) -> None:
    """No output moves when queries, keys and values after its position are replaced.

    By numbers 30 and 300 times as large and 1e-4 of them, with every causal mask and
    implementation, in every dtype (the halves at 3 times), 70 long, for one item, in training
    mode. Float32 matters: a stabiliser taken over the whole sequence cancels in float64, and in
    float32 pushes the past below the smallest number.
    """
    case.each(nothing_leaks, case.samples(masks=CAUSAL))
    case.each(nothing_leaks, case.samples(masks=("causal",), dtypes=case.dtypes))
    lengths = (square(10), LONG, square(7, batch=1, heads=1, kv_heads=1))
    case.each(nothing_leaks, case.samples(masks=("causal",), sizes=lengths))
    wide = [d for d in case.dtypes if d not in GARBAGE]
    case.each(
        nothing_leaks_at_300,
        case.samples(masks=("causal",), dtypes=wide, sizes=(square(10), LONG)),
    )
    case.each(nothing_leaks_where_all_is_large, case.samples(masks=("causal",), dtypes=wide))
    case.each(nothing_leaks_in_training, case.samples(masks=("causal", "causal-padding")))
    case.each(nothing_leaks, samples(case, ("causal",)))


def no_gradient_leaks(trial: Trial) -> None:
    """The gradient of a row with respect to everything later is exactly 0."""
    if not trial.takes(trial.tracked()):
        return
    query, key, value = trial.tracked()
    output = trial.run(query, key, value)
    trial.case.holds(output.requires_grad, "the output is cut off from the graph")
    arriving = torch.randn(output.shape[-1], generator=torch.Generator().manual_seed(3))
    for row in moments(trial, 9 if trial.case.full else 4):
        total = (output[:, :, row] * arriving.to(output)).sum()
        with trial.case.running("the backward pass"):
            found = torch.autograd.grad(
                total, (query, key, value), retain_graph=True, allow_unused=True
            )
        queries, keys = after(trial, row)
        for name, grad, later in zip(
            ("query", "key", "value"), found, (queries, keys, keys), strict=True
        ):
            if grad is None:
                continue
            future = grad[:, :, later]
            trial.equal(
                future, torch.zeros_like(future), f"gradient of row {row} by the {name} after it"
            )


@LAWS.law("C-02", "claimed", needs=("causal", "differentiable"))
def no_gradient_leak(case: Case) -> None:
    """The gradient of an output with respect to everything after its position is exactly 0.

    Not small, 0: a term that cancels leaves 1e-16, and what it leaks in other numbers is more.
    Every causal mask and implementation in the widest dtype, causality alone in every dtype.
    """
    case.each(no_gradient_leaks, case.samples(masks=CAUSAL))
    case.each(
        no_gradient_leaks,
        case.samples(masks=("causal",), sizes=(square(10), LONG), dtypes=case.dtypes),
    )


def weights_are_causal(trial: Trial) -> None:
    """Weights are 0 on the future, and make the output."""
    visible = trial.visible()
    with trial.case.running("attn.weights"), torch.no_grad():
        weights = trial.attn.weights(trial.query, trial.key, trial.mask)
    hidden = weights[~visible.expand_as(weights)]
    if trial.case.able.weights == "exact":
        trial.equal(hidden, torch.zeros_like(hidden), "weights on hidden keys")
    else:
        trial.close(hidden, torch.zeros_like(hidden), trial.limit, "weights on hidden keys")
    value = trial.value.repeat_interleave(trial.sizes.heads // trial.sizes.kv_heads, dim=1)
    trial.close(trial.run(), weights.to(value) @ value, trial.limit, "output against weights @ V")


@LAWS.law("C-07", "claimed", needs=("causal", "weights"))
def weights(case: Case) -> None:
    """The weights of a causal call are exactly 0 on the future, and times V they are its output.

    Every causal mask and implementation. The way that returns weights is rarely the one that runs
    in training, and must not lose causality.
    """
    case.each(weights_are_causal, case.samples(masks=CAUSAL))
    case.each(weights_are_causal, case.samples(masks=("causal",), sizes=(square(7), LONG)))


def prefix_stands(trial: Trial) -> None:
    """The output of a prefix is the prefix of the output."""
    case, length = trial.case, trial.sizes.keys
    found = trial.run()
    lengths = spread(length, 17) if case.full or length < 7 else [0, 1, length // 2, length - 2]
    for n in sorted({63, 64, 65, *(i + 1 for i in lengths)}):
        if n > length:
            continue
        mask = trial.mask
        if mask.key_valid is not None:
            mask = mask.replace(key_valid=mask.key_valid[:, :n])
        query, key, value = (t[:, :, :n] for t in trial.inputs)
        part = case.call(trial.attn, query, key, value, mask)
        trial.close(found[:, :, :n], part, trial.near(), f"the first {n} rows against {n} alone")


@LAWS.law(
    "C-08",
    "claimed",
    needs=(
        "settled",
        "causal",
    ),
)
def prefix(case: Case) -> None:
    """The causal output of the first n positions is the first n rows of the whole output.

    For every n of 10, and around the 64th of 70; with padding on both sides, in every setting.
    """
    names = ("causal", "causal-padding", "causal-left")
    case.each(prefix_stands, case.samples(masks=names, sizes=(square(10),)))
    case.each(prefix_stands, case.samples(masks=("causal",), sizes=(LONG,)))
    case.each(
        prefix_stands,
        case.samples(settings=case.settings.all, masks=("causal",), sizes=(square(7, batch=1),)),
    )


def dropping_leaks_nothing(trial: Trial) -> None:
    """With the same draw, a training step with dropout shows nothing of the future."""
    case, row = trial.case, trial.sizes.queries // 2

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        attn = case.build(
            implementation=trial.sample.implementation,
            dropout=0.4,
            sizes=trial.sizes,
            dtype=trial.sample.dtype,
            train=True,
        )
        trial.attn = attn
        reseed(29)
        return trial.run(query, key, value)

    trial.attn.train()
    probe = case.build(
        implementation=trial.sample.implementation, dropout=0.4, sizes=trial.sizes, train=True
    )
    with torch.no_grad():
        if probe.explain(*trial.inputs, trial.mask).chosen is None:
            return
    base = run(*trial.inputs)
    moved = run(*replaced(trial, row, garbage))
    trial.close(
        moved[:, :, : row + 1],
        base[:, :, : row + 1],
        trial.near(),
        f"rows up to {row} with dropout, after everything later was replaced",
    )


@LAWS.law("C-10", "claimed", needs=("causal", "dropout"))
def with_dropout(case: Case) -> None:
    """Causality holds in training with dropout.

    The same seed before both calls, p = 0.4, everything after a position replaced; alone and with
    padding.
    """
    case.each(
        dropping_leaks_nothing,
        case.samples(masks=("causal", "causal-padding"), sizes=(case.sizes, square(10))),
    )
