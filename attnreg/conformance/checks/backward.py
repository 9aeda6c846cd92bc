"""G, continued: what no backward pass may be: infinite, leaking, or dependent on circumstances."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attnreg.checked import CheckedAttention
from attnreg.conformance.case import Case, Inputs, Sample, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.derivative import INPUTS, Gradients, cotangent, gradients, in_float64
from attnreg.conformance.masks import RECIPES, Sizes
from attnreg.conformance.measure import reseed
from attnreg.conformance.oracle import finite, in_range

LAWS = Laws()

EVERY = tuple(RECIPES)
NARROW = (torch.float32, torch.bfloat16, torch.float16)
SMALL = Sizes(heads=4, queries=3, keys=5, head_dim=4, value_dim=3)
TALL = Sizes(heads=4, queries=6, keys=3, head_dim=4, value_dim=3)
"""More queries than keys: with a causal mask the first rows see nothing."""


def _finite_for(trial: Trial, inputs: Inputs, what: str) -> None:
    found = gradients(trial, inputs=inputs)
    if found is None:
        return
    finite(trial, found.output, f"output for {what}")
    exact: Gradients | None = None
    for name, grad in found.grads.items():
        if grad is None:
            continue
        if not grad.isfinite().all() and grad.dtype in NARROW:
            exact = exact or in_float64(trial, inputs)
            expected = None if exact is None else exact.grads[name]
            if expected is not None and not in_range(expected, grad.dtype):
                continue  # past the dtype's largest number, and no fault
        finite(trial, grad, f"gradient of {name} for {what}")


def _fragile(case: Case) -> Iterator[Sample]:
    """Every dtype by default; every setting in the widest and the narrowest, or (full) in all."""
    few = dict.fromkeys((case.dtype, case.dtypes[-1]))
    dtypes = case.dtypes if case.full else tuple(few)
    yield from case.samples(dtypes=case.dtypes, sizes=[SMALL])
    yield from case.samples(settings=case.usual[1:], dtypes=dtypes, sizes=[SMALL])


def _coincident(trial: Trial) -> None:
    query, key, value = (t.clone() for t in trial.inputs)
    group = trial.sizes.heads // trial.sizes.kv_heads
    shared = min(query.shape[2], key.shape[2])
    query[:, :, :shared] = key[:, :, :shared].repeat_interleave(group, dim=1)
    _finite_for(trial, (query, key, value), "queries that are keys")
    key = key[:, :, :1].expand_as(key).clone()
    query = key[:, :, :1].repeat_interleave(group, dim=1).expand_as(query).clone()
    _finite_for(trial, (query, key, value), "queries and keys that are all the same")


@LAWS.law("G-04", "claimed", needs=("differentiable",))
def coincident(case: Case) -> None:
    """Where a query is a key, and where all keys are one, every gradient is finite.

    In every dtype and setting. The square root of a distance of 0 has an infinite slope, times 0.
    """
    case.each(_coincident, _fragile(case))
    case.each(_coincident, case.samples(masks=("causal", "padding"), sizes=[SMALL]))


def _zeros(trial: Trial) -> None:
    query, key, value = trial.inputs
    nothing = torch.zeros_like
    some_query, some_key = query.clone(), key.clone()
    some_query[:, :, -1], some_key[:, :, 0] = 0.0, 0.0
    _finite_for(trial, (some_query, some_key, value), "one query and one key of 0")
    _finite_for(trial, (nothing(query), key, value), "queries of 0")
    _finite_for(trial, (query, nothing(key), value), "keys of 0")
    _finite_for(trial, (nothing(query), nothing(key), nothing(value)), "inputs of 0")


@LAWS.law("G-05", needs=("differentiable",))
def zeros(case: Case) -> None:
    """Zero vectors, one or all of them, give a finite output and finite gradients.

    In every dtype and setting. A norm without a guard divides 0 by 0, and so does a normaliser
    whose features are all 0.
    """
    case.each(_zeros, _fragile(case))
    case.each(_zeros, case.samples(masks=("causal", "padding"), sizes=[SMALL]))


def _nonzero(grad: Tensor, hidden: Tensor) -> int:
    """How many entries at hidden positions (…, L) of a gradient (…, L, D) are not exactly 0."""
    return int((grad[hidden] != 0).sum()) + int((~grad[hidden].isfinite()).sum())


def _hidden_get_nothing(trial: Trial) -> None:
    found = gradients(trial)
    if found is None:
        return
    visible, sizes = trial.visible(), trial.sizes
    seen = visible.any(dim=2).unflatten(1, (sizes.kv_heads, -1)).any(dim=2)  # (B, Hkv, Lk)
    blind = ~visible.any(dim=3)  # (B, Hq, Lq)
    for name, where in (("query", blind), ("key", ~seen), ("value", ~seen)):
        bad = _nonzero(found.of(name, getattr(trial, name)), where)
        what = "a query that sees no key" if name == "query" else f"a {name} that no query sees"
        trial.case.holds(
            not bad, f"{what} gets a gradient other than 0 in {bad} entries", actual=found.output
        )
    if "bias" in found.grads and trial.mask.bias is not None:
        unseen = trial.mask.bias == -torch.inf
        bad = _nonzero(found.of("bias", trial.mask.bias), unseen)
        trial.case.holds(not bad, f"a bias of -inf gets a gradient other than 0, {bad} entries")


def _as_truncated(trial: Trial) -> None:
    """Padded on the right: the gradients of real keys are those of the call without the padding."""
    arriving, valid = cotangent(trial), trial.mask.key_valid
    found = gradients(trial, arriving=arriving)
    if found is None or valid is None:
        return
    offset = trial.sizes.keys - trial.sizes.queries
    for item in range(trial.sizes.batch):
        length = int(valid[item].sum())
        short = copy.copy(trial)
        short.query = trial.query[item : item + 1]
        short.key = trial.key[item : item + 1, :, :length]
        short.value = trial.value[item : item + 1, :, :length]
        short.mask = trial.mask.replace(key_valid=None, query_offset=offset)
        cut = gradients(short, arriving=arriving[item : item + 1])
        if cut is None:
            continue
        for name in INPUTS:
            whole = found.of(name, getattr(trial, name))[item : item + 1]
            whole = whole if name == "query" else whole[:, :, :length]
            expected = cut.of(name, getattr(short, name))
            limit = max(10 * trial.case.same, 1e-10)
            trial.close(whole, expected, limit, f"gradient of {name}, padded against truncated")


@LAWS.law("G-06", "claimed", needs=("differentiable", "masks"))
def hidden(case: Case) -> None:
    """What the mask hides gets a gradient of exactly 0, and padding changes no other gradient.

    Keys and values that no query sees, queries that see no key, entries of a bias that are -inf:
    0 exactly, under every mask. With padding on the right, where cross-attention is declared, the
    gradients of the other keys are those of the call cut short, 1e-10 in float64.
    """
    case.each(_hidden_get_nothing, case.samples(masks=EVERY, sizes=[SMALL]))
    if case.able.key_valid and case.able.cross:
        masks = ("padding", "padding-one", "causal-padding")
        case.each(_as_truncated, case.samples(masks=masks, sizes=[SMALL]))


def _blind(trial: Trial) -> None:
    found = gradients(trial)
    if found is None:
        return
    finite(trial, found.output, "output")
    for name, grad in found.grads.items():
        if grad is not None:
            finite(trial, grad, f"gradient of {name}")
    blind = ~trial.visible().any(dim=3)
    case = trial.case
    case.holds(not _nonzero(found.output, blind), "a row that sees no key is not 0")
    bad = _nonzero(found.of("query", trial.query), blind)
    case.holds(not bad, f"a query that sees no key gets a gradient other than 0, {bad} entries")
    dead = blind.all(dim=2).all(dim=1)  # items of which nothing is seen
    for name in ("key", "value"):
        bad = _nonzero(found.of(name, getattr(trial, name)), dead)
        case.holds(
            not bad, f"the {name} of an item that sees nothing gets a gradient, {bad} entries"
        )


@LAWS.law("G-07", needs=("differentiable", "masks"))
def blind(case: Case) -> None:
    """Rows that see no key: the output is 0, and every gradient is finite, theirs exactly 0.

    Masks that leave rows, or whole items, without a key, also more queries than keys, in every
    dtype and implementation. A softmax over nothing but -inf is NaN in the backward pass even
    where the forward pass hides it.
    """
    masks = (
        "blind-rows",
        "causal",
        "padding-empty",
        "allowed",
        "allowed-batch",
        "allowed-causal",
        "bias",
        "bias-causal",
        "window",
        "packed",
        "packed-causal",
    )
    case.each(_blind, case.samples(masks=masks, sizes=[SMALL], dtypes=case.dtypes))
    case.each(_blind, case.samples(masks=masks, sizes=[TALL]))


def _same(trial: Trial, found: Gradients, expected: Gradients, what: str) -> None:
    """Compare the gradients that both have."""
    for name, grad in found.grads.items():
        like = expected.grads[name] if grad is None else grad
        if like is not None:
            limit = trial.case.same
            trial.close(found.of(name, like), expected.of(name, like), limit, f"{name} {what}")


def _backward(
    trial: Trial, attn: CheckedAttention, arriving: Tensor, reentrant: bool | None
) -> list[Tensor | None]:
    """The gradients of inputs and parameters, perhaps under activation checkpointing."""
    query, key, value = trial.tracked()
    trial.last = (query, key, value, trial.mask)
    attn.zero_grad(set_to_none=True)
    reseed(5)
    with trial.case.running("a training step"):
        if reentrant is None:
            output = attn(query, key, value, trial.mask)
        else:
            output = checkpoint(attn, query, key, value, trial.mask, use_reentrant=reentrant)
        output.backward(arriving)
    return [t.grad for t in (query, key, value, *attn.parameters())]


def _checkpointed(trial: Trial) -> None:
    case, sample = trial.case, trial.sample
    dropout = 0.4 if case.able.dropout and "dropout" in case.variant.common else 0.0
    attn = case.build(
        sample.options,
        implementation=sample.implementation,
        dtype=sample.dtype,
        sizes=trial.sizes,
        dropout=dropout,
        train=True,
    )
    if attn.explain(*trial.tracked(), trial.mask).chosen is None:
        return
    arriving = cotangent(trial)
    expected = _backward(trial, attn, arriving, None)
    for reentrant in (False, True):
        found = _backward(trial, attn, arriving, reentrant)
        for one, other in zip(found, expected, strict=True):
            case.holds(
                (one is None) == (other is None),
                f"checkpoint(use_reentrant={reentrant}) changes which tensors get a gradient",
            )
            if one is not None and other is not None:
                what = f"gradient under checkpoint(use_reentrant={reentrant})"
                trial.close(one, other, case.same, what)


@LAWS.law("G-09", "claimed", needs=("differentiable",))
def checkpointed(case: Case) -> None:
    """Activation checkpointing, reentrant or not, changes no gradient, with dropout in force.

    In training mode, dropout 0.4 where declared, the same seed: the forward pass is run again
    before the backward pass, under the generator's state of the first. A seed of one's own, or
    something kept from the first forward pass, shows here.
    """
    masks = ("none", "causal", "padding", "packed")
    case.each(_checkpointed, case.samples(masks=masks, sizes=[SMALL]))
    if torch.float32 in case.dtypes and case.dtype is not torch.float32:
        case.each(_checkpointed, case.samples(dtypes=[torch.float32], sizes=[SMALL]))


def _asked(trial: Trial) -> None:
    whole = gradients(trial)
    if whole is None:
        return
    trial.close(trial.run(), whole.output, trial.case.same, "output without against with grad")
    for name in (*INPUTS, "bias"):
        if name == "bias" and trial.mask.bias is None:
            continue
        part = gradients(trial, asking=(name,))
        if part is not None:
            _same(trial, part, whole, f"gradient where of the inputs only {name} asks for one")
    trained = [p for p in trial.attn.parameters() if p.requires_grad]
    if trained:
        for parameter in trained:
            parameter.requires_grad_(False)
        part = gradients(trial)
        if part is not None:
            _same(trial, part, whole, "gradient where the parameters are frozen")


@LAWS.law("G-11", "claimed", needs=("differentiable",))
def asked(case: Case) -> None:
    """A gradient does not depend on which other tensors ask for one, nor the output on whether.

    Query, key, value and bias alone, then parameters frozen, against all at once. A backward pass
    of one's own that returns too little, or a faster path without gradients that differs, shows
    here.
    """
    masks = ("none", "causal", "padding", "bias", "packed")
    case.each(_asked, case.samples(masks=masks, sizes=[SMALL]))


def _interleaved(trial: Trial) -> None:
    case, mask = trial.case, trial.mask
    first = trial.tracked()
    query, key, value = (t.detach().flip(2).clone().requires_grad_() for t in first)
    arriving = cotangent(trial)
    if trial.attn.explain(*first, mask).chosen is None:
        return
    expected = gradients(trial, arriving=arriving)
    assert expected is not None  # for mypy: the same call is taken
    output = trial.run(*first)
    again = case.call(trial.attn, query, key, value, mask)
    if not (output.requires_grad and again.requires_grad):
        return
    with case.running("the backward pass of the first of two calls"):
        found = torch.autograd.grad(output, first, arriving, allow_unused=True, retain_graph=True)
        twice = torch.autograd.grad(output, first, arriving, allow_unused=True)
    for grads, what in ((found, "with another call in between"), (twice, "taken a second time")):
        made = Gradients(output.detach(), dict(zip(INPUTS, grads, strict=True)))
        _same(trial, made, expected, f"gradient {what}")


@LAWS.law("G-12", "claimed", needs=("differentiable",))
def interleaved(case: Case) -> None:
    """A call between forward and backward changes no gradient, nor does going backward twice.

    As where one module serves several layers or micro-batches. What is kept on the module instead
    of in the graph shows here.
    """
    case.each(_interleaved, case.samples(masks=("none", "causal", "padding"), sizes=[SMALL]))


def _strided(trial: Trial) -> None:
    dense = gradients(trial, arriving=torch.ones_like(cotangent(trial)))
    if dense is None:
        return
    spread = torch.ones((), dtype=trial.sample.dtype, device=trial.query.device)
    found = gradients(trial, arriving=spread.expand_as(cotangent(trial)))
    assert found is not None  # for mypy: the same call was taken above
    _same(trial, found, dense, "gradient of output.sum(), whose ones are one number")
    arriving = cotangent(trial)
    turned = arriving.transpose(1, 2).contiguous().transpose(1, 2)
    plain, other = gradients(trial, arriving=arriving), gradients(trial, arriving=turned)
    assert plain is not None  # for mypy: as above
    assert other is not None
    _same(trial, other, plain, "gradient where what arrives is a transposed view")


@LAWS.law("G-13", "claimed", needs=("differentiable",))
def strided(case: Case) -> None:
    """What arrives in the backward pass may have any strides, as from ``output.sum()``.

    One number expanded, and a transposed view, against the same numbers laid out densely.
    """
    case.each(_strided, case.samples(masks=("none", "causal", "padding"), sizes=[SMALL]))
