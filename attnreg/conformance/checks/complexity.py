"""Q: time and memory grow as declared."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from attnreg.checked import CheckedAttention
from attnreg.conformance.case import Case
from attnreg.conformance.checks import Laws
from attnreg.conformance.masks import Sizes
from attnreg.conformance.measure import Failure, reseed
from attnreg.conformance.recording import Recording
from attnreg.mask import Mask
from attnreg.registry import Registry

LAWS = Laws()

PAIRS = ((128, 512), (512, 2048), (1024, 4096))
"""Lengths that are compared. A tile of fixed size is quadratic until it is full: only the longer
pairs show that it is fixed."""

_TERM = re.compile(
    r"(sqrt\(?L\)?|log\(?L\)?|L|[A-Za-z]\w*|\d+)(?:(?:\^|\*\*)([\d.]+(?:/[\d.]+)?))?"
)


def growth(text: str) -> Callable[[float], float]:
    """Read a complexity: a product of powers of L, log L, sqrt(L) and of names for constants.

    "1", "L", "L log L", "L^1.5", "L^2", "O(L * rank)". Raises ``Failure`` for anything else.
    """
    body = text.strip()
    body = body[2:-1] if re.fullmatch(r"O\(.*\)", body) else body
    factors: list[tuple[str, float]] = []
    for part in re.split(r"[\s*·]+(?!\*)", body.replace("**", "^").replace("log L", "log(L)")):
        found = _TERM.fullmatch(part)
        if found is None:
            raise Failure(
                f"the complexity {text!r} cannot be read; write a product such as '1', 'L', "
                "'L log L', 'L^1.5', 'L^2' or 'L * rank', where L is the length of the keys"
            )
        top, _, bottom = (found[2] or "1").partition("/")
        factors.append((found[1], float(top) / float(bottom or 1)))
    if "L" not in body and not body.isdecimal():
        raise Failure(f"the complexity {text!r} does not speak of L, the length of the keys")

    def value(length: float) -> float:
        product = 1.0
        for name, power in factors:
            base = {"L": length, "sqrt": math.sqrt(length), "log": math.log(length)}
            product *= base.get(name.partition("(")[0].removesuffix("L") or "L", 1.0) ** power
        return product

    return value


class Measured:
    """A module on one length: what a forward call takes, in the dtype most models use."""

    def __init__(self, case: Case, longest: int) -> None:
        self.case = case
        self.sizes = Sizes(batch=1, heads=1, kv_heads=1, head_dim=8, value_dim=8).fit(case.able)
        self.dtype = torch.float32 if torch.float32 in case.dtypes else case.dtype
        reseed(11)
        with case.running("create"):
            attn = Registry().create(
                case.variant, num_heads=1, head_dim=8, max_length=max(longest, PAIRS[-1][1])
            )
        self.attn: CheckedAttention = attn.to(device=case.device, dtype=self.dtype).eval()

    def call(self, length: int, name: str) -> tuple[tuple[Tensor, Tensor, Tensor], Mask]:
        """Inputs and mask of one length."""
        generator = torch.Generator().manual_seed(length)
        query, key, value = (
            torch.randn(1, 1, length, 8, generator=generator).to(self.dtype).to(self.case.device)
            for _ in range(3)
        )
        if name == "padding":
            kept = torch.arange(length, device=self.case.device)[None] < length - length // 8
            mask = Mask(key_valid=kept, causal=not self.case.able.noncausal)
        else:
            mask = Mask(causal=name == "causal" or not self.case.able.noncausal)
        return (query, key, value), mask

    def record(self, length: int, name: str) -> tuple[int, Recording]:
        """The largest storage of a call in bytes, and what else was seen of it."""
        inputs, mask = self.call(length, name)
        tensors = [*inputs, *self.attn.parameters(), *self.attn.buffers()]
        tensors += [] if mask.key_valid is None else [mask.key_valid]
        with torch.no_grad(), Recording(tensors) as recorded:
            output = self.case.call(self.attn, *inputs, mask)
        return recorded.largest(output), recorded

    def kept(self, length: int, name: str) -> int:
        """How many bytes autograd keeps of a call for its backward pass, inputs apart."""
        inputs, mask = self.call(length, name)
        for tensor in inputs:
            tensor.requires_grad_()
        known = {t.untyped_storage().data_ptr() for t in (*inputs, *self.attn.parameters())}
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            if tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in known:
                    sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = self.case.call(self.attn, *inputs, mask)
        sizes.pop(output.untyped_storage().data_ptr(), None)
        return sum(sizes.values())


def _pairs(case: Case, measured: Measured) -> Iterator[tuple[int, int]]:
    """Pairs of lengths: from the longest that is cheap on, as far as is bearable.

    What is cheap goes by the work of short calls, so that the choice is the same every time. Only
    a call of seconds, at lengths that tell nothing, is given up.
    """
    name = _masks(case)[0]
    measured.record(8, name)  # the first call warms up
    for length, bearable in ((32, 1.0), (128, 4.0)):
        started = time.perf_counter()
        less = _cost(measured.record(length, name)[1])
        seconds = time.perf_counter() - started
        if seconds > bearable:
            case.skip("a call is too slow to be measured at lengths that tell")
    more = _cost(measured.record(256, name)[1])
    power = max(1.0, math.log2(max(more, 1) / max(less, 1)))
    cheap = 4e8 if case.full else 4e7
    chosen = 0
    for index, (_, longest) in enumerate(PAIRS):
        if more * (longest / 256) ** power < cheap:
            chosen = index
    for pair in PAIRS[chosen:]:
        if pair is PAIRS[chosen] or more * (pair[1] / 256) ** power < 10 * cheap:
            yield pair


def _cost(seen: Recording) -> float:
    """Entries of results, and operations of products, many of which take the time of one entry."""
    return seen.entries + seen.operations / 64


def _masks(case: Case) -> list[str]:
    able = case.able
    names = ["none"] if able.noncausal else []
    names += ["causal"] if able.causal else []
    return names + (["padding"] if able.key_valid else [])


def _grows(
    case: Case,
    declared: str,
    what: str,
    find: Callable[[Measured, int, str], int],
    slack: float,
) -> None:
    """Compare a quantity at two lengths with what is declared; a longer pair may still acquit."""
    law = growth(declared)
    measured = Measured(case, PAIRS[-1][1])
    pairs = list(_pairs(case, measured))
    for name in _masks(case):
        said: dict[str, Any] = {}
        for short, long in pairs:
            less, more = find(measured, short, name), find(measured, long, name)
            ratio, allowed = more / max(less, 1), law(long) / law(short) * slack
            said = {"measured": ratio, "limit": allowed, "at": {short: less, long: more}}
            if ratio <= allowed or more <= 4096:
                said = {}
                break
        case.holds(
            not said,
            f"{what} grows by {said.get('measured', 0):.3g} from L = {pairs[-1][0]} to "
            f"{pairs[-1][1]} (mask: {name}); {declared!r} allows {said.get('limit', 0):.3g}",
            **said,
        )


@LAWS.law("Q-01", "claimed", needs=("complexity",))
def memory(case: Case) -> None:
    """The largest storage of a forward call grows no faster than the declared memory.

    Every storage that an operator of torch makes is seen, those inside fused calls too, without a
    mask, causal and padded; those of inputs, parameters and output do not count. The longest of
    three pairs of lengths up to 1024 and 4096 that the variant's work makes cheap, and longer ones
    before it fails: at most 1.5 times the declared ratio, so that an (L, L) mask or score shows.
    Exact, and without timing.
    """
    declared = case.variant.complexity.memory
    _grows(case, declared, "the largest storage", lambda m, n, mask: m.record(n, mask)[0], 1.5)


def _work(measured: Measured, length: int, name: str) -> int:
    seen = measured.record(length, name)[1]
    return seen.entries + seen.operations


@LAWS.law("Q-02", "claimed", needs=("complexity",))
def work(case: Case) -> None:
    """The work of a forward call grows no faster than the declared time.

    Floating point operations of products, and the entries that every operator gives: the slope in
    log-log is at most 0.15 above the declared one. phi(q) phi(k)^T first instead of phi(k)^T v
    gives the same numbers, and shows only here.
    """
    declared = case.variant.complexity.time
    _grows(case, declared, "the work", _work, 4**0.15)


@LAWS.law("Q-04", "quality", needs=("complexity", "accelerator"))
def peak_on_the_accelerator(case: Case) -> None:
    """On an accelerator the peak of allocated memory grows no faster than the declared memory."""
    kind: Any = getattr(torch, case.device.type, None)
    if not hasattr(kind, "max_memory_allocated"):
        case.skip(f"torch.{case.device.type} does not tell the peak of its memory")

    def peak(measured: Measured, length: int, name: str) -> int:
        inputs, mask = measured.call(length, name)
        kind.synchronize()
        kind.reset_peak_memory_stats()
        before = kind.memory_allocated()
        case.call(measured.attn, *inputs, mask)
        kind.synchronize()
        return int(kind.max_memory_allocated() - before)

    _grows(case, case.variant.complexity.memory, "the peak of memory", peak, 1.5)


@LAWS.law("Q-05", "quality", needs=("complexity", "differentiable"))
def kept_for_backward(case: Case) -> None:
    """What autograd keeps for the backward pass grows no faster than the declared memory.

    All storages kept, but for inputs, parameters and output: a forward pass in tiles, all of which
    are kept, is not lean in training. Lengths and masks as for Q-01.
    """
    declared = case.variant.complexity.memory
    _grows(case, declared, "what is kept for the backward pass", Measured.kept, 1.5)
