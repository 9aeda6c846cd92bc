"""Dense formulas of the variants in torch float64: the gradients that others are compared with.

Each is ``oracle(module, query, key, value, visible, bias, query_position, key_position)`` on
tensors, query (B, Hq, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv), visible bool
(B, Hq, Lq, Lk), bias None or broadcastable to it, positions (Lq,) and (Lk,); it returns
(B, Hq, Lq, Dv) and is differentiable in query, key, value, bias and the module's parameters. It
holds whole (Lq, Lk) matrices and shares no code with attnreg or with the NumPy references.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

INF = math.inf


# ---------------------------------------------------------------------------------------------
# What the formulas share
# ---------------------------------------------------------------------------------------------


def _prepare(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Float64, keys repeated to Hq heads, and 0 in place of what no row sees.

    Returns query, key, value, visible and a finite bias: (B or 1, Hq or 1, Lq or 1, Lk or 1).
    """
    reads = [head * key.shape[1] // query.shape[1] for head in range(query.shape[1])]
    query, key, value = query.double(), key.double()[:, reads], value.double()[:, reads]
    added = query.new_zeros(1, 1, 1, 1) if bias is None else bias.double()
    visible = visible & (added != -INF)
    added = torch.where(added == -INF, 0.0, added)
    # torch.where, as 0 * NaN is NaN; it also keeps NaN out of the gradients.
    somebody = visible.any(dim=2)[..., None]
    key, value = torch.where(somebody, key, 0.0), torch.where(somebody, value, 0.0)
    return query, key, value, visible, added


def _weights(logits: Tensor, visible: Tensor) -> Tensor:
    """Softmax of logits over what is visible; a row that sees nothing gets 0, gradient too."""
    empty = ~visible.any(dim=-1, keepdim=True)
    logits = torch.where(visible, logits, -INF)
    # A softmax over nothing but -inf is NaN, and so would be its gradient.
    return torch.where(visible, torch.softmax(torch.where(empty, 0.0, logits), dim=-1), 0.0)


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient, and 0 (its gradient too) where the denominator is exactly 0."""
    some = denominator != 0
    return torch.where(some, numerator / torch.where(some, denominator, 1.0), 0.0)


def _length(vectors: Tensor) -> Tensor:
    """Euclidean length over the last dimension, kept; the gradient at 0 is 0, not NaN."""
    squares = (vectors * vectors).sum(dim=-1, keepdim=True)
    some = squares > 0
    return torch.where(some, torch.where(some, squares, 1.0).sqrt(), 0.0)


def _unit(vectors: Tensor) -> Tensor:
    return _divide(vectors, _length(vectors))


def _no_bias(name: str, bias: Tensor | None) -> None:
    if bias is not None:
        raise ValueError(f"{name} has no logits to add a bias to")


# ---------------------------------------------------------------------------------------------
# Softmax over scores
# ---------------------------------------------------------------------------------------------


def scaled_dot_product(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    bias: Tensor | None,
    query_position: Tensor,
    key_position: Tensor,
) -> Tensor:
    """softmax(scale q.k / temperature + bias) v"""
    q, k, v, seen, added = _prepare(query, key, value, visible, bias)
    logits = torch.einsum("bhid,bhjd->bhij", q, k) * module.scale / module.temperature
    return _weights(logits + added, seen) @ v


def additive(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    bias: Tensor | None,
    query_position: Tensor,
    key_position: Tensor,
) -> Tensor:
    """softmax(scale u.tanh(W q + U k + c) / temperature + bias) v"""
    q, k, v, seen, added = _prepare(query, key, value, visible, bias)
    from_query = torch.einsum("hmd,bhid->bhim", module.query_weight.double(), q)
    from_key = torch.einsum("hmd,bhjd->bhjm", module.key_weight.double(), k)
    offset = module.bias.double()[None, :, None, None, :]
    hidden = torch.tanh(from_query[:, :, :, None] + from_key[:, :, None, :] + offset)
    scores = torch.einsum("hm,bhijm->bhij", module.score_weight.double(), hidden)
    return _weights(scores * module.scale / module.temperature + added, seen) @ v


def cosine(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    bias: Tensor | None,
    query_position: Tensor,
    key_position: Tensor,
) -> Tensor:
    """softmax(scale min(head_scale, 100) cos(q, k) + bias) v"""
    q, k, v, seen, added = _prepare(query, key, value, visible, bias)
    sharpness = module.head_scale.double().clamp(max=100.0)[:, None, None]
    cosines = torch.einsum("bhid,bhjd->bhij", _unit(q), _unit(k))
    return _weights(module.scale * sharpness * cosines + added, seen) @ v


def euclidean(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    bias: Tensor | None,
    query_position: Tensor,
    key_position: Tensor,
) -> Tensor:
    """softmax(-scale |q - k|^2 / tau + bias) v, or |q - k| where not squared"""
    q, k, v, seen, added = _prepare(query, key, value, visible, bias)
    if module.normalize_inputs:
        q, k = _unit(q), _unit(k)
    difference = q[:, :, :, None] - k[:, :, None, :]
    distance = difference.pow(2).sum(dim=-1) if module.squared else _length(difference)[..., 0]
    tau = module.log_tau.double().exp()[:, None, None]
    return _weights(-module.scale * distance / tau + added, seen) @ v


def shared_qkv(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    bias: Tensor | None,
    query_position: Tensor,
    key_position: Tensor,
) -> Tensor:
    """softmax(scale q.k + bias) v, without a token's own key where it sees another"""
    q, k, v, seen, added = _prepare(query, key, value, visible, bias)
    if module.exclude_self:
        others = seen & (query_position[:, None] != key_position[None, :])
        seen = torch.where(others.any(dim=-1, keepdim=True), others, seen)
    logits = module.scale * torch.einsum("bhid,bhjd->bhij", q, k)
    return _weights(logits + added, seen) @ v


# ---------------------------------------------------------------------------------------------
# Kernels and projections
# ---------------------------------------------------------------------------------------------


def _kernel_from_powers(powers: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """sum_j A_ij v_j / sum_j A_ij for A_ij = sum_m exp(powers_ijm), powers (B, H, Lq, Lk, M)."""
    powers = torch.where(seen[..., None], powers, -INF)
    # A constant per row cancels in the quotient, so that it needs no gradient.
    highest = powers.detach().amax(dim=(-2, -1), keepdim=True)
    similar = torch.exp(powers - torch.where(highest == -INF, 0.0, highest)).sum(dim=-1)
    return _divide(similar @ v, similar.sum(dim=-1, keepdim=True))


def linear(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    bias: Tensor | None,
    query_position: Tensor,
    key_position: Tensor,
) -> Tensor:
    """phi(q).phi(k) v, divided by its sum where ``normalize``"""
    _no_bias("linear", bias)
    q, k, v, seen, _ = _prepare(query, key, value, visible, None)
    if module.feature_map_name == "exp" and module.normalize:
        return _kernel_from_powers(q[:, :, :, None] + k[:, :, None, :], v, seen)
    features: dict[str, Callable[[Tensor], Tensor]] = {
        "elu+1": lambda x: torch.nn.functional.elu(x) + 1.0,
        "relu": torch.relu,
        "exp": torch.exp,
        "identity": lambda x: x,
    }
    phi = features[module.feature_map_name]
    similar = torch.where(seen, torch.einsum("bhid,bhjd->bhij", phi(q), phi(k)), 0.0)
    if not module.normalize:
        return similar @ v
    return _divide(similar @ v, similar.sum(dim=-1, keepdim=True))


def performer(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    bias: Tensor | None,
    query_position: Tensor,
    key_position: Tensor,
) -> Tensor:
    """phi(q).phi(k) v divided by its sum, with random features phi"""
    _no_bias("performer", bias)
    q, k, v, seen, _ = _prepare(query, key, value, visible, None)
    q, k = q * module.scale**0.5, k * module.scale**0.5
    draws = module.projection.double()
    if module.kernel == "softmax":
        from_query = q @ draws.T - q.square().sum(dim=-1, keepdim=True) / 2
        from_key = k @ draws.T - k.square().sum(dim=-1, keepdim=True) / 2
        return _kernel_from_powers(from_query[:, :, :, None] + from_key[:, :, None, :], v, seen)
    assert module.kernel == "relu", module.kernel
    similar = torch.relu(q @ draws.T) @ torch.relu(k @ draws.T).mT / draws.shape[0]
    similar = torch.where(seen, similar, 0.0)
    return _divide(similar @ v, similar.sum(dim=-1, keepdim=True))


def linformer(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    bias: Tensor | None,
    query_position: Tensor,
    key_position: Tensor,
) -> Tensor:
    """softmax(scale q.(E k)) (F v), E and F over the keys that the row sees"""
    _no_bias("linformer", bias)
    q, k, v, seen, _ = _prepare(query, key, value, visible, None)
    of_key = module.key_projection.double()[..., key_position]  # (Hq or 1, rank, Lk)
    given = module.value_projection
    of_value = of_key if given is None else given.double()[..., key_position]
    of_key, of_value = (t.expand(q.shape[1], -1, -1) for t in (of_key, of_value))
    heard = seen.double()
    mixed_key = torch.einsum("bhij,hrj,bhjd->bhird", heard, of_key, k)
    mixed_value = torch.einsum("bhij,hrj,bhjd->bhird", heard, of_value, v)
    weights = torch.softmax(module.scale * torch.einsum("bhid,bhird->bhir", q, mixed_key), -1)
    output = torch.einsum("bhir,bhird->bhid", weights, mixed_value)
    return torch.where(seen.any(dim=-1, keepdim=True), output, 0.0)


# ---------------------------------------------------------------------------------------------
# Sparse window
# ---------------------------------------------------------------------------------------------


def sparse_window(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    bias: Tensor | None,
    query_position: Tensor,
    key_position: Tensor,
) -> Tensor:
    """softmax(scale q.k + bias) v over window, global tokens and random blocks"""
    q, k, v, seen, added = _prepare(query, key, value, visible, bias)
    size, step = module.block_size, module.dilation
    row_block = torch.div(query_position, size, rounding_mode="floor")[:, None]
    key_block = torch.div(key_position, size, rounding_mode="floor")[None, :]
    apart = key_block - row_block
    pattern = (apart.remainder(step) == 0) & (apart >= -module.left * step)
    pattern &= apart <= module.right * step
    for position in module.global_positions:
        pattern = pattern | (query_position == position)[:, None] | (key_position == position)
    random = pattern.new_zeros(q.shape[1], *pattern.shape)
    for head in range(q.shape[1]):
        for row, block in enumerate(row_block[:, 0].tolist()):
            for drawn in _draws(module, head, block):
                random[head, row] |= key_block[0] == drawn
    logits = module.scale * torch.einsum("bhid,bhjd->bhij", q, k)
    return _weights(logits + added, seen & (pattern | random)) @ v


def _draws(module: Any, head: int, block: int) -> set[int]:
    """The random key blocks of a row block: before it, and one fewer after it where odd."""
    if block < 0:
        return set()
    words = [_word(int(module.seed), head, block, slot) for slot in range(module.random_blocks)]
    middle = math.ceil(len(words) / 2)
    before, after = range(block), range(block + 1, 2 * block + 9)
    return _sample(before, words[:middle]) | _sample(after, words[middle:])


def _sample(candidates: range, words: list[int]) -> set[int]:
    """Floyd's sample without replacement, one candidate per word; all, where words are plenty."""
    total = len(candidates)
    chosen: set[int] = set()
    for word, top in zip(words, range(max(total - len(words), 0), total), strict=False):
        index = word % (top + 1)
        chosen.add(candidates[top if candidates[index] in chosen else index])
    return chosen


def _word(seed: int, head: int, block: int, slot: int) -> int:
    """31 bits that depend on every part."""
    state = 0
    for part in (seed % (1 << 31), head + 1, block + 1, slot + 1, 0):
        state ^= part
        for factor, addend, shift in ((1103515245, 12345, 15), (747796405, 0, 13)):
            state = (state * factor + addend) & 0x7FFFFFFF
            state ^= state >> shift
    return state


ORACLES: dict[str, Callable[..., Tensor]] = {
    "scaled_dot_product": scaled_dot_product,
    "additive": additive,
    "cosine": cosine,
    "euclidean": euclidean,
    "shared_qkv": shared_qkv,
    "linear": linear,
    "linformer": linformer,
    "performer": performer,
    "sparse_window": sparse_window,
}
