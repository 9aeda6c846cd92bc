"""Linformer attention: keys and values projected along the length to a fixed rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from annotated_doc import Doc
from annotated_types import Interval
from torch import Tensor, nn

from attnreg import Capabilities, Dims, LengthError, Mask, OptionError, UnsupportedFeature
from attnreg.families import attend_visible, equal_widths
from attnreg.functional import expand_heads, zero_where
from attnreg.tracing import accumulation_dtype, full_precision, known_true

Sharing = Literal["none", "heads", "key-value", "all"]


class Linformer(nn.Module):
    """softmax(scale Q (E K)^T) (F V): L keys become ``rank`` mixtures, linear in L.

    ``key_projection`` E and ``value_projection`` F are (Hq or 1, rank, max_length); a call with L
    keys uses their first L columns. ``sharing``: "none"; "heads" (one E and one F for all heads);
    "key-value" (F is E, per head); "all" (one matrix for everything). Padded keys and values are
    zeroed before they are mixed. The mixtures hold every position, so causality cannot be had.
    Wang et al. 2020, Linformer, arXiv:2006.04768.
    """

    capabilities = Capabilities(
        key_valid=True,
        packed=True,
        cross=True,
        grouped=True,
        value_dim=True,
        weights="implied",
        positional=True,
        fixed_length=True,
        deterministic=True,
        compile=True,
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "causal": "every mixture of keys holds the future as well as the past",
        **dict.fromkeys(
            ("allowed", "bias", "window"),
            "keys are mixed before they are scored, so no score belongs to one key",
        ),
    }

    def __init__(
        self,
        dims: Dims,
        *,
        rank: Annotated[
            int | None, Interval(ge=1), Doc("mixtures of keys; None: 256, or max_length if less")
        ] = None,
        sharing: Annotated[Sharing, Doc("what shares a projection matrix")] = "none",
        scale: float | None = None,
    ) -> None:
        super().__init__()
        if dims.max_length is None:
            raise LengthError("linformer has a fixed length: give max_length")
        if rank is not None and rank > dims.max_length:
            raise OptionError(
                f"rank={rank} is above max_length={dims.max_length}: nothing would be compressed; "
                "lower the rank"
            )
        self.dims = dims
        self.rank = min(256, dims.max_length) if rank is None else rank
        self.sharing = sharing
        self.scale = dims.head_dim**-0.5 if scale is None else scale
        heads = 1 if sharing in ("heads", "all") else dims.num_heads
        sizes = (heads, self.rank, dims.max_length)
        self.key_projection = nn.Parameter(torch.empty(sizes))
        if sharing in ("key-value", "all"):
            self.register_parameter("value_projection", None)
        else:
            self.value_projection = nn.Parameter(torch.empty(sizes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projections from N(0, 1/rank), as in the paper."""
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=self.rank**-0.5)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = Mask()) -> Tensor:  # noqa: B008  # Mask() is immutable
        """Attend: (B, Hq, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv) to (B, Hq, Lq, Dv)."""
        dtype = query.dtype
        wide = accumulation_dtype(dtype)
        with full_precision(query.device):
            mixed_key, mixed_value = self._mixed(key.to(wide), value.to(wide), query.shape[1], mask)
            scores = query.to(wide) @ mixed_key.transpose(-1, -2) * self.scale
            output = scores.softmax(dim=-1) @ mixed_value
        return _zero_where_empty(output.to(dtype), mask)

    def attend_fused(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Compute ``forward`` on torch's fused kernels, without (Lq, rank) scores."""
        dtype, width = query.dtype, value.shape[3]
        with full_precision(query.device):
            # In half precision the mixtures would be rounded before they are used.
            wide = accumulation_dtype(dtype)
            mixed = self._mixed(key.to(wide), value.to(wide), query.shape[1], mask)
            tensors = equal_widths(query.to(wide), *mixed)
            output = attend_visible(*tensors, None, None, scale=self.scale)
        return _zero_where_empty(output[..., :width].to(dtype), mask)

    def _mixed(
        self, key: Tensor, value: Tensor, num_heads: int, mask: Mask
    ) -> tuple[Tensor, Tensor]:
        """E K and F V, (B, Hq, rank, D) and (B, Hq, rank, Dv), in the dtype of key and value."""
        if mask.cu_seqlens is not None and torch.compiler.is_compiling():
            raise UnsupportedFeature("linformer cannot compile packed sequences; pad them instead")
        other = self.key_projection if self.value_projection is None else self.value_projection
        if mask.key_valid is not None:
            padding = ~mask.key_valid[:, None, :, None]
            key, value = zero_where(key, padding), zero_where(value, padding)
        mixed: list[Tensor] = []
        for tensor, projection in ((key, self.key_projection), (value, other)):
            columns = _columns(projection, tensor.shape[2]).to(tensor.dtype)
            # Where heads share a key, its mixtures are shared too, unless the projection differs.
            shared = columns.shape[0] == 1
            mixed.append(columns @ (tensor if shared else expand_heads(tensor, num_heads)))
        return expand_heads(mixed[0], num_heads), expand_heads(mixed[1], num_heads)


def _zero_where_empty(output: Tensor, mask: Mask) -> Tensor:
    """Items whose keys are all padding give 0."""
    if mask.key_valid is None:
        return output
    empty = ~mask.key_valid.any(dim=-1)[:, None, None, None]
    return output if known_true(~empty) else zero_where(output, empty)


def _columns(projection: Tensor, length: int) -> Tensor:
    """The first ``length`` columns of a projection."""
    if torch.compiler.is_compiling():  # a slice would make a tracer ask whether it is the whole
        return projection[..., torch.arange(length, device=projection.device)]
    return projection[..., :length]
