"""A recogniser of Chinese text lines: PP-OCRv4's, two attention layers between convolutions.

The weights come from the package ``rapidocr-onnxruntime``, whose code is not imported. Its graph
is cut at each attention, so that another variant can take its place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnreg_playground.real.missing import EXTRA, Failed, Missing, alone, folder_of

HEIGHT, WIDTH = 48, 320
"""The image of a line, in pixels."""

NUM_LAYERS, NUM_HEADS, STEPS = 2, 8, 40
"""Each of the 40 steps looks at 8 columns of pixels, and names a character or nothing."""

_MODEL = "models/ch_PP-OCRv4_rec_infer.onnx"

Floats = NDArray[np.float32]
Replace = Callable[[int, Floats, Floats, Floats], Floats]


class Line(NamedTuple):
    """What was read: the text, the character of each step ("" for none), the heads of each layer.

    The queries are scaled already: softmax(query key^T) are the model's own weights.
    """

    text: str
    steps: tuple[str, ...]
    heads: list[tuple[Floats, Floats, Floats]]
    sure: float
    """The mean probability of the characters that were read."""


def read(pixels: NDArray[Any], replace: Replace | None = None) -> Line:
    """Read a line (48, 320) in 0…1, dark on light; raise ``Missing`` and ``Failed``.

    ``replace(layer, query, key, value)`` gives the output (1, 8, 40, 15) of an attention.
    """
    parts, names = _load()
    image = np.repeat((np.asarray(pixels, np.float32) * 2.0 - 1.0)[None, None], 3, axis=1)
    given: dict[str, Any] = {"x": image}
    heads: list[tuple[Floats, Floats, Floats]] = []
    for layer, (part, after) in enumerate(parts[:-1]):
        query, key, value = _run(part, given)
        heads.append((query, key, value))
        attended = softmax if replace is None else partial(replace, layer)
        given[after] = attended(query, key, value)
    (scores,) = _run(parts[-1][0], given)
    best = scores[0].argmax(axis=-1)
    steps = tuple("" if one == 0 else names[one - 1] for one in best)
    kept = [at for at, one in enumerate(best) if one != 0 and (at == 0 or one != best[at - 1])]
    sure = float(np.mean([scores[0, at, best[at]] for at in kept])) if kept else 0.0
    return Line("".join(steps[at] for at in kept), steps, heads, sure)


def _run(part: Any, given: dict[str, Any]) -> Any:
    try:
        return part.run(None, given)
    except Exception as error:  # whatever the runtime makes of it
        raise Failed(f"{type(error).__name__}: {error}") from error


def softmax(query: Floats, key: Floats, value: Floats) -> Floats:
    """Return the model's own attention, its weights times the values."""
    scores = query @ key.transpose(0, 1, 3, 2)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    output: Floats = weights / weights.sum(axis=-1, keepdims=True) @ value
    return output


@lru_cache(maxsize=1)
def _load() -> tuple[list[tuple[Any, str]], list[str]]:
    """Return the pieces of the model, each with the name of what follows it, and the characters."""
    place = folder_of("rapidocr_onnxruntime", _MODEL)
    if place is None:
        raise Missing("rapidocr-onnxruntime", alone("rapidocr-onnxruntime"))
    try:
        import onnx
        import onnxruntime  # type: ignore[import-untyped]  # it has no types
        from onnx.utils import Extractor
    except ImportError as error:
        raise Missing("onnx, onnxruntime", EXTRA) from error
    try:
        model = onnx.load(place / _MODEL)
        cuts = _attentions(model)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        pieces: list[tuple[Any, str]] = []
        extractor = Extractor(onnx.shape_inference.infer_shapes(model))
        before = ["x"]
        for inputs, output in [*cuts, ([model.graph.output[0].name], "")]:
            piece = extractor.extract_model(before, list(inputs))
            session = onnxruntime.InferenceSession(
                piece.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            pieces.append((session, output))
            before = [*before, output]
        known = {one.key: one.value for one in model.metadata_props}
        return pieces, [*known["character"].splitlines(), " "]
    except Exception as error:
        raise Failed(f"{type(error).__name__}: {error}") from error


def _attentions(model: Any) -> list[tuple[tuple[str, str, str], str]]:
    """Find query, key, value and output of every softmax(Q K^T) V of a graph."""
    made: dict[str, Any] = {name: node for node in model.graph.node for name in node.output}
    found = []
    for node in model.graph.node:
        weights: Any = made.get(node.input[0]) if node.op_type == "MatMul" else None
        scores: Any = made.get(weights.input[0]) if _is(weights, "Softmax") else None
        turned: Any = made.get(scores.input[1]) if _is(scores, "MatMul") else None
        if _is(turned, "Transpose"):
            found.append(((scores.input[0], turned.input[0], node.input[1]), node.output[0]))
    if len(found) != NUM_LAYERS:
        raise ValueError(f"the graph has {len(found)} attentions where {NUM_LAYERS} belong")
    return found


def _is(node: Any, kind: str) -> bool:
    return node is not None and node.op_type == kind
