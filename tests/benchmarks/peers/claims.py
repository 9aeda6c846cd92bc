"""What is claimed of ours alone: the cost of a call, of a layer, of padding, packing, decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attnreg
from attnreg import AttentionLayer, Mask
from tests.benchmarks.peers import report
from tests.benchmarks.peers.measuring import MODES, call, difference, interleave, ratio
from tests.benchmarks.peers.memory import peaks
from tests.benchmarks.peers.ours import cache_mib, create, stepping
from tests.benchmarks.peers.report import Row
from tests.benchmarks.peers.setting import Core
from tests.benchmarks.peers.table import Wanted
from tests.benchmarks.peers.targets import SAME

OVERHEAD = 30e-6
UNEVEN = (1, 700, 3, 90, 400, 17, 350)
SKEWED = (1000, *[10] * 15)
EARLY, LATE = 10, 100_000
STEP = 1 / 1.1
"""A step that costs the same, to within what is told apart of calls this short."""


def claims(variant: str, wanted: Wanted) -> Iterator[Row]:
    """Measure every claim that concerns a variant."""
    can = attnreg.get_variant(variant).capabilities
    if variant == "scaled_dot_product":
        yield from overhead(variant, wanted)
        yield from layer(variant, wanted)
    if variant == "additive":
        yield from growth(variant, wanted)
    if can.key_valid:
        yield from padding(variant, wanted)
    if can.packed:
        yield from packing(variant, wanted)
    if can.decode == "recurrent":
        yield from late_step(variant, wanted)
    if can.decode == "cache":
        yield from cached_step(variant, wanted)


def overhead(variant: str, wanted: Wanted) -> Iterator[Row]:
    """What ``attn(q, k, v, mask)`` adds to the kernel that it calls."""
    setting = wanted.setting._replace(length=16)
    attn = create(variant, setting)
    q, k, v = setting.inputs(3)
    for causal in (False, True):
        calls = {
            "ours": partial(attn, q, k, v, Mask(causal=causal)),
            "bare": partial(F.scaled_dot_product_attention, q, k, v, is_causal=causal),
        }
        with torch.no_grad():
            added = difference(interleave(calls, wanted.seconds), "ours", "bare")
        low, median, high = (1e6 * value for value in (added.low, added.median, added.high))
        yield Row(
            variant,
            str(setting._replace(causal=causal)),
            "overhead of a call",
            "torch SDPA",
            measured=f"{median:.1f} us ({low:.1f}-{high:.1f})",
            target=f"< {1e6 * OVERHEAD:.0f} us",
            reached=added.median < OVERHEAD,
            goodness=-added.median,
            numbers=added._asdict(),
        )


def layer(variant: str, wanted: Wanted) -> Iterator[Row]:
    """``AttentionLayer`` beside torch's own layer, trained and evaluated."""
    for setting in wanted.settings((16, 64, 256, 1024, 4096)):
        torch.manual_seed(0)
        ours = AttentionLayer(setting.width, setting.heads, variant, dtype=setting.torch_dtype)
        other = nn.MultiheadAttention(
            setting.width, setting.heads, batch_first=True, dtype=setting.torch_dtype
        )
        x, gradient = (t.transpose(1, 2).flatten(2) for t in setting.inputs(2))
        leaf = x.clone().requires_grad_()

        def attend(x: Tensor, other: nn.Module = other) -> Tensor:
            return other(x, x, x, need_weights=False)[0]

        trained = {
            "ours": _training(ours, [leaf, *ours.parameters()], gradient),
            "other": _training(attend, [leaf, *other.parameters()], gradient),
        }
        evaluated = {"ours": partial(ours, x), "other": partial(attend, x)}
        for mode, calls in (("train", trained), ("eval", evaluated)):
            ours.train(mode == "train")
            other.train(mode == "train")
            with torch.set_grad_enabled(mode == "train"):
                faster = ratio(interleave(calls, wanted.seconds), "other", "ours")
            what = f"layer, {mode}"
            yield report.speed(variant, str(setting), what, "nn.MultiheadAttention", faster, SAME)


def _training(
    run: Callable[[Tensor], Tensor], leaves: list[Tensor], gradient: Tensor
) -> Callable[[], object]:
    return lambda: torch.autograd.grad(run(leaves[0]), leaves, gradient)


def growth(variant: str, wanted: Wanted) -> Iterator[Row]:
    """Memory that grows as the length does: four times the length, about four times as much."""
    short, long = (wanted.setting._replace(length=n) for n in (1024, 4096))
    used, reasons = peaks((variant,), (short, long), MODES[:1])
    for reason in reasons.values():
        yield report.failed(variant, str(long), variant, reason)
    if not used or reasons:
        return
    less, more = (used[variant, setting, MODES[0]] for setting in (short, long))
    yield Row(
        variant,
        f"L={short.length} to {long.length}",
        "growth of memory",
        "",
        measured=f"{less:.1f} to {more:.1f} MiB ({more / less:.3g}x)",
        target="<= 5x",
        reached=more <= 5 * less,
        goodness=less / more,
        numbers={"less": less, "more": more},
    )


def padding(variant: str, wanted: Wanted) -> Iterator[Row]:
    """The cost of padding, half of every second item, against the same mask without it."""
    can = attnreg.get_variant(variant).capabilities
    for causal in (False, True) if can.causal else (False,):
        for one in wanted.settings((512, 2048), causal):
            setting = one._replace(batch=max(2, one.batch))
            lengths = [setting.length // (1 + item % 2) for item in range(setting.batch)]
            attn, inputs = create(variant, setting), setting.inputs()
            bare = Mask(causal=causal)
            padded = bare & Mask.from_lengths(lengths)
            least = 1 / 1.1 if setting.length >= 2048 else 1 / 1.3
            for mode in MODES:
                calls = {
                    "padded": call(_masked(attn, padded), inputs, mode),
                    "bare": call(_masked(attn, bare), inputs, mode),
                }
                faster = ratio(interleave(calls, wanted.seconds), "bare", "padded")
                what = f"padding, {mode}"
                yield report.speed(variant, str(setting), what, "no padding", faster, least)


def packing(variant: str, wanted: Wanted) -> Iterator[Row]:
    """Packed sequences beside their separate calls, and beside padding."""
    for lengths, against, least in ((UNEVEN, "separate calls", SAME), (SKEWED, "padding", 3.0)):
        setting = wanted.setting._replace(length=sum(lengths), batch=1)
        attn, inputs = create(variant, setting), setting.inputs()
        other_inputs = inputs
        if against == "padding":
            batch, longest = len(lengths), max(lengths)
            other = _masked(attn, Mask.from_lengths(lengths))
            other_inputs = setting.inputs(batch=batch, length=longest)
        else:
            other = _apart(attn, lengths)
        for mode in MODES:
            calls = {
                "packed": call(_masked(attn, Mask.packed(lengths)), inputs, mode),
                "other": call(other, other_inputs, mode),
            }
            faster = ratio(interleave(calls, wanted.seconds), "other", "packed")
            case = f"lengths {', '.join(map(str, lengths[:4]))}, ..."
            yield report.speed(variant, case, f"packed, {mode}", against, faster, least)


def _masked(attn: nn.Module, mask: Mask) -> Core:
    return lambda q, k, v: attn(q, k, v, mask)


def _apart(attn: nn.Module, lengths: tuple[int, ...]) -> Core:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(*(t.split(lengths, dim=2) for t in (q, k, v)), strict=True)
        return torch.cat([attn(*part) for part in parts], dim=2)

    return attend


def late_step(variant: str, wanted: Wanted) -> Iterator[Row]:
    """A step after many tokens beside one after few, for a state of fixed size."""
    one = wanted.setting._replace(length=1)
    q, k, v = one.inputs(3)
    steps = {length: stepping(variant, one._replace(length=length)) for length in (EARLY, LATE)}
    with torch.no_grad():
        calls = {str(length): partial(step, q, k, v) for length, step in steps.items()}
        faster = ratio(interleave(calls, wanted.seconds), str(EARLY), str(LATE))
    yield report.speed(variant, f"token {LATE}", "step", f"token {EARLY}", faster, STEP)


def cached_step(variant: str, wanted: Wanted) -> Iterator[Row]:
    """What a step takes of memory beside the cache that it reads."""
    name = f"{variant}, a step on a cache"
    setting = wanted.setting._replace(length=16384)
    used, reasons = peaks((name,), (setting,), MODES[:1])
    case = f"token {setting.length}"
    for reason in reasons.values():
        yield report.failed(variant, case, name, reason)
    if not used or reasons:
        return
    ours = used[name, setting, MODES[0]]
    yield report.memory(variant, case, "memory, step", "its cache", ours, cache_mib(setting), 20)
