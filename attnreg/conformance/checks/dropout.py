"""P, continued: dropout acts on the weights, in training mode, and is unbiased."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from attnreg.checked import CheckedAttention
from attnreg.conformance.case import Case, Inputs, Trial
from attnreg.conformance.checks import Laws
from attnreg.conformance.masks import RECIPES, Sizes
from attnreg.conformance.measure import LIMITS, relative, reseed
from attnreg.conformance.trial import takes
from attnreg.mask import Mask

LAWS = Laws()

P = 0.4
ITEMS = 300


@LAWS.law("P-01", "claimed", needs=("dropout",))
def no_dropout_in_evaluation(case: Case) -> None:
    """In evaluation mode there is no dropout, also after training and in the weights.

    With dropout 0.9: calls after other seeds are equal bit by bit, and equal those of a module
    without dropout, for every kind of mask, implementation and dtype.
    """

    def probe(trial: Trial) -> None:
        sample = trial.sample
        attn = case.build(
            sample.options,
            implementation=sample.implementation,
            dtype=sample.dtype,
            sizes=sample.sizes,
            dropout=0.9,
            train=True,
        )
        call = (*trial.inputs, trial.mask)
        attn.load_state_dict(trial.attn.state_dict())
        if takes(attn, *call):
            case.call(attn, *call)
        attn.eval()
        if not takes(attn, *call):
            return
        expected = trial.run()
        with case.running("the call"), torch.no_grad():
            reseed(1)
            first = attn(*call)
            reseed(2)
            second = attn(*call)
        if case.able.deterministic and case.device.type == "cpu":
            trial.equal(second, first, "output of two calls with dropout=0.9 in evaluation mode")
        trial.close(case.call(attn, *call), expected, trial.near(), "output with dropout=0.9")
        if case.able.weights != "none":
            with case.running("attn.weights"), torch.no_grad():
                found = attn.weights(*call[:2], trial.mask)
                plain = trial.attn.weights(*call[:2], trial.mask)
            trial.close(found, plain, trial.near(), "weights with dropout=0.9")

    masks = ("none", "causal", "padding", "bias-causal", "packed")
    case.each(probe, case.samples(masks=masks))
    case.each(probe, case.samples(dtypes=case.dtypes[1:]))
    long = replace(case.sizes, batch=1, queries=66, keys=66)
    case.each(probe, case.samples(sizes=(long,), masks=("none", "causal")))


def _droppers(case: Case, sizes: Sizes, masks: tuple[str, ...]) -> Iterator[tuple[str, Call]]:
    """Training modules with dropout, of every implementation, and of the families in tiles too."""
    names, sizes = case.implementations(), sizes.fit(case.able)
    suited = [m for m in masks if RECIPES[m].suits(case.able)]
    if not case.able.noncausal:
        suited = [m for m in suited if m != "none"]
    for mask_name in suited:
        mask = case.mask(mask_name, replace(sizes, batch=1))
        for name in names if len(names) > 1 else ("auto",):
            for tile in (None, 1):
                attn = case.build(implementation=name, dropout=P, sizes=sizes, train=True)
                if tile is not None:
                    if not isinstance(getattr(attn.module, "tile_elements", None), int):
                        continue
                    attn.module.tile_elements = tile  # type: ignore[assignment]  # an attribute of the families
                what = f"{name}{', in tiles' if tile else ''}, mask {mask_name!r}"
                made = Call(case, attn, case.inputs(replace(sizes, batch=1)), mask)
                if takes(attn, *made.inputs, mask):
                    yield what, made


class Call:
    """A training module with dropout and one call, repeated along the batch."""

    def __init__(self, case: Case, attn: CheckedAttention, inputs: Inputs, mask: Mask) -> None:
        self.case = case
        self.attn = attn
        self.inputs = inputs
        self.mask = mask

    def run(self, inputs: Inputs | None = None, items: int = 1) -> Tensor:
        """Call with every batch item the same."""
        query, key, value = (
            t.expand(items, *t.shape[1:]).contiguous() for t in inputs or self.inputs
        )
        mask = self.mask
        if mask.key_valid is not None:
            mask = mask.replace(key_valid=mask.key_valid.expand(items, -1))
        with self.case.running("the call in training mode"), torch.no_grad():
            output: Tensor = self.attn(query, key, value, mask)
        shape = (*query.shape[:3], value.shape[3])
        self.case.holds(tuple(output.shape) == shape, f"training gave {tuple(output.shape)}")
        return output

    def evaluated(self) -> Tensor:
        """The output without dropout."""
        self.attn.eval()
        output = self.run()
        self.attn.train()
        return output

    def weights(self) -> Tensor:
        """The weights, which dropout does not change."""
        self.attn.eval()
        with self.case.running("attn.weights"), torch.no_grad():
            found: Tensor = self.attn.weights(self.inputs[0], self.inputs[1], self.mask)
        self.attn.train()
        return found.to(self.inputs[0].dtype)

    def is_linear(self) -> bool:
        """Whether the output is linear in the values."""
        query, key, value = self.inputs
        self.attn.eval()
        other = value.flip(3) + 0.5
        parts = [self.run((query, key, v)) for v in (value, other, value + 2.0 * other)]
        self.attn.train()
        return bool(torch.allclose(parts[0] + 2.0 * parts[1], parts[2], rtol=1e-4, atol=1e-5))


SIZES = Sizes(ITEMS, 2, 1, 6, 6, 8, 8)  # as many features as keys: one-hot values fit
SOME = ("none", "causal", "bias-keys")


@LAWS.law("P-02", "claimed", needs=("dropout",))
def dropout_is_unbiased(case: Case) -> None:
    """The mean of many training outputs is the output without dropout.

    1200 outputs at dropout 0.4: every entry's mean lies within 6 standard errors. A factor
    1 / (1 - p) that is missing, doubled or applied to scores lies a hundred away.
    """
    for what, call in _droppers(case, SIZES, SOME):
        if case.able.weights == "none" and not call.is_linear():
            case.skip("its output is not linear in the values")
        reseed(21)
        drawn = torch.cat([call.run(items=ITEMS) for _ in range(4)]).double()
        mean, spread = drawn.mean(0), drawn.std(0)
        expected = call.evaluated()[0].double()
        level = 1e-6 * expected.abs().max().clamp(min=1.0)
        off = (mean - expected).abs() / (spread / len(drawn) ** 0.5 + level)
        case.holds(
            bool(off.isfinite().all()) and float(off.max()) < 6.0,
            f"{what}: the mean of {len(drawn)} outputs is {float(off.max()):.3g} standard errors "
            "from the output without dropout",
            measured=float(off.max()),
            limit=6.0,
            expected=expected,
            actual=mean,
        )


@LAWS.law("P-03", "claimed", needs=("dropout", "exact"))
def dropout_has_the_right_variance(case: Case) -> None:
    """The variance of training outputs is that of dropping each weight by itself.

    p / (1 - p) times the sum of squared weights times squared values, entry by entry within a
    quarter (root mean square). Dropping scores or outputs gives another.
    """
    for what, call in _droppers(case, SIZES, SOME):
        reseed(22)
        drawn = torch.cat([call.run(items=ITEMS) for _ in range(4)]).double()
        value = call.inputs[2].double()
        value = value.repeat_interleave(drawn.shape[1] // value.shape[1], 1)
        expected = P / (1.0 - P) * call.weights()[0].double().square() @ value[0].square()
        found = drawn.var(0)
        error = relative(found, expected)
        case.holds(
            error < 0.25,
            f"{what}: the variance is {error:.0%} off that of dropping weights",
            measured=error,
            limit=0.25,
            actual=found,
            expected=expected,
        )


def _dropped_weights(call: Call, items: int) -> tuple[Tensor, Tensor]:
    """The weights before dropout, (1, H, Lq, keys), and after it, (B, H, Lq, keys).

    Of as many keys as a value has features.
    """
    query, key, value = call.inputs
    keys = min(value.shape[2], value.shape[3])
    one_hot = torch.eye(value.shape[2], value.shape[3], dtype=value.dtype, device=value.device)
    output = call.run((query, key, one_hot.expand_as(value)), items)
    return call.weights()[0][..., :keys], output[..., :keys]


@LAWS.law("P-13", "claimed", needs=("dropout", "exact"))
def dropout_keeps_or_drops(case: Case) -> None:
    """Dropout multiplies each weight by 0 or 1 / (1 - p), alike for all features of the value.

    Seen through one-hot values: every entry is 0 or its weight times 1 / (1 - p), a share p of
    them 0, hidden keys stay hidden and a row without a key stays 0. Values whose features are all
    alike give outputs whose features are.
    """
    masks = (*SOME, "padding", "blind-rows", "allowed", "bias")
    for what, call in _droppers(case, replace(SIZES, batch=40), masks):
        reseed(23)
        before, after = _dropped_weights(call, 40)
        kept = (before / (1.0 - P)).expand_as(after)
        small = max(1e-6, 4.0 * LIMITS[before.dtype])
        is_zero = after.abs() <= small * kept.abs().clamp(min=small)
        is_kept = (after - kept).abs() <= small * kept.abs().clamp(min=small)
        case.holds(
            bool((is_zero | is_kept).all()),
            f"{what}: a dropped weight is neither 0 nor the weight over 1 - p",
            expected=kept[0],
            actual=after[0],
        )
        counted = kept.abs() > 10 * small
        share = float(is_zero[counted].double().mean()) if counted.any() else P
        room = 6.0 * (P * (1.0 - P) / max(1, int(counted.sum()))) ** 0.5
        case.holds(
            abs(share - P) <= room,
            f"{what}: dropout {P} drops a share of {share:.3g}",
            measured=share,
        )
        query, key, value = call.inputs
        alike = call.run((query, key, value[..., :1].expand_as(value)))
        case.close(alike, alike[..., :1].expand_as(alike), case.same, f"{what}: features")


@LAWS.law("P-12", "claimed", needs=("dropout",))
def dropout_is_independent(case: Case) -> None:
    """Every weight is dropped by a draw of its own: not one for all items, heads or rows.

    No two of 40 equal batch items come out alike; seen through one-hot values, where weights are
    exact, neighbouring items, heads, rows and keys agree as often as independent draws do.
    """
    for what, call in _droppers(case, replace(SIZES, batch=40), ("none", "causal")):
        reseed(24)
        outputs = call.run(items=40)
        alike = [bool(torch.equal(a, b)) for a, b in pairwise(outputs)]
        case.holds(not any(alike), f"{what}: equal batch items are dropped alike")
        if case.able.weights != "exact":
            continue
        before, after = _dropped_weights(call, 40)
        shown = (before.abs() > 1e-5).expand_as(after)
        gone = (after.abs() < 1e-7) & shown
        for axis, name in enumerate(("items", "heads", "rows", "keys")):
            if gone.shape[axis] < 2:
                continue
            length = gone.shape[axis] - 1
            both = shown.narrow(axis, 0, length) & shown.narrow(axis, 1, length)
            agree = gone.narrow(axis, 0, length) == gone.narrow(axis, 1, length)
            count = int(both.sum())
            share = float(agree[both].double().mean()) if count else 0.5
            expected = P**2 + (1.0 - P) ** 2
            case.holds(
                abs(share - expected) < max(0.1, 6.0 * (0.25 / max(1, count)) ** 0.5),
                f"{what}: neighbouring {name} agree on what is dropped in a share of {share:.3g}, "
                f"independent draws in {expected:.3g}",
            )


@LAWS.law("P-04", "claimed", needs=("dropout",))
def dropout_follows_the_generator(case: Case) -> None:
    """Dropout is drawn from torch's generator: the same after the same seed, else another.

    The same seed gives the same bits on the CPU; another seed, and the next call, give another
    output.
    """
    for what, call in _droppers(case, replace(SIZES, batch=2), ("none", "causal", "padding")):
        outputs = []
        for seed in (5, None, 5, 6):
            if seed is not None:
                reseed(seed)
            outputs.append(call.run(items=2))
        if case.device.type == "cpu":
            case.equal(outputs[2], outputs[0], f"{what}: output after the same seed")
        else:
            case.close(outputs[2], outputs[0], case.same, f"{what}: output after the same seed")
        for index, name in ((1, "the next call"), (3, "a call after another seed")):
            case.holds(
                not torch.equal(outputs[index], outputs[0]), f"{what}: {name} drops the same"
            )


@LAWS.law("P-11", "claimed", needs=("dropout", "exact"))
def weights_are_before_dropout(case: Case) -> None:
    """``attn.weights`` shows the weights before dropout, in training mode too.

    Bit by bit as in evaluation mode, or refused with the typed error where they could only be
    seen through an output that dropout has changed.
    """
    for what, call in _droppers(case, replace(SIZES, batch=1), ("none", "causal")):
        expected = call.weights()
        try:
            with torch.no_grad():
                found = call.attn.weights(call.inputs[0], call.inputs[1], call.mask)
        except NotImplementedError:
            case.holds(True, "refused")
            continue
        case.close(found.to(expected.dtype), expected, case.same, f"{what}: weights in training")


@LAWS.law("P-15", "claimed", needs=("dropout", "differentiable"))
def gradients_of_dropout(case: Case) -> None:
    """The backward pass drops what the forward pass dropped.

    Where the output is linear in the values, the gradient of the values times the values is the
    output times the arriving gradient; in float64, the gradients of query and key agree with
    central differences under the same seed.
    """
    sizes = Sizes(2, 2, 1, 5, 6, 8, 8).fit(case.able)
    for what, call in _droppers(case, sizes, ("none", "causal")):
        attn = call.attn
        inputs = tuple(t.clone().requires_grad_() for t in case.inputs(sizes))
        query, key, value = inputs
        if not takes(attn, query, key, value, call.mask):
            continue
        reseed(31)
        with case.running("the call in training mode"):
            output = attn(query, key, value, call.mask)
        grad = torch.linspace(-1.0, 1.5, output.numel(), device=output.device).to(output.dtype)
        grad = grad.view(output.shape)
        with case.running("the backward pass"):
            found = torch.autograd.grad(output, inputs, grad, allow_unused=True)
        if case.able.weights != "none" and found[2] is not None:
            mine, theirs = (found[2] * value).sum(), (output * grad).sum()
            case.close(mine, theirs, 10 * case.same, f"{what}: gradient of the values")
        if case.dtype is not torch.float64:
            continue
        for index, name in enumerate(("query", "key", "value")):
            if found[index] is None:
                continue
            generator = torch.Generator().manual_seed(index)
            step = torch.randn(inputs[index].shape, generator=generator, dtype=torch.float64)
            step = 1e-6 * step.to(case.device)
            ends = []
            for sign in (1.0, -1.0):
                moved = [t.detach() for t in inputs]
                moved[index] = moved[index] + sign * step
                reseed(31)
                with case.running("the call in training mode"), torch.no_grad():
                    ends.append((attn(*moved, call.mask) * grad).sum())
            expected = (ends[0] - ends[1]) / 2.0
            case.close(
                (found[index] * step).sum() * 1e6,
                expected * 1e6,
                1e-4,
                f"{what}: gradient of {name} along a direction",
            )
