"""Third-party variants for the tests: odd options, hostile text, and every way to misbehave."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Annotated, Any, Literal

import torch
from annotated_doc import Doc
from annotated_types import Interval
from torch import Tensor, nn

from attnreg import Capabilities, Dims, Mask, Panel, Registry, Variant, default_registry, hookimpl

HOSTILE = (
    '"><img src=x onerror="window.__hacked=1">${window.__hacked=2}{{value}}'
    "<script>window.__hacked=3</script>![x](http://192.0.2.1/x.png) *so* `${window.__hacked=4}`"
    "[y](java\nscript:alert(1))"
)

ABLE = Capabilities(causal=True, key_valid=True, weights="exact", normalized=True, cross=True)


class Uniform(nn.Module):
    """Equal weights over what is visible."""

    capabilities = ABLE

    def __init__(
        self,
        dims: Dims,
        *,
        mode: Annotated[Literal["a", HOSTILE], Doc(HOSTILE)] = "a",
        rungs: Annotated[Literal[1, "1", True], Doc("look-alikes")] = 1,
        maybe: Annotated[Literal["x", "y"] | None, Doc("may be None")] = None,
        flag: Annotated[bool | None, Doc("a flag or None")] = None,
        share: Annotated[float, Interval(ge=0, le=1), Doc("a share")] = 0.25,
        count: Annotated[int, Interval(ge=-3, le=12)] = 2,
        places: Annotated[tuple[int, ...], Interval(ge=0), Doc("positions")] = (3,),
        label: str = "plain",
        bias: float = 0.0,
    ) -> None:
        super().__init__()
        self.held = (mode, rungs, maybe, flag, share, count, places, label, bias)

    def weights(self, query: Tensor, key: Tensor, mask: Mask) -> Tensor:
        visible = mask.dense(query.shape[2], key.shape[2])
        share = visible.float() / visible.sum(-1, keepdim=True).clamp(min=1)
        return share.expand(*query.shape[:2], *share.shape[2:])

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008
        return self.weights(query, key, mask) @ value


class Raises(Uniform):
    """Fails in ``forward`` with a text that wants to be HTML."""

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008
        raise RuntimeError(HOSTILE)


class RaisesInWeights(Raises):
    """Fails in ``weights`` only."""

    forward = Uniform.forward

    def weights(self, query: Tensor, key: Tensor, mask: Mask) -> Tensor:
        raise KeyError("no weights today")


class Quits(Raises):
    """Calls ``sys.exit`` while it is built."""

    def __init__(self, dims: Dims) -> None:
        raise SystemExit(3)


class WrongOutput(Raises):
    """Returns too few rows."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008
        return value[:, :, :1]


class WrongWeights(Raises):
    """Returns weights of one head for all."""

    forward = Uniform.forward

    def weights(self, query: Tensor, key: Tensor, mask: Mask) -> Any:
        return torch.ones(1, 1, query.shape[2], key.shape[2])


class NotNumbers(Raises):
    """Returns a NaN and an infinity."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008
        return self.weights(query, key, mask) @ value

    def weights(self, query: Tensor, key: Tensor, mask: Mask) -> Tensor:
        weights = super(Raises, self).weights(query, key, mask).clone()
        weights[..., 0, 0] = float("nan")
        weights[..., 1, 1] = float("inf")
        return weights


class Leaky(Raises):
    """Ignores the mask."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008
        return super(Raises, self).forward(query, key, value)

    def weights(self, query: Tensor, key: Tensor, mask: Mask) -> Tensor:
        return super(Raises, self).weights(query, key, Mask())


class Hangs(Raises):
    """Never ends."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008
        while True:
            time.sleep(0.1)


class Crashes(Raises):
    """Ends the process it runs in, as a fault in compiled code does."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008
        os.kill(os.getpid(), signal.SIGSEGV)
        return value


class Greedy(Raises):
    """Asks for a hundred gigabytes."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008
        return value + torch.ones(100 * 2**28).sum()


class Prints(Raises):
    """Prints a great deal, to both outputs, and reads."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008
        for stream in (sys.stdout, sys.stderr):
            print('{"result": "not mine"}\n' * 1000, file=stream, flush=True)
        os.write(1, b'{"result": "not mine"}\n')
        assert sys.stdin.read() == ""
        return self.weights(query, key, mask) @ value

    weights = Uniform.weights


class CausalOnly(Raises):
    """Cannot look ahead."""

    capabilities = Capabilities(causal=True, noncausal=False, weights="exact", normalized=True)
    forward = Uniform.forward


class Silent(Raises):
    """Declares that it has no weights."""

    capabilities = Capabilities(weights="none")
    forward = Uniform.forward


VARIANTS = (
    Variant("odd", Uniform, summary=HOSTILE, formula=HOSTILE, paper=HOSTILE),
    Variant("raises", Raises, summary="raises"),
    Variant("raises_in_weights", RaisesInWeights, summary="raises in weights"),
    Variant("quits", Quits, summary="quits"),
    Variant("wrong_output", WrongOutput, summary="wrong output"),
    Variant("wrong_weights", WrongWeights, summary="wrong weights"),
    Variant("not_numbers", NotNumbers, summary="NaN"),
    Variant("leaky", Leaky, summary="leaky"),
    Variant("causal_only", CausalOnly, summary="causal only"),
    Variant("silent", Silent, summary="silent"),
    Variant("hangs", Hangs, summary="hangs"),
    Variant("crashes", Crashes, summary="crashes"),
    Variant("greedy", Greedy, summary="greedy"),
    Variant("prints", Prints, summary="prints"),
)


def good_panel() -> None:
    import gradio as gr

    gr.Markdown("A panel of a plugin")


def bad_panel() -> None:
    raise RuntimeError(HOSTILE)


class Plugin:
    """Everything above, from one plugin."""

    ATTNREG_CONTRACT = 1

    @hookimpl
    def attnreg_register_variants(self, register: Any) -> None:
        for variant in VARIANTS:
            register(variant)


class Panels:
    """Two panels, one of which fails."""

    ATTNREG_CONTRACT = 1

    @hookimpl
    def attnreg_register_panels(self, register: Any) -> None:
        register(Panel("good", {"en": "Good", "zh": "好"}, f"{__name__}:good_panel"))
        register(Panel("bad", {"en": "Bad"}, f"{__name__}:bad_panel"))


class Twin:
    """Claims the name ``raises`` as well."""

    ATTNREG_CONTRACT = 1

    @hookimpl
    def attnreg_register_variants(self, register: Any) -> None:
        register(Variant("twin", Uniform, summary="twin"))


def registry() -> Registry:
    """Return a registry of the fakes, a broken plugin and a name that two claim."""
    made = Registry()
    made.add_plugin(Plugin(), name="fakes", distribution="fakes-distribution")
    made.add_plugin(Twin(), name="twin_a", distribution="twin-a")
    made.add_plugin(Twin(), name="twin_b", distribution="twin-b")
    made.add_plugin(_broken, name="broken", distribution="broken-distribution")
    return made


def with_panels() -> Registry:
    """Return the same with two panels, and the plain softmax that many pages need."""
    made = registry()
    made.add_plugin(Panels(), name="panels", distribution="panels")
    installed = default_registry()
    made.add_plugin(_Plain(installed["scaled_dot_product"]), name="plain", distribution="plain")
    return made


class _Plain:
    ATTNREG_CONTRACT = 1

    def __init__(self, variant: Variant) -> None:
        self.variant = variant

    @hookimpl
    def attnreg_register_variants(self, register: Any) -> None:
        register(self.variant)


def _broken() -> object:
    raise ImportError(HOSTILE)
