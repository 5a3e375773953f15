# Written by tools/export.py from these cells, to be edited there:
# 03_scoring.ipynb, 04_scaling.ipynb
"""Score functions: how well does each query match each key?

Each maps queries ``(..., Tq, d_q)`` and keys ``(..., Tk, d_k)`` to scores
``(..., Tq, Tk)`` and serves as ``score`` of ``attend``.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attention_lib._checks import check_sizes
from attention_lib._numerics import (
    additive_scores,
    no_autocast,
    wide_product,
    widen,
)

__all__ = [
    "AdditiveScore",
    "BilinearScore",
    "dot_score",
    "scaled_dot_score",
]


def dot_score(
    query: Float[Tensor, "*#batch Tq d_k"],
    key: Float[Tensor, "*#batch Tk d_k"],
) -> Float[Tensor, "*#batch Tq Tk"]:
    """Compare by the dot product of each query with each key.

    ``(..., Tq, d_k)`` and ``(..., Tk, d_k)`` give ``(..., Tq, Tk)``, in
    float32 for half types.

    Source: Luong et al. (2015), section 3.1, "dot".

    >>> key = torch.tensor([[1.0, 0.0], [3.0, 1.0]])
    >>> dot_score(torch.tensor([[1.0, 2.0]]), key)
    tensor([[1., 5.]])

    Built in section 3.3 (sec-multiplicative).
    """
    return wide_product(query, key.mT)


class BilinearScore(nn.Module):
    """Compare through a learned matrix: query · weight · key.

    ``weight``, ``(query_dim, key_dim)``, translates from the coordinates of
    the query into those of the key, so the two may differ in width.

    Source: Luong et al. (2015), section 3.1, "general".

    >>> score = BilinearScore(query_dim=3, key_dim=5)
    >>> score(torch.randn(2, 4, 3), torch.randn(2, 7, 5)).shape
    torch.Size([2, 4, 7])

    Built in section 3.3 (sec-multiplicative).
    """

    def __init__(self, query_dim: int, key_dim: int) -> None:
        super().__init__()
        check_sizes(query_dim=query_dim, key_dim=key_dim)
        self.weight = nn.Parameter(torch.empty(query_dim, key_dim))
        bound = 1 / math.sqrt(query_dim)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(
        self,
        query: Float[Tensor, "*#batch Tq d_q"],
        key: Float[Tensor, "*#batch Tk d_k"],
    ) -> Float[Tensor, "*#batch Tq Tk"]:
        """Return the scores, in float32 for half types."""
        return wide_product(wide_product(query, self.weight), key.mT)


class AdditiveScore(nn.Module):
    """Compare by a small network: vector · tanh(query' + key').

    ``query'`` and ``key'`` are linear maps to ``hidden_dim`` without bias,
    so the widths may differ.

    Source: Bahdanau et al. (2015), appendix A.1.2; Luong's "concat".

    >>> score = AdditiveScore(query_dim=3, key_dim=5, hidden_dim=8)
    >>> score(torch.randn(2, 4, 3), torch.randn(2, 7, 5)).shape
    torch.Size([2, 4, 7])

    Built in section 3.4 (sec-additive-blocks).
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        super().__init__()
        check_sizes(
            query_dim=query_dim, key_dim=key_dim, hidden_dim=hidden_dim
        )
        self.query_proj = nn.Linear(query_dim, hidden_dim, bias=False)
        self.key_proj = nn.Linear(key_dim, hidden_dim, bias=False)
        self.vector = nn.Parameter(torch.empty(hidden_dim))
        bound = 1 / math.sqrt(hidden_dim)
        nn.init.uniform_(self.vector, -bound, bound)

    def forward(
        self,
        query: Float[Tensor, "*#batch Tq d_q"],
        key: Float[Tensor, "*#batch Tk d_k"],
    ) -> Float[Tensor, "*#batch Tq Tk"]:
        """Return the scores, in float32 for half types."""
        with no_autocast(query.device):
            query = self.query_proj(query.to(self.vector.dtype))
            key = self.key_proj(key.to(self.vector.dtype))
            # tanh(query + key) @ vector for each pair, in blocks
            return additive_scores(*map(widen, (query, key, self.vector)))


def scaled_dot_score(
    query: Float[Tensor, "*#batch Tq d_k"],
    key: Float[Tensor, "*#batch Tk d_k"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "*#batch Tq Tk"]:
    """Compare by the dot product times ``scale``, 1 / sqrt(d_k) if omitted.

    ``(..., Tq, d_k)`` and ``(..., Tk, d_k)`` give ``(..., Tq, Tk)``, in
    float32 for half types.

    Source: Vaswani et al. (2017), equation 1.

    >>> query = torch.ones(1, 4)
    >>> scaled_dot_score(query, query)
    tensor([[2.]])

    Built in section 4.3 (sec-root-not-width).
    """
    if scale is None:
        scale = 1 / math.sqrt(max(query.shape[-1], 1))
    return wide_product(query, key.mT, scale)
