"""See what a call makes torch do: the storage and the work it takes, the operators it calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

OWN = ("aten", "prim", "prims", "profiler", "inductor", "debugprims", "rngprims", "higher_order")
"""Namespaces of operators that come with torch."""


class Recording:
    """What torch's operators did inside a ``with`` block, those inside fused calls included.

    ``largest`` is the size in bytes of the largest storage that an operator gave back, but for
    those of ``known`` tensors; ``operations`` counts those of products of matrices, ``entries``
    those of every result that is no view; ``foreign`` has the first call of every operator that is
    not torch's.
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        self.known = {t.untyped_storage().data_ptr() for t in known}
        self.storages: dict[int, int] = {}
        self.operations = 0
        self.entries = 0
        self.foreign: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}
        self._mode = FlopCounterMode(display=False)
        self._mode.flop_registry = _Registry(self._mode.flop_registry, self)

    def __enter__(self) -> Recording:
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)

    def largest(self, output: Tensor | None = None) -> int:
        """The largest storage in bytes, but for that of the output."""
        found = {at: size for at, size in self.storages.items() if at not in self.known}
        if output is not None:
            storage = output.untyped_storage()
            # Where it lies now a larger one may have lain, and been freed.
            if found.get(storage.data_ptr(), 0) <= storage.nbytes():
                found.pop(storage.data_ptr(), None)
        return max(found.values(), default=0)

    def saw(self, packet: Any, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of one operator's call."""
        name = str(packet)
        if name.partition(".")[0] not in OWN and name not in self.foreign:
            self.foreign[name] = (packet, args, kwargs)
        given = [a for a in args if isinstance(a, Tensor) and a.layout == torch.strided]
        viewed = {a.untyped_storage().data_ptr() for a in given}
        viewed = set() if name.endswith("_") else viewed  # what writes in place does work
        for one in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(one, Tensor) and one.layout == torch.strided:
                storage = one.untyped_storage()
                at = storage.data_ptr()
                self.storages[at] = max(self.storages.get(at, 0), storage.nbytes())
                self.entries += 0 if at in viewed else one.numel()


class _Registry(dict[Any, Any]):
    """The counter's table of formulas, which in passing tells the recording of every operator."""

    def __init__(self, formulas: dict[Any, Any], recording: Recording) -> None:
        super().__init__(formulas)
        self.recording = recording

    def __contains__(self, operator: object) -> bool:
        # An overload is asked for before the call, to decompose it; its packet after the call.
        return hasattr(operator, "overloads") or super().__contains__(operator)

    def __getitem__(self, packet: Any) -> Callable[..., int]:
        formula = self.get(packet)
        if formula is None and "scaled_dot_product" in str(packet):
            formula = _fused  # torch counts those of GPUs, not that of the CPU

        def count(*args: Any, out_val: Any, **kwargs: Any) -> int:
            self.recording.saw(packet, out_val, args, kwargs)
            if formula is None:
                return 0
            found = int(formula(*args, **kwargs, out_val=out_val))
            self.recording.operations += found
            return found

        return count


def _fused(query: Any, key: Any, value: Any, *args: Any, out_val: Any, **kwargs: Any) -> int:
    """Operations of a fused kernel's two products."""
    batch, heads, queries, width = query.shape
    return int(2 * batch * heads * queries * key.shape[2] * (width + value.shape[3]))


class At(TorchFunctionMode):
    """Do something just before the n-th call of torch inside a ``with`` block; count the calls."""

    def __init__(self, place: int = -1, act: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.place = place
        self.act = act
        self.calls = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Count, perhaps act, and go on."""
        if getattr(func, "__name__", "") != "__get__":  # to ask for a shape computes nothing
            self.calls += 1
            if self.calls == self.place:
                self.act()
        return func(*args, **(kwargs or {}))


def places(calls: int, count: int) -> list[int]:
    """Return up to ``count`` places spread evenly over so many calls."""
    step = max(1.0, calls / count)
    return sorted({int(1 + i * step) for i in range(min(count, calls))})
