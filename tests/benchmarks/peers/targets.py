"""What is to be reached beside which peer: the table of the project, as data.

Speed is how many times as fast as the peer ours is, memory how many times less it takes; so
"at most 1.05 times its time" is a speed of 1 / 1.05, and "the same memory" is 1.
"""

from __future__ import annotations

from typing import NamedTuple

SAME = 1 / 1.05
"""As fast, to within what such a measurement tells apart."""


class Target(NamedTuple):
    """One row: ours against peers, at lengths, in a direction. Every peer is to be matched."""

    variant: str
    against: tuple[str, ...]
    """Names in ``adapters.PEERS``."""
    lengths: tuple[int, ...]
    forward: float
    backward: float
    """Forward and backward together."""
    memory: float
    causal: bool = False
    dtype: str = "float32"
    ours: str = ""
    """Name in ``ours.OURS``; the variant's, where empty."""
    agrees: float | None = 1e-4
    """How far outputs may lie apart, relative to the largest; None where they are not the same
    formula: random blocks and features are drawn otherwise."""
    aim: tuple[float | None, float | None] = (None, None)
    """What forward and forward + backward would better be."""
    beside: tuple[str, ...] = ()
    """Peers that are measured too, without a target: their mathematics is another."""
    needs_compiler: bool = False

    @property
    def core(self) -> str:
        return self.ours or self.variant


def _full(variant: str, peers: tuple[str, ...], lengths: tuple[int, ...], **more) -> list[Target]:
    """The same time and memory as a peer, causal or not."""
    return [
        Target(variant, peers, lengths, SAME, SAME, 1, causal=causal, **more)
        for causal in (False, True)
    ]


COSINES = ("normalize + SDPA", "x-transformers qk-norm flash")
ADDITIVE = ("additive textbook", "Keras AdditiveAttention")
L2 = ("x-transformers l2 flash",)
WINDOWED = ("local-attention", "Longformer")

TARGETS: tuple[Target, ...] = (
    *_full("scaled_dot_product", ("torch SDPA",), (512, 2048, 8192)),
    *_full("scaled_dot_product", ("torch SDPA",), (512, 2048, 8192), dtype="bfloat16", agrees=0.02),
    *_full("cosine", COSINES, (512, 2048, 4096), beside=("flash-cosine-sim-attention, plain",)),
    Target("euclidean", L2, (2048, 4096), 3, 1.8, 20),
    Target("euclidean", L2, (2048, 4096), 5, 3, 20, causal=True),
    Target("additive", ADDITIVE, (1024,), 40, 20, 100, needs_compiler=True),
    Target("additive", ADDITIVE, (1024,), 7, 2, 100, ours="additive without a compiler"),
    *_full("shared_qkv", ("x-transformers flash, tied",), (1024, 4096)),
    Target(
        "linear",
        ("performer-pytorch linear",),
        (2048, 8192, 16384),
        *(1, 1, 1),
        aim=(1.2, 1.2),
        beside=("linear-attention-transformer",),
    ),
    Target("linear", ("fla naive chunk",), (2048, 8192, 16384), 1.4, 1.5, 1, causal=True),
    Target(
        "linformer",
        ("LinformerSelfAttention",),
        (8192, 16384),
        *(2, 1.7, 6),
        ours="linformer, one mixture for all heads",  # as the peer has it
    ),
    Target(
        "linformer", ("LinformerSelfAttention",), (8192, 16384), 2, 1.7, 6, agrees=None
    ),  # one per head
    Target("performer", ("performer-pytorch",), (8192, 16384), 3, 3, 8, agrees=None),
    Target("performer", ("performer-pytorch",), (2048,), 12, 15, 1, causal=True, agrees=None),
    Target("sparse_window", WINDOWED, (4096,), 4, 1.8, 4, aim=(None, 2)),
    Target("sparse_window", WINDOWED, (16384,), 4, 1.1, 4, aim=(None, 2)),
    Target(
        "sparse_window",
        ("BigBird",),
        (4096,),
        *(5, 2.5, 12),
        ours="sparse_window as BigBird",
        agrees=None,
    ),
    Target(
        "sparse_window",
        ("BigBird",),
        (8192,),
        *(8, 3.5, 30),
        ours="sparse_window as BigBird",
        agrees=None,
    ),
)
