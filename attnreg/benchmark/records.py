"""What a benchmark says as it goes: frozen values, ready for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "memory", "time", "refused", "error"]
"""What became of a cell: "memory" and "time", it needs more than it may; "refused", the variant
cannot do such a call, or fails conformance; "error", it broke."""

MODES = ("forward", "backward")
"""What a call is: "forward" without gradients, "backward" forward and backward together."""


@dataclass(frozen=True)
class Settings:
    """What every call of a run shares."""

    lengths: tuple[int, ...]
    modes: tuple[str, ...] = ("forward",)
    causal: bool = False
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    dtype: str = "float32"
    device: str = "cpu"
    repeat: int = 20
    """The most repetitions of a cell."""
    seconds: float = 10.0
    """How long the repetitions of one cell may take."""
    memory: int = 2**32
    """How many bytes one call may need."""
    threads: int = 1
    seed: int = 0
    unchecked: bool = False
    """Whether conformance is left out, so that nothing says that the results are right."""


@dataclass(frozen=True)
class Machine:
    """Where it ran: versions, the processor, the device."""

    attnreg: str
    torch: str
    python: str
    platform: str
    processor: str
    cores: int
    accelerator: str = ""


@dataclass(frozen=True)
class Subject:
    """What is measured: a variant with its options and the implementation that was asked for."""

    label: str
    variant: str
    implementation: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    time: str = ""
    """How its time grows, as declared; empty where nothing is."""
    memory: str = ""


@dataclass(frozen=True)
class Started:
    """The first event: what will be done, where, and in how many cells."""

    settings: Settings
    machine: Machine
    subjects: tuple[Subject, ...]
    against: str | None
    """The label of the subject that the others are compared with."""
    cells: int


@dataclass(frozen=True)
class Step:
    """Where the run is. For a progress bar: nothing of it is kept."""

    phase: Literal["conformance", "limits", "memory", "time"]
    text: str
    done: int
    total: int


@dataclass(frozen=True)
class Verdict:
    """What the conformance suite said of a variant, or that it was not asked."""

    variant: str
    verdict: str
    ok: bool
    failed: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Limits:
    """What the machine attains in this run, at its best: the ceiling that shares refer to."""

    flops_per_second: float
    """Floating point operations per second of a product of matrices, in the dtype of the run."""
    product: str
    """The product that was the fastest of those tried."""
    bytes_per_second: float
    """Bytes read and written per second, copying what no cache holds."""


@dataclass(frozen=True)
class Measurement:
    """One cell: a subject at one length and mode; times only where ``status`` is "ok"."""

    subject: str
    mode: str
    length: int
    status: Status
    reason: str = ""
    implementation: str = ""
    """Which implementation ran."""
    samples: tuple[float, ...] = ()
    """Seconds per call; repetition k of every subject of this mode and length ran in one round."""
    median: float | None = None
    spread: float | None = None
    """The distance between the quartiles, in seconds."""
    peak_bytes: int | None = None
    """What a call adds to the memory in use at its peak: scratch, output and gradients."""
    peak_note: str = ""
    """Why there is no peak."""
    flops: float | None = None
    """Floating point operations of the products of one call, by the variant's closed form."""
    moved: int = 0
    """Bytes that any way to compute it must read and write: inputs, outputs, gradients, once."""


Event = Started | Step | Verdict | Limits | Measurement
