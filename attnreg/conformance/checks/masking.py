"""M: masks hide what they say they hide, whatever is stored there, and nothing else."""

from __future__ import annotations

import math

import torch

from attnreg.conformance.case import Case, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.masks import RECIPES, Sizes
from attnreg.conformance.visibility import (
    ALLOWED,
    BIASED,
    GARBAGE,
    PADDED,
    SHORT,
    attend_to_what_the_mask_shows,
    by_turns,
    dead_rows_are_zero,
    hidden_in_training,
    hidden_is_nothing,
    hidden_is_nothing_at_300,
    hidden_with_gradients,
    shown_is_all,
    small,
    square,
    suited,
    thin,
    truncated,
)

LAWS = Laws()


def padding_holds_anything(trial: Trial) -> None:
    """NaN, infinities and huge numbers in padded keys and values change no bit."""
    assert trial.mask.key_valid is not None  # every kind of mask that this probe gets has it
    padded = ~trial.mask.key_valid[:, None, :, None]
    expected = trial.run()
    weigh = trial.case.able.weights != "none"
    with trial.case.running("attn.weights"), torch.no_grad():
        weights = trial.attn.weights(trial.query, trial.key, trial.mask) if weigh else None
    huge = 6e4 if trial.sample.dtype is torch.float16 else 1e30
    for stored in (math.nan, math.inf, -math.inf, huge):
        key, value = (t.masked_fill(padded, stored) for t in (trial.key, trial.value))
        if weights is not None:
            with trial.case.running("attn.weights"), torch.no_grad():
                again = trial.attn.weights(trial.query, key, trial.mask)
            trial.equal(again, weights, f"weights with {stored} in padded keys")
        trial.equal(trial.run(key=key, value=value), expected, f"{stored} in padded keys")


@LAWS.law("M-01", "claimed", needs=("key_valid",))
def garbage_in_padding(case: Case) -> None:
    """NaN, infinity or 1e30 stored in padded keys and values changes no bit of the output.

    Every kind of padding and implementation, every dtype; the weights too. A weight of 0 is not
    enough, as 0 times NaN is NaN.
    """
    case.each(padding_holds_anything, case.samples(masks=PADDED))
    names = suited(case, ("padding-holes", "causal-padding"))[:1]
    case.each(padding_holds_anything, case.samples(masks=names, dtypes=case.dtypes))


def padding_is_truncation(trial: Trial) -> None:
    """Items padded to one length give what they give alone."""
    keys = trial.sizes.keys
    truncated(trial, [max(1, keys - 4), keys, 1, 0][: trial.sizes.batch])
    truncated(trial, [1, max(1, keys - 1), keys, keys][: trial.sizes.batch])


@LAWS.law(
    "M-02",
    "claimed",
    needs=(
        "settled",
        "key_valid",
    ),
)
def padded_is_truncated(case: Case) -> None:
    """An item padded on the right gives what it gives without its padding.

    Items of different lengths, 0 and 1 among them, in every setting and implementation, up to 70
    keys; within 1e-11 in float64. A zeroed key that still takes part shows here.
    """
    sizes = (Sizes(batch=4), square(9), small(3, 70), small(70, 70, batch=2))
    case.each(padding_is_truncation, case.samples(masks=("none", "causal"), sizes=sizes))
    case.each(padding_is_truncation, case.samples(settings=case.usual))


@LAWS.law(
    "M-03",
    "claimed",
    needs=(
        "settled",
        "key_valid",
    ),
)
def one_item(case: Case) -> None:
    """A batch of one is masked too, and so are a single head, query or dimension.

    Some callers skip the mask where nothing needs padding, and take a batch of one for that.
    """
    one = Sizes(batch=1)
    sizes = [
        one,
        Sizes(batch=1, heads=1, kv_heads=1),
        Sizes(batch=1, queries=1),
        Sizes(batch=1, heads=1, kv_heads=1, queries=1, head_dim=4, value_dim=1),
        Sizes(batch=3, heads=1, kv_heads=1),
    ]
    case.each(padding_is_truncation, case.samples(sizes=sizes))
    attend_to_what_the_mask_shows(case, (*PADDED, *ALLOWED, *BIASED), (one,))


@LAWS.law("M-04", needs=("masks",))
def dead_rows(case: Case) -> None:
    """A row that sees no key gives exactly 0, and its weights are 0.

    By padding, ``allowed``, a bias of -inf, causality before the first key, a window past the
    end, an empty packed sequence and rows past the last: every mask, implementation and dtype.
    """
    case.each(dead_rows_are_zero, case.samples(masks=RECIPES))
    names = ("padding-empty", "allowed-blind", "bias", "blind-rows", "window-blind", "packed-blind")
    halves = [d for d in case.dtypes if d is not case.dtype]
    case.each(dead_rows_are_zero, case.samples(masks=names, dtypes=halves))
    case.each(dead_rows_are_zero, case.samples(masks=names, sizes=(small(66, 68), SHORT)))


def _far_below_zero(trial: Trial) -> None:
    """Move every dot product of query and key by -67600, times the scale.

    By less where the variant leaves the range of its numbers: whether it may is another law's.
    """
    for size in (150.0 if trial.sample.dtype is torch.float16 else 260.0, 20.0, 2.0):
        query, key = trial.query.clone(), trial.key.clone()
        query[..., -1], key[..., -1] = size, -size
        trial.query, trial.key = query, key
        if trial.run().isfinite().all():
            return


def hidden_loses_to_anything(trial: Trial) -> None:
    """What is hidden stays hidden where all scores are hugely negative."""
    _far_below_zero(trial)
    hidden_is_nothing(trial)


def padding_loses_to_anything(trial: Trial) -> None:
    """The same for padding, whose keys are 0: against the call without them."""
    _far_below_zero(trial)
    truncated(trial, [max(1, trial.sizes.keys - 4), trial.sizes.keys - 1])


@LAWS.law("M-08", "claimed", needs=("masks",))
def no_finite_fill(case: Case) -> None:
    """Hidden entries weigh nothing even where every visible score is hugely negative.

    One coordinate of every query is 260 and of every key -260, which takes 67600 times the scale
    from each dot product: a fill of -1e4 in place of -inf would win. In every dtype but float16.
    Where that is too much for the variant, 20 in place of 260.
    """
    names = ("none", "causal", "allowed", "allowed-causal", "window", "window-causal", "bias")
    wide = [d for d in case.dtypes if d is not torch.float16] or case.dtypes
    case.each(hidden_loses_to_anything, case.samples(masks=(*names, "packed"), dtypes=wide))
    if case.able.key_valid:
        case.each(padding_loses_to_anything, case.samples(masks=("none", "causal")))


def empty_item_disturbs_nobody(trial: Trial) -> None:
    """An item without a valid key gives 0, and the others do not notice."""
    s = trial.sizes
    full = torch.ones(s.batch, s.keys, dtype=torch.bool, device=trial.query.device)
    full[-1, : s.keys // 2] = False
    expected = trial.run(mask=trial.mask.replace(key_valid=full))
    empty = full.clone()
    empty[0] = False
    found = trial.run(mask=trial.mask.replace(key_valid=empty))
    trial.equal(found[0], torch.zeros_like(found[0]), "the item without a valid key")
    trial.equal(found[1:], expected[1:], "the other items")


@LAWS.law("M-11", "claimed", needs=("key_valid",))
def empty_item(case: Case) -> None:
    """An item without a single valid key gives 0, and changes no bit of the other items.

    In every setting, implementation and dtype, with and without causality.
    """
    three = Sizes(batch=3)
    case.each(empty_item_disturbs_nobody, case.samples(settings=case.usual, sizes=(three,)))
    case.each(
        empty_item_disturbs_nobody,
        case.samples(masks=("none", "causal"), dtypes=case.dtypes, sizes=(three,)),
    )


@LAWS.law("M-13", "claimed", needs=("masks",))
def what_is_hidden(case: Case) -> None:
    """What the mask hides from a row changes nothing in it.

    Every mask and implementation: all keys and values hidden from a row are replaced by others 30
    and 300 times as large; in every dtype; in training mode, and where gradients are asked for.
    """
    names = suited(case, RECIPES)
    case.each(hidden_is_nothing, by_turns(case, names))
    case.each(hidden_is_nothing, case.samples(masks=thin(case, names, 4), sizes=(SHORT,)))
    wide = [d for d in case.dtypes if d not in GARBAGE][-1:]
    case.each(hidden_is_nothing_at_300, case.samples(masks=thin(case, names, 3), dtypes=wide))
    low = [d for d in case.dtypes if d is not case.dtype]
    for n, dtype in enumerate(low):
        some = thin(case, names, len(low), n)
        case.each(hidden_is_nothing, case.samples(masks=some, dtypes=(dtype,)))
    if not case.able.deterministic:  # of the others M-22 says that no mode changes the output
        case.each(hidden_in_training, case.samples(masks=names))
        if case.able.differentiable:
            case.each(hidden_with_gradients, case.samples(masks=names))


def constant_stays_constant(trial: Trial) -> None:
    """Values that are all alike come out as they are, or as 0 from rows that see none of them."""
    value = torch.full_like(trial.value, 3.5)
    seen = trial.visible().any(dim=-1)
    found = trial.run(value=value)
    some = found[seen]
    if trial.case.able.positional:  # a pattern of its own may leave nothing
        some = some[some.ne(0).any(dim=-1)]
    trial.close(some, torch.full_like(some, 3.5), trial.near(), "rows over values of 3.5")


@LAWS.law("M-14", "claimed", needs=("masks", "normalized", "weights"))
def weights_are_shared_out(case: Case) -> None:
    """What is hidden gives its weight to what is visible: the weights still sum to 1.

    Values of 3.5 come out as 3.5, by every mask and implementation. A softmax over all keys that
    is masked afterwards gives less.
    """
    case.each(constant_stays_constant, case.samples(masks=RECIPES))
    case.each(constant_stays_constant, case.samples(masks=thin(case, RECIPES), sizes=(SHORT,)))


@LAWS.law("M-20", "claimed", needs=("settled", "masks", "cross", "order_free"))
def what_is_shown(case: Case) -> None:
    """A row is what a call with only its visible keys gives.

    For variants without positions: every mask and implementation, one item and several, grouped
    heads and not. What a mask hides is as if it were not there, and all the rest counts.
    """
    case.each(shown_is_all, by_turns(case, RECIPES, 1))
    case.each(shown_is_all, case.samples(masks=thin(case, RECIPES, 3), sizes=(SHORT,)))
    if case.full:
        sizes = [Sizes(kv_heads=n) for n in (1, 3, 6)] + [square(7), Sizes(queries=8, keys=3)]
        case.each(shown_is_all, case.samples(masks=RECIPES, sizes=sizes))


MANY = Sizes(batch=1, heads=32, kv_heads=16, queries=70, keys=600, head_dim=4, value_dim=3)
"""More than 2**20 scores, in more rows and columns than one piece may have."""


@LAWS.law("M-21", "claimed", needs=("masks",))
def long_masks(case: Case) -> None:
    """Masks hold past 64 keys, and where there are more scores than fit into one piece.

    66 queries with 70 keys; 70 queries with 600 keys in 32 heads, more than 2**20 scores; in the
    full profile 130 and 300 keys too.
    """
    names = ["allowed-causal", "causal-padding", "padding", "causal", "allowed", "bias", "window"]
    names += ["packed", "packed-causal", "window-causal", "everything"]
    attend_to_what_the_mask_shows(case, thin(case, names), (small(66, 70),))
    probes = [hidden_is_nothing]
    if case.able.cross and not case.able.positional:
        probes.append(shown_is_all)
    for probe in probes if case.full else probes[-1:]:
        few = suited(case, names)[: 2 if case.full else 1]
        case.each(probe, case.samples(masks=few, sizes=(MANY,)))
        if case.full and not case.able.fixed_length:
            case.each(probe, case.samples(masks=names[:5], sizes=(small(130, 129),)))
            case.each(probe, case.samples(masks=few[:1], sizes=(small(300, 301),)))


WIDE = {torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 5e-2}
"""Limits far above rounding: what is looked for are masks that a dtype loses."""


def dtypes_agree(trial: Trial) -> None:
    """A dtype gives what the widest one gives on the same numbers."""
    case, sample = trial.case, trial.sample
    wide = case.build(sample.options, implementation=sample.implementation, sizes=trial.sizes)
    wide = wide.to(sample.dtype).to(case.dtype)  # parameters rounded as those under check
    query, key, value = (t.to(case.dtype) for t in trial.inputs)
    with torch.no_grad():
        if wide.explain(query, key, value, trial.mask).chosen is None:
            return
    expected = case.call(wide, query, key, value, trial.mask)
    found = trial.run()
    trial.close(found, expected, WIDE[sample.dtype], f"against the same in {case.dtype}")


@LAWS.law("M-18", "claimed", needs=("settled", "masks", "several_dtypes"))
def every_dtype(case: Case) -> None:
    """Every mask does in every dtype what it does in the widest.

    On the same rounded numbers, within 1e-4 in float32 and 5e-2 in the halves: not rounding is
    looked for, but a mask that a dtype loses.
    """
    low = [d for d in case.dtypes if d is not case.dtype]
    for n, dtype in enumerate(low):
        names = thin(case, RECIPES, len(low), n)
        plain = case.samples(masks=names, dtypes=(dtype,), implementations=("auto",))
        case.each(dtypes_agree, plain)
    some = ("padding", "causal", "packed", "everything")
    case.each(dtypes_agree, case.samples(masks=some, dtypes=low))


def modes_agree(trial: Trial) -> None:
    """Training without dropout, and asking for gradients, changes no output."""
    expected = trial.run()
    trial.attn.train()
    trial.close(trial.run(), expected, trial.near(), "training mode against evaluation mode")
    if trial.case.able.differentiable and trial.takes(trial.tracked()):
        found = trial.run(*trial.tracked())
        trial.close(found, expected, trial.near(), "with gradients against without")
        trial.attn.eval()
        found = trial.run(*trial.tracked())
        trial.close(found, expected, trial.near(), "with gradients against without")


@LAWS.law("M-22", "claimed", needs=("masks", "deterministic"))
def every_mode(case: Case) -> None:
    """Every mask does in training, and where gradients are asked for, what it does without.

    Every mask and implementation, with no dropout: each of these may take another path.
    """
    case.each(modes_agree, case.samples(masks=thin(case, RECIPES)))
    others = thin(case, RECIPES, 2, 1)
    case.each(modes_agree, case.samples(masks=others, sizes=(SHORT,), implementations=("auto",)))
