"""M: what each field of a mask means, in every shape and dtype, alone and with the others."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnreg.conformance.case import Case, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.masks import RECIPES, Sizes
from attnreg.conformance.visibility import (
    ALLOWED,
    BIASED,
    LONG,
    PER_HEAD,
    SHORT,
    agrees,
    attend_to_what_the_mask_shows,
    hidden_is_nothing,
    shown_is_all,
    square,
    thin,
)
from attnreg.mask import Mask

LAWS = Laws()


@LAWS.law("M-05", "claimed", needs=("allowed",))
def allowed(case: Case) -> None:
    """True in ``allowed`` means "may attend", False that the entry counts for nothing.

    Random masks that differ from their complement and transpose; against the reference in every
    setting, by what is hidden, and by what is shown.
    """
    attend_to_what_the_mask_shows(case, ALLOWED)
    attend_to_what_the_mask_shows(case, ALLOWED, (square(7), Sizes(queries=1)))


def _shapes(sizes: Sizes, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Random entries in every shape that broadcasts to (B, Hq, Lq, Lk), some not contiguous."""
    generator = torch.Generator().manual_seed(13)
    b, h, q, k = sizes.batch, sizes.heads, sizes.queries, sizes.keys
    for shape in (
        (k,),
        (1,),
        (q, k),
        (q, 1),
        (1, k),
        (h, q, k),
        (h, 1, k),
        (1, q, 1),
        (1, 1, q, k),
        (b, 1, 1, k),
        (1, h, q, k),
        (b, h, 1, 1),
        (b, 1, q, 1),
        (b, h, q, k),
    ):
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        yield f"shape {shape}", drawn.to(device)
    drawn = torch.randn(k, q, h, b, generator=generator, dtype=torch.float64)
    yield "a transposed view", drawn.permute(3, 2, 1, 0).to(device)
    yield "a view with stride 0", drawn[:1, :1].permute(3, 2, 1, 0).expand(b, h, q, k).to(device)


def allowed_broadcasts(trial: Trial) -> None:
    """Every shape of ``allowed`` is its expansion."""
    s = trial.sizes
    for what, drawn in _shapes(s, trial.query.device):
        mask = trial.mask.replace(allowed=drawn > -0.3)
        whole = (drawn > -0.3).expand(s.batch, s.heads, s.queries, s.keys).clone()
        full = mask.replace(allowed=whole)
        expected = trial.run(mask=full)
        trial.close(trial.run(mask=mask), expected, trial.near(), f"allowed of {what}")


@LAWS.law("M-06", "claimed", needs=("allowed",))
def broadcast(case: Case) -> None:
    """``allowed`` of any shape that broadcasts is the same as expanded to (B, Hq, Lq, Lk).

    Fourteen shapes, a transposed view and one of stride 0, alone and with causality.
    """
    case.each(allowed_broadcasts, case.samples(masks=("none", "causal")))
    case.each(allowed_broadcasts, case.samples(sizes=(square(3), Sizes(batch=1, queries=1))))


@LAWS.law("M-07", "claimed", needs=("allowed",))
def per_head_and_item(case: Case) -> None:
    """A mask per head and per item reaches that head and that item.

    Masks that differ by head, by item and by both, for grouped heads where they are declared.
    """
    groups = [Sizes(kv_heads=n) for n in ((1, 2, 3, 6) if case.full else (1, 3))]
    three = Sizes(batch=3, heads=4, kv_heads=2, queries=3, keys=5)
    attend_to_what_the_mask_shows(case, PER_HEAD)
    for name in ("allowed", "bias-keys", "bias"):
        attend_to_what_the_mask_shows(case, (name,), (three,))
    case.each(hidden_is_nothing, case.samples(masks=PER_HEAD, sizes=groups))
    if case.able.cross and not case.able.positional:
        case.each(shown_is_all, case.samples(masks=PER_HEAD, sizes=groups))


def open_masks(trial: Trial) -> Iterator[tuple[str, Mask]]:
    """Masks that hide nothing."""
    able, s, mask, device = trial.case.able, trial.sizes, trial.mask, trial.query.device
    yield "query_offset=Lk-Lq", mask.replace(query_offset=s.keys - s.queries)
    if able.key_valid:
        ones = torch.ones(s.batch, s.keys, dtype=torch.bool, device=device)
        yield "key_valid of ones", mask.replace(key_valid=ones)
    for shape in ((1,), (s.queries, s.keys), (s.batch, s.heads, s.queries, s.keys)):
        zeros = torch.zeros(shape, device=device)
        if able.allowed:
            yield f"allowed of ones, {shape}", mask.replace(allowed=zeros == 0)
        if able.bias:
            yield f"bias of zeros, {shape}", mask.replace(bias=zeros)
    if able.window:
        for window in ((None, None), (s.keys + s.queries, s.keys + s.queries), (2**40, None)):
            yield f"window={window}", mask.replace(window=window)
    if able.packed and s.batch == 1:
        keys = None if s.queries == s.keys else [s.keys]
        one = Mask.packed([s.queries], keys)
        offsets = one.cu_seqlens, one.key_cu_seqlens
        moved = [None if t is None else t.to(device) for t in offsets]
        yield "one packed sequence", mask.replace(cu_seqlens=moved[0], key_cu_seqlens=moved[1])


def open_is_none(trial: Trial) -> None:
    """A mask that hides nothing changes nothing."""
    expected = trial.run()
    for what, mask in open_masks(trial):
        trial.close(trial.run(mask=mask), expected, trial.near(), what)


@LAWS.law("M-09", "required")
def open_mask_is_no_mask(case: Case) -> None:
    """A mask that hides nothing is no mask.

    key_valid and allowed of ones, a bias of zeros, windows past both ends, one packed sequence, an
    explicit offset of Lk - Lq: with and without causality.
    """
    one = square(7, batch=1)
    case.each(open_is_none, case.samples(masks=("none", "causal"), sizes=(case.sizes, one)))
    case.each(open_is_none, case.samples(masks=("none",), sizes=(Sizes(batch=1), LONG)))


def booleans_intersect(trial: Trial) -> None:
    """Padding and ``allowed`` together are the AND of both as ``allowed``."""
    mask = trial.mask
    if mask.key_valid is None or mask.allowed is None:
        return
    both = mask.allowed & mask.key_valid[:, None, None, :]
    expected = trial.run(mask=mask.replace(key_valid=None, allowed=both))
    trial.close(trial.run(), expected, trial.near(), "key_valid and allowed against their AND")


@LAWS.law("M-10", "claimed", needs=("allowed",))
def fields_intersect(case: Case) -> None:
    """Where several fields are given, all of them hold.

    allowed with causality, padding, a window, a bias and packing, and all at once: against the
    reference, by what is hidden and by what is shown.
    """
    names = ["allowed", "allowed-causal", "allowed-padding", "window-allowed", "bias-allowed"]
    names += ["packed-allowed", "everything"]
    attend_to_what_the_mask_shows(case, names)
    attend_to_what_the_mask_shows(case, names, (square(6, batch=1),))
    case.each(booleans_intersect, case.samples(masks=("allowed-padding",)))


FIELDS = ("key_valid", "allowed", "bias", "cu_seqlens", "key_cu_seqlens")


def mask_is_left_alone(trial: Trial) -> None:
    """No tensor of a mask is written to, not even one whose rows share storage."""
    before = {f: t.clone() for f in FIELDS if (t := getattr(trial.mask, f)) is not None}
    versions = {f: getattr(trial.mask, f)._version for f in before}
    trial.attn.train()
    trial.run()
    trial.attn.eval()
    expected = trial.run()
    for name, tensor in before.items():
        trial.equal(getattr(trial.mask, name), tensor, f"mask.{name} after the call")
        version = getattr(trial.mask, name)._version
        trial.case.holds(version == versions[name], f"mask.{name} was written to")
    copy = trial.mask.replace(**before)
    trial.close(trial.run(mask=copy), expected, trial.near(), "the same mask once more")


def expanded_mask_is_taken(trial: Trial) -> None:
    """Rows that share storage are as good as rows of their own."""
    s, able, device = trial.sizes, trial.case.able, trial.query.device
    row = torch.arange(s.keys, device=device) % 3 != 1
    shapes = {
        "key_valid": (s.batch, s.keys),
        "allowed": (s.batch, s.heads, s.queries, s.keys),
        "bias": (s.batch, s.heads, s.queries, s.keys),
    }
    for name, shape in shapes.items():
        if getattr(able, name):
            tensor = torch.where(row, 0.5, -torch.inf) if name == "bias" else row
            shared = trial.mask.replace(**{name: tensor.expand(shape)})
            own = trial.mask.replace(**{name: tensor.expand(shape).clone()})
            expected = trial.run(mask=own)
            trial.close(trial.run(mask=shared), expected, trial.near(), f"an expanded {name}")


@LAWS.law("M-12", "required", needs=("mask_tensors",))
def masks_are_read_only(case: Case) -> None:
    """A mask is never written to, and may be a view whose rows share storage (stride 0).

    Every mask and implementation, in training and evaluation mode; the version counters too.
    """
    case.each(mask_is_left_alone, case.samples(masks=thin(case, RECIPES)))
    if not case.full:
        others = thin(case, RECIPES, 2, 1)
        case.each(mask_is_left_alone, case.samples(masks=others, implementations=("auto",)))
    case.each(expanded_mask_is_taken, case.samples(masks=("none",)))


def bias_of_any_dtype(trial: Trial) -> None:
    """The same numbers as a bias in another floating dtype are the same bias."""
    s = trial.sizes
    drawn = torch.randn(s.heads, s.queries, s.keys, generator=torch.Generator().manual_seed(17))
    coarse = drawn.to(torch.bfloat16).to(trial.query.device)
    expected = trial.run(mask=trial.mask.replace(bias=coarse.to(trial.query.dtype)))
    for dtype in (torch.float32, torch.bfloat16, torch.float16, trial.case.dtype):
        found = trial.run(mask=trial.mask.replace(bias=coarse.to(dtype)))
        trial.close(found, expected, trial.near(), f"a bias in {dtype}")


def large_bias(trial: Trial) -> None:
    """A finite bias, however large, hides nothing by itself: a row of them still attends."""
    s = trial.sizes
    drawn = torch.randn(s.queries, s.keys, generator=torch.Generator().manual_seed(19))
    bias = torch.where(drawn > 0, 0.0, -1e4)
    bias[0] = -1e30
    bias[-1, 0] = 1e4
    mask = trial.mask.replace(bias=bias.to(trial.query))
    found = trial.run(mask=mask)
    expected = trial.case.reference(trial.attn, *trial.inputs, mask)
    trial.close(found, expected, what="output with a bias of -1e30, -1e4 and 1e4")


@LAWS.law("M-15", "claimed", needs=("bias",))
def bias(case: Case) -> None:
    """``bias`` is added to the scaled score, per head and item, whatever its floating dtype.

    Random biases with entries of -inf, in every setting, with another scale, with padding; finite
    ones down to -1e30; against the reference, by what is hidden and by what is shown.
    """
    names = (*BIASED, "bias-allowed", "bias-padding", "packed-bias")
    attend_to_what_the_mask_shows(case, names)
    case.each(bias_of_any_dtype, case.samples(masks=("none", "causal")))
    if case.variant.reference is not None:
        plain = case.samples(masks=("bias-keys", "bias-causal"), scale=0.3)
        case.each(agrees, plain)
        case.each(large_bias, case.samples(masks=("none", "causal")))
        groups = (Sizes(batch=3, heads=4, kv_heads=2, queries=3, keys=5), SHORT)
        case.each(agrees, case.samples(masks=BIASED, sizes=groups))


def bias_broadcasts(trial: Trial) -> None:
    """Every shape of ``bias`` is its expansion, and its -inf is a False of ``allowed``."""
    s = trial.sizes
    for what, drawn in _shapes(s, trial.query.device):
        cut = drawn.to(trial.query.dtype).masked_fill(drawn < -0.9, -torch.inf)
        whole = cut.expand(s.batch, s.heads, s.queries, s.keys).clone()
        expected = trial.run(mask=trial.mask.replace(bias=whole))
        found = trial.run(mask=trial.mask.replace(bias=cut))
        trial.close(found, expected, trial.near(), f"bias of {what}")
    if trial.case.able.allowed:
        seen = whole != -torch.inf
        zero = torch.zeros_like(whole).masked_fill(~seen, -torch.inf)
        expected = trial.run(mask=trial.mask.replace(allowed=seen))
        found = trial.run(mask=trial.mask.replace(bias=zero))
        trial.close(found, expected, trial.near(), "a bias of 0 and -inf against allowed")


@LAWS.law("M-16", "claimed", needs=("bias",))
def bias_shapes(case: Case) -> None:
    """``bias`` of any shape that broadcasts is the same as expanded; -inf hides as False does.

    Fourteen shapes, a transposed view and one of stride 0, alone and with causality.
    """
    case.each(bias_broadcasts, case.samples(masks=("none", "causal")))
    case.each(bias_broadcasts, case.samples(sizes=(square(3), Sizes(batch=1, queries=1))))


@LAWS.law("M-17", "claimed", needs=("window",))
def window(case: Case) -> None:
    """``window`` shows the keys from i + offset - left to i + offset + right, and no others.

    Alone, with causality, padding, ``allowed`` and an offset, square and not; against the
    reference, by what is hidden and by what is shown.
    """
    names = ["window", "window-self", "window-left", "window-causal", "window-blind"]
    names += ["window-padding", "window-allowed", "everything"]
    attend_to_what_the_mask_shows(case, names)
    sizes = (square(7, batch=1), Sizes(queries=8, keys=3))
    attend_to_what_the_mask_shows(case, names[:4], sizes)


def offset_is_nothing(trial: Trial) -> None:
    """A query's position is nothing where nothing counts from it."""
    expected = trial.run(mask=trial.mask.replace(query_offset=None))
    for offset in (0, 3, -4, trial.sizes.keys + 3):
        found = trial.run(mask=trial.mask.replace(query_offset=offset))
        trial.close(found, expected, trial.near(), f"query_offset={offset}")


@LAWS.law("M-19", "required", needs=("noncausal", "order_free"))
def offset_alone(case: Case) -> None:
    """``query_offset`` alone, without causality or a window, changes nothing.

    In variants without positions; offsets below 0 and past the last key, also beside other fields.
    """
    names = ("none", "padding", "allowed", "bias", "packed")
    case.each(offset_is_nothing, case.samples(masks=names))


def dense_is_the_same(trial: Trial) -> None:
    """A mask is the same as its definition written out, entry by entry, as ``allowed``."""
    mask, able = trial.mask, trial.case.able
    if mask.cu_seqlens is not None and able.positional:  # positions count inside a sequence
        return
    found = trial.run()
    whole = Mask(allowed=trial.visible(), bias=mask.bias, query_offset=mask.query_offset)
    if not able.noncausal:
        far = mask.query_offset if able.positional else trial.sizes.keys
        whole = whole.replace(causal=True, query_offset=far)
    expected = trial.case.call(trial.attn, *trial.inputs, whole)
    trial.close(found, expected, trial.near(), "against the mask written out as allowed")


@LAWS.law("M-23", "claimed", needs=("allowed",))
def dense_masks(case: Case) -> None:
    """Every mask is the same as its (B, Hq, Lq, Lk) definition given as ``allowed``.

    Causality, padding, windows, packing and their combinations; one item and several. Whatever
    takes a path of its own must end where the plain one does.
    """
    case.each(dense_is_the_same, case.samples(masks=RECIPES))
    others = thin(case, RECIPES)
    case.each(dense_is_the_same, case.samples(masks=others, sizes=(SHORT,)))
