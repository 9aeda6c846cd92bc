"""A: forms and settings of a variant whose result is known exactly."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnreg.checked import CheckedAttention
from attnreg.conformance.case import MAX_LENGTH, Case, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.measure import LIMITS, reseed
from attnreg.errors import LengthError, OptionError
from attnreg.families import KernelAttention
from attnreg.functional import expand_heads
from attnreg.mask import Mask
from attnreg.registry import Registry

LAWS = Laws()


MASKS = (
    "none",
    "causal",
    "top-left",
    "blind-rows",
    "far-causal",
    "padding",
    "padding-empty",
    "padding-holes",
    "causal-padding",
    "causal-left",
    "packed",
    "packed-causal",
    "packed-padding",
)


@LAWS.law("A-01", "claimed", needs=("kernel",))
def explicit_kernel(case: Case) -> None:
    """Kernel attention is its explicit matrix phi(q) phi(k)^T, masked, over its row sums.

    The matrix is computed densely in float64 from the module's own features (with their scales),
    zeroed where the mask hides, divided by its row sums where the module's ``normalize`` says so.
    Causal and not, over lengths on both sides of a chunk: 1e-9 in float64. A running sum that
    leaves out the position itself, or a normaliser over the whole sequence, shows here.
    """
    s = case.sizes
    settings = case.usual if case.full else case.usual[:4]
    case.each(_explicit, case.samples(masks=MASKS))
    case.each(_explicit, case.samples(masks=MASKS[:2], settings=settings[1:]))
    lengths = [(1, 1), (63, 63), (65, 65), (130, 130), (70, 131)]
    sizes = [replace(s, batch=1, queries=n, keys=m) for n, m in lengths]
    case.each(
        _explicit, case.samples(masks=("none", "causal", "causal-left", "top-left"), sizes=sizes)
    )


def _explicit(trial: Trial) -> None:
    module = trial.attn.module
    assert isinstance(module, KernelAttention)  # what the law needs
    visible, heads = trial.visible(), trial.sizes.heads
    key, value = (expand_heads(t, heads) for t in (trial.key, trial.value))
    with trial.case.running("the features"), torch.no_grad():
        query_features = module.query_features(trial.query).double()
        values, log_scale = module.key_features(key)
    matrix = query_features @ values.double().transpose(-1, -2)
    if log_scale is not None:
        scale = log_scale.double()[:, :, None].masked_fill(~visible, -torch.inf)
        if module.normalize:  # what all keys of a row share cancels
            scale = scale - scale.amax(dim=-1, keepdim=True).clamp(min=-1e300)
        matrix = matrix * scale.exp()
    matrix = matrix.masked_fill(~visible, 0.0)
    expected = matrix @ value.double()
    if module.normalize:
        total = matrix.sum(dim=-1, keepdim=True)
        empty = total.abs() < torch.finfo(total.dtype).tiny
        expected = (expected / total.masked_fill(empty, 1.0)).masked_fill(empty, 0.0)
    trial.close(trial.run(), expected, what="output against the explicit matrix")


@LAWS.law("A-05", "claimed", needs=("low_rank",))
def identity_projections(case: Case) -> None:
    """Linformer of rank L with identity projections is scaled dot-product attention.

    At L = max_length, without a mask: softmax(scale q k^T) v to 1e-9 in float64, for the default
    scale and another, and whatever is shared. A factor left in the projections shows here.
    """
    names = {option.name for option in case.variant.options}
    shared: list[dict[str, Any]] = [
        {},
        *({"sharing": s} for s in ("heads", "key-value", "all") if "sharing" in names),
    ]
    sizes = case.sizes
    for options in shared:
        for scale in (None, 0.7):
            if scale is not None and "scale" not in case.variant.common:
                continue
            attn = Registry().create(
                case.variant,
                num_heads=sizes.heads,
                head_dim=sizes.head_dim,
                num_kv_heads=sizes.kv_heads,
                value_dim=sizes.value_dim,
                max_length=sizes.keys,
                scale=scale,
                rank=sizes.keys,
                **options,
            )
            attn = attn.to(device=case.device, dtype=case.dtype).eval()
            with torch.no_grad():
                for projection in attn.parameters():
                    if projection.shape[-2:] == (sizes.keys, sizes.keys):
                        projection.copy_(torch.eye(sizes.keys).expand_as(projection))
            query, key, value = case.inputs()
            found = case.call(attn, query, key, value, Mask())
            factor = sizes.head_dim**-0.5 if scale is None else scale
            expected = _softmax(query, key, value, factor)
            case.close(found, expected, LIMITS[case.dtype], "output at identity projections")


def _softmax(
    query: Tensor, key: Tensor, value: Tensor, scale: float, visible: Tensor | None = None
) -> Tensor:
    """Softmax attention by its formula, in float64; every row must see a key."""
    key, value = (expand_heads(t, query.shape[1]).double() for t in (key, value))
    scores = query.double() @ key.transpose(-1, -2) * scale
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    return scores.softmax(dim=-1) @ value


@LAWS.law("A-06")
def fixed_length(case: Case) -> None:
    """``max_length`` limits the number of keys where ``fixed_length`` is declared, and only there.

    Declared: fewer keys give the reference's result, as many as ``max_length`` too, one more is a
    ``LengthError`` that names both, each packed sequence counts by itself, and building it without
    ``max_length`` is a ``LengthError``. Not declared: it takes more keys than that.
    """
    fixed = case.able.fixed_length
    if fixed:
        case.refuses(LengthError, "no max_length", lambda: _limited(case, None))
    most, attn = _shortest(case)
    for length in (1, 2, most - 1, most, most + 1, 2 * most + 1):
        for queries in {5 if case.able.cross else length, length}:
            sizes = replace(case.sizes, queries=queries, keys=length)
            call, mask = case.inputs(sizes), case.mask("none", sizes)
            if fixed and length > most:
                error = case.refuses(LengthError, f"{length} keys", partial(attn, *call, mask))
                words = all(str(n) in str(error) for n in (most, length))
                case.holds(words, f"the refusal does not name {most} and {length}: {error}")
                continue
            found = case.call(attn, *call, mask)
            case.holds(found.isfinite().all(), f"{length} keys: the output is not finite")
            if case.variant.reference is not None:
                expected = case.reference(attn, *call, mask)
                case.close(found, expected, LIMITS[case.dtype], f"{length} keys of {most}")
    if fixed and case.able.packed:
        sizes = replace(case.sizes, batch=1, queries=15, keys=15)
        mask = Mask.packed([most, 4]) & case.mask()
        case.call(attn, *case.inputs(sizes), _on(mask, case))
        case.refuses(
            LengthError,
            "a packed sequence above max_length",
            lambda: attn(*case.inputs(sizes), _on(Mask.packed([3, most + 1]) & case.mask(), case)),
        )


def _shortest(case: Case) -> tuple[int, CheckedAttention]:
    """A small max_length that goes with the default options, and a module built for it."""
    for most in (11, 37):
        try:
            return most, _limited(case, most)
        except OptionError:  # a default above it
            continue
    return MAX_LENGTH, _limited(case, MAX_LENGTH)


def _limited(case: Case, most: int | None) -> CheckedAttention:
    s = case.sizes
    reseed(11)
    attn = Registry().create(
        case.variant,
        num_heads=s.heads,
        head_dim=s.head_dim,
        num_kv_heads=s.kv_heads,
        value_dim=s.value_dim,
        max_length=most,
    )
    return attn.to(device=case.device, dtype=case.dtype).eval()


def _on(mask: Mask, case: Case) -> Mask:
    assert mask.cu_seqlens is not None
    return mask.replace(cu_seqlens=mask.cu_seqlens.to(case.device))


@LAWS.law("A-07", "claimed", needs=("low_rank", "key_valid"))
def padding_before_mixing(case: Case) -> None:
    """Padded keys and values are zeroed before they are mixed along the length.

    A call with padding is the call without a mask on keys and values that hold zeros there, in
    the module itself too, not only behind the core's checks.
    """
    for name in ("padding", "padding-left", "padding-holes", "padding-one"):
        for sample in case.samples(masks=(name,), settings=case.usual):
            trial = Trial(case, sample)
            assert trial.mask.key_valid is not None  # what these masks are
            hidden = ~trial.mask.key_valid[:, None, :, None]
            dead = ~trial.mask.key_valid.any(dim=-1)[:, None, None, None]
            key, value = (t.masked_fill(hidden, 0.0) for t in (trial.key, trial.value))
            expected = trial.run(key=key, value=value, mask=case.mask("none"))
            expected = expected.masked_fill(dead, 0.0)
            trial.close(trial.run(), expected, case.same, "padding against zeros")
            with case.running("the module itself"), torch.no_grad():
                found = trial.attn.module(trial.query, trial.key, trial.value, trial.mask)
            trial.close(found, expected, case.same, "the module itself: padding against zeros")


@LAWS.law("A-08", "claimed", needs=("windowed",))
def windows_at_their_ends(case: Case) -> None:
    """A window over the whole sequence is full attention; one of 0 gives V itself.

    left and right of L - 1 or more: softmax(scale q k^T) v to 1e-9; of L - 2: the same over all
    but the farthest pair, which is another result; of 0: the value at the query's own position.
    """
    names = {option.name for option in case.variant.options}
    alone: dict[str, Any] = {
        name: 0 for name in ("global_tokens", "random_blocks") if name in names
    }
    length = 9
    sizes = replace(case.sizes, queries=length, keys=length)
    query, key, value = case.inputs(sizes)
    scale, mask = sizes.head_dim**-0.5, case.mask("none", sizes)
    for name in case.implementations():
        for reach in (0, 1, length - 2, length - 1, length, 3 * length):
            attn = case.build(
                {"left": reach, "right": reach, **alone}, sizes=sizes, implementation=name
            )
            if attn.explain(query, key, value, mask).chosen is None:
                continue
            found = case.call(attn, query, key, value, mask)
            index = torch.arange(length, device=case.device)
            visible = (index[:, None] - index).abs() <= reach
            if mask.causal:
                visible = visible & (index <= index[:, None])
            expected = _softmax(query, key, value, scale, visible)
            what = f"{name}: a window of {reach} over {length} positions"
            case.close(found, expected, LIMITS[case.dtype], what)
            if reach == 0:
                case.close(found, expand_heads(value, sizes.heads), case.same, what + ", V itself")
