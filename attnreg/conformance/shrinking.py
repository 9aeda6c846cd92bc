"""From a failing call to the smallest one that fails, and to Python that shows it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attnreg.conformance.masks import Sizes
from attnreg.conformance.measure import Failure
from attnreg.mask import Mask
from attnreg.variant import Variant

if TYPE_CHECKING:
    from attnreg.conformance.case import Case, Probe, Sample, Trial

SECONDS = 4.0
LITERAL = 1_500
"""The most numbers that a snippet spells out."""


def smallest(case: Case, probe: Probe, sample: Sample, failure: Failure) -> Failure:
    """Return the failure of the smallest failing call found, with the call in its evidence.

    Sizes are made smaller first, then options go back to their defaults, then values are rounded.
    """
    best, found, last = sample, failure, case.trial
    deadline = time.monotonic() + SECONDS
    moved = True
    while moved and time.monotonic() < deadline:
        moved = False
        for smaller in _smaller(best):
            fitted = replace(smaller, sizes=smaller.sizes.fit(case.able))
            if fitted == best or time.monotonic() > deadline:
                continue
            again = _fails(case, probe, fitted)
            if again is not None:
                best, found, last, moved = fitted, again, case.trial, True
                break
    for values in _simpler(last) if last is not None else ():
        if time.monotonic() > deadline:
            break
        simpler = replace(best, values=values)
        again = _fails(case, probe, simpler)
        if again is not None:
            best, found, last = simpler, again, case.trial
            break
    if last is not None:
        found.evidence["call"] = _in_words(best)
        with contextlib.suppress(Exception):  # evidence is welcome, and no reason to lose the fault
            found.evidence.setdefault("snippet", snippet(case, last, found.evidence))
    return found


def _fails(case: Case, probe: Probe, sample: Sample) -> Failure | None:
    before = case.compared, case.worst
    try:
        case.attempt(probe, sample)
    except Failure as failure:
        return failure
    except Exception:  # another fault, or no such call: not the one that is followed
        return None
    finally:
        case.compared, case.worst = before
    return None


def _smaller(sample: Sample) -> Iterator[Sample]:
    sizes = sample.sizes
    for name, steps in (
        ("batch", (1,)),
        ("heads", (1, 2)),
        ("queries", (1, 2, 3)),
        ("keys", (1, 2, 3, 5)),
        ("head_dim", (1, 2, 3)),
        ("value_dim", (1, 2)),
    ):
        for step in steps:
            if step >= getattr(sizes, name):
                break
            changed: dict[str, Any] = {name: step}
            if name == "heads":
                changed["kv_heads"] = 1
            if name == "keys" and sizes.queries == sizes.keys:
                changed["queries"] = step
            yield replace(sample, sizes=replace(sizes, **changed))
    if sizes.heads % sizes.kv_heads == 0 and sizes.kv_heads > 1:
        yield replace(sample, sizes=replace(sizes, kv_heads=1))
    for name in sample.options:
        yield replace(sample, options={k: v for k, v in sample.options.items() if k != name})
    if sample.implementation != "auto":
        yield replace(sample, implementation="auto")


def _simpler(trial: Trial) -> Iterator[tuple[Tensor, ...]]:
    whole = trial.inputs
    yield tuple(t.round() + 0.0 for t in whole)  # + 0.0, as a zero with a sign puzzles
    yield tuple((t * 10).round() / 10 + 0.0 for t in whole)
    yield tuple((t * 100).round() / 100 + 0.0 for t in whole)


def _in_words(sample: Sample) -> dict[str, Any]:
    return {
        **asdict(sample.sizes),
        "dtype": str(sample.dtype).removeprefix("torch."),
        "options": dict(sample.options),
        "implementation": sample.implementation,
        "mask": sample.mask,
        "seed": sample.seed,
        **({} if sample.scale is None else {"scale": sample.scale}),
    }


def sized(case: Case, sizes: Sizes) -> str:
    """Return the size arguments of ``create`` as Python."""
    named = {
        "num_heads": sizes.heads,
        "head_dim": sizes.head_dim,
        "num_kv_heads": sizes.kv_heads,
        "value_dim": sizes.value_dim,
    }
    if case.able.fixed_length:
        from attnreg.conformance.case import MAX_LENGTH

        named["max_length"] = max(MAX_LENGTH, sizes.keys)
    return ", ".join(f"{k}={v}" for k, v in named.items())


def snippet(case: Case, trial: Trial, evidence: dict[str, Any]) -> str:
    """Return Python that shows the failure: the call itself where its output is what is wrong.

    Where it is a gradient, a draw or another way to call, or where the call is too large to spell
    out, it runs the check again.
    """
    query, key, value, mask = trial.last
    sample = trial.sample
    state = {k: v for k, v in trial.attn.state_dict().items() if isinstance(v, Tensor)}
    count = sum(t.numel() for t in (query, key, value, *state.values()))
    imports, variant = how_to_get(case.variant)
    actual, expected = evidence.get("actual"), evidence.get("expected")
    of_output = (
        isinstance(actual, Tensor)
        and isinstance(expected, Tensor)
        and case.output is not None
        and actual.data_ptr() == case.output.data_ptr()
        and actual.shape == case.output.shape == expected.shape
    )
    if count > LITERAL or not of_output or trial.attn.training:
        found = [f"# {line}" for line in (_one_line(evidence["message"]), _call(sample))]
        profile = "" if case.full else ', profile="fast"'
        device = "" if case.device.type == "cpu" else f", device={str(case.device)!r}"
        run = f"conformance.run({variant}, checks=[{case.check!r}]{profile}{device})"
        return "\n".join([*found, "from attnreg import conformance", *imports, "", f"print({run})"])
    keywords = [sized(case, trial.sizes)]
    keywords += [f"{k}={v!r}" for k, v in sample.options.items()]
    if sample.scale is not None:
        keywords.append(f"scale={sample.scale!r}")
    if sample.implementation != "auto":
        keywords.append(f"implementation={sample.implementation!r}")
    lines = ["import torch", "", "import attnreg", *imports, ""]
    lines.append(f"attn = attnreg.create({variant}, {', '.join(keywords)})")
    lines.append(f"attn = attn.to({sample.dtype}).eval()")
    if state:
        lines.append("attn.load_state_dict({")
        lines += [f"    {k!r}: {literal(v)}," for k, v in state.items()]
        lines.append("})")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        lines.append(f"{name} = {literal(tensor)}")
    lines.append(f"mask = {_mask(mask)}")
    lines.append("output = attn(query, key, value, mask).detach()")
    lines.append('print("actual", output)')
    if isinstance(expected, Tensor):
        lines.append(f"expected = {literal(expected)}")
    lines.append('print("expected", expected)')
    lines.append('print("largest difference", (output - expected).abs().max())')
    lines.append(f"# {_one_line(evidence['message'])}")
    return "\n".join(lines)


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _call(sample: Sample) -> str:
    return "smallest call: " + ", ".join(f"{k}={v}" for k, v in _in_words(sample).items())


def how_to_get(variant: Variant) -> tuple[list[str], str]:
    """Return the imports and the expression that give a variant in a fresh interpreter."""
    from attnreg.conformance.transport import find
    from attnreg.registry import default_registry

    registry = default_registry()
    if variant.name in registry and registry[variant.name].factory is variant.factory:
        return [], repr(variant.name)
    found = find(variant)
    if found is not None:
        return [f"from {found[0]} import {found[1]}"], found[1]
    return ["# variant is the Variant under check"], "variant"


def literal(tensor: Tensor) -> str:
    """Return a tensor as Python that makes the same one."""
    tensor = tensor.detach().cpu()
    if tensor.numel() == 0:
        return f"torch.zeros({tuple(tensor.shape)}, dtype={tensor.dtype})"
    inside = repr(tensor.tolist())
    for odd in ("nan", "inf"):
        inside = inside.replace(odd, f"float('{odd}')")
    return f"torch.tensor({inside}, dtype={tensor.dtype})"


def _mask(mask: Mask) -> str:
    parts = []
    for name in ("causal", "query_offset", "window"):
        if getattr(mask, name):
            parts.append(f"{name}={getattr(mask, name)!r}")
    if mask.query_offset == 0:
        parts.append("query_offset=0")
    for name in ("key_valid", "allowed", "bias", "cu_seqlens", "key_cu_seqlens"):
        tensor = getattr(mask, name)
        if tensor is not None:
            parts.append(f"{name}={literal(tensor)}")
    return f"attnreg.Mask({', '.join(parts)})"
