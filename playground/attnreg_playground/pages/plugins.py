"""Plugins: where every variant comes from, what could not be loaded, and how to write one."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnreg_playground.about import block
from attnreg_playground.drawing import Drawing, Page, Scene
from attnreg_playground.figures import code, table
from attnreg_playground.texts import sentence

EXAMPLE = '''import torch
from typing import Annotated

import attnreg
from annotated_doc import Doc
from annotated_types import Interval

ATTNREG_CONTRACT = 1


class Laplacian(attnreg.ScoreAttention):
    """score(q, k) = -|q - k|_1 / tau"""

    def __init__(
        self,
        dims: attnreg.Dims,
        *,
        tau: Annotated[float, Interval(gt=0, le=100), Doc("temperature")] = 8.0,
        **common,
    ):
        super().__init__(dims, **common)
        self.tau = tau

    def score(self, query, key):
        return -torch.cdist(query, key, p=1) / self.tau


@attnreg.hookimpl
def attnreg_register_variants(register):
    register(attnreg.Variant("laplacian", Laplacian, summary="L1 distance scores"))
'''
ENTRY = """[project.entry-points.attnreg]
laplacian = "attnreg_laplacian"
"""


def draw(scene: Scene) -> Drawing:
    """List the plugins, then how an author begins."""
    registry = scene.registry
    by_owner: dict[str, list[str]] = {}
    for name in registry:
        by_owner.setdefault(registry.owner(name), []).append(name)
    rows: list[list[Any]] = []
    tones: list[list[str]] = []
    for one in registry.plugins:
        good = one.state == "loaded"
        rows.append(
            [
                one.name,
                ", ".join(by_owner.get(one.distribution, [])) or "–",
                one.distribution,
                one.version or "–",
                one.module,
                sentence(f"state.{one.state}"),
                f"{one.seconds:.2f}",
                one.reason or "; ".join(one.warnings),
            ]
        )
        tones.append(["", "", "", "", "", "good" if good else "bad", "", ""])
    columns = (
        "name", "variants", "distribution", "version", "module", "state", "seconds", "reason",
    )  # fmt: skip
    found = [
        table("plugins", sentence("plugins.title"),
              [sentence(f"plugins.{one}") for one in columns], rows, tones=tones),
    ]  # fmt: skip
    if registry.duplicates:
        claims = [[name, ", ".join(owners)] for name, owners in registry.duplicates.items()]
        heads = [sentence("plugins.name"), sentence("plugins.claimed")]
        found.append(table("duplicates", sentence("plugins.duplicates"), heads, claims))
    broken = len(registry.broken)
    key = "plugins.said" if broken else "plugins.said_all"
    return Drawing(
        figures=(
            *found,
            code("example", sentence("plugins.example"), EXAMPLE),
            code("entry", sentence("plugins.entry"), ENTRY),
        ),
        said=sentence(key, count=len(registry.plugins), broken=broken),
        notes=(
            sentence("plugins.trust"),
            sentence("plugins.restart"),
            *registry.warnings,
        ),
        about=(
            block("h3", sentence("plugins.author")),
            block("p", sentence("plugins.new")),
            block("p", sentence("plugins.check")),
            block("p", sentence("plugins.panel")),
            block("p", sentence("plugins.form")),
        ),
        arrays={"plugins": np.array([one.name for one in registry.plugins])},
    )


PAGE = Page("plugins", "plugins", (), draw, measured=True, wide=True)
