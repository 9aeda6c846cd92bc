"""I: items and heads do not touch each other, and order counts only where declared."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from attnreg.conformance.case import Case, Inputs, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.masks import RECIPES, Sizes
from attnreg.conformance.visibility import (
    CAUSAL,
    agrees,
    garbage,
    open_mask,
    samples,
    small,
    square,
    suited,
    thin,
)
from attnreg.mask import Mask

LAWS = Laws()

MASKS = ("none", "causal", "padding", "allowed", "bias", "window", "everything")


def unmoved(trial: Trial, found: Tensor, expected: Tensor, what: str) -> None:
    """Compare what must not have moved: bit by bit on a CPU, else within rounding."""
    if trial.query.device.type == "cpu":
        trial.equal(found, expected, what)
    else:
        trial.close(found, expected, trial.near(), what)


def filled(tensor: Tensor, stored: float | None) -> Tensor:
    """The tensor filled with a number, or far from what it was."""
    return garbage(tensor) if stored is None else torch.full_like(tensor, stored)


def items_are_apart(trial: Trial) -> None:
    """Whatever one item of the batch holds, the others do not move."""
    if trial.sizes.batch < 2:
        return
    expected = trial.run()
    for item in {0, trial.sizes.batch - 1}:
        others = [n for n in range(trial.sizes.batch) if n != item]
        for stored in (None, math.inf) if item else (None, math.nan):
            query, key, value = (t.clone() for t in trial.inputs)
            for tensor in (query, key, value):
                tensor[item] = filled(tensor[item], stored)
            found = trial.run(query, key, value)
            what = f"the other items, after item {item} got other numbers ({stored or 'x30'})"
            unmoved(trial, found[others], expected[others], what)


def of_item(mask: Mask, item: int) -> Mask:
    """The mask of one item of the batch."""
    one = slice(item, item + 1)
    changes = {}
    for name in ("allowed", "bias"):
        tensor = getattr(mask, name)
        if tensor is not None and tensor.dim() == 4 and tensor.shape[0] > 1:
            changes[name] = tensor[one]
    if mask.key_valid is not None:
        changes["key_valid"] = mask.key_valid[one]
    return mask.replace(**changes)


def items_are_as_alone(trial: Trial) -> None:
    """A batch gives what its items give one by one, in any order."""
    case, batch = trial.case, trial.sizes.batch
    found = trial.run()
    for item in range(batch):
        one = slice(item, item + 1)
        query, key, value = (t[one] for t in trial.inputs)
        alone = case.call(trial.attn, query, key, value, of_item(trial.mask, item))
        trial.close(found[one], alone, trial.near(), f"item {item} against a batch of one")


@LAWS.law("I-01", "required", needs=("settled",))
def batch(case: Case) -> None:
    """The items of a batch do not touch each other, and give what they give alone.

    Another item's numbers are replaced by 30 times as large ones, NaN and infinity: no bit of the
    others moves, by every mask, setting, implementation and dtype. One by one: within 1e-11.
    """
    three = Sizes(batch=3)
    case.each(items_are_apart, case.samples(masks=MASKS, sizes=(three,)))
    case.each(items_are_apart, samples(case, ("none", "causal")))
    case.each(items_are_apart, case.samples(dtypes=case.dtypes))
    case.each(items_are_as_alone, case.samples(masks=thin(case, RECIPES), sizes=(three,)))
    others = thin(case, RECIPES, 2, 1)
    case.each(items_are_as_alone, case.samples(masks=others, implementations=("auto",)))
    case.each(items_are_as_alone, case.samples(sizes=(small(66, 70, batch=2), Sizes(batch=5))))


def heads_are_apart(trial: Trial) -> None:
    """Whatever one head holds, the heads that do not read it do not move."""
    expected = trial.run()
    heads, groups = trial.sizes.heads, trial.sizes.kv_heads
    for head in {0, heads // 2, heads - 1}:
        for stored in (None, math.nan):
            query = trial.query.clone()
            query[:, head] = filled(query[:, head], stored)
            found = trial.run(query)
            others = [n for n in range(heads) if n != head]
            what = f"the other heads, after query head {head} got other numbers"
            unmoved(trial, found[:, others], expected[:, others], what)
    for of_keys in {0, groups - 1}:
        others = [n for n in range(heads) if n // (heads // groups) != of_keys]
        for stored in (None, math.nan):
            key, value = trial.key.clone(), trial.value.clone()
            for tensor in (key, value):
                tensor[:, of_keys] = filled(tensor[:, of_keys], stored)
            found = trial.run(key=key, value=value)
            what = f"the heads that do not read key head {of_keys}, after it got other numbers"
            unmoved(trial, found[:, others], expected[:, others], what)


@LAWS.law("I-02", "required")
def heads(case: Case) -> None:
    """The heads do not touch each other.

    Another head's query, or its keys and values, are replaced by 30 times as large ones and by
    NaN: no bit of the others moves, by every mask, setting, implementation and dtype.
    """
    case.each(heads_are_apart, case.samples(masks=MASKS))
    case.each(heads_are_apart, samples(case, ("none", "causal")))
    case.each(heads_are_apart, case.samples(dtypes=case.dtypes))
    one = Sizes(batch=1, heads=3, kv_heads=3)
    case.each(heads_are_apart, case.samples(sizes=(one, small(66, 70))))


GROUPS = (1, 2, 3, 6)


def grouped_is_repeated(trial: Trial) -> None:
    """Grouped heads give what keys and values repeated for every query head give."""
    case, s = trial.case, trial.sizes
    many = Sizes(**{**vars(s), "kv_heads": s.heads})
    repeated = case.build(
        trial.sample.options, implementation=trial.sample.implementation, sizes=many
    )
    try:
        repeated.load_state_dict(trial.attn.state_dict())
    except RuntimeError:  # parameters of its own for every key head: the two do not compare
        return
    key, value = (
        t.repeat_interleave(s.heads // s.kv_heads, dim=1) for t in (trial.key, trial.value)
    )
    expected = case.call(repeated, trial.query, key, value, trial.mask)
    trial.close(trial.run(), expected, trial.near(), "grouped heads against repeated ones")


def one_key_head_serves_its_group(trial: Trial) -> None:
    """Key head g serves the query heads from g * r on, r of them, and no others."""
    expected, s = trial.run(), trial.sizes
    ratio = s.heads // s.kv_heads
    for of_keys in range(s.kv_heads):
        key, value = trial.key.clone(), trial.value.clone()
        key[:, of_keys], value[:, of_keys] = garbage(key[:, of_keys]), garbage(value[:, of_keys])
        found = trial.run(key=key, value=value)
        others = [n for n in range(s.heads) if n // ratio != of_keys]
        what = f"the heads that do not read key head {of_keys}, after it got other numbers"
        unmoved(trial, found[:, others], expected[:, others], what)


@LAWS.law("I-03", "claimed", needs=("grouped",))
def grouped(case: Case) -> None:
    """Query head h reads key head h // (Hq // Hkv).

    Six query heads on 1, 2, 3 and 6 key heads, so that tiling and interleaving differ; by every
    mask, against repeated keys and values and against the reference.
    """
    groups = [Sizes(kv_heads=n) for n in GROUPS]
    odd = [Sizes(batch=1, heads=h, kv_heads=k) for h, k in ((4, 2), (9, 3), (1, 1), (2, 1))]
    case.each(one_key_head_serves_its_group, case.samples(sizes=groups))
    case.each(grouped_is_repeated, case.samples(masks=MASKS, sizes=groups[:2]))
    case.each(grouped_is_repeated, case.samples(sizes=(*groups, *odd)))
    case.each(grouped_is_repeated, case.samples(settings=case.usual))
    if case.variant.reference is not None:
        case.each(agrees, case.samples(masks=("none", "causal"), sizes=(*groups, *odd)))
        case.each(agrees, case.samples(masks=suited(case, MASKS), sizes=groups[:1]))


def permuted(mask: Mask, order: Tensor, axis: int) -> Mask:
    """The mask with its keys (axis -1) or its queries (axis -2) in another order."""
    changes: dict[str, Tensor] = {}
    for name in ("allowed", "bias"):
        tensor = getattr(mask, name)
        if tensor is not None and tensor.dim() >= -axis and tensor.shape[axis] > 1:
            changes[name] = tensor.index_select(axis, order)
    if axis == -1 and mask.key_valid is not None:
        changes["key_valid"] = mask.key_valid[:, order]
    return mask.replace(**changes)


def orders(length: int, device: torch.device) -> list[Tensor]:
    """The reverse, and a random order."""
    drawn = torch.randperm(length, generator=torch.Generator().manual_seed(23))
    return [torch.arange(length - 1, -1, -1, device=device), drawn.to(device)]


def _unordered(trial: Trial) -> None:
    """A variant that is causal only gets an offset at which everything is visible."""
    if not trial.case.able.noncausal:
        trial.mask = open_mask(trial.case, trial.sizes.keys)


def keys_have_no_order(trial: Trial) -> None:
    """Keys and values in another order, and the mask with them, change nothing."""
    _unordered(trial)
    expected = trial.run()
    for order in orders(trial.sizes.keys, trial.query.device):
        found = trial.run(
            key=trial.key[:, :, order],
            value=trial.value[:, :, order],
            mask=permuted(trial.mask, order, -1),
        )
        trial.close(found, expected, trial.near(), "keys and values in another order")


SETS = ("none", "padding", "padding-holes", "allowed", "bias", "allowed-padding", "bias-allowed")


@LAWS.law(
    "I-04",
    "required",
    needs=(
        "settled",
        "order_free",
    ),
)
def key_order(case: Case) -> None:
    """Without declared positions, the order of keys and values changes nothing.

    Reversed and shuffled, together with ``key_valid``, ``allowed`` and ``bias``; in the default
    setting, within 1e-11 in float64.
    """
    case.each(keys_have_no_order, case.samples(masks=SETS))
    case.each(keys_have_no_order, case.samples(sizes=(small(66, 70), square(2))))


def queries_have_no_order(trial: Trial) -> None:
    """Queries in another order give their outputs in that order."""
    _unordered(trial)
    expected = trial.run()
    for order in orders(trial.sizes.queries, trial.query.device):
        found = trial.run(trial.query[:, :, order], mask=permuted(trial.mask, order, -2))
        trial.close(found, expected[:, :, order], trial.near(), "queries in another order")


@LAWS.law(
    "I-05",
    "required",
    needs=(
        "settled",
        "order_free",
    ),
)
def query_order(case: Case) -> None:
    """Without declared positions, queries in another order give their outputs in that order.

    Reversed and shuffled, together with ``allowed`` and ``bias``; in the default setting.
    """
    case.each(queries_have_no_order, case.samples(masks=SETS))
    case.each(queries_have_no_order, case.samples(sizes=(small(66, 70), square(2))))


def _along(trial: Trial) -> Tensor:
    """A random vector (D,)."""
    drawn = torch.randn(trial.sizes.head_dim, generator=torch.Generator().manual_seed(31))
    return drawn.to(trial.query)


def _lengths_vary(trial: Trial) -> Inputs:
    return 7.0 * trial.query, 0.01 * trial.key, trial.value


def _keys_move(trial: Trial) -> Inputs:
    return trial.query, trial.key + _along(trial), trial.value


def _all_move(trial: Trial) -> Inputs:
    return trial.query + _along(trial), trial.key + _along(trial), trial.value


def _all_turn(trial: Trial) -> Inputs:
    size = trial.sizes.head_dim
    drawn = torch.randn(size, size, generator=torch.Generator().manual_seed(37))
    turn = torch.linalg.qr(drawn.double())[0].to(trial.query)
    return trial.query @ turn, trial.key @ turn, trial.value


def _values_move(trial: Trial) -> Inputs:
    return trial.query, trial.key, trial.value + 2.0


INVARIANCES: dict[str, tuple[tuple[str, Callable[[Trial], Inputs]], ...]] = {
    "scaled_dot_product": (
        ("one vector added to every key", _keys_move),
        ("a rotation of queries and keys", _all_turn),
    ),
    "shared_qkv": (
        ("one vector added to every key", _keys_move),
        ("a rotation of queries and keys", _all_turn),
    ),
    "sparse_window": (
        ("one vector added to every key", _keys_move),
        ("a rotation of queries and keys", _all_turn),
    ),
    "cosine": (
        ("queries 7 times and keys 0.01 times as long", _lengths_vary),
        ("a rotation of queries and keys", _all_turn),
    ),
    "euclidean": (
        ("one vector added to queries and keys", _all_move),
        ("a rotation of queries and keys", _all_turn),
    ),
    "linformer": (("a rotation of queries and keys", _all_turn),),
}


def is_invariant(trial: Trial) -> None:
    """What the formula does not depend on changes nothing."""
    for what, change in INVARIANCES[trial.case.variant.name]:
        expected = trial.run()
        trial.close(trial.run(*change(trial)), expected, trial.limit, what)


@LAWS.law("I-06", "required", variants=tuple(INVARIANCES))
def invariances(case: Case) -> None:
    """What a variant's formula does not depend on does not move its output.

    Dot products: one vector added to every key; cosine: the lengths of queries and keys;
    Euclidean: one vector added to both; all of them: a rotation of both. By name, within 1e-9.
    """
    case.each(is_invariant, case.samples(masks=("none", "causal", "padding")))


def columns_are_apart(trial: Trial) -> None:
    """Whatever one column of the values holds, the other columns of the output do not move."""
    expected, width = trial.run(), trial.sizes.value_dim
    for column in {0, width // 2, width - 1}:
        value = trial.value.clone()
        value[..., column] = garbage(value[..., column])
        found = trial.run(value=value)
        others = [n for n in range(width) if n != column]
        what = f"the other columns, after column {column} of the values got other numbers"
        trial.close(found[..., others], expected[..., others], trial.near(), what)


@LAWS.law("I-09", "claimed", needs=("weights",))
def value_columns(case: Case) -> None:
    """Each column of the output is made of that column of the values alone.

    Where weights are declared, the output is linear in V: other columns do not enter.
    """
    case.each(columns_are_apart, samples(case, ("none", "causal", "padding")))
    case.each(columns_are_apart, case.samples(masks=CAUSAL[:2], sizes=(small(66, 70),)))
