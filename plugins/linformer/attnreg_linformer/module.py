"""Linformer attention: keys and values projected along the length to a fixed rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from annotated_doc import Doc
from annotated_types import Interval
from torch import Tensor, nn

from attnreg import Capabilities, Dims, LengthError, Mask, OptionError, UnsupportedFeature
from attnreg.functional import expand_heads
from attnreg.tracing import accumulation_dtype, full_precision

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
        if mask.cu_seqlens is not None and torch.compiler.is_compiling():
            raise UnsupportedFeature("linformer cannot compile packed sequences; pad them instead")
        dtype, length = query.dtype, key.shape[2]
        wide = accumulation_dtype(dtype)
        key, value = (expand_heads(t, query.shape[1]) for t in (key, value))
        other = self.key_projection if self.value_projection is None else self.value_projection
        with full_precision(query.device):
            if mask.key_valid is not None:
                padding = ~mask.key_valid[:, None, :, None]
                key, value = key.masked_fill(padding, 0.0), value.masked_fill(padding, 0.0)
            mixed_key = _columns(self.key_projection, length).to(wide) @ key.to(wide)
            mixed_value = _columns(other, length).to(wide) @ value.to(wide)
            scores = query.to(wide) @ mixed_key.transpose(-1, -2) * self.scale
            output = scores.softmax(dim=-1) @ mixed_value
            if mask.key_valid is not None:
                empty = ~mask.key_valid.any(dim=-1)[:, None, None, None]
                output = output.masked_fill(empty, 0.0)
        return output.to(dtype)


def _columns(projection: Tensor, length: int) -> Tensor:
    """The first ``length`` columns of a projection."""
    if torch.compiler.is_compiling():  # a slice would make a tracer ask whether it is the whole
        return projection[..., torch.arange(length, device=projection.device)]
    return projection[..., :length]
