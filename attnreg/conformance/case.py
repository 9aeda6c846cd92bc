"""``Case``: a variant under check. A law gets one, and asks it to build, to call and to compare."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from attnreg.checked import CheckedAttention
from attnreg.conformance import masks
from attnreg.conformance.masks import RECIPES, Sizes
from attnreg.conformance.measure import (
    LIMITS,
    SAME,
    CannotJudge,
    DoesNotApply,
    Failure,
    check_close,
    check_equal,
    out_of_memory,
    reseed,
)
from attnreg.conformance.plainmask import lower
from attnreg.conformance.settings import Setting, Settings, generate
from attnreg.conformance.trial import Inputs as Inputs
from attnreg.conformance.trial import Probe as Probe
from attnreg.conformance.trial import Sample as Sample
from attnreg.conformance.trial import Trial as Trial
from attnreg.errors import AttnregError, UnsupportedImplementation, reason
from attnreg.mask import Mask
from attnreg.registry import Registry
from attnreg.variant import Variant

MAX_LENGTH = 80
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Case:
    """A variant under check on a device.

    ``variant``, ``able`` (its capabilities), ``device``, ``dtypes`` (those to check), ``dtype``
    (the widest, in which meaning is checked), ``sizes`` (of a usual call, as near to all-distinct
    as the capabilities allow), ``full`` (the profile). A law builds modules with ``build``, calls
    them with ``call``, compares with ``close``, ``equal`` and ``holds``, and goes over many calls
    with ``each(probe, samples)``, which also finds the smallest failing one.
    """

    def __init__(
        self,
        variant: Variant,
        *,
        device: torch.device | str = "cpu",
        dtypes: Iterable[torch.dtype] | None = None,
        full: bool = True,
    ) -> None:
        self.variant = variant
        self.able = variant.capabilities
        self.device = torch.device(device)
        try:
            torch.empty(0, device=self.device).cpu()
        except Exception as error:  # torch says it with an AssertionError, among others
            raise CannotJudge(f"nothing can be computed on {device}: {reason(error)}") from error
        self.full = full
        wanted = DTYPES if dtypes is None else tuple(dtypes)
        self.dtypes = tuple(
            d
            for d in DTYPES
            if d in wanted
            and str(d).removeprefix("torch.") in self.able.dtypes
            and not (d is torch.float64 and self.device.type == "mps")
        )
        if not self.dtypes:
            raise CannotJudge(
                f"{variant.name} takes {', '.join(self.able.dtypes)}; none of them was asked for"
            )
        self.dtype = self.dtypes[0]
        self.start("")
        self.sizes = self._sizes()

    def start(self, check: str) -> None:
        """Forget what an earlier check counted."""
        self.check = check
        self.tried = 0
        self.compared = 0
        self.worst = 0.0
        self.trial: Trial | None = None
        self.output: Tensor | None = None
        self.notes: dict[str, Any] = {}

    def _sizes(self) -> Sizes:
        """The usual sizes, or others where the constructor refuses those with its typed error."""
        usual = Sizes()
        wider = Sizes(heads=4, head_dim=16, value_dim=12)
        widest = Sizes(heads=8, head_dim=64, value_dim=32)
        for sizes in (usual, wider, widest):
            try:
                self.build(sizes=sizes.fit(self.able))
            except AttnregError:
                continue
            except Exception:  # a crash is for the laws to find
                return sizes.fit(self.able)
            return sizes.fit(self.able)
        return usual.fit(self.able)

    @property
    def same(self) -> float:
        """How far two ways to compute one thing may round apart, in the widest dtype."""
        return SAME if self.dtype is torch.float64 else LIMITS[self.dtype]

    def build(
        self,
        options: Mapping[str, Any] | None = None,
        *,
        implementation: str = "auto",
        dtype: torch.dtype | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        seed: int = 11,
        sizes: Sizes | None = None,
        jitter: bool = True,
        train: bool = False,
    ) -> CheckedAttention:
        """Build a module in evaluation mode.

        ``jitter`` moves its parameters off their initial values, at which heads may be alike and
        a bias 0. A typed refusal of the constructor passes through.
        """
        s = self.sizes if sizes is None else sizes
        reseed(seed)
        attn = Registry().create(
            self.variant,
            num_heads=s.heads,
            head_dim=s.head_dim,
            num_kv_heads=s.kv_heads,
            value_dim=s.value_dim,
            max_length=max(MAX_LENGTH, s.keys),
            implementation=implementation,
            dropout=dropout,
            scale=scale,
            **dict(options or {}),
        )
        if jitter:
            generator = torch.Generator().manual_seed(seed + 1)
            with torch.no_grad():
                for parameter in attn.parameters():
                    noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                    parameter.add_(torch.where(parameter == 0, 0.05, 0.2 * parameter) * noise)
        return attn.to(device=self.device, dtype=dtype or self.dtype).train(train)

    def inputs(
        self,
        sizes: Sizes | None = None,
        *,
        dtype: torch.dtype | None = None,
        seed: int = 0,
        factor: float = 1.0,
    ) -> Inputs:
        """Draw query, key and value from a normal distribution, in float64, then cast."""
        s = self.sizes if sizes is None else sizes
        generator = torch.Generator().manual_seed(seed)
        shapes = (
            (s.batch, s.heads, s.queries, s.head_dim),
            (s.batch, s.kv_heads, s.keys, s.head_dim),
            (s.batch, s.kv_heads, s.keys, s.value_dim),
        )
        query, key, value = (
            (factor * torch.randn(shape, generator=generator, dtype=torch.float64))
            .to(dtype or self.dtype)
            .to(self.device)
            for shape in shapes
        )
        return query, key, value

    def mask(self, name: str = "none", sizes: Sizes | None = None) -> Mask:
        """Make a mask of a kind; causal too where the variant is causal only."""
        made = masks.make(name, self.sizes if sizes is None else sizes, self.device)
        return made if self.able.noncausal else made.replace(causal=True)

    def call(
        self,
        attn: Callable[..., Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None = None,
    ) -> Tensor:
        """Call an attention; raise ``Failure`` where it raises or breaks the output's contract."""
        mask = self.mask() if mask is None else mask
        if not self.able.deterministic:
            reseed(97)  # so that a random variant draws the same in every call
        tracked = any(t.requires_grad for t in (query, key, value)) or (
            mask.bias is not None and mask.bias.requires_grad
        )
        with self.running("the call"), torch.set_grad_enabled(tracked and torch.is_grad_enabled()):
            output = attn(query, key, value, mask)
        if type(output) is not Tensor:  # a subclass could answer the comparisons itself
            raise Failure(f"the output is a {type(output).__name__}, expected a plain tensor")
        self.output = output
        shape = (*query.shape[:3], value.shape[3])
        if tuple(output.shape) != shape:
            raise Failure(f"the output has shape {tuple(output.shape)}, expected {shape}")
        if output.dtype != query.dtype and not torch.is_autocast_enabled(query.device.type):
            raise Failure(f"the output is {output.dtype}, the query {query.dtype}")
        return output

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Turn an exception of the variant's code into a ``Failure`` that names it."""
        try:
            yield
        except (Failure, DoesNotApply, CannotJudge, MemoryError, UnsupportedImplementation):
            raise
        except Exception as error:
            if out_of_memory(error):
                raise MemoryError(reason(error)) from error
            raise Failure(f"{what} raised {reason(error)}") from error

    def refuses(self, kind: type[Exception], what: str, run: Callable[[], Any]) -> Exception:
        """Return the typed error that a call must raise; ``Failure`` for another or none."""
        self.compared += 1
        try:
            run()
        except kind as error:
            return error
        except Exception as error:
            raise Failure(f"{what} raised {reason(error)}, expected {kind.__name__}") from error
        raise Failure(f"{what} was taken in silence, expected {kind.__name__}")

    def close(self, found: Tensor, expected: Tensor, limit: float, what: str = "output") -> float:
        """Compare by relative error (root mean square); return it, or raise ``Failure``."""
        self.compared += 1
        error = check_close(found, expected, limit, what)
        self.worst = max(self.worst, error / limit if limit else 0.0)
        return error

    def equal(self, found: Tensor, expected: Tensor, what: str = "output") -> None:
        """Compare bit by bit."""
        self.compared += 1
        check_equal(found, expected, what)

    def holds(self, truth: object, what: str, **evidence: Any) -> None:
        """Raise ``Failure`` with this sentence unless it is true."""
        self.compared += 1
        if not truth:
            raise Failure(what, **evidence)

    def skip(self, reason: str) -> NoReturn:
        """Say that the law does not apply."""
        raise DoesNotApply(reason)

    def reference(
        self, attn: CheckedAttention, query: Tensor, key: Tensor, value: Tensor, mask: Mask
    ) -> Tensor:
        """Return the variant's NumPy reference, float64 on the CPU, on the module's parameters."""
        reference = self.variant.reference
        if reference is None:
            raise DoesNotApply("the variant has no reference")
        module = attn.module
        state = [*module.parameters(), *module.buffers()]
        if self.device.type != "cpu" or any(
            t.is_floating_point() and t.dtype != torch.float64 for t in state
        ):
            module = copy.deepcopy(module).cpu().double()
        arrays = [t.detach().double().cpu().numpy() for t in (query, key, value)]
        for array in arrays:
            array.flags.writeable = False
        visible, *positions = lower(mask, *query.shape[:3], key.shape[2])  # type: ignore[call-arg]  # batch, heads and length
        if mask.key_valid is not None:  # the core zeroes what is stored in padded keys
            padded = ~mask.key_valid.cpu().numpy()[:, None, :, None]
            arrays[1:] = [np.where(padded, 0.0, array) for array in arrays[1:]]
        bias = None if mask.bias is None else mask.bias.detach().double().cpu().numpy()
        try:
            with np.errstate(all="ignore"):
                found = np.asarray(reference(module, *arrays, visible, bias, *positions))
        except Exception as error:
            raise CannotJudge(f"the reference raised {reason(error)}") from error
        if found.dtype.kind not in "fiub":
            raise CannotJudge(f"the reference gave numbers of dtype {found.dtype}")
        shape = (*query.shape[:3], value.shape[3])
        if found.shape != shape:
            raise CannotJudge(f"the reference gave shape {found.shape}, expected {shape}")
        return torch.from_numpy(np.array(found, dtype=np.float64))

    @cached_property
    def settings(self) -> Settings:
        """Settings that move every option, the defaults first."""
        return generate(self.variant, self._builds, self.full)

    @cached_property
    def settled(self) -> bool:
        """Whether two calls give the same, whatever the state of torch's generator.

        A random variant draws other numbers for another shape or dtype: two such calls of it
        cannot be compared.
        """
        if self.able.deterministic or self.variant.reference is not None:
            return True
        try:
            attn, inputs, mask = self.build(), self.inputs(), self.mask()
            with torch.random.fork_rng(), torch.no_grad():
                reseed(1)
                first = attn(*inputs, mask)
                reseed(2)
                return torch.equal(first, attn(*inputs, mask))
        except Exception:  # the laws themselves will say so
            return True

    @property
    def usual(self) -> tuple[Setting, ...]:
        """The settings without those that stand at a bound; in the fast profile only a few."""
        if not self.full:
            return self.settings.few
        return tuple(s for s in self.settings.all if not s.edge)

    def _builds(self, options: Mapping[str, Any]) -> bool:
        try:
            self.build(options)
        except AttnregError:
            return False
        except Exception:  # a crash is for the laws to find; the setting stays
            return True
        return True

    def implementations(self) -> tuple[str, ...]:
        """The names of every implementation, the preferred first."""
        return tuple(one.name for one in self.variant.implementations)

    def samples(
        self,
        *,
        settings: Iterable[Setting] | None = None,
        masks: Iterable[str] = ("none",),
        sizes: Iterable[Sizes] | None = None,
        dtypes: Iterable[torch.dtype] | None = None,
        implementations: Iterable[str] | None = None,
        seeds: Iterable[int] = (0,),
        scale: float | None = None,
    ) -> Iterator[Sample]:
        """Every combination that the variant declares: a packed mask takes a batch of one.

        By default: the default options, no mask, the usual sizes, the widest dtype, and every
        implementation.
        """
        chosen = (Setting({}),) if settings is None else tuple(settings)
        names = [name for name in masks if RECIPES[name].suits(self.able)]
        if not self.able.noncausal:
            names = [n for n in names if n != "none"] or ["causal"]
        for setting in chosen:
            for size in (self.sizes,) if sizes is None else sizes:
                for name in names:
                    fitted = size.fit(self.able)
                    if name.startswith("packed"):
                        fitted = replace(fitted, batch=1)
                    for dtype in (self.dtype,) if dtypes is None else dtypes:
                        for one in implementations or self.implementations():
                            for seed in seeds:
                                yield Sample(fitted, dtype, setting.options, one, name, seed, scale)

    def each(self, probe: Probe, samples: Iterable[Sample]) -> int:
        """Try a law on many calls; where it fails, look for the smallest call that shows it.

        A call that an implementation or a constructor refuses with its typed error is left out.
        Returns how many were tried.
        """
        from attnreg.conformance.shrinking import smallest

        tried = 0
        for sample in samples:
            try:
                tried += self.attempt(probe, sample)
            except Failure as failure:
                raise smallest(self, probe, sample, failure) from None
        return tried

    def attempt(self, probe: Probe, sample: Sample) -> bool:
        """Try a law on one call; return False where the call is refused before it is computed."""
        try:
            trial = Trial(self, sample)
        except AttnregError:
            if sample.sizes == self.sizes and not sample.options and sample.scale is None:
                raise  # the usual call, by default, must be possible
            return False
        with torch.no_grad():  # as the call, where no input asks for a gradient
            explanation = trial.attn.explain(*trial.inputs, trial.mask)
        if explanation.chosen is None and sample.implementation != "auto":
            return False
        self.trial = trial
        self.tried += 1
        try:
            probe(trial)
        except UnsupportedImplementation:  # refused a call that the law makes on the way
            return False
        return True
