"""A: approximations approach what they stand for, as they say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor

from attnreg.checked import CheckedAttention
from attnreg.conformance.case import Case, Inputs
from attnreg.conformance.checks import Laws
from attnreg.conformance.masks import Sizes
from attnreg.conformance.measure import LIMITS, relative, reseed
from attnreg.conformance.needs import tightest
from attnreg.mask import Mask
from attnreg.registry import Registry, default_registry
from attnreg.variant import Approximation, Variant

LAWS = Laws()


def claimed(case: Case) -> Approximation:
    """What the variant says it approximates; only for laws that need it."""
    found = case.variant.approximates
    assert isinstance(found, Approximation)  # Variant makes it one
    return found


SMALL = 0.4
"""Factor of the inputs at which random features are judged: their tails grow with the norm."""


def _target(case: Case) -> Variant:
    claim = claimed(case)
    registry = default_registry()
    if claim.variant not in registry:
        case.skip(f"{claim.variant}, which it approximates, is not installed")
    return registry[claim.variant]


def _common(case: Case, target: Variant, sizes: Sizes) -> tuple[CheckedAttention, Inputs, Mask]:
    """The exact variant, and a call that both take."""
    if str(case.dtype).removeprefix("torch.") not in target.capabilities.dtypes:
        case.skip(f"{target.name}, which it approximates, does not take {case.dtype}")
    exact = Registry().create(
        target,
        num_heads=sizes.heads,
        head_dim=sizes.head_dim,
        num_kv_heads=sizes.kv_heads,
        value_dim=sizes.value_dim,
        max_length=max(sizes.keys, sizes.queries),
    )
    exact = exact.to(device=case.device, dtype=case.dtype).eval()
    return exact, case.inputs(sizes, factor=SMALL), case.mask("none", sizes)


def _draws(case: Case, value: int, call: Inputs, mask: Mask, count: int) -> Tensor:
    """Outputs of so many draws of the features, stacked."""
    claim = claimed(case)
    attn = case.build({claim.option: value}, jitter=False)
    found = []
    for seed in range(count):
        _redraw(case, attn, seed)
        found.append(case.call(attn, *call, mask))
    return torch.stack(found)


def _redraw(case: Case, attn: CheckedAttention, seed: int) -> None:
    reseed(seed)
    with case.running("redraw()"):
        redraw: Any = attn.redraw
        redraw()


def _within(case: Case, *values: int) -> list[int]:
    """Those values that the option of the approximation takes."""
    claim = claimed(case)
    option = next((o for o in case.variant.options if o.name == claim.option), None)
    if option is None:
        case.holds(False, f"approximates names {claim.option!r}, which is no option of it")
        return []
    top = math.inf if option.maximum is None else option.maximum
    low = 0 if option.minimum is None else option.minimum
    return [v for v in values if low <= v <= top]


@LAWS.law("A-02", "claimed", needs=("random_features",))
def unbiased_features(case: Case) -> None:
    """The mean over many draws of random features approaches what they stand for.

    For variants whose ``approximates`` law says that the error falls as 1/OPTION: mean of 60
    draws (200 in the full profile) at 512 features, inputs N(0, 1) times 0.4. The relative error
    of the mean is below five standard errors, plus twice the variance of one draw, which bounds
    the bias of a ratio. A wrong kernel, such as exp(-|x|^2) for exp(-|x|^2 / 2), stays off.
    """
    sizes = replace(case.sizes, batch=1, queries=16, keys=16)
    exact, call, mask = _common(case, _target(case), sizes.fit(case.able))
    expected = exact(*call, mask).detach()
    count = 200 if case.full else 60
    for value in _within(case, 512)[-1:]:
        found = _draws(case, value, call, mask, count)
        spread = found.var(0).mean().sqrt() / expected.square().mean().sqrt()
        noise = float(spread)
        limit = 5 * noise / math.sqrt(count) + 2 * noise * noise + LIMITS[case.dtype]
        case.close(found.mean(0), expected, limit, f"the mean of {count} draws")


@LAWS.law("A-03", "claimed", needs=("random_features",))
def error_falls_with_features(case: Case) -> None:
    """The mean squared error of random features falls as 1/OPTION, as declared.

    Over 40 draws (100 in the full profile) at 32, 128 and 512 features: each step divides the
    mean squared error by 4; taken are 2.2 to 7.5, and below 0.02 at the last. Inputs N(0, 1)
    times 0.4: above that heavy tails hide the rate.
    """
    sizes = replace(case.sizes, batch=1, queries=16, keys=16).fit(case.able)
    exact, call, mask = _common(case, _target(case), sizes)
    expected = exact(*call, mask).detach()
    count = 100 if case.full else 40
    errors = []
    values = _within(case, 32, 128, 512)
    for value in values:
        found = _draws(case, value, call, mask, count)
        errors.append(float((found - expected).square().mean() / expected.square().mean()))
    case.notes["errors"] = dict(zip(map(str, values), errors, strict=True))
    for less, more in pairwise(errors):
        ratio = less / max(more, 1e-300)
        case.holds(
            2.2 <= ratio <= 7.5,
            f"four times as many features divide the mean squared error by {ratio:.2g}, not by 4",
            measured=ratio,
            limit=4.0,
        )
    if values and values[-1] == 512:
        case.holds(
            errors[-1] <= 0.02,
            f"at 512 features the relative mean squared error is still {errors[-1]:.2g}",
            measured=errors[-1],
            limit=0.02,
        )


@LAWS.law("A-04", "claimed", needs=("random_features",))
def orthogonal_features(case: Case) -> None:
    """Orthogonal random features are orthogonal in blocks, each distributed as N(0, I).

    For modules with a ``projection`` (OPTION, head_dim): the rows of each block of head_dim are
    orthogonal to 1e-6 where ``orthogonal`` is True; over 200 draws the squared length of a row
    has mean D and variance 2 D, and its mean direction is 0. Lengths fixed at sqrt(D), or
    directions that favour an axis, make the estimate biased.
    """
    claim = claimed(case)
    width = case.sizes.head_dim
    count = (_within(case, 2 * width + 3) or [width])[0]
    attn = case.build({claim.option: count}, jitter=False)
    drawn = getattr(attn.module, "projection", None)
    if not isinstance(drawn, Tensor) or tuple(drawn.shape) != (count, width):
        case.skip("its module has no projection (OPTION, head_dim)")
    rows: list[Tensor] = []
    for seed in range(200):
        _redraw(case, attn, seed)
        projection: Any = attn.projection
        rows.append(projection.detach().double().cpu().clone())
    every = torch.stack(rows)
    if getattr(attn.module, "orthogonal", False):
        for start in range(0, count, width):
            block = every[:, start : start + width]
            gram = block @ block.transpose(-1, -2)
            aside = gram - torch.diag_embed(gram.diagonal(dim1=-2, dim2=-1))
            case.holds(
                aside.abs().max() < 1e-6 * width,
                f"rows {start} to {start + block.shape[1] - 1} are not orthogonal: their largest "
                f"dot product is {float(aside.abs().max()):.2g}",
            )
    squares = every.square().sum(dim=-1)
    samples = squares.numel()
    case.holds(
        abs(float(squares.mean()) - width) < 6 * math.sqrt(2 * width / samples),
        f"the squared length of a row is {float(squares.mean()):.4g} on average, not {width}",
    )
    spread = float(squares.var())
    case.holds(
        0.75 * 2 * width < spread < 1.3 * 2 * width,
        f"the variance of a row's squared length is {spread:.4g}, not {2 * width}",
    )
    drift = every.reshape(-1, width).mean(0).abs().max() * math.sqrt(samples)
    case.holds(drift < 6, f"the mean of a row is {float(drift):.2g} standard errors off 0")


@LAWS.law("A-10", "claimed", needs=("approximates", "exact_law"))
def exact_at_its_tightest(case: Case) -> None:
    """Where the law says "exact where OPTION reach the whole sequence", it is.

    With every option that the law names at L and at 3 L, the output is that of the variant it
    stands for, which must be installed: 1e-9 in float64. Also written "exact where OPTION >= L".
    """
    options = tightest(case.variant)
    exact = _target(case)
    for length in (1, 2, 7, 12):
        sizes = replace(case.sizes, queries=length, keys=length).fit(case.able)
        target, call, _ = _common(case, exact, sizes)
        for name in ("none", "causal", "padding"):
            fields = {"none": (), "causal": ("causal",), "padding": ("key_valid",)}[name]
            if not all(
                getattr(able, f) for f in fields for able in (case.able, exact.capabilities)
            ):
                continue
            mask = case.mask(name, sizes)
            expected = target(*call, mask).detach()
            for value in (length, 3 * length):
                attn = case.build(dict.fromkeys(options, value), sizes=sizes)
                found = case.call(attn, *call, mask)
                what = f"{', '.join(options)} at {value}, {length} positions"
                case.close(found, expected, LIMITS[case.dtype], what)


@LAWS.law("A-11", "quality", needs=("approximates", "tightened"))
def tighter_is_no_worse(case: Case) -> None:
    """The error against what it stands for does not grow as its option is tightened.

    The median over seeds, at steps of a factor of 4; a tenth is forgiven. For laws that say
    "exact where OPTION reach the whole sequence", or "1/OPTION".
    """
    claim = claimed(case)
    named: Sequence[str] = tightest(case.variant)
    if not named and f"1/{claim.option}" in claim.law.replace(" ", ""):
        named = (claim.option,)
    length = 24
    sizes = replace(case.sizes, batch=1, queries=length, keys=length).fit(case.able)
    target, _, mask = _common(case, _target(case), sizes)
    errors: list[float] = []
    values = _within(case, 2, 8, 32, 128)
    for value in values:
        found: list[float] = []
        for seed in range(16 if case.full else 8):
            call = case.inputs(sizes, seed=seed, factor=SMALL)
            options: dict[str, Any] = dict.fromkeys(named, value)
            attn = case.build(options, sizes=sizes, seed=seed, jitter=False)
            found.append(relative(case.call(attn, *call, mask), target(*call, mask).detach()))
        errors.append(median(found))
    case.notes["errors"] = dict(zip(map(str, values), errors, strict=True))
    for value, less, more in zip(values[1:], errors[:-1], errors[1:], strict=True):
        case.holds(
            more <= 1.1 * less + LIMITS[case.dtype],
            f"at {claim.option}={value} the error is {more:.2g}, before it was {less:.2g}",
        )
