"""Closed forms of the work of a forward call: the floating point operations of its products.

What counts is a multiplication and an addition for every term of every product of matrices that
the formula needs, on the pairs of query and key that are visible: 2 m n k for (m, k) times (k, n).
Exponentials, tanh, norms, divisions and the scaling of scores do not count, nor does what an
implementation computes in vain, such as hidden scores. So the count belongs to the variant, and
``torch.utils.flop_counter`` finds the same in its plain form where nothing is hidden.
"""

from __future__ import annotations

from torch import nn

from attnreg.attention import Dims


def dims_of(module: nn.Module) -> Dims:
    """Return the sizes of a variant's module."""
    dims = getattr(module, "dims", None)
    if not isinstance(dims, Dims):
        raise TypeError(f"{type(module).__name__} has no attribute dims of type Dims")
    return dims


def visible_pairs(query_length: int, key_length: int, causal: bool) -> int:
    """Return how many pairs of query and key a call sees; causal: the last query sees every key."""
    if not causal:
        return query_length * key_length
    # Query i sees key_length - query_length + i + 1 keys, or none where that is negative.
    first = max(key_length - query_length + 1, 0)
    return (first + key_length) * (key_length - first + 1) // 2


def softmax_flops(module: nn.Module, query_length: int, key_length: int, causal: bool) -> float:
    """Return the work of Q K^T and of the weights times V: 2 (D + Dv) per head and visible pair."""
    dims = dims_of(module)
    pairs = visible_pairs(query_length, key_length, causal)
    return 2.0 * dims.num_heads * pairs * (dims.head_dim + dims.value_dim)


def kernel_flops(module: nn.Module, query_length: int, key_length: int, features: int) -> float:
    """Return the work of phi(K)^T [V, 1] and phi(Q) times it: 2 M (Dv + 1) per head and position.

    The causal form needs as much: a state of (M, Dv + 1) takes in each key and answers each query.
    Computing the features themselves comes on top.
    """
    dims = dims_of(module)
    each = 2.0 * dims.num_heads * features * (dims.value_dim + 1)
    return each * (query_length + key_length)
