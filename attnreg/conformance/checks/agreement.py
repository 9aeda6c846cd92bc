"""N: the numbers are those of the formula, in every setting, implementation and dtype."""

from __future__ import annotations

from dataclasses import replace

import torch

from attnreg.conformance.case import Case, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.masks import RECIPES, Sizes
from attnreg.conformance.measure import LIMITS, relative
from attnreg.conformance.oracle import agrees, finite, nudged
from attnreg.errors import AttnregError

LAWS = Laws()

EVERY = tuple(RECIPES)
SMALL = Sizes(heads=4, queries=3, keys=7, head_dim=4, value_dim=3)


@LAWS.law("N-01", needs=("reference",))
def reference(case: Case) -> None:
    """The output is that of the NumPy reference, in every setting and implementation.

    Every generated setting and four seeds of the default one, at the usual sizes, in the widest
    dtype: relative error below 1e-9 in float64. Scale, softmax axis, projections, normaliser: a
    wrong constant anywhere shows here.
    """
    with torch.no_grad():  # else an implementation that has no gradient in float64 is left out
        together = [setting for setting in case.settings.all if len(setting.options) > 1]
        case.each(agrees, case.samples(settings=(*case.settings.each, *together)))
        case.each(agrees, case.samples(seeds=range(1, 4)))


@LAWS.law("N-02", "claimed", needs=("cross", "reference"))
def cross(case: Case) -> None:
    """Cross-attention, with fewer or more queries than keys, is that of the reference.

    Lengths (9, 5), (1, 7), (7, 1), (33, 65), plain, causal from either corner, and padded, as far
    as declared; every setting with (3, 8) and (8, 3): relative error below 1e-9 in float64. A
    pattern or a mask that takes both lengths for one, or aligns the wrong ends, shows here.
    """
    lengths = ((5, 9), (9, 5), (1, 7), (7, 1), (2, 3))
    sizes = [replace(case.sizes, queries=q, keys=k) for q, k in lengths]
    sizes.append(replace(case.sizes, batch=1, queries=33, keys=65))
    masks = ("none", "causal", "top-left", "padding", "window-causal")
    with torch.no_grad():
        case.each(agrees, case.samples(masks=masks, sizes=sizes))
        fewer = [replace(SMALL, queries=3, keys=8), replace(SMALL, queries=8, keys=3)]
        case.each(agrees, case.samples(settings=case.usual, sizes=fewer))


@LAWS.law("N-03", needs=("reference",))
def dims(case: Case) -> None:
    """The output is that of the reference for other head counts and dimensions too.

    Head dimensions 1 to 64, odd ones included, one head to twelve, every ratio of query heads to
    key heads and other value dimensions where declared: below 1e-9 in float64. Sizes that the
    constructor refuses are left out. A constant that is right for one size only shows here.
    """
    wanted = (
        case.sizes,
        Sizes(2, 4, 4, 5, 9, 16, 5),
        Sizes(2, 5, 1, 5, 9, 9, 11),
        Sizes(1, 1, 1, 5, 9, 1, 1),
        Sizes(1, 3, 3, 5, 9, 64, 17),
        Sizes(2, 6, 3, 5, 9, 4, 2),
        Sizes(3, 8, 2, 5, 9, 32, 32),
        Sizes(1, 12, 4, 5, 9, 3, 7),
    )
    sizes = list(dict.fromkeys(one.fit(case.able) for one in wanted))
    with torch.no_grad():
        case.each(agrees, case.samples(masks=("none", "causal"), sizes=sizes))


def _scaled(trial: Trial) -> None:
    case, scale = trial.case, trial.sample.scale
    able = case.able
    if case.variant.reference is not None and (able.weights == "exact" or not scale or scale < 10):
        agrees(trial)  # at 1e4 features, unlike a softmax, may rightly underflow
    if able.normalized or scale is None or abs(scale) <= 1.0:
        finite(trial, trial.run(), f"output at scale={scale}")
    if scale == 0.0 and able.normalized and not able.positional and able.weights == "exact":
        visible = trial.visible()
        with case.running("attn.weights"):
            usual = case.build(trial.sample.options, dtype=case.dtype, sizes=trial.sizes)
            weights = usual.weights(trial.query, trial.key, trial.mask)
        if bool((weights[visible] <= 0).any()):
            return  # it leaves keys out by itself, and which of equals is its own affair
        if trial.mask.bias is not None:
            return  # a bias is added after the scale
        keep = visible.to(trial.value.dtype)
        group = trial.sizes.heads // trial.sizes.kv_heads
        total = keep @ trial.value.repeat_interleave(group, dim=1)
        mean = total / keep.sum(-1, keepdim=True).clamp(min=1)
        trial.close(trial.run(), mean, case.same * 10, "output at scale=0 against the mean")


@LAWS.law("N-08", needs=("scale",))
def scale(case: Case) -> None:
    """A given scale is used: 0 averages the visible values, 0.37 is the reference's, 1e4 is finite.

    Against the reference where there is one. Where the weights are exact, normalized and do not
    depend on the order, and leave no visible key out, a scale of 0 gives the mean of what each row
    sees. A scale that is dropped, applied twice, or not handed to one implementation shows here.
    """
    masks = ("none", "causal", "padding", "bias", "allowed")
    with torch.no_grad():
        case.each(_scaled, case.samples())
        for value in (0.37, 0.0, 1.9, 1e4):
            case.each(_scaled, case.samples(masks=masks, scale=value))


def _constant(trial: Trial) -> None:
    case, sizes = trial.case, trial.sizes
    generator = torch.Generator().manual_seed(3)
    shape = (sizes.batch, sizes.kv_heads, 1, sizes.value_dim)
    held = (3.5 + torch.randn(shape, generator=generator, dtype=torch.float64)).to(trial.value)
    found = trial.run(value=held.expand_as(trial.value).contiguous())
    expected = held.repeat_interleave(sizes.heads // sizes.kv_heads, dim=1).expand_as(found)
    sees = trial.visible().any(dim=-1, keepdim=True)
    if case.able.positional:  # its own pattern may leave a row without a key
        sees = sees & ~(found == 0).all(dim=-1, keepdim=True)
    expected = torch.where(sees, expected, torch.zeros_like(expected))
    trial.close(found, expected, max(trial.limit, 1e-10), "output for values that are all the same")


@LAWS.law("N-09", "claimed", needs=("normalized",))
def constant(case: Case) -> None:
    """Values that are all the same come out as they are: the weights of a row sum to 1.

    A different constant per item, head and column, under every mask, in every setting and dtype;
    rows that see nothing give 0. A normaliser over other keys than the sum, and a head that reads
    another head's values, show here without a reference.
    """
    with torch.no_grad():
        case.each(_constant, case.samples(masks=EVERY, sizes=[SMALL]))
        case.each(_constant, case.samples(settings=case.usual))
        for one in (Sizes(1, 2, 1, 1, 1), Sizes(1, 2, 1, 65, 65), Sizes(1, 2, 1, 3, 130)):
            samples = case.samples(masks=("none", "causal"), sizes=[one], dtypes=case.dtypes)
            case.each(_constant, samples)


def _linear(trial: Trial) -> None:
    other = trial.case.inputs(trial.sizes, dtype=trial.sample.dtype, seed=trial.sample.seed + 50)[2]
    first, second = trial.run(), trial.run(value=other)
    mixed = trial.run(value=2.5 * trial.value - 0.75 * other)
    limit = 1e-11 if trial.sample.dtype is torch.float64 else 4 * trial.limit
    trial.close(mixed, 2.5 * first - 0.75 * second, limit, "output for a mixture of values")


@LAWS.law("N-10", "claimed", needs=("weights",))
def linear(case: Case) -> None:
    """The output is linear in the values: f(a V + b W) = a f(V) + b f(W).

    What has weights, exact or implied, is. Every mask and setting, in the widest dtype, 1e-11 in
    float64. A bias, a clamp or a nonlinearity on the way of the values shows here.
    """
    with torch.no_grad():
        case.each(_linear, case.samples(masks=EVERY, sizes=[SMALL]))
        case.each(_linear, case.samples(settings=case.usual))


def _as_eager(trial: Trial) -> None:
    case, attn = trial.case, trial.attn
    try:
        attn.implementation = "eager"
        expected = case.call(attn, *trial.inputs, trial.mask)
        generator = torch.Generator().manual_seed(0)
        eps = torch.finfo(trial.sample.dtype).eps
        query, key, value = (nudged(t, eps, generator).to(t) for t in trial.inputs)
        moved = case.call(attn, query, key, value, trial.mask)
    finally:
        attn.implementation = trial.sample.implementation
    found = trial.run()
    limit = max(case.same, 8 * relative(moved, expected))
    trial.close(found, expected, limit, f"{trial.sample.implementation} against eager")


@LAWS.law("N-11", needs=("several",))
def implementations(case: Case) -> None:
    """Every implementation gives what eager gives, under every mask.

    In the widest dtype, 1e-11 in float64 (and eight times what the last digits of the inputs
    change). All masks at the usual sizes and beyond one tile or chunk (1, 63, 65, 130 keys), all
    settings without a mask. A kernel that knows only some masks or lengths shows here.
    """
    others = [name for name in case.implementations() if name != "eager"]
    longer = [Sizes(1, 4, 2, k, k, 8, 6) for k in (1, 63, 65)] + [Sizes(2, 2, 1, 40, 130, 8, 6)]
    masks = ("none", "causal", "padding", "window-causal", "packed", "allowed", "bias")
    with torch.no_grad():
        case.each(_as_eager, case.samples(masks=EVERY, implementations=others))
        case.each(_as_eager, case.samples(masks=masks, sizes=longer, implementations=others))
        chosen = case.samples(settings=case.usual, implementations=others)
        case.each(_as_eager, chosen)


@LAWS.law("N-12", "claimed", needs=("reference", "masks"))
def masked_settings(case: Case) -> None:
    """Every option holds under every mask: the output is that of the reference.

    Every mask with the default options, and each other setting with its share of the masks, which
    is larger, or all, in the full profile. Below 1e-9 in float64. An option that one mask's code
    forgets shows here.
    """
    settings = case.settings.all
    with torch.no_grad():
        case.each(agrees, case.samples(masks=EVERY, sizes=[SMALL]))
        share = min(max(2, len(settings) - 1), 6)
        if case.full:
            share = 1 + len(settings) // 10
        for index, setting in enumerate(settings[1:]):
            masks = EVERY[index % share :: share]
            case.each(agrees, case.samples(settings=[setting], masks=masks, sizes=[SMALL]))


@LAWS.law("N-13", needs=("scale",))
def default_scale(case: Case) -> None:
    """The default scale is 1/sqrt(head_dim) for every head_dim, or for none.

    Called with no scale and with 1/sqrt(head_dim), at head dimensions 5, 8, 12, 32 and 64: equal
    at all of them or at none. A default that was right for one head dimension and is a constant
    shows here, even where the reference reads it from the module.
    """
    follows: dict[int, bool] = {}
    with torch.no_grad():
        for width in (8, 5, 12, 32, 64):
            sizes = replace(case.sizes, head_dim=width).fit(case.able)
            try:
                attn = case.build(sizes=sizes)
                given = case.build(sizes=sizes, scale=width**-0.5)
            except AttnregError:  # a size or a scale that it does not take
                continue
            inputs = case.inputs(sizes)
            outputs = [case.call(one, *inputs, case.mask("none", sizes)) for one in (attn, given)]
            follows[width] = relative(*outputs) <= 10 * LIMITS[case.dtype]
    yes = [width for width, same in follows.items() if same]
    no = [width for width, same in follows.items() if not same]
    case.holds(
        not (yes and no),
        f"the default scale is 1/sqrt(head_dim) for head_dim {yes}, but not for {no}",
    )
