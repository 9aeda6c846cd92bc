"""R: what is refused: the undeclared, the unknown, the ill-shaped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnreg.checked import CheckedAttention
from attnreg.conformance.case import DTYPES, Case
from attnreg.conformance.checks import Laws
from attnreg.errors import (
    DtypeError,
    OptionError,
    ShapeError,
    UnsupportedFeature,
    UnsupportedMask,
    UnsupportedOption,
)
from attnreg.mask import MASK_FIELDS, Mask

LAWS = Laws()


EXAMPLES = {
    "causal": "causal",
    "window": "window",
    "key_valid": "padding",
    "allowed": "allowed-heads",
    "bias": "bias-keys",
    "packed": "packed-full",
}
"""A kind of mask for each field."""


def says(case: Case, error: Exception, *words: object) -> None:
    """The message of a refusal holds these words."""
    text = str(error)
    missing = [str(word) for word in words if str(word) not in text]
    case.holds(not missing, f"the refusal does not name {', '.join(missing)}: {text}")


def finite(case: Case, output: Tensor, what: str) -> None:
    case.holds(output.isfinite().all(), f"{what}: the output is not finite")


@LAWS.law("R-00")
def undeclared(case: Case) -> None:
    """What is not declared is refused by an error that names it; what is declared is taken.

    Mask fields, Lq != Lk, fewer key heads, another value dimension, dropout, a scale, calls
    without causality, decoding, weights, dtypes, each in both directions. A capability that is
    ignored in silence is the most expensive fault of all: nothing tells.
    """
    _mask_fields(case)
    _sizes(case)
    _common(case)
    _step_and_weights(case)
    _dtypes(case)


def _mask_fields(case: Case) -> None:
    able, name, attn = case.able, case.variant.name, case.build()
    for field in MASK_FIELDS:
        sizes = replace(case.sizes, batch=1) if field == "packed" else case.sizes
        call = (*case.inputs(sizes), case.mask(EXAMPLES[field], sizes))
        if field == "causal" and not able.causal:
            call = (*call[:3], Mask(causal=True))
        if getattr(able, field):
            finite(case, case.call(attn, *call), f"a mask with {field}")
            continue
        error = case.refuses(UnsupportedMask, f"mask field {field!r}", partial(attn, *call))
        says(case, error, name, field)
        chosen = attn.explain(*call).chosen
        case.holds(chosen is None, f"explain says that {chosen} runs a mask with {field}")
    if not able.noncausal:
        error = case.refuses(
            UnsupportedMask, "a call without causality", lambda: attn(*case.inputs(), Mask())
        )
        says(case, error, name, "causal")


def _sizes(case: Case) -> None:
    able, name = case.able, case.variant.name
    cross = replace(case.sizes, queries=5, keys=9)
    attn = case.build()
    if able.cross:
        finite(case, case.call(attn, *case.inputs(cross)), "Lq != Lk")
    else:
        call = (*case.inputs(cross), case.mask())
        says(case, case.refuses(UnsupportedFeature, "Lq != Lk", lambda: attn(*call)), name, 5, 9)
    for field, sizes in (
        ("grouped", replace(case.sizes, heads=6, kv_heads=2)),
        ("value_dim", replace(case.sizes, head_dim=8, value_dim=6)),
    ):
        if getattr(able, field):
            with case.running("create"):
                attn = case.build(sizes=sizes)
            finite(case, case.call(attn, *case.inputs(sizes)), field)
        else:
            error = case.refuses(
                UnsupportedFeature, f"{field} sizes", partial(case.build, sizes=sizes)
            )
            says(case, error, name)


def _common(case: Case) -> None:
    able, name = case.able, case.variant.name
    given: tuple[tuple[str, bool, dict[str, Any]], ...] = (
        ("dropout", able.dropout, {"dropout": 0.25, "train": True}),
        ("scale", "scale" in case.variant.common, {"scale": 0.5}),
    )
    for what, declared, arguments in given:
        if declared:
            with case.running(f"create with a {what}"):
                attn = case.build(**arguments)
            finite(case, case.call(attn, *case.inputs()), what)
        else:
            error = case.refuses(UnsupportedOption, what, partial(case.build, **arguments))
            says(case, error, name, what)


def _step_and_weights(case: Case) -> None:
    able, name, attn = case.able, case.variant.name, case.build()
    square = replace(case.sizes, queries=case.sizes.keys)
    query, key, value = case.inputs(square)
    if able.decode == "none":
        error = case.refuses(UnsupportedFeature, "step", lambda: attn.step(query, key, value))
        says(case, error, name)
    else:
        with case.running("attn.step"):
            output, state = attn.step(query, key, value)
        finite(case, output, "step")
        case.holds(state.length == square.keys, f"the state's length is {state.length}")
    mask = case.mask()
    if able.weights == "none":
        error = case.refuses(UnsupportedFeature, "weights", lambda: attn.weights(query, key, mask))
        says(case, error, name)
    else:
        with case.running("attn.weights"):
            found = attn.weights(query, key, mask)
        finite(case, found, "weights")


def _dtypes(case: Case) -> None:
    attn = case.build()
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        if dtype in case.dtypes:
            found = case.call(case.build(dtype=dtype), *case.inputs(dtype=dtype))
            finite(case, found, name)
        elif name not in case.able.dtypes and case.device.type != "mps":
            call = (*case.inputs(dtype=dtype), case.mask())
            error = case.refuses(DtypeError, name, partial(attn, *call))
            says(case, error, case.variant.name, name)


@LAWS.law("R-01")
def unknown_words(case: Case) -> None:
    """An unknown keyword, option or implementation is an error that names what there is.

    A keyword that is swallowed, "casual" for "causal" say, leaves a model trained on its future.
    """
    attn, call = case.build(), case.inputs()
    for word in ("casual", "causal", "attn_mask", "is_causal"):
        case.refuses(
            TypeError,
            f"the keyword {word!r}",
            partial(attn, *call, mask=case.mask(), **{word: True}),
        )
    error = case.refuses(
        OptionError, "an unknown option", lambda: case.build({"no_such_option": 1})
    )
    says(case, error, case.variant.name, "no_such_option")
    for option in case.variant.options:
        wrong = option.name + "_"
        error = case.refuses(OptionError, f"the option {wrong!r}", partial(case.build, {wrong: 1}))
        says(case, error, option.name)
    error = case.refuses(
        OptionError, "an unknown implementation", lambda: case.build(implementation="no_such")
    )
    says(case, error, *case.implementations())


@LAWS.law("R-03")
def wrong_shapes(case: Case) -> None:
    """Tensors and masks of the wrong shape are a ``ShapeError`` that says what came.

    Wrong rank, head dimension, length, head count and batch, sizes of 1 that would broadcast, and
    masks that do not fit: broadcasting in silence is the usual way to attend to the wrong thing.
    """
    attn, s, mask = case.build(), case.sizes, case.mask()
    query, key, value = case.inputs()
    changed: list[tuple[str, int, int]] = [
        ("query", 1, s.heads + 1),
        ("query", 3, s.head_dim + 1),
        ("query", 3, 1),
        ("key", 0, s.batch + 1),
        ("key", 0, 1),
        ("key", 1, s.kv_heads + 2 if s.heads % (s.kv_heads + 2) else s.heads + 1),
        ("key", 3, s.head_dim - 1),
        ("value", 0, s.batch + 1),
        ("value", 0, 1),
        ("value", 1, s.kv_heads + 1),
        ("value", 2, s.keys - 1),
        ("value", 2, 1),
        ("value", 3, s.value_dim + 1),
        ("value", 3, 1),
    ]
    wrong: list[tuple[str, Tensor]] = [("query", query[0]), ("key", key[None]), ("value", value[0])]
    given = {"query": query, "key": key, "value": value}
    for name, axis, size in changed:
        shape = list(given[name].shape)
        shape[axis] = size
        wrong.append((name, given[name].new_zeros(shape)))
    for name, tensor in wrong:
        call = given | {name: tensor}
        what = f"{name} of shape {tuple(tensor.shape)}"
        error = case.refuses(ShapeError, what, partial(attn, **call, mask=mask))
        says(case, error, name)
        if str(tuple(tensor.shape)) not in str(error):  # then the size that is wrong, at least
            says(
                case, error, next((n for t, _, n in changed if t == name and n in tensor.shape), "")
            )
    if case.able.weights != "none":
        case.refuses(
            ShapeError,
            "weights of keys too narrow",
            lambda: attn.weights(query, key[..., 1:], mask),
        )
    _wrong_masks(case, attn)
    _wrong_steps(case, attn)


def _wrong_masks(case: Case, attn: CheckedAttention) -> None:
    s = case.sizes

    def yes(*shape: int) -> Tensor:
        return torch.ones(shape, dtype=torch.bool, device=case.device)

    masks: dict[str, list[Tensor]] = {
        "key_valid": [
            yes(s.batch, s.keys + 1),
            yes(1, s.keys),
            yes(s.keys),
            yes(s.batch, s.heads, s.queries, s.keys),
        ],
        "allowed": [
            yes(s.queries, s.keys + 1),
            yes(s.queries + 1, s.keys),
            yes(s.heads - 1, 1, s.keys),
            yes(1, s.batch, s.heads, s.queries, s.keys),
        ],
        "bias": [
            yes(s.heads - 1, 1, s.keys).to(case.dtype),
            yes(s.batch + 1, 1, s.queries, s.keys).to(case.dtype),
        ],
    }
    if s.queries != s.keys:
        masks["key_valid"].append(yes(s.batch, s.queries))
        masks["allowed"].append(yes(s.keys, s.queries))
    for field, tensors in masks.items():
        for tensor in tensors if getattr(case.able, field) else ():
            mask = case.mask().replace(**{field: tensor})
            error = case.refuses(
                ShapeError,
                f"{field} of shape {tuple(tensor.shape)}",
                partial(attn, *case.inputs(), mask),
            )
            says(case, error, field, tuple(tensor.shape))
    if case.able.packed:
        short, causal = min(s.queries, s.keys), case.mask()
        case.refuses(
            ShapeError,
            "packed sequences in a batch of several",
            lambda: attn(*case.inputs(), causal & _moved(Mask.packed([short]), case)),
        )
        one = case.inputs(replace(s, batch=1))
        error = case.refuses(
            ShapeError,
            "packed offsets past the last row",
            lambda: attn(*one, causal & _moved(Mask.packed([s.queries, s.keys]), case)),
        )
        says(case, error, s.queries + s.keys)


def _moved(mask: Mask, case: Case) -> Mask:
    assert mask.cu_seqlens is not None
    return mask.replace(cu_seqlens=mask.cu_seqlens.to(case.device))


def _wrong_steps(case: Case, attn: CheckedAttention) -> None:
    if case.able.decode == "none":
        return
    s = replace(case.sizes, queries=case.sizes.keys)
    query, key, value = case.inputs(s)
    refused: list[tuple[str, Callable[[], Any]]] = [
        ("a step with fewer queries", lambda: attn.step(query[:, :, 1:], key, value)),
        (
            "a step with an offset of its own",
            lambda: attn.step(query, key, value, None, Mask(causal=True, query_offset=0)),
        ),
    ]
    for what, call in refused:
        case.refuses(ShapeError, what, call)
