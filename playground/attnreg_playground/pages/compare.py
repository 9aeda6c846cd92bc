"""Compare: two variants on the same tensors and seed; A, B, A - B, and what differs in a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnreg import Registry
from attnreg_playground.attend import IMPORTS, Picture, Ready, attend, guarded, prepare, python_of
from attnreg_playground.controls import Control
from attnreg_playground.drawing import Drawing, Finding, Page, Scene
from attnreg_playground.figures import facts
from attnreg_playground.given import (
    HEAD,
    INPUT,
    MASK,
    Chosen,
    choose,
    read_input,
    read_setting,
)
from attnreg_playground.heat import heat
from attnreg_playground.measure import median_seconds, peak
from attnreg_playground.pages.explore import LONG
from attnreg_playground.recent import Recent
from attnreg_playground.texts import Problem, Sentence, sentence

SAME = 1e-5
"""Outputs that differ by less, relative to the largest, count as the same mathematics."""

_recent: Recent[Any] = Recent(4)


def draw(scene: Scene) -> Drawing:
    """Show both variants and their difference."""
    one = choose(scene.registry, scene["variant"], scene["options"])
    other = choose(scene.registry, scene["other"], scene["other_options"])
    for chosen in (one, other):
        if isinstance(chosen, Problem):
            return Drawing(problem=chosen)
    assert isinstance(one, Chosen)  # for mypy: the loop has looked
    assert isinstance(other, Chosen)
    asked = {name: value for name, value in scene.values.items() if name != "head"}
    found = _recent.get(asked, lambda: _both(scene, one, other))
    if isinstance(found, Problem):
        return Drawing(problem=found)
    a, b, measured = found
    return _shown(scene, a, b, measured)


def _both(scene: Scene, one: Chosen, other: Chosen) -> Any:
    given = read_input(scene)
    if isinstance(given, Problem):
        return given
    pictures: list[Picture] = []
    measured: dict[str, list[float]] = {"time": [], "memory": []}
    for chosen in (one, other):
        setting = read_setting(scene, chosen)
        shown = attend(chosen.variant, chosen.plugin, given, setting)
        if isinstance(shown, Problem):
            return shown
        pictures.append(shown)
        ready = guarded(
            chosen.variant, chosen.plugin, lambda c=chosen, s=setting: prepare(c.variant, given, s)
        )
        if not isinstance(ready, Ready):
            return ready
        measured["time"].append(median_seconds(ready))
        measured["memory"].append(peak(ready))
    return (*pictures, measured)


def _shown(scene: Scene, a: Picture, b: Picture, measured: dict[str, list[float]]) -> Drawing:
    given, head = a.given, scene["head"]
    common: dict[str, Any] = {"head": head, "group": "compare", "border": scene["border"]}
    difference = a.weights - b.weights
    sides = [
        heat(
            shown.weights,
            given.queries,
            given.keys,
            name=name,
            title=f"{name.upper()} · {shown.variant}",
            tag=sentence(f"map.{shown.kind}"),
            visible=shown.visible,
            key_valid=shown.key_valid,
            thumbnails=name == "a",
            **common,
        )
        for name, shown in (("a", a), ("b", b))
    ]
    signed = heat(
        difference,
        given.queries,
        given.keys,
        name="difference",
        title=sentence("compare.difference"),
        difference=True,
        thumbnails=False,
        **common,
    )
    arrays = {
        "a": a.weights,
        "b": b.weights,
        "difference": difference,
        "a_output": a.output,
        "b_output": b.output,
    }
    weights, output, cosine = differences(arrays)
    same = output <= SAME * max(1.0, float(np.abs(a.output).max(initial=0.0)))
    time, memory = measured["time"], measured["memory"]
    rows: list[tuple[Sentence | str, Sentence | str]] = [
        (sentence("compare.weights"), f"{weights:.3g}"),
        (sentence("compare.output"), f"{output:.3g}"),
        (sentence("compare.cosine"), f"{cosine:.6f}"),
        (sentence("compare.time"), ratio(time[0], time[1], 1e3, "ms")),
        (sentence("compare.memory"), ratio(memory[0], memory[1], 2**-20, "MiB")),
    ]
    notes = [*a.notes, *(one for one in b.notes if one not in a.notes)]
    return Drawing(
        figures=(facts("verdict", sentence("compare.verdict"), rows), *sides, signed),
        said=sentence("compare.same" if same else "compare.differs", a=a.variant, b=b.variant),
        notes=(*notes, sentence("compare.measured")),
        findings=(*_named(a, "A"), *_named(b, "B")),
        arrays=arrays,
        python=_python(scene.registry, a, b),
    )


def differences(arrays: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return the largest difference of weights and of outputs, and the cosine of the outputs."""
    weights = float(np.abs(arrays["difference"]).max(initial=0.0))
    output = float(np.abs(arrays["a_output"] - arrays["b_output"]).max(initial=0.0))
    one = arrays["a_output"].astype(np.float64).ravel()
    other = arrays["b_output"].astype(np.float64).ravel()
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return weights, output, float(one @ other / size) if size else 0.0


def ratio(one: float, other: float, unit: float, name: str) -> str:
    """Say two measurements and their ratio, such as ``0.12 : 0.06 ms (2.0x)``."""
    times = f" ({one / other:.2g}x)" if other else ""
    return f"{one * unit:.3g} : {other * unit:.3g} {name}{times}"


def _named(shown: Picture, name: str) -> tuple[Finding, ...]:
    return tuple(
        Finding(found.tone, sentence("compare.of", name=name, text=found.sentence))
        for found in shown.findings
    )


def _python(registry: Registry, a: Picture, b: Picture) -> str:
    parts = [
        python_of(registry[one.variant], one.given, one.setting, name)
        for name, one in (("a", a), ("b", b))
    ]
    return f"{IMPORTS}{parts[0]}\n{parts[1]}\nprint(a[0], b[0], a[0] - b[0])\n"


PAGE = Page(
    "compare",
    "compare",
    (
        Control("variant", "variant", "scaled_dot_product", label="control.a"),
        Control("options", "options", {}, of="variant"),
        Control("other", "variant", "linear", label="control.b"),
        Control("other_options", "options", {}, of="other"),
        *INPUT,
        *MASK,
        HEAD,
    ),
    draw,
    presets={
        "softmax_linear": {"text": LONG},
        "softmax_window": {"other": "sparse_window", "text": LONG},
        "softmax_performer": {
            "other": "performer",
            "text": LONG,
            "other_options": {"features": 256},
        },
        "cosine_euclidean": {"variant": "cosine", "other": "euclidean", "text": LONG},
        "itself": {"other": "scaled_dot_product"},
    },
    wide=True,
)
