# Written by tools/export.py from these cells, to be edited there:
# 02_attention_by_hand.ipynb, 05_masking.ipynb
"""Attention: score, masked softmax, weighted sum."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from attention_lib._checks import check_attention, fit_mask
from attention_lib._numerics import (
    fold_groups,
    fused_attention,
    is_empty,
    join_masks,
    mix,
    num_groups,
    prepare,
    quick_softmax,
    unfold_groups,
    widen,
)
from attention_lib.scores import scaled_dot_score

__all__ = [
    "attend",
    "masked_softmax",
    "scaled_dot_product_attention",
]


def masked_softmax(
    scores: Float[Tensor, "..."],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    dim: int = -1,
) -> Float[Tensor, "..."]:
    """Turn scores into weights that sum to one over the allowed keys.

    A masked key gets weight 0, and a row with no allowed key is all 0.
    ``mask`` is boolean, True = may be attended, and broadcasts to ``scores``
    of any shape; three axes beside four mean ``(B, Tq or 1, Tk)``. Half types
    are summed in float32. Raises TypeError or ValueError for a mask that is
    not boolean or does not fit.

    Source: Vaswani et al. (2017), section 3.2.1.

    >>> scores = torch.tensor([[1.0, 0.0, 1.0], [5.0, 5.0, 5.0]])
    >>> mask = torch.tensor([[True, False, True], [False] * 3])
    >>> masked_softmax(scores, mask)
    tensor([[0.5000, 0.0000, 0.5000],
            [0.0000, 0.0000, 0.0000]])

    Built in section 2.8 (sec-one-formula).
    """
    if mask is not None:
        mask = fit_mask(mask, scores)
    weights = quick_softmax(scores, mask, dim)  # the lines below, faster
    if weights is None:
        wide = widen(scores)
        if mask is not None:
            wide = torch.where(mask, wide, -torch.inf)
        dead = (wide == -torch.inf).all(dim, keepdim=True)
        weights = torch.softmax(wide.masked_fill(dead, 0.0), dim)
        weights = weights.masked_fill(dead, 0.0)
    return weights.to(scores.dtype)


def attend(
    query: Float[Tensor, "*#batch Tq d_q"],
    key: Float[Tensor, "*#batch Tk d_k"],
    value: Float[Tensor, "*#batch Tk d_v"],
    *,
    score: Callable[[Tensor, Tensor], Tensor],
    mask: Bool[Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
) -> tuple[Float[Tensor, "... Tq d_v"], Float[Tensor, "... Tq Tk"]]:
    """Let every query take a weighted mean of the values.

    ``score(query, key)`` returns ``(..., Tq, Tk)``; ``mask``, boolean with
    True = may be attended, broadcasts to that. Returns the context and the
    weights before dropout; both are 0 for a query that may see no key. Half
    types are widened to float32 for the sums. ``dropout_p`` always applies.
    Raises TypeError or ValueError for inputs that do not fit together.

    Source: Bahdanau et al. (2015), equations 5 and 6.

    >>> key = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> value = torch.tensor([[1.0], [3.0]])
    >>> attend(key, key, value, score=lambda q, k: q @ k.mT)[0]
    tensor([[1.5379],
            [2.4621]])

    Built in section 2.8 (sec-one-formula).
    """
    q, k, v, precision = prepare(query, key, value, mask)
    with precision:  # float32 or wider
        weights = masked_softmax(score(q, k), mask)
        context = mix(F.dropout(weights, dropout_p), v, mask)
    return context.to(value.dtype), weights.to(value.dtype)


def scaled_dot_product_attention(
    query: Float[Tensor, "*_ Tq d_k"],
    key: Float[Tensor, "*_ Tk d_k"],
    value: Float[Tensor, "*_ Tk d_v"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "... Tq d_v"], Float[Tensor, "... Tq Tk"] | None]:
    """Attend by scaled dot products: softmax(scale * Q K^T + bias) V.

    ``mask`` is boolean, True = may be attended; ``bias`` is added to the
    scores. ``is_causal`` lets the last query see all keys, the one before
    all but the last, and so on; with ``mask`` both hold. ``scale`` is
    1 / sqrt(d_k) if omitted. ``(B, H, Tq, d_k)`` may meet fewer key heads
    ``(B, H_kv, Tk, d_k)``. Returns context and weights (before dropout), or
    None in their place: then PyTorch's kernel computes, which stores no
    scores and has no second derivative. A query that may see no key gets 0.
    Raises TypeError or ValueError for what does not fit together.

    Source: Vaswani et al. (2017), equation 1.

    >>> x = torch.zeros(2, 3)
    >>> scaled_dot_product_attention(x, x, torch.eye(2), is_causal=True)[0]
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])

    Built in section 5.6 (sec-both-paths).
    """
    flags = {"is_causal": is_causal, "need_weights": need_weights}
    mask, bias = check_attention(query, key, value, mask, bias, **flags)
    if scale is None:
        scale = 1 / math.sqrt(max(query.shape[-1], 1))
    if not (need_weights or is_empty(query, key, value)):
        return fused_attention(
            query, key, value, mask, bias, is_causal, scale, dropout_p
        ), None

    def score(query: Tensor, key: Tensor) -> Tensor:
        scores = scaled_dot_score(query, key, scale=scale)
        scores = scores if bias is None else scores + bias
        scores.disposable = True  # type: ignore[attr-defined]
        return scores

    if is_causal or bias is not None:
        mask, bias = join_masks(mask, bias, is_causal, query, key)
    groups = 1
    if query.shape[-3:-2] != key.shape[-3:-2]:  # a key head serves a group
        groups = num_groups(query, key, value)
        query, mask, bias = fold_groups(query, mask, bias, groups)
    context, weights = attend(
        query, key, value, score=score, mask=mask, dropout_p=dropout_p
    )
    if groups > 1:
        context, weights = unfold_groups(groups, context, weights)
    return context, weights if need_weights else None
