"""Linear attention: K^T V first."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from annotated_doc import Doc
from torch import Tensor

from attnreg import Dims, Features, KernelAttention
from attnreg.tracing import known_at_least
from attnreg_linear.elu import elu_plus_one

FAR = 8.0
"""How far below 0 all of a query lies that is shifted, lest its features underflow."""

FeatureMap = Literal["elu+1", "relu", "exp", "identity"]


class Linear(KernelAttention):
    """phi(Q) (phi(K)^T V), divided by phi(Q) phi(K)^T 1 where ``normalize`` is True.

    With the identity and no normaliser it is the bare Q (K^T V), softmax attention without the
    softmax. Katharopoulos et al. 2020, arXiv:2006.16236.
    """

    def __init__(
        self,
        dims: Dims,
        *,
        feature_map: Annotated[FeatureMap, Doc("phi, applied to query and key")] = "elu+1",
        normalize: Annotated[
            bool | None, Doc("divide by the sum of the weights; None: unless phi is the identity")
        ] = None,
        **common: Any,
    ) -> None:
        super().__init__(dims, **common)
        self.feature_map_name = feature_map
        self.normalize = feature_map != "identity" if normalize is None else normalize

    def feature_map(self, x: Tensor) -> Tensor:
        """Map each vector to its features: (B, H, L, D) to (B, H, L, D)."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.feature_map_name == "elu+1":
            return elu_plus_one(x)
        if self.feature_map_name == "relu":
            return x.relu()
        if self.feature_map_name == "exp":
            return x.exp()
        return x

    def query_features(self, query: Tensor) -> Tensor:
        """Features of the queries, relative to the largest of each, which cancels."""
        if not self.normalize or self.feature_map_name == "identity":
            return self.feature_map(query)
        if self.feature_map_name != "relu":
            query = query.to(torch.promote_types(query.dtype, torch.float32))
            if self._scaled:
                return self.feature_map(query - query.detach().amax(dim=-1, keepdim=True))
            # Below 0 elu + 1 is exp, for which a shift is a factor. Hardly any input needs one.
            if not known_at_least(query.detach(), -FAR):
                largest = query.detach().amax(dim=-1, keepdim=True)
                query = query - largest.masked_fill(largest >= -FAR, 0.0)
            return self.feature_map(query)
        features = self.feature_map(query)
        largest = features.amax(dim=-1, keepdim=True).detach()
        return features / largest.masked_fill(largest == 0, 1.0)

    def key_features(self, key: Tensor) -> Features:
        """Features of the keys; exp relative to its largest entry, which is handed on."""
        if not self._scaled:
            return Features(self.feature_map(key))
        key = key.to(torch.promote_types(key.dtype, torch.float32))
        largest = key.amax(dim=-1, keepdim=True).detach()
        return Features(self.feature_map(key - largest), largest.squeeze(-1))

    @property
    def _scaled(self) -> bool:
        return self.normalize and self.feature_map_name == "exp"
