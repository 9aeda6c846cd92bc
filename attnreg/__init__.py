"""attnreg: the place where attention variants live outside any one model library.

>>> import attnreg
>>> attn = attnreg.create("linear", num_heads=8, head_dim=64)  # doctest: +SKIP

Names are loaded at first use, so that ``import attnreg`` and ``attnreg --help`` stay quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attnreg._version import __version__ as __version__

if TYPE_CHECKING:
    from attnreg.attention import Attention as Attention
    from attnreg.attention import Dims as Dims
    from attnreg.call import Call as Call
    from attnreg.checked import CheckedAttention as CheckedAttention
    from attnreg.choosing import Explanation as Explanation
    from attnreg.errors import AttnregError as AttnregError
    from attnreg.errors import BrokenPlugin as BrokenPlugin
    from attnreg.errors import DtypeError as DtypeError
    from attnreg.errors import LengthError as LengthError
    from attnreg.errors import MaskTypeError as MaskTypeError
    from attnreg.errors import OptionError as OptionError
    from attnreg.errors import ShapeError as ShapeError
    from attnreg.errors import UnknownVariant as UnknownVariant
    from attnreg.errors import UnsupportedFeature as UnsupportedFeature
    from attnreg.errors import UnsupportedImplementation as UnsupportedImplementation
    from attnreg.errors import UnsupportedMask as UnsupportedMask
    from attnreg.errors import UnsupportedOption as UnsupportedOption
    from attnreg.families import DotProductAttention as DotProductAttention
    from attnreg.families import Features as Features
    from attnreg.families import KernelAttention as KernelAttention
    from attnreg.families import ScoreAttention as ScoreAttention
    from attnreg.hookspecs import Check as Check
    from attnreg.hookspecs import Panel as Panel
    from attnreg.hookspecs import Position as Position
    from attnreg.hookspecs import hookimpl as hookimpl
    from attnreg.layer import AttentionLayer as AttentionLayer
    from attnreg.mask import Mask as Mask
    from attnreg.options import Option as Option
    from attnreg.registry import Registry as Registry
    from attnreg.registry import create as create
    from attnreg.registry import default_registry as default_registry
    from attnreg.registry import get_variant as get_variant
    from attnreg.registry import list_variants as list_variants
    from attnreg.variant import Approximation as Approximation
    from attnreg.variant import Capabilities as Capabilities
    from attnreg.variant import Complexity as Complexity
    from attnreg.variant import Implementation as Implementation
    from attnreg.variant import Variant as Variant

_HOME = {
    "attention": ("Attention", "Dims"),
    "call": ("Call",),
    "checked": ("CheckedAttention",),
    "choosing": ("Explanation",),
    "errors": (
        "AttnregError",
        "BrokenPlugin",
        "DtypeError",
        "LengthError",
        "MaskTypeError",
        "OptionError",
        "ShapeError",
        "UnknownVariant",
        "UnsupportedFeature",
        "UnsupportedImplementation",
        "UnsupportedMask",
        "UnsupportedOption",
    ),
    "families": ("DotProductAttention", "Features", "KernelAttention", "ScoreAttention"),
    "hookspecs": ("Check", "Panel", "Position", "hookimpl"),
    "layer": ("AttentionLayer",),
    "mask": ("Mask",),
    "options": ("Option",),
    "registry": ("Registry", "create", "default_registry", "get_variant", "list_variants"),
    "variant": ("Approximation", "Capabilities", "Complexity", "Implementation", "Variant"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'attnreg' has no attribute {name!r}")
    value = getattr(import_module(f"attnreg.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return ["__version__", *sorted(_MODULE_OF)]
