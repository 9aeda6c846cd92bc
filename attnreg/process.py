"""What is set for the whole process or thread, and may be changed by any code that runs in it.

One list serves three questions: what importing a plugin changed, what a call left changed, and
what has to be put back after code that is not trusted to tidy up.
"""

from __future__ import annotations

import logging
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch


class State(NamedTuple):
    """How something is read, and put back; some of it only its owner can put back."""

    look: Callable[[], Any]
    put: Callable[[Any], object] | None = None


def read(states: Mapping[str, State]) -> dict[str, Any]:
    """Look at everything named; what this torch or platform cannot tell is left out."""
    values: dict[str, Any] = {}
    for name, state in states.items():
        try:
            values[name] = state.look()
        except Exception:  # an older or a narrower build has no such setting
            continue
    return values


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name what differs, of what was there before."""
    return [name for name, value in before.items() if now.get(name, value) != value]


@contextmanager
def restored() -> Iterator[None]:
    """Put back, at the end, whatever was changed."""
    states = {**FLAGS, **DRAWS}
    before = read(states)
    try:
        yield
    finally:
        # Only what differs: turning deterministic algorithms on or off alone takes seconds.
        for name in changed(before, read(states)):
            put = states[name].put
            if put is not None:
                put(before[name])


def _put_kernels(flags: tuple[bool, bool, bool, bool]) -> None:
    cuda = torch.backends.cuda
    switches = (
        cuda.enable_flash_sdp,
        cuda.enable_mem_efficient_sdp,
        cuda.enable_math_sdp,
        cuda.enable_cudnn_sdp,
    )
    for switch, on in zip(switches, flags, strict=True):
        switch(on)


def _put_device(device: torch.device) -> None:
    # Without a default of its own torch reports the CPU; naming it would slow every factory call.
    torch.set_default_device(None if device == torch.device("cpu") else device)


def _numpy() -> Any:
    return sys.modules["numpy"]  # torch has loaded it where it is installed; never for this


def _numpy_draws() -> object:
    kind, keys, *rest = _numpy().random.get_state()
    return kind, keys.tobytes(), *rest


def _put_numpy_draws(state: Any) -> None:
    numpy = _numpy()
    kind, keys, *rest = state
    numpy.random.set_state((kind, numpy.frombuffer(keys, dtype=numpy.uint32), *rest))


def _put_torch_draws(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _put_logging(state: tuple[int, tuple[logging.Handler, ...]]) -> None:
    logging.root.setLevel(state[0])
    logging.root.handlers[:] = state[1]


def _attribute(owner: Any, name: str) -> State:
    return State(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


OF_THE_THREAD: Mapping[str, State] = {
    "torch's default device": State(torch.get_default_device, _put_device),
    "torch's grad mode": State(torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's inference mode": State(torch.is_inference_mode_enabled),
    "torch's autocast": State(
        lambda: torch.is_autocast_enabled("cpu"),
        lambda on: torch.set_autocast_enabled("cpu", on),
    ),
    "NumPy's handling of errors": State(
        lambda: dict(_numpy().geterr()), lambda how: _numpy().seterr(**how)
    ),
}
"""Settings of the thread that reads them."""

OF_THE_PROCESS: Mapping[str, State] = {
    "torch's default dtype": State(torch.get_default_dtype, torch.set_default_dtype),
    "torch's anomaly detection": State(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "torch's number of threads": State(torch.get_num_threads, torch.set_num_threads),
    "torch's deterministic algorithms": State(
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda state: torch.use_deterministic_algorithms(state[0], warn_only=state[1]),
    ),
    "torch's precision of float32 products": State(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    ),
    "torch.backends.fp32_precision": _attribute(torch.backends, "fp32_precision"),
    "torch.backends.cuda.matmul.fp32_precision": _attribute(
        torch.backends.cuda.matmul, "fp32_precision"
    ),
    "torch.backends.cudnn.benchmark": _attribute(torch.backends.cudnn, "benchmark"),
    "torch.backends.cudnn.deterministic": _attribute(torch.backends.cudnn, "deterministic"),
    "the kernels that torch's scaled_dot_product_attention may use": State(
        lambda: (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.cudnn_sdp_enabled(),
        ),
        _put_kernels,
    ),
    "logging.root": State(lambda: (logging.root.level, tuple(logging.root.handlers)), _put_logging),
    "the handler of SIGINT": State(lambda: signal.getsignal(signal.SIGINT)),
    "the handler of SIGTERM": State(lambda: signal.getsignal(signal.SIGTERM)),
}
"""Settings that hold for every thread: a change is felt elsewhere even while a call runs."""

FLAGS: Mapping[str, State] = {**OF_THE_THREAD, **OF_THE_PROCESS}
"""Settings, which no call and no import has a reason to leave changed."""

DRAWS: Mapping[str, State] = {
    "torch's random state": State(
        lambda: torch.get_rng_state().numpy().tobytes(), _put_torch_draws
    ),
    "the state of random": State(random.getstate, random.setstate),
    "the state of numpy.random": State(_numpy_draws, _put_numpy_draws),
}
"""Random generators, which a call may draw from and an import may not."""
