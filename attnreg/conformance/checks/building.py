"""R: what a constructor takes."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from attnreg.conformance.case import Case
from attnreg.conformance.checks import Laws
from attnreg.conformance.checks.refusal import says
from attnreg.conformance.masks import Sizes
from attnreg.conformance.settings import candidates
from attnreg.errors import (
    AttnregError,
    OptionError,
    ShapeError,
)
from attnreg.options import Option

LAWS = Laws()


def _outside(option: Option) -> list[Any]:
    """Values that an option does not take."""
    wrong: list[Any] = [object(), b"x", [None]]
    kinds = set(option.kinds)
    if option.choices:
        wrong += ["no such choice", -7]
    if str not in kinds and not option.choices:
        wrong.append("x")
    if type(None) not in kinds:
        wrong.append(None)
    if bool not in kinds:
        wrong += [True, False]
    numbers = {int, float} & kinds and not option.choices
    if numbers:
        wrong += [float("nan"), float("inf"), -float("inf"), 1j]
    if numbers and float not in kinds:
        wrong.append(2.5)
    if not numbers and not option.choices:
        wrong.append(3)
    if (numbers or tuple in kinds) and not option.choices:
        for bound, is_open, side in (
            (option.minimum, option.open_minimum, -1),
            (option.maximum, option.open_maximum, 1),
        ):
            if bound is not None:
                beyond = [bound + side, *([bound] if is_open else [])]
                beyond = [int(b) for b in beyond] if int in kinds or tuple in kinds else beyond
                wrong += [*(beyond if numbers else ()), *([(beyond[0],)] if tuple in kinds else ())]
    return wrong


@LAWS.law("R-07")
def values_out_of_range(case: Case) -> None:
    """Options, dropout, scale and sizes outside their range are refused when it is built.

    By ``OptionError`` (sizes: ``ShapeError``) that names the option; every default is inside its
    own range.
    """
    for option in case.variant.options:
        with case.running(f"the default of {option.name}"):
            option.check(option.default)
        for value in _outside(option):
            error = case.refuses(
                OptionError,
                f"{option.name}={value!r}",
                partial(case.build, {option.name: value}),
            )
            says(case, error, option.name)
    wrong: list[Any] = [-0.1, 1.0, float("nan"), float("inf"), True, "0.1", None]
    for value in wrong:
        case.refuses(OptionError, f"dropout={value!r}", partial(case.build, dropout=value))
    wrong = [float("nan"), float("inf"), "1", True]
    for value in wrong:
        case.refuses(OptionError, f"scale={value!r}", partial(case.build, scale=value))
    wrong = [0, -1, 2.0, True]
    sizes: list[tuple[str, Sizes]] = [
        (f"{name}={size!r}", replace(case.sizes, **{name: size}))
        for name in ("heads", "kv_heads", "head_dim", "value_dim")
        for size in wrong
    ]
    sizes.append(("kv_heads that do not divide heads", replace(case.sizes, heads=6, kv_heads=4)))
    for what, size in sizes:
        case.refuses(ShapeError, what, partial(case.build, sizes=size, jitter=False))


@LAWS.law("R-09")
def described(case: Case) -> None:
    """``variant.describe()`` is JSON, and the options in it build the same module again."""
    described = case.variant.describe()
    try:
        text = json.dumps(described, allow_nan=False)
    except (TypeError, ValueError) as error:
        case.holds(False, f"describe() is not JSON: {error}")
        return
    read = json.loads(text)
    case.holds(read["name"] == case.variant.name, "describe() gives another name")
    options = {option["name"]: option["default"] for option in read["options"]}
    case.holds(
        set(options) == {o.name for o in case.variant.options}, "describe() leaves out an option"
    )
    plain = case.build()
    with case.running("create with the options of describe()"):
        again = case.build(options)
    for name, tensor in plain.state_dict().items():
        if isinstance(tensor, Tensor):
            case.equal(again.state_dict()[name], tensor, f"{name} of the module built again")
    call = case.inputs()
    if case.able.deterministic:
        case.equal(case.call(again, *call), case.call(plain, *call))


@LAWS.law("R-10", "quality", needs=("options",))
def options_move(case: Case) -> None:
    """Every option can be moved from its default, so that the laws try it."""
    stuck = []
    for option in case.variant.options:
        if option.name not in case.settings.stuck:
            continue
        values = [value for value, _ in candidates(option)]
        if int in option.kinds and not option.choices:
            values += [v for v in (1, 2, 4, 6, 8, 16, 32, 64) if v != option.default]
        if not any(_builds(case, {option.name: value}) for value in values):
            stuck.append(option.name)
    case.holds(not stuck, f"no value but the default could be built: {', '.join(stuck)}")


def _builds(case: Case, options: dict[str, Any]) -> bool:
    try:
        case.build(options)
    except AttnregError:
        return False
    return True


@LAWS.law("R-11", needs=("options",))
def options_build(case: Case) -> None:
    """A value inside an option's declared range is built, or refused by ``OptionError``.

    One option at a time, bounds included, and the generated combinations; never another error.
    """
    tried = [
        {option.name: value} for option in case.variant.options for value, _ in candidates(option)
    ]
    tried += [dict(setting.options) for setting in case.settings.all]
    for options in tried:
        words = ", ".join(f"{k}={v!r}" for k, v in options.items())
        with case.running(f"create with {words}"):
            try:
                case.build(options)
            except AttnregError:
                continue
    case.holds(tried, "an option without any value")
