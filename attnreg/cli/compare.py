"""``attnreg compare A B``: two variants on the same input."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnreg.cli.output import console, print_json, sentence, table

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from attnreg.checked import CheckedAttention
    from attnreg.cli.inputs import Inputs
    from attnreg.variant import Variant

DEFAULT_LENGTH = 256


class Dtype(StrEnum):
    """The dtypes that a comparison can run in."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"
    float64 = "float64"


_OPTION_HELP = "An option of {}, as key=value; also scale and implementation. May be repeated."
_SIZES = {
    "num_heads": "--heads",
    "head_dim": "--head-dim",
    "max_length": "the input (--text or --length)",
    "num_kv_heads": "the input, which has as many key heads as query heads",
    "value_dim": "the input, whose values are as wide as its keys",
    "device": "--device",
    "dtype": "--dtype",
}
"""What both variants share, and what sets it."""


def compare(
    a: Annotated[str, typer.Argument(help="A variant.")],
    b: Annotated[str, typer.Argument(help="Another, or the same.")],
    text: Annotated[str | None, typer.Option(help="A text to attend over, any language.")] = None,
    length: Annotated[
        int | None, typer.Option(min=1, help=f"Or a random input this long ({DEFAULT_LENGTH}).")
    ] = None,
    heads: Annotated[int, typer.Option(min=1, help="Heads.")] = 4,
    head_dim: Annotated[int, typer.Option(min=1, help="Size of a head.")] = 32,
    causal: Annotated[bool, typer.Option("--causal", help="Hide later keys.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of input and parameters.")] = 0,
    device: Annotated[str, typer.Option(help="A device of torch.")] = "cpu",
    dtype: Annotated[Dtype, typer.Option(help="Of input and parameters.")] = Dtype.float32,
    option_a: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help=_OPTION_HELP.format("A"))
    ] = None,
    option_b: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help=_OPTION_HELP.format("B"))
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run two variants on the same input: how they differ, what they cost.

    Both get the same query, key and value, and the same seed before their parameters are drawn.

    A text becomes a random embedding per token (a character of Chinese, a word otherwise) with
    sinusoidal positions, and random projections: nothing is trained.
    """
    if text is not None and length is not None:
        raise typer.BadParameter("give --text or --length, not both")
    import torch

    from attnreg.cli.comparison import measure
    from attnreg.cli.inputs import random_inputs, text_inputs, tokenize
    from attnreg.mask import Mask
    from attnreg.registry import get_variant

    variants = get_variant(a), get_variant(b)
    options = (
        parse_options(variants[0], "--option-a", option_a or []),
        parse_options(variants[1], "--option-b", option_b or []),
    )
    if text is None:
        inputs = random_inputs(length or DEFAULT_LENGTH, heads, head_dim, seed)
    else:
        tokens = tokenize(text)
        if not tokens:
            raise typer.BadParameter("the text has no tokens", param_hint="--text")
        inputs = text_inputs(tokens, heads, head_dim, seed)
    inputs = inputs.to(_device(device), getattr(torch, dtype.value))
    modules = (
        _build(variants[0], options[0], inputs, seed),
        _build(variants[1], options[1], inputs, seed),
    )
    report: dict[str, Any] = {}
    report["settings"] = {
        "length": inputs.length,
        "heads": heads,
        "head_dim": head_dim,
        "causal": causal,
        "seed": seed,
        "device": device,
        "dtype": dtype.value,
        "input": inputs.label,
        "tokens": list(inputs.tokens) or None,
    }
    with torch.no_grad():
        report |= measure(modules, inputs, Mask(causal=causal))
    for side, chosen in zip(("a", "b"), options, strict=True):
        report[side]["options"] = chosen
    if as_json:
        print_json(report)
    else:
        _print(report)


def parse_options(variant: Variant, flag: str, pairs: list[str]) -> dict[str, Any]:
    """Read ``key=value`` pairs by the variant's own options; ``create`` refuses unknown keys."""
    from attnreg.errors import OptionError
    from attnreg.options import Option

    known = {option.name: option for option in variant.options}
    known.setdefault("scale", Option("scale", None, (float, type(None))))
    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"{pair!r} is not key=value", param_hint=flag)
        if key in _SIZES:
            raise typer.BadParameter(f"{key} is set by {_SIZES[key]}", param_hint=flag)
        try:
            parsed[key] = known[key].parse(value) if key in known else _typed(value)
        except OptionError as error:
            raise OptionError(f"{variant.name}: {error}") from None
    return parsed


def _typed(text: str) -> Any:
    """A value of ``scale`` or ``dropout`` as a number; a name stays as it is."""
    try:
        return float(text)
    except ValueError:
        return text


def _device(name: str) -> torch.device:
    import torch

    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # unknown, or not on this machine
        raise typer.BadParameter(sentence(error), param_hint="--device") from None
    if device.type == "meta":
        raise typer.BadParameter("meta holds no values to compare", param_hint="--device")
    return device


def _build(
    variant: Variant, options: dict[str, Any], inputs: Inputs, seed: int
) -> CheckedAttention:
    import torch

    from attnreg.registry import create

    torch.manual_seed(seed)  # the same for both, so that a variant agrees with itself
    attn = create(
        variant,
        num_heads=inputs.query.shape[1],
        head_dim=inputs.query.shape[3],
        max_length=inputs.length,
        device=inputs.query.device,
        dtype=inputs.query.dtype,
        **options,
    )
    return attn.eval()


def _print(report: dict[str, Any]) -> None:
    out = console()
    settings = report["settings"]
    out.print(
        f"{settings['input']}: length {settings['length']}, {settings['heads']} heads of "
        f"{settings['head_dim']}, {settings['dtype']} on {settings['device']}, "
        f"{'causal, ' if settings['causal'] else ''}seed {settings['seed']}"
    )
    costs = table("", f"A: {report['a']['variant']}", f"B: {report['b']['variant']}")
    sides = report["a"], report["b"]
    if any(side["options"] for side in sides):
        costs.add_row("options", *(_pairs(side["options"]) for side in sides))
    costs.add_row("implementation", *(side["implementation"] for side in sides))
    costs.add_row("median time", *(_seconds(side["seconds"]["median"]) for side in sides))
    costs.add_row("spread", *(_seconds(side["seconds"]["spread"]) for side in sides))
    costs.add_row("peak extra memory", *(_bytes(side["peak_extra_bytes"]) for side in sides))
    out.print()
    out.print(costs)
    out.print()
    differences = table("difference", "max abs", "relative RMS", "cosine", "mean total variation")
    output, weights = report["output"], report["weights"]
    differences.add_row(
        "output", *(_number(output[key]) for key in ("max_abs", "relative_rms", "cosine")), ""
    )
    if weights is not None:
        differences.add_row(
            "weights",
            _number(weights["max_abs"]),
            "",
            "",
            _number(weights["mean_total_variation"]),
        )
    out.print(differences)
    out.print()
    repetitions = report["a"]["seconds"]["repetitions"]
    out.print(
        f"Time: {report['time_verdict']} (medians of {repetitions} interleaved repetitions; the "
        "spread is the distance between the quartiles)."
    )
    out.print(f"Memory: peak of one forward call, output included: {report['memory_method']}.")
    for note in report["notes"]:
        out.print(f"Note: {note}.")
    for side, matrix in report.get("head_0_weights", {}).items():
        title = f"\n{side.upper()}: {report[side]['variant']}, weights of head 0"
        out.print(title, style="bold")
        _print_weights(out, settings["tokens"], matrix)


def _print_weights(out: Console, tokens: list[str], matrix: list[list[float]]) -> None:
    """Print a row per query; keys that do not fit the terminal follow in a further table."""
    from rich.cells import cell_len

    cells = [[f"{weight:.2f}" for weight in row] for row in matrix]
    label = max(cell_len(token) for token in tokens) + 4
    widths = [
        max(cell_len(token), *(len(row[j]) for row in cells)) + 2 for j, token in enumerate(tokens)
    ]
    start = 0
    while start < len(tokens):
        stop = start + 1
        while stop < len(tokens) and label + sum(widths[start : stop + 1]) <= out.width:
            stop += 1
        part = table("", *tokens[start:stop])
        for column in part.columns[1:]:
            column.justify = "right"
        for token, row in zip(tokens, cells, strict=True):
            part.add_row(token, *row[start:stop])
        out.print(part)
        start = stop


def _pairs(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items()) or "defaults"


def _seconds(value: float) -> str:
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if value * factor >= 1.0:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def _bytes(count: int | None) -> str:
    if count is None:
        return "not measured"
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.4g} {unit}"


def _number(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.6g}"
