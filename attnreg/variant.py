"""``Variant``: what a plugin registers. A variant is its mathematics; an implementation is a way
to compute it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from attnreg.errors import OptionError
from attnreg.options import COMMON, Option, options_of, parameters_of

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from attnreg.call import Call
    from attnreg.mask import Mask

    Reference = Callable[..., np.ndarray[Any, Any]]
    Flops = Callable[[nn.Module, int, int, bool], float]

DTYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Capabilities:
    """What a variant can do. A call that asks for more is refused with a typed error.

    Request fields, refused where not declared: the mask fields ``causal, key_valid, allowed, bias,
    window, packed``; ``cross`` (Lq != Lk), ``grouped`` (fewer key heads than query heads),
    ``value_dim`` (different from the head dimension), ``dropout``, ``noncausal``; ``decode``
    ("cache" keeps keys and values, "recurrent" a state of fixed size); ``weights`` ("exact" are
    the weights that multiply V, "implied" the linear map from V to the output, which may be signed
    and need not sum to 1); ``dtypes``.

    Property fields, verified where declared: ``normalized`` (rows of weights are not negative and
    sum to 1), ``positional`` (order matters by itself), ``fixed_length`` (needs ``max_length``),
    ``deterministic``, ``differentiable``, ``compile`` (``torch.compile``, export and vmap).
    """

    causal: bool = False
    key_valid: bool = False
    allowed: bool = False
    bias: bool = False
    window: bool = False
    packed: bool = False
    cross: bool = False
    grouped: bool = False
    value_dim: bool = False
    dropout: bool = False
    noncausal: bool = True
    decode: Literal["none", "cache", "recurrent"] = "none"
    weights: Literal["exact", "implied", "none"] = "none"
    dtypes: tuple[str, ...] = DTYPES
    normalized: bool = False
    positional: bool = False
    fixed_length: bool = False
    deterministic: bool = False
    differentiable: bool = True
    compile: bool = False

    def __post_init__(self) -> None:
        if self.decode not in ("none", "cache", "recurrent"):
            raise OptionError(f"decode must be none, cache or recurrent, got {self.decode!r}")
        if self.weights not in ("exact", "implied", "none"):
            raise OptionError(f"weights must be exact, implied or none, got {self.weights!r}")
        if not isinstance(self.dtypes, tuple) or not set(self.dtypes) <= set(DTYPES):
            raise OptionError(f"dtypes must be a tuple of {DTYPES}, got {self.dtypes!r}")


@dataclass(frozen=True)
class Complexity:
    """How time and memory grow with the length L of the keys, such as ``"L^2"`` or ``"L"``.

    Memory is what a forward call needs beyond its inputs and its output. A text is a product of
    powers of L, log L, sqrt(L) and names of constants, such as ``"L log L"`` or ``"L * rank"``.
    Where it is given, the conformance suite counts (Q-01, Q-02); the default is not held against
    a variant that says nothing.
    """

    time: str = "L^2"
    memory: str = "L"


def _always(call: Call) -> list[str]:
    return []


@dataclass(frozen=True)
class Implementation:
    """One way to compute a variant, on the module's own parameters.

    ``forward(module, query, key, value, mask)`` gets what ``Attention.forward`` gets. Packed
    sequences reach it one by one, unless ``packed`` says that it takes them together, or torch is
    compiling. ``why_not(call)`` lists the reasons why it cannot run a ``Call``, empty where it
    can. Of those that can, the highest ``rank`` is chosen; nothing is timed.
    """

    name: str
    forward: Callable[[nn.Module, Tensor, Tensor, Tensor, Mask], Tensor]
    why_not: Callable[[Call], list[str]] = _always
    rank: int = 0
    packed: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and callable(self.forward) and callable(self.why_not)):
            raise OptionError(
                f"an Implementation takes a name and two functions, got {self.name!r}, "
                f"{self.forward!r}, {self.why_not!r}"
            )
        if isinstance(self.rank, bool) or not isinstance(self.rank, int):
            raise OptionError(f"rank must be an integer, got {self.rank!r}")


def _eager(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    output: Tensor = module(query, key, value, mask)  # a call, so that its hooks run
    return output


EAGER = Implementation("eager", _eager)
"""The module's own ``forward``: every variant has it, and it takes every call."""


class Approximation(NamedTuple):
    """What a variant stands for: the other variant, the option that tightens it, and the law.

    The conformance suite reads two phrases in the law: "1/OPTION", by which the squared error of
    random features falls (A-02 to A-04, where the module has ``redraw()``), and "exact where
    OPTION [and OPTION] reach the whole sequence" (A-10, A-11). Other words are for people.
    """

    variant: str
    option: str
    law: str


@dataclass(frozen=True, eq=False)
class Variant:
    """A registered attention variant: its name, how to build it, and what it promises.

    ``factory(dims, *, scale, dropout, **options)`` returns an ``nn.Module`` that follows
    ``Attention``; its keyword-only parameters are the options (``attnreg.options``), and ``scale``
    and ``dropout`` are passed only where it takes them. ``capabilities=None`` and
    ``implementations=()`` take the factory's own attributes of these names; a factory may also
    have ``reasons``, a mapping from a capability that it lacks to the reason, for its refusals.

    ``reference(module, query, key, value, visible, bias, query_position, key_position)`` is the
    formula in NumPy float64; ``projection(module, embed_dim, dims, *, kdim, vdim, bias)`` builds
    the variant's own projections for ``AttentionLayer`` (``attnreg.projection``);
    ``known_failures`` maps a conformance check to the reason why it fails.
    ``flops(module, query_length, key_length, causal)`` is what a forward call multiplies and adds,
    per batch item and over all heads (``attnreg.flops`` says what counts); the benchmark reads it.

    Raises ``OptionError`` where the name is not an identifier in lower case, two implementations
    share a name, or an option cannot be read.
    """

    name: str
    factory: Callable[..., nn.Module]
    summary: str = field(kw_only=True)
    formula: str = field(default="", kw_only=True)
    paper: str = field(default="", kw_only=True)
    capabilities: Capabilities = field(default=None, kw_only=True)  # type: ignore[assignment]  # None means the factory's own; filled in below
    complexity: Complexity = field(default=Complexity(), kw_only=True)
    reference: Reference | None = field(default=None, kw_only=True)
    approximates: Approximation | tuple[str, str, str] | None = field(default=None, kw_only=True)
    projection: Callable[..., nn.Module] | None = field(default=None, kw_only=True)
    implementations: tuple[Implementation, ...] = field(default=(), kw_only=True)
    known_failures: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    flops: Flops | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise OptionError(
                f"a variant's name must be lower-case letters, digits and _, got {self.name!r}"
            )
        if not callable(self.factory):
            raise OptionError(f"factory must be a class or a function, got {self.factory!r}")
        if self.flops is not None and not callable(self.flops):
            raise OptionError(f"flops must be a function or None, got {self.flops!r}")
        own = self.capabilities or getattr(self.factory, "capabilities", None) or Capabilities()
        if not isinstance(own, Capabilities):
            raise OptionError(f"capabilities must be a Capabilities, got {type(own).__name__}")
        given = tuple(self.implementations or getattr(self.factory, "implementations", ()))
        if not all(isinstance(one, Implementation) for one in given):
            raise OptionError(f"implementations must be Implementation values, got {given!r}")
        others = [one for one in given if one is not EAGER]
        ranked = sorted([*others, EAGER], key=lambda one: -one.rank)
        names = [one.name for one in ranked]
        if len(set(names)) < len(names):
            raise OptionError(f"{self.name} has two implementations of one name: {names}")
        object.__setattr__(self, "capabilities", own)
        object.__setattr__(self, "implementations", tuple(ranked))
        if self.approximates is not None:
            object.__setattr__(self, "approximates", Approximation(*self.approximates))
        _ = self.options  # so that an unreadable option fails here, not at the first use

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The variant's options, read from the constructor's signature."""
        return options_of(self.factory)

    @cached_property
    def common(self) -> frozenset[str]:
        """Which of ``scale`` and ``dropout`` the constructor takes."""
        return frozenset(COMMON) & frozenset(parameters_of(self.factory))

    def describe(self) -> dict[str, Any]:
        """Return everything declared as plain data, ready for JSON."""
        from dataclasses import asdict

        return {
            "name": self.name,
            "summary": self.summary,
            "formula": self.formula,
            "paper": self.paper,
            "complexity": asdict(self.complexity),
            "capabilities": {k: _plain(v) for k, v in asdict(self.capabilities).items()},
            "implementations": [one.name for one in self.implementations],
            "approximates": None if self.approximates is None else list(self.approximates),
            "options": [
                {
                    "name": option.name,
                    "default": _plain(option.default),
                    "allowed": option.allowed,
                    "doc": option.doc,
                }
                for option in self.options
            ],
        }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
