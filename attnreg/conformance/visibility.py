"""Probes about who sees whom: what a mask hides changes nothing, what it shows is all that counts.

They need no reference: ``Trial.visible`` says from the mask's definition which keys a row may see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from attnreg.conformance.case import Case, Sample, Trial
from attnreg.conformance.masks import RECIPES, Sizes
from attnreg.mask import Mask

GARBAGE = {torch.float16: (3.0, 10.0), torch.bfloat16: (3.0, 10.0)}
"""Factor and shift of what hidden entries are replaced by, where the usual 30 and 100 overflow."""


def garbage(tensor: Tensor, factor: float | None = None) -> Tensor:
    """Other finite values, far from the ones given."""
    usual, shift = GARBAGE.get(tensor.dtype, (30.0, 100.0))
    return tensor * -(usual if factor is None else factor) + shift


def spread(length: int, most: int) -> list[int]:
    """At most so many indices below a length, the first and the last among them."""
    if length <= most:
        return list(range(length))
    return sorted({round(n * (length - 1) / (most - 1)) for n in range(most)})


def group(trial: Trial, member: int) -> slice:
    """The query heads that are number ``member`` of their key head, one per key head."""
    return slice(member, None, trial.sizes.heads // trial.sizes.kv_heads)


# -- samples ---------------------------------------------------------------------------------------


def suited(case: Case, names: Iterable[str]) -> list[str]:
    """Those of the named kinds of mask that the variant takes."""
    return [name for name in names if RECIPES[name].suits(case.able)]


def thin(case: Case, names: Iterable[str], step: int = 2, start: int = 0) -> list[str]:
    """Those of the kinds that suit the variant: in the fast profile every other, or so."""
    names = suited(case, names)
    return names if case.full or len(names) <= step else names[start::step]


def by_turns(case: Case, names: Iterable[str], start: int = 0) -> Iterator[Sample]:
    """Every mask and implementation; in the fast profile each mask by every other of them."""
    names = suited(case, names)
    for n, way in enumerate(case.implementations()):
        some = thin(case, names, 2, (n + start) % 2)
        yield from case.samples(masks=some, implementations=(way,))


def samples(
    case: Case, names: Iterable[str], sizes: Iterable[Sizes] | None = None
) -> Iterator[Sample]:
    """Every mask in the default setting, and the other settings with one mask or two each."""
    names, ways = suited(case, names), case.implementations()
    sizes = None if sizes is None else tuple(sizes)
    yield from case.samples(masks=names, sizes=sizes)
    if not names:
        return
    for n, setting in enumerate(s for s in case.usual if s.options):
        chosen = [names[n % len(names)], names[(n + 1) % len(names)]]
        yield from case.samples(
            settings=[setting],
            masks=dict.fromkeys(chosen) if case.full else chosen[:1],
            sizes=sizes,
            implementations=ways if case.full else [ways[(n + len(names)) % len(ways)]],
        )


def small(queries: int, keys: int, **changes: int) -> Sizes:
    """Sizes of a long call that is cheap: one item, two heads over one key head."""
    plain = {"batch": 1, "heads": 2, "kv_heads": 1, "head_dim": 4, "value_dim": 3, **changes}
    return Sizes(queries=queries, keys=keys, **plain)


def square(length: int, **changes: int) -> Sizes:
    """The usual sizes with as many queries as keys."""
    return Sizes(queries=length, keys=length, **changes)


LONG = small(70, 70)
"""Past 64, the size of many an internal chunk or cached mask."""

CAUSAL = (
    "causal",
    "top-left",
    "far-causal",
    "causal-padding",
    "causal-left",
    "allowed-causal",
    "bias-causal",
    "window-causal",
    "everything",
)

SHORT = square(7, batch=1, heads=2, kv_heads=1)

PADDED = (
    "padding",
    "padding-empty",
    "padding-one",
    "padding-left",
    "padding-holes",
    "causal-padding",
    "causal-left",
    "allowed-padding",
    "bias-padding",
    "window-padding",
    "packed-padding",
    "everything",
)
ALLOWED = (
    "allowed",
    "allowed-square",
    "allowed-past",
    "allowed-blind",
    "allowed-causal",
)
PER_HEAD = ("allowed-heads", "allowed-batch", "allowed-causal")
BIASED = ("bias", "bias-keys", "bias-float32", "bias-causal")

# -- probes ----------------------------------------------------------------------------------------


def agrees(trial: Trial) -> None:
    """The output is that of the reference."""
    trial.close(trial.run(), trial.reference(), what="output against the reference")


def hidden_is_nothing(trial: Trial) -> None:
    """Replace every key and value that is hidden from a row: its output stays."""
    _hidden(trial, None, 9 if trial.case.full else 3)


def hidden_is_nothing_at_300(trial: Trial) -> None:
    """The same with values so large that a term which cancels loses what it is added to."""
    _hidden(trial, 300.0, 3)


def hidden_in_training(trial: Trial) -> None:
    """The same in training mode, with no dropout."""
    trial.attn.train()
    _hidden(trial, None, 2)


def hidden_with_gradients(trial: Trial) -> None:
    """The same where gradients are asked for, which may take another path."""
    if not trial.takes(trial.tracked()):
        return
    trial.query, trial.key, trial.value = trial.tracked()
    _hidden(trial, None, 2)


def _hidden(trial: Trial, factor: float | None, rows: int) -> None:
    visible, key, value = trial.visible(), trial.key, trial.value
    groups = trial.sizes.heads // trial.sizes.kv_heads
    rows = min(rows, 2) if visible.numel() > 2**20 else rows
    alike = bool((visible == visible[:, :1]).all())
    base = trial.run()
    for n, row in enumerate(spread(trial.sizes.queries, rows)):
        heads = slice(None) if alike else group(trial, n % groups)
        seen = visible[:, group(trial, n % groups), row]  # (B, Hkv, Lk)
        if seen.all():
            continue
        kept = seen[..., None]
        moved = trial.run(
            key=torch.where(kept, key, garbage(key, factor)),
            value=torch.where(kept, value, garbage(value, factor)),
        )
        trial.close(
            moved[:, heads, row],
            base[:, heads, row],
            trial.near(),
            f"row {row}, after the keys and values hidden from it were replaced",
        )


def shown_is_all(trial: Trial) -> None:
    """A row is what a call with only its visible keys gives; without any it is exactly 0.

    For variants without positions, which take fewer keys than queries.
    """
    case, sizes = trial.case, trial.sizes
    visible, found = trial.visible(), trial.run()
    rows = spread(sizes.queries, 9 if case.full else 4)
    for n, row in enumerate([*rows, rows[-1]]):  # the last in another head too
        item, head = n % sizes.batch, (2 * n + row) % sizes.heads
        columns = visible[item, head, row].nonzero().flatten()
        mine = found[item, head, row]
        if not len(columns):
            trial.equal(mine, torch.zeros_like(mine), f"row {row}, which sees no key")
            continue
        one = slice(item, item + 1)
        alone = case.call(
            trial.attn,
            trial.query[one],
            trial.key[one][:, :, columns],
            trial.value[one][:, :, columns],
            open_mask(case, len(columns), _bias_of(trial, item, columns)),
        )
        trial.close(
            mine,
            alone[0, head, row],
            trial.near(),
            f"row {row} against a call with only the keys that it sees",
        )


def open_mask(case: Case, keys: int, bias: Tensor | None = None) -> Mask:
    """A mask that hides nothing, for a variant without positions: causal where it must be."""
    if case.able.noncausal:
        return Mask(bias=bias)
    return Mask(causal=True, query_offset=keys, bias=bias)


def _bias_of(trial: Trial, item: int, columns: Tensor) -> Tensor | None:
    bias, s = trial.mask.bias, trial.sizes
    if bias is None:
        return None
    return bias.expand(s.batch, s.heads, s.queries, s.keys)[item : item + 1][..., columns]


def dead_rows_are_zero(trial: Trial) -> None:
    """A row that sees no key gives exactly 0, and so do its weights; the others are finite."""
    dead = ~trial.visible().any(dim=-1)
    value = trial.value + 3  # not near 0 on average
    found = trial.run(value=value)
    nothing = torch.zeros_like(found[dead])
    trial.equal(found[dead], nothing, "rows that see no key")
    trial.case.holds(bool(found.isfinite().all()), "an output is NaN or infinite", actual=found)
    if trial.case.able.weights != "none":
        with trial.case.running("attn.weights"), torch.no_grad():
            weights = trial.attn.weights(trial.query, trial.key, trial.mask)
        trial.equal(
            weights[dead], torch.zeros_like(weights[dead]), "weights of rows that see no key"
        )


def truncated(trial: Trial, lengths: list[int]) -> None:
    """Right padding is the same as keys that are not there, for each item by itself.

    Positions stay: the queries of the shorter call stand where they stood. A variant that needs as
    many queries as keys is called with the first of them.
    """
    case, sizes = trial.case, trial.sizes
    lengths = [min(n, sizes.keys) for n in lengths[: sizes.batch]]
    padding = Mask.from_lengths(torch.tensor(lengths, device=case.device), sizes.keys)
    found = trial.run(mask=trial.mask & padding)
    for item, length in enumerate(lengths):
        one, rows = slice(item, item + 1), sizes.queries if case.able.cross else length
        if length == 0:
            trial.equal(found[item], torch.zeros_like(found[item]), "an item without a valid key")
            continue
        given = trial.mask.query_offset
        alone = case.call(
            trial.attn,
            trial.query[one, :, :rows],
            trial.key[one, :, :length],
            trial.value[one, :, :length],
            trial.mask.replace(query_offset=sizes.keys - sizes.queries if given is None else given),
        )
        trial.close(
            found[one, :, :rows],
            alone,
            trial.near(),
            f"item {item}, padded from {length} keys to {sizes.keys}, against those {length} alone",
        )


def attend_to_what_the_mask_shows(
    case: Case, names: Iterable[str], sizes: Iterable[Sizes] | None = None
) -> None:
    """Check kinds of mask in every way that the variant allows: against its reference where it has
    one, by what is hidden, and by what is shown."""
    names = suited(case, names)
    sizes = None if sizes is None else tuple(sizes)
    if case.variant.reference is None:
        case.each(hidden_is_nothing, samples(case, names, sizes))
    else:
        case.each(agrees, samples(case, names, sizes))
        if not case.full:  # M-13 and M-20 probe the rest
            return
        case.each(hidden_is_nothing, case.samples(masks=names, sizes=sizes))
    if not case.able.positional and case.able.cross:
        case.each(shown_is_all, case.samples(masks=names, sizes=sizes))
