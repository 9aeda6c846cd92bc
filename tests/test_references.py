"""The NumPy references, against the dense torch oracles and against numbers worked out by hand."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
HEADS, HEAD_DIM, VALUE_DIM = 6, 8, 6
ROWS, COLUMNS = 5, 9
TIGHT = 1e-12


def load(path: Path, name: str) -> ModuleType:
    """Import a file by its path: the plugins need not be installed for this."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ORACLES: dict[str, Callable[..., Tensor]] = load(
    ROOT / "tests" / "oracles.py", "attnreg_oracles"
).ORACLES
REFERENCES: dict[str, Callable[..., np.ndarray]] = {
    name: load(
        ROOT / "plugins" / name / f"attnreg_{name}" / "reference.py", f"reference_of_{name}"
    ).reference
    for name in ORACLES
}
LOGITS = {"scaled_dot_product", "additive", "cosine", "euclidean", "shared_qkv", "sparse_window"}


# ---------------------------------------------------------------------------------------------
# Stand-in modules
# ---------------------------------------------------------------------------------------------


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def stand_in(
    heads: int = HEADS, head_dim: int = HEAD_DIM, value_dim: int = VALUE_DIM, **attributes: Any
) -> SimpleNamespace:
    dims = SimpleNamespace(num_heads=heads, head_dim=head_dim, value_dim=value_dim, max_length=12)
    return SimpleNamespace(dims=dims, **attributes)


def additive(hidden: int, temperature: float) -> SimpleNamespace:
    return stand_in(
        query_weight=draw(HEADS, hidden, HEAD_DIM, seed=11),
        key_weight=draw(HEADS, hidden, HEAD_DIM, seed=12),
        bias=draw(HEADS, hidden, seed=13),
        score_weight=draw(HEADS, hidden, seed=14),
        scale=1.5,
        temperature=temperature,
    )


def euclidean(squared: bool, normalize_inputs: bool) -> SimpleNamespace:
    log_tau = 0.3 * draw(HEADS, seed=15)
    return stand_in(log_tau=log_tau, squared=squared, normalize_inputs=normalize_inputs, scale=0.75)


def linear(feature_map: str, normalize: bool) -> SimpleNamespace:
    return stand_in(feature_map_name=feature_map, normalize=normalize)


def linformer(heads: int, separate: bool) -> SimpleNamespace:
    return stand_in(
        key_projection=draw(heads, 4, 12, seed=16),
        value_projection=draw(heads, 4, 12, seed=17) if separate else None,
        scale=0.35,
    )


def performer(kernel: str) -> SimpleNamespace:
    return stand_in(projection=draw(16, HEAD_DIM, seed=18), kernel=kernel, scale=0.35)


def sparse_window(**given: Any) -> SimpleNamespace:
    pattern: dict[str, Any] = {
        "left": 1,
        "right": 1,
        "dilation": 1,
        "block_size": 1,
        "random_blocks": 0,
        "global_positions": (),
    }
    seed = torch.tensor(given.pop("seed", 5))
    return stand_in(seed=seed, scale=0.35, **(pattern | given))


MODULES: dict[str, tuple[str, SimpleNamespace]] = {
    "scaled_dot_product": ("scaled_dot_product", stand_in(scale=0.35, temperature=1.0)),
    "scaled_dot_product-warm": ("scaled_dot_product", stand_in(scale=0.35, temperature=2.5)),
    "additive": ("additive", additive(5, 1.0)),
    "additive-warm": ("additive", additive(8, 2.0)),
    "cosine": (
        "cosine",
        stand_in(head_scale=torch.tensor([1.0, 5, 10, 99, 100, 250]).double(), scale=0.8),
    ),
    "euclidean": ("euclidean", euclidean(True, False)),
    "euclidean-plain": ("euclidean", euclidean(False, False)),
    "euclidean-normalized": ("euclidean", euclidean(True, True)),
    "euclidean-plain-normalized": ("euclidean", euclidean(False, True)),
    "shared_qkv": ("shared_qkv", stand_in(scale=0.35, exclude_self=False)),
    "shared_qkv-exclude": ("shared_qkv", stand_in(scale=0.35, exclude_self=True)),
    **{
        f"linear-{feature_map}{'' if normalize else '-sum'}": (
            "linear",
            linear(feature_map, normalize),
        )
        for feature_map in ("elu+1", "relu", "exp", "identity")
        for normalize in (True, False)
    },
    "linformer-none": ("linformer", linformer(HEADS, True)),
    "linformer-heads": ("linformer", linformer(1, True)),
    "linformer-key-value": ("linformer", linformer(HEADS, False)),
    "linformer-all": ("linformer", linformer(1, False)),
    "performer-softmax": ("performer", performer("softmax")),
    "performer-relu": ("performer", performer("relu")),
    "sparse_window": ("sparse_window", sparse_window(left=2, right=1)),
    "sparse_window-dilated": ("sparse_window", sparse_window(left=2, right=1, dilation=2)),
    "sparse_window-global": ("sparse_window", sparse_window(global_positions=(0, 4))),
    "sparse_window-blocks": ("sparse_window", sparse_window(left=1, right=0, block_size=2)),
    "sparse_window-random": ("sparse_window", sparse_window(left=0, right=0, random_blocks=2)),
    "sparse_window-all": (
        "sparse_window",
        sparse_window(left=1, right=0, block_size=2, random_blocks=1, global_positions=(1,)),
    ),
}


# ---------------------------------------------------------------------------------------------
# Calls
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """What a reference and an oracle are given, in torch."""

    query: Tensor
    key: Tensor
    value: Tensor
    visible: Tensor
    bias: Tensor | None
    query_position: Tensor
    key_position: Tensor

    def oracle(self, name: str, module: Any) -> Tensor:
        return ORACLES[name](module, *vars(self).values())

    def reference(self, name: str, module: Any) -> np.ndarray:
        arrays = (None if t is None else t.detach().numpy() for t in vars(self).values())
        return REFERENCES[name](module, *arrays)


def call(
    batch: int = 2, rows: int = ROWS, columns: int = COLUMNS, kv_heads: int = HEADS
) -> dict[str, Any]:
    return {
        "query": draw(batch, HEADS, rows, HEAD_DIM, seed=1),
        "key": draw(batch, kv_heads, columns, HEAD_DIM, seed=2),
        "value": draw(batch, kv_heads, columns, VALUE_DIM, seed=3),
        "visible": torch.ones(batch, HEADS, rows, columns, dtype=torch.bool),
        "bias": None,
        "query_position": torch.arange(rows) + columns - rows,
        "key_position": torch.arange(columns),
    }


def plain() -> Call:
    return Call(**call())


def grouped() -> Call:
    return Call(**call(kv_heads=2))


def causal(shift: int = 0) -> Call:
    """Bottom-right; with a shift of -6, the first two rows see nothing at all."""
    given = call()
    given["query_position"] = given["query_position"] + shift
    given["visible"] &= given["key_position"] <= given["query_position"][:, None]
    return Call(**given)


def padded() -> Call:
    """The second sequence has 3 padded keys, filled with NaN and inf; the third has no keys."""
    given = call(batch=3, kv_heads=2)
    valid = torch.ones(3, COLUMNS, dtype=torch.bool)
    valid[1, [0, 5, 8]] = False
    valid[2] = False
    given["visible"] &= valid[:, None, None, :]
    for name in ("key", "value"):
        rubbish = torch.where(torch.arange(COLUMNS) % 2 == 0, math.nan, math.inf)
        given[name] = torch.where(valid[:, None, :, None], given[name], rubbish[:, None].double())
    return Call(**given)


def allowed() -> Call:
    given = call()
    given["visible"] &= draw(*given["visible"].shape, seed=4) > 0
    given["visible"][1, 2, 3] = False
    return Call(**given)


def biased() -> Call:
    given = call()
    bias = draw(HEADS, ROWS, COLUMNS, seed=5)
    given["bias"] = torch.where(draw(HEADS, ROWS, COLUMNS, seed=6) > 1.0, -math.inf, bias)
    given["bias"][0, 0] = -math.inf
    given["visible"] &= given["bias"] != -math.inf
    return Call(**given)


def packed(lengths: tuple[int, ...] = (2, 0, 3), total: int = 6, padding: int = 0) -> Call:
    """Sequences one after the other; positions go on past the last one, seen by nobody."""
    given = call(batch=1, rows=total, columns=total)
    starts = [0, *np.cumsum(lengths).tolist()]
    sequence = [-1] * total
    for index, length in enumerate(lengths):
        sequence[starts[index] : starts[index] + length] = [index] * length
    inside = torch.tensor(sequence)
    position = torch.arange(total) - torch.tensor(
        [starts[len(lengths) - 1] if s < 0 else starts[s] for s in sequence]
    )
    given["query_position"] = given["key_position"] = position
    given["visible"] &= (inside[:, None] == inside) & (inside >= 0)
    given["visible"][..., starts[-1] - padding : starts[-1]] = False
    return Call(**given)


CALLS: dict[str, tuple[Callable[[], Call], set[str]]] = {
    "plain": (plain, set(ORACLES)),
    "grouped": (grouped, set(ORACLES)),
    "padded": (padded, set(ORACLES)),
    "packed": (packed, set(ORACLES)),
    "causal": (causal, set(ORACLES) - {"linformer"}),
    "causal-early": (lambda: causal(-6), set(ORACLES) - {"linformer"}),
    "allowed": (allowed, LOGITS | {"linear"}),
    "biased": (biased, LOGITS),
}
CASES = [
    pytest.param(name, module, make, id=f"{label}-{kind}")
    for label, (name, module) in MODULES.items()
    for kind, (make, supported) in CALLS.items()
    if name in supported
]


def assert_same(found: np.ndarray, expected: Tensor | np.ndarray, tolerance: float = TIGHT) -> None:
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    assert np.isfinite(expected).all()
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize(("name", "module", "make"), CASES)
def test_reference_equals_oracle(name: str, module: Any, make: Callable[[], Call]) -> None:
    given = make()
    found = given.reference(name, module)
    assert found.dtype == np.float64
    assert_same(found, given.oracle(name, module))
    empty = ~given.visible.any(dim=-1).numpy()
    assert (found[empty] == 0.0).all()


@pytest.mark.parametrize(("name", "module", "make"), CASES)
def test_oracle_gradients(name: str, module: Any, make: Callable[[], Call]) -> None:
    """Finite, whatever hidden keys hold, and 0 for them and for rows that see nothing."""
    given = make()
    leaves = {
        key: t.clone().requires_grad_()
        for key, t in vars(given).items()
        if t is not None and t.is_floating_point()
    }
    parameters = {
        key: t.clone().requires_grad_()
        for key, t in vars(module).items()
        if isinstance(t, Tensor) and t.is_floating_point()
    }
    module = SimpleNamespace(**(vars(module) | parameters))
    output = Call(**(vars(given) | leaves)).oracle(name, module)
    grads = torch.autograd.grad((output * draw(*output.shape, seed=7)).sum(), [*leaves.values()])
    found = dict(zip(leaves, grads, strict=True))
    assert all(g.isfinite().all() for g in found.values())
    assert (found["query"][~given.visible.any(dim=-1)] == 0).all()
    kv_heads = given.key.shape[1]
    batch, _, _, columns = given.visible.shape
    seen = given.visible.reshape(batch, kv_heads, -1, columns).any(dim=2)
    assert (found["key"][~seen] == 0).all()
    assert (found["value"][~seen] == 0).all()
    if given.bias is not None:
        assert (found["bias"][given.bias == -math.inf] == 0).all()
    if parameters:
        output = Call(**vars(given)).oracle(name, module)
        grads = torch.autograd.grad(output.sum(), [*parameters.values()])
        assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("label", MODULES)
def test_oracle_gradients_equal_finite_differences(label: str) -> None:
    name, module = MODULES[label]
    given = plain() if name not in LOGITS else biased()

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        changed = {"query": query, "key": key, "value": value}
        return Call(**(vars(given) | changed)).oracle(name, module)

    inputs = tuple(t.clone().requires_grad_() for t in (given.query, given.key, given.value))
    assert torch.autograd.gradcheck(attend, inputs, fast_mode=True, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("label", MODULES)
def test_packed_equals_each_alone(label: str, padding: int) -> None:
    name, module = MODULES[label]
    lengths = (4, 0, 1, 6)
    given = packed(lengths, 12, padding)
    found = given.reference(name, module)
    start = 0
    for length in lengths:
        part = slice(start, start + length)
        alone = Call(
            query=given.query[:, :, part],
            key=given.key[:, :, part],
            value=given.value[:, :, part],
            visible=given.visible[:, :, part, part],
            bias=None,
            query_position=torch.arange(length),
            key_position=torch.arange(length),
        )
        if length:
            assert_same(found[:, :, part], alone.reference(name, module))
        start += length
    assert (found[:, :, start:] == 0.0).all()
    assert_same(found, given.oracle(name, module))


# A plain sum of features, without the quotient, may overflow: it is left out.
@pytest.mark.parametrize("label", [label for label in MODULES if not label.endswith("-sum")])
def test_large_inputs_stay_finite(label: str) -> None:
    """Where a quotient is asked for, nothing on the way to it may overflow."""
    name, module = MODULES[label]
    given = plain()
    given = Call(**(vars(given) | {"query": given.query * 300, "key": given.key * 300}))
    # A logit of about 1e5 is itself rounded to 1e-11.
    assert_same(given.reference(name, module), given.oracle(name, module), 1e-8)


# ---------------------------------------------------------------------------------------------
# Numbers worked out by hand
# ---------------------------------------------------------------------------------------------


def one_head(
    name: str,
    module: Any,
    query: list[list[float]],
    key: list[list[float]],
    value: list[float],
    *,
    bias: list[float] | None = None,
    causal: bool = False,
) -> np.ndarray:
    """One head and scalar values: (Lq,), checked in the oracle as well."""
    rows, columns = len(query), len(key)
    query_position, key_position = torch.arange(rows) + columns - rows, torch.arange(columns)
    visible = torch.ones(1, 1, rows, columns, dtype=torch.bool)
    if causal:
        visible &= key_position <= query_position[:, None]
    given = Call(
        query=torch.tensor(query).double()[None, None],
        key=torch.tensor(key).double()[None, None],
        value=torch.tensor(value).double()[None, None, :, None],
        visible=visible,
        bias=None if bias is None else torch.tensor(bias).double(),
        query_position=query_position,
        key_position=key_position,
    )
    found = given.reference(name, module)
    assert_same(found, given.oracle(name, module))
    return found[0, 0, :, 0]


def test_scaled_dot_product_by_hand() -> None:
    module = stand_in(1, 4, 1, scale=0.5, temperature=1.0)
    found = one_head(
        "scaled_dot_product", module, [[0.0] * 4], [[0.0] * 4] * 2, [0.0, 1.0], bias=[0.0, 2.0]
    )
    np.testing.assert_allclose(found, [0.8808], atol=5e-5)
    # Temperature divides q.k and leaves the bias: logits are 4 * 0.5 / 2 = 1 and -1.
    module = stand_in(1, 4, 1, scale=0.5, temperature=2.0)
    key = [[1.0] * 4, [0.0] * 4]
    found = one_head("scaled_dot_product", module, [[1.0] * 4], key, [1.0, 0.0], bias=[0.0, -1.0])
    np.testing.assert_allclose(found, [1.0 / (1.0 + math.exp(-2.0))], rtol=1e-14)


def test_additive_by_hand() -> None:
    module = stand_in(
        1,
        1,
        1,
        query_weight=torch.tensor([[[1.0], [2.0]]]),
        key_weight=torch.tensor([[[1.0], [-1.0]]]),
        bias=torch.tensor([[0.0, 0.5]]),
        score_weight=torch.tensor([[1.0, 3.0]]),
        scale=1.0,
        temperature=2.0,
    )
    first = (math.tanh(0.5 + 1.0) + 3.0 * math.tanh(1.0 - 1.0 + 0.5)) / 2.0
    second = (math.tanh(0.5 - 1.0) + 3.0 * math.tanh(1.0 + 1.0 + 0.5)) / 2.0
    expected = math.exp(second) / (math.exp(first) + math.exp(second))
    found = one_head("additive", module, [[0.5]], [[1.0], [-1.0]], [0.0, 1.0])
    np.testing.assert_allclose(found, [expected], rtol=1e-14)


def test_cosine_by_hand() -> None:
    module = stand_in(1, 4, 1, head_scale=torch.tensor([10.0]), scale=1.0)
    key = [[3.0, 0.0, 0.0, 0.0], [0.0, 5.0, 0.0, 0.0]]
    found = one_head("cosine", module, [[2.0, 0.0, 0.0, 0.0], [0.0] * 4], key, [1.0, 0.0])
    np.testing.assert_allclose(found, [0.99995, 0.5], atol=5e-6)


@pytest.mark.parametrize(
    ("squared", "expected"), [(True, [0.7214, 0.2654, 0.0132]), (False, [0.6652, 0.2447, 0.0900])]
)
def test_euclidean_by_hand(squared: bool, expected: list[float]) -> None:
    module = stand_in(
        1, 1, 1, log_tau=torch.zeros(1), squared=squared, normalize_inputs=False, scale=1.0
    )
    for j in range(3):
        value = [float(j == column) for column in range(3)]
        found = one_head("euclidean", module, [[0.0]], [[0.0], [1.0], [2.0]], value)
        np.testing.assert_allclose(found, [expected[j]], atol=5e-5)


def test_euclidean_gradient_at_distance_zero() -> None:
    module = stand_in(
        1, 2, 1, log_tau=torch.zeros(1), squared=False, normalize_inputs=False, scale=1.0
    )
    query = torch.ones(1, 1, 1, 2, dtype=torch.float64, requires_grad=True)
    key = torch.tensor([[1.0, 1.0], [2.0, 1.0]], dtype=torch.float64)[None, None].requires_grad_()
    visible, positions = torch.ones(1, 1, 1, 2, dtype=torch.bool), torch.arange(2)
    value = torch.tensor([[0.0], [1.0]], dtype=torch.float64)[None, None]
    output = ORACLES["euclidean"](
        module, query, key, value, visible, None, positions[1:], positions
    )
    query_grad, key_grad = torch.autograd.grad(output.sum(), [query, key])
    weight = math.exp(-1.0) / (1.0 + math.exp(-1.0))
    slope = weight * (1.0 - weight)  # of the weight in its logit; the logit falls as k_2 moves away
    torch.testing.assert_close(query_grad.flatten(), torch.tensor([slope, 0.0]).double())
    torch.testing.assert_close(key_grad[0, 0], torch.tensor([[0.0, 0], [-slope, 0]]).double())


def test_shared_qkv_by_hand() -> None:
    module = stand_in(1, 1, 1, scale=1.0, exclude_self=True)
    found = one_head("shared_qkv", module, [[0.0]] * 3, [[0.0]] * 3, [1.0, 2.0, 4.0], causal=True)
    np.testing.assert_allclose(found, [1.0, 1.0, 1.5])  # the first sees nothing but itself


@pytest.mark.parametrize("feature_map", ["elu+1", "exp"])
def test_linear_by_hand(feature_map: str) -> None:
    module = stand_in(1, 2, 1, feature_map_name=feature_map, normalize=True)
    found = one_head("linear", module, [[0.0, 0.0]], [[0.0, 0.0]] * 4, [1.0, 2.0, 3.0, 8.0])
    np.testing.assert_allclose(found, [3.5])


def test_linear_with_a_normaliser_of_zero() -> None:
    module = stand_in(1, 1, 1, feature_map_name="relu", normalize=True)
    assert one_head("linear", module, [[-1.0], [1.0]], [[1.0]], [7.0]).tolist() == [0.0, 7.0]


@pytest.mark.parametrize("kernel", ["softmax", "relu"])
def test_performer_by_hand(kernel: str) -> None:
    draws, scale = [[0.5, -1.0], [1.5, 0.25], [-0.75, 0.5]], 0.49
    query, key, value = [[1.0, 2.0], [0.5, -1.0]], [[0.5, 1.0], [-1.0, 2.0]], [3.0, -2.0]

    def phi(x: list[float]) -> list[float]:
        x = [scale**0.5 * entry for entry in x]
        features = []
        for w in draws:
            dot = w[0] * x[0] + w[1] * x[1]
            half = (x[0] ** 2 + x[1] ** 2) / 2
            feature = math.exp(dot - half) if kernel == "softmax" else max(dot, 0.0)
            features.append(feature / 3**0.5)
        return features

    expected = []
    for q in query:
        total = mixed = 0.0
        for k, v in zip(key, value, strict=True):
            similar = sum(a * b for a, b in zip(phi(q), phi(k), strict=True))
            total, mixed = total + similar, mixed + similar * v
        expected.append(mixed / total)
    module = stand_in(1, 2, 1, projection=torch.tensor(draws).double(), kernel=kernel, scale=scale)
    np.testing.assert_allclose(
        one_head("performer", module, query, key, value), expected, rtol=1e-13
    )


def test_linformer_by_hand() -> None:
    of_key = [[1.0, 0.5, -1.0, 9.0], [0.0, 2.0, 1.0, 9.0]]
    of_value = [[0.5, 1.0, 1.5, 9.0], [-1.0, 0.0, 1.0, 9.0]]
    query, key, value, scale = (
        [0.5, -1.0],
        [[1.0, 0.0], [0.5, 0.5], [2.0, -1.0]],
        [1.0, 2.0, 4.0],
        0.7,
    )
    powers, mixed = [], []
    for rank in range(2):
        mixed_key = [0.0, 0.0]
        mixed_value = 0.0
        for j in range(3):  # the fourth position is beyond the keys
            mixed_key[0] += of_key[rank][j] * key[j][0]
            mixed_key[1] += of_key[rank][j] * key[j][1]
            mixed_value += of_value[rank][j] * value[j]
        powers.append(math.exp(scale * (query[0] * mixed_key[0] + query[1] * mixed_key[1])))
        mixed.append(mixed_value)
    expected = (powers[0] * mixed[0] + powers[1] * mixed[1]) / sum(powers)
    module = stand_in(
        1,
        2,
        1,
        key_projection=torch.tensor([of_key]).double(),
        value_projection=torch.tensor([of_value]).double(),
        scale=scale,
    )
    found = one_head("linformer", module, [query], key, value)
    np.testing.assert_allclose(found, [expected], rtol=1e-13)


def flat(**pattern: Any) -> SimpleNamespace:
    """A sparse window for queries and keys of 0, so that the output is a mean of values."""
    module = sparse_window(**pattern)
    module.dims = SimpleNamespace(num_heads=1, head_dim=1, value_dim=1, max_length=None)
    return module


def seen_by_rows(module: Any, length: int, causal: bool = False) -> list[set[int]]:
    """The keys that each row attends to: those whose value moves its output."""
    zeros = [[0.0]] * length
    columns = [
        one_head("sparse_window", module, zeros, zeros, np.eye(length)[j].tolist(), causal=causal)
        if length > 1
        else np.ones(1)
        for j in range(length)
    ]
    weights = np.stack(columns, axis=1)
    return [set(np.flatnonzero(row).tolist()) for row in weights]


def test_sparse_window_by_hand() -> None:
    zeros = [[0.0]] * 6
    found = one_head(
        "sparse_window", flat(left=2, right=0), zeros, zeros, [0.0, 1, 2, 3, 4, 5], causal=True
    )
    np.testing.assert_allclose(found, [0, 0.5, 1, 2, 3, 4], atol=1e-15)


def test_sparse_window_patterns_by_hand() -> None:
    dilated = seen_by_rows(flat(left=1, right=1, dilation=2), 6)
    assert dilated == [{0, 2}, {1, 3}, {0, 2, 4}, {1, 3, 5}, {2, 4}, {3, 5}]
    blocks = seen_by_rows(flat(left=1, right=0, block_size=2), 6)
    assert blocks == [{0, 1}, {0, 1}, {0, 1, 2, 3}, {0, 1, 2, 3}, {2, 3, 4, 5}, {2, 3, 4, 5}]
    globally = seen_by_rows(flat(left=0, right=0, global_positions=(1,)), 4)
    assert globally == [{0, 1}, {0, 1, 2, 3}, {1, 2}, {1, 3}]


def random_blocks(length: int, causal: bool = False, seed: int = 5) -> list[set[int]]:
    """The random blocks of each row: 3 of 2 positions, of which the window adds the row's own."""
    module = flat(left=0, right=0, random_blocks=3, block_size=2, seed=seed)
    rows = seen_by_rows(module, length, causal)
    return [{key // 2 for key in keys} - {row // 2} for row, keys in enumerate(rows)]


def test_sparse_window_random_blocks() -> None:
    """2 before and 1 after, none twice; neither causality nor the length draws anew."""
    free = random_blocks(40)
    for row, blocks in enumerate(free):
        own = row // 2
        before = {block for block in blocks if block < own}
        after = blocks - before
        assert len(before) == min(2, own)
        assert len(after) <= 1
        assert all(own < block <= 2 * own + 8 for block in after)
        assert after or 2 * own + 8 >= 20  # it lies past the end
    assert len(set(map(frozenset, free))) > 10  # rows differ
    earlier = [{block for block in blocks if block < row // 2} for row, blocks in enumerate(free)]
    assert random_blocks(40, causal=True) == earlier
    assert random_blocks(20) == [{block for block in blocks if block < 10} for blocks in free[:20]]
    assert random_blocks(40, seed=6) != free


def test_variants_without_logits_refuse_a_bias() -> None:
    given = Call(**(vars(plain()) | {"bias": torch.zeros(ROWS, COLUMNS).double()}))
    for name, module in MODULES.values():
        for attend in (given.reference, given.oracle):
            if name not in LOGITS:
                with pytest.raises(ValueError, match="bias"):
                    attend(name, module)
