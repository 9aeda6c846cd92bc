"""Wrong in what a module saves, copies, moves, keeps and shares."""

from __future__ import annotations

import threading
from typing import ClassVar

import torch
from torch import nn

from attnreg import Mask
from attnreg.functional import unit_vectors
from attnreg_additive.module import Additive
from attnreg_cosine.module import Cosine
from attnreg_euclidean.module import Euclidean
from attnreg_linear.module import Linear
from attnreg_linformer.module import Linformer
from attnreg_performer.module import Performer
from attnreg_shared_qkv.module import SharedQKV
from attnreg_sparse_window.module import SparseWindow
from tests.mutants.agreement import (
    ADDITIVE,
    COSINE,
    EUCLIDEAN,
    LINEAR,
    LINFORMER,
    PERFORMER,
    SHARED,
    SPARSE,
    Dense,
    OneProjection,
    dense,
)
from tests.mutants.mutant import Mutant, wrong

# Saved and loaded --------------------------------------------------------------------------------


class PlainAttribute(Performer):
    """The features are a plain attribute."""

    def redraw(self, seed=None):
        super().redraw(seed)
        self._plain()

    def _plain(self):
        if "projection" in self._buffers:
            self.__dict__["projection"] = self._buffers.pop("projection")

    def reset_parameters(self):
        self.redraw(self.seed)


class NotSaved(Performer):
    """The features are a buffer that is not persistent."""

    def __init__(self, dims, *, features: int = 64, seed: int | None = None, **common):
        super().__init__(dims, features=features, seed=seed, **common)
        self._non_persistent_buffers_set.add("projection")


class SeedAsNumber(SparseWindow):
    """The seed of the random blocks is a Python number."""

    implementations = ()

    def __init__(
        self,
        dims,
        *,
        left: int = 1,
        right: int = 1,
        random_blocks: int = 2,
        seed: int | None = None,
        **common,
    ):
        super().__init__(
            dims, left=left, right=right, random_blocks=random_blocks, seed=seed, **common
        )
        number = int(self._buffers.pop("seed"))
        self.__dict__["seed"] = torch.tensor(number)


class GrowingState(Linear):
    """A call registers what it has computed as a buffer."""

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if not hasattr(self, "seen"):
            self.register_buffer("seen", torch.zeros(()))
        return super().forward(query, key, value, mask)


class SavesItsSizes(Dense):
    """Its sizes are saved along, as an object of their class."""

    def get_extra_state(self):
        return self.dims

    def set_extra_state(self, state):
        self.dims = state


class SavedInHalf(Additive):
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in list(destination):
            if name.startswith(prefix):
                destination[name] = destination[name].half()


class KeepsTheLast(Dense):
    """The last output is kept, with its graph."""

    last = None

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        self.last = super().forward(query, key, value, mask)
        return self.last


class Locked(Euclidean):
    """A lock that cannot be copied."""

    def __init__(self, dims, **common):
        super().__init__(dims, **common)
        self.lock = threading.Lock()


class CopiesShare(Linformer):
    """A copy holds the same parameters."""

    def __deepcopy__(self, memo):
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made


# Moved -------------------------------------------------------------------------------------------


class LimitAsTensor(Cosine):
    """The largest scale of each head is a tensor of its own."""

    def __init__(self, dims, **common):
        super().__init__(dims, **common)
        self.limit = torch.full((dims.num_heads,), 100.0)

    def transform(self, query, key):
        query, key = unit_vectors(query), unit_vectors(key)
        scale = torch.minimum(self.head_scale, self.limit.to(self.head_scale)).to(query.dtype)
        return query * scale[:, None, None], key


class ListOfTensors(Additive):
    """A table in a list."""

    def __init__(self, dims, **common):
        super().__init__(dims, **common)
        self.tables = [torch.zeros(dims.num_heads), {"more": torch.ones(2)}]


class StaysFloat(Linformer):
    """The projection is held in float32 whatever the module is moved to."""

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        for parameter in self.parameters():
            parameter.data = parameter.data.float()
        return self


class TrainedFeatures(Performer):
    """The features are a parameter."""

    def __init__(self, dims, *, features: int = 64, seed: int | None = None, **common):
        super().__init__(dims, features=features, seed=seed, **common)
        self.projection = nn.Parameter(self._buffers.pop("projection"))


class RedrawsParameters(Linformer):
    """Redrawing throws away what was learned."""

    def redraw(self):
        self.reset_parameters()


class LooksAtValues(Dense):
    """Branches on the values of a mask."""

    def softmax(self, logits, visible):
        if visible is not None and not bool(visible.any()):
            return torch.zeros_like(logits)
        return super().softmax(logits, visible)


class BuiltOnTheCPU(SharedQKV):
    """A constant is built where the caller is not."""

    def pattern(self, lowered, rows, columns):
        own = torch.ones(lowered.query_length, lowered.key_length, dtype=torch.bool)
        return own[rows, columns]


class BiasForgotten(Additive):
    def reset_parameters(self):
        bias = self.bias
        self.bias = nn.Parameter(torch.empty_like(bias))
        super().reset_parameters()
        self.bias = bias
        if not hasattr(self, "built"):
            self.built = True
            nn.init.zeros_(self.bias)


class ResetOnce(Cosine):
    """The scale is set when the module is built, and never again."""

    def reset_parameters(self):
        if not hasattr(self, "built"):
            super().reset_parameters()
        self.built = True


# Kept and shared ---------------------------------------------------------------------------------


class KeepsHistory(Euclidean):
    """The weights of every call are kept, without their graphs."""

    def __init__(self, dims, **common):
        super().__init__(dims, **common)
        self.history = []

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        output = super().forward(query, key, value, mask)
        self.history.append(output.detach())
        return output


class KeepsElsewhere(Linear):
    """What was computed lies in a table of the class."""

    table: ClassVar[dict[int, list[object]]] = {}

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        self.table.setdefault(len(self.table), [key.detach().clone()])
        return super().forward(query, key, value, mask)


class BufferWithGraph(Cosine):
    """A running mean takes its graph along."""

    def __init__(self, dims, **common):
        super().__init__(dims, **common)
        self.register_buffer("mean", torch.zeros(()), persistent=False)

    def forward(self, query, key, value, mask=Mask()):  # noqa: B008  # Mask() is immutable
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * key.mean()
        return super().forward(query, key, value, mask)


class LouderInTraining(Dense):
    def mix(self, weights, value):
        mixed = super().mix(weights, value)
        return mixed * 1.001 if self.training else mixed


class WithGradientsAnother(Performer):
    """The path for training leaves out the largest entry that keeps exponentials in range."""

    def query_features(self, query):
        features = super().query_features(query)
        return features + 1e-6 if torch.is_grad_enabled() else features


class FastInference(SparseWindow):
    """Inference mode has a path of its own."""

    def attend(self, query):
        return query * 0.999 if torch.is_inference_mode_enabled() else query

    def transform(self, query, key):
        return self.attend(query), key


class FrozenIsConstant(Additive):
    """Where nothing is trained, a cheaper score is used."""

    def score(self, query, key):
        scores = super().score(query, key)
        return scores if self.bias.requires_grad else scores * 1.01


class FirstWeights(Additive):
    """The transposed weights of the first call are kept."""

    kept = None

    def score(self, query, key):
        if self.kept is None:
            self.kept = self.query_weight.detach().clone()
        own, self.query_weight.data = self.query_weight.data, self.kept
        try:
            return super().score(query, key)
        finally:
            self.query_weight.data = own


class ScaleOnce(Cosine):
    """The clamped scale is computed once."""

    scale_once = None

    def transform(self, query, key):
        if self.scale_once is None:
            self.scale_once = self.head_scale.detach().clamp(max=100.0).tolist()
        query, key = unit_vectors(query), unit_vectors(key)
        return query * query.new_tensor(self.scale_once)[:, None, None], key


class OneScaleForAll(Cosine):
    """Modules of one size hold one and the same parameter."""

    shared: ClassVar[dict[int, nn.Parameter]] = {}

    def __init__(self, dims, **common):
        super().__init__(dims, **common)
        if isinstance(self.head_scale, nn.Parameter):
            self.head_scale = self.shared.setdefault(dims.num_heads, self.head_scale)


class OptionOfTheClass(SharedQKV):
    """An option is written to the class: the module that was built last decides."""

    def __init__(self, dims, *, exclude_self: bool = False, **common):
        super().__init__(dims, **common)
        del self.exclude_self
        type(self).exclude_self = exclude_self


class SpareParameter(Additive):
    """A parameter that nothing reads."""

    def __init__(self, dims, **common):
        super().__init__(dims, **common)
        self.spare = nn.Parameter(torch.zeros(3))


MUTANTS = [
    Mutant("features as an attribute", wrong(PERFORMER, PlainAttribute), ("L-01", "L-05")),
    Mutant("features not saved", wrong(PERFORMER, NotSaved), ("L-01", "L-02"), ("L-05", "P-07")),
    Mutant("a seed not saved", wrong(SPARSE, SeedAsNumber, reference=None), ("L-01",), ("L-05",)),
    Mutant("a state that grows", wrong(LINEAR, GrowingState), ("L-01",), ("N-01",)),
    dense("sizes saved as an object", SavesItsSizes, ("L-02",), ("N-01", "L-01")),
    Mutant("saved in half precision", wrong(ADDITIVE, SavedInHalf), ("L-02", "L-01"), ("N-01",)),
    dense("the last output kept", KeepsTheLast, ("L-03", "L-04"), ("N-01", "L-05")),
    Mutant("a lock in a module", wrong(EUCLIDEAN, Locked), ("L-03",), ("L-01",)),
    Mutant("copies that share", wrong(LINFORMER, CopiesShare), ("L-03",), ("L-10",)),
    Mutant("limits as a tensor", wrong(COSINE, LimitAsTensor), ("L-05",), ("N-01", "L-01")),
    Mutant("tensors in a list", wrong(ADDITIVE, ListOfTensors), ("L-05",), ("N-01", "L-01")),
    Mutant("float32 for ever", wrong(LINFORMER, StaysFloat, reference=None), ("L-05",), ("L-01",)),
    Mutant("trained features", wrong(PERFORMER, TrainedFeatures), ("L-06",), ("N-01", "L-01")),
    Mutant("a redraw of parameters", wrong(LINFORMER, RedrawsParameters), ("L-06",), ("N-01",)),
    dense("a look at values", LooksAtValues, ("L-07",), ("N-01", "L-01")),
    Mutant("built on the CPU", wrong(SHARED, BuiltOnTheCPU), ("L-07",), ("L-05",)),
    Mutant("a bias not reset", wrong(ADDITIVE, BiasForgotten), ("L-12",), ("N-01", "L-01")),
    Mutant("reset only once", wrong(COSINE, ResetOnce), ("L-12",), ("N-01", "L-01")),
    Mutant("a history of outputs", wrong(EUCLIDEAN, KeepsHistory), ("L-04",), ("N-01", "L-01")),
    Mutant("a table that grows", wrong(LINEAR, KeepsElsewhere), ("L-04",), ("N-01", "L-03")),
    Mutant("a mean with its graph", wrong(COSINE, BufferWithGraph), ("L-04",), ("N-01",)),
    dense("louder in training", LouderInTraining, ("L-08",), ("N-01", "P-07")),
    Mutant("another path with gradients", wrong(PERFORMER, WithGradientsAnother), ("L-08",)),
    Mutant("another path for inference", wrong(SPARSE, FastInference), ("L-08",), ("N-01",)),
    Mutant("another path when frozen", wrong(ADDITIVE, FrozenIsConstant), ("L-08",), ("N-01",)),
    Mutant("weights of the first call", wrong(ADDITIVE, FirstWeights), ("L-11",), ("N-01",)),
    Mutant("a scale computed once", wrong(COSINE, ScaleOnce), ("L-11",), ("N-01", "P-07")),
    Mutant("one scale for all modules", wrong(COSINE, OneScaleForAll), ("L-10",)),
    Mutant("an option of the class", wrong(SHARED, OptionOfTheClass), ("L-10",), ("L-01",)),
    Mutant("one projection in replicas", wrong(LINFORMER, OneProjection), ("L-09",), ("L-01",)),
    Mutant("a spare parameter", wrong(ADDITIVE, SpareParameter), ("L-09",), ("N-01", "L-01")),
]
