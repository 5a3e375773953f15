# Written by tools/export.py from 04_scaling.ipynb: edit there.
"""Scaled dot products, and measures of what a scale does to attention.

The measures describe the rows of any attention: how far its scores spread,
how many keys a query listens to, how much gradient its softmax lets through.
They return float32 for half-precision input and, for a row without a key, 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attention_lib._checks import (
    check_number,
    check_sizes,
    check_tensor,
    check_type,
)
from attention_lib.attention import _widen
from attention_lib.scoring import dot_score

__all__ = [
    "attention_entropy",
    "dot_product_moments",
    "largest_weight",
    "scaled_dot_score",
    "score_variance",
    "softmax_jacobian",
    "softmax_jacobian_norm",
]


def _fits(small: Sequence[int], large: Sequence[int]) -> bool:
    """Tell whether one shape broadcasts to another without enlarging it."""
    if len(small) > len(large):
        return False
    tail = large[len(large) - len(small) :]
    return all(s in (1, n) for s, n in zip(small, tail, strict=True))


def scaled_dot_score(
    query: Float[Tensor, "*#batch Tq d_k"],
    key: Float[Tensor, "*#batch Tk d_k"],
    *,
    scale: float | Tensor | None = None,
) -> Float[Tensor, "*#batch Tq Tk"]:
    """Compare by the dot product, divided by the root of the width.

    With independent components of mean 0 and variance 1 the scores have
    variance 1 at any width. Half-precision input is widened before it is
    multiplied, so the products cannot overflow.

    Args:
        query: Queries, shape ``(..., Tq, d_k)``.
        key: Keys, shape ``(..., Tk, d_k)``; the leading dimensions broadcast
            against those of ``query``.
        scale: What the dot products are *multiplied* by; by default
            ``1 / sqrt(d_k)`` with the width of the query, which in
            multi-head attention is that of one head. A tensor, such as a
            learned scale, broadcasts against ``query``: ``(H, 1, 1)`` gives
            each head its own.

    Returns:
        Scores, shape ``(..., Tq, Tk)``, in float32 for half-precision input.

    Raises:
        TypeError: If ``query`` or ``key`` is not floating point, or
            ``scale`` is neither a number nor a tensor.
        ValueError: If widths, leading dimensions or devices do not fit.

    References:
        Vaswani et al. (2017), *Attention Is All You Need*, section 3.2.1.

    Example:
        >>> query = torch.tensor([[1.0, 1.0, 1.0, 1.0]])
        >>> key = torch.tensor([[1.0, 2.0, 0.0, 1.0]])
        >>> scaled_dot_score(query, key)
        tensor([[2.]])
        >>> scaled_dot_score(query, key, scale=1.0)
        tensor([[4.]])

    Built in :ref:`section 4.3 <sec-root-not-width>`.
    """
    check_type("query", query, Tensor, "a torch.Tensor")
    if scale is None:
        width = query.shape[-1:].numel()
        scale = 1.0 / math.sqrt(width) if width else 1.0
    elif isinstance(scale, bool) or not isinstance(
        scale, (int, float, Tensor)
    ):
        raise TypeError(
            f"scale must be a number or a tensor, got {type(scale).__name__}"
        )
    if not isinstance(scale, Tensor):
        check_number("scale", scale)
    elif not _fits(scale.shape, query.shape):
        raise ValueError(
            f"scale of shape {tuple(scale.shape)} does not broadcast to "
            f"query of shape {tuple(query.shape)}"
        )
    if query.is_floating_point():  # dot_score refuses anything else
        wide = _widen(query)
        # Less work than scaling the scores if d_k < Tk, and no second copy
        # of the large Tq x Tk matrix in any case.
        query = wide * (
            scale.to(wide.dtype) if isinstance(scale, Tensor) else scale
        )
    return dot_score(query, key)


def dot_product_moments(
    width: int,
    *,
    query_mean: float = 0.0,
    query_std: float = 1.0,
    key_mean: float = 0.0,
    key_std: float = 1.0,
    correlation: float = 0.0,
) -> tuple[float, float]:
    """Predict mean and variance of a dot product from its components.

    The pairs ``(query[i], key[i])`` are taken to be independent of each
    other and all distributed alike. If ``correlation`` is 0, ``query[i]``
    and ``key[i]`` are taken to be independent, which is more than
    uncorrelated, and any distribution will do; otherwise they are taken to
    be jointly normal.

    Args:
        width: Number of components, ``d_k``.
        query_mean: Mean of a component of the query.
        query_std: Standard deviation of a component of the query.
        key_mean: Mean of a component of the key.
        key_std: Standard deviation of a component of the key.
        correlation: Correlation of ``query[i]`` and ``key[i]``, -1 to 1.

    Returns:
        The mean and the variance of ``query · key``.

    Raises:
        ValueError: If ``width`` or a standard deviation is negative, or
            ``correlation`` is not in [-1, 1].

    References:
        Vaswani et al. (2017), *Attention Is All You Need*, footnote 4, for
        means 0, standard deviations 1 and no correlation.

    Example:
        >>> dot_product_moments(64)
        (0.0, 64.0)
        >>> dot_product_moments(64, query_std=2.0, correlation=0.5)
        (64.0, 320.0)

    Built in :ref:`section 4.3 <sec-root-not-width>`.
    """
    check_sizes(0, width=width)
    check_number("query_std", query_std, low=0.0)
    check_number("key_std", key_std, low=0.0)
    check_number("query_mean", query_mean)
    check_number("key_mean", key_mean)
    check_number("correlation", correlation, -1.0, 1.0)
    covariance = correlation * query_std * key_std
    mean = query_mean * key_mean + covariance
    variance = (
        query_std**2 * key_std**2
        + query_mean**2 * key_std**2
        + key_mean**2 * query_std**2
        + covariance**2
        + 2.0 * query_mean * key_mean * covariance
    )
    return width * mean, width * variance


def _read_weights(weights: Tensor) -> Tensor:
    """Return rows of weights in float32 or wider; refuse anything else."""
    check_tensor("weights", weights, "floating-point", "(..., Tk)")
    return _widen(weights)


def softmax_jacobian(
    weights: Float[Tensor, "*batch Tk"],
) -> Float[Tensor, "*batch Tk Tk"]:
    """Derivative of every attention weight by every score of its row.

    Entry ``[i, j]`` is ``weights[i] * ((i == j) - weights[j])``: the matrix
    ``diag(p) - p p^T`` of the row ``p``. It is symmetric, has no negative
    eigenvalue, its rows sum to 0, and it is 0 where a row is one-hot.

    Args:
        weights: Rows of a softmax, shape ``(..., Tk)``.

    Returns:
        One matrix for each row, shape ``(..., Tk, Tk)``.

    Example:
        >>> softmax_jacobian(torch.tensor([0.5, 0.5]))
        tensor([[ 0.2500, -0.2500],
                [-0.2500,  0.2500]])

    Built in :ref:`section 4.4 <sec-softmax-jacobian>`.
    """
    weights = _read_weights(weights)
    products = weights[..., :, None] * weights[..., None, :]
    own = torch.diag_embed(torch.diagonal(products, dim1=-2, dim2=-1))
    products = products - own
    # p (1 - p) as the sum of the others: exact where p is nearly 1.
    return torch.diag_embed(products.sum(dim=-1)) - products


def softmax_jacobian_norm(
    weights: Float[Tensor, "*batch Tk"],
) -> Float[Tensor, "*batch"]:
    """Frobenius norm of the softmax's Jacobian, without building it.

    It is the size of the gradient that reaches the scores, in the root mean
    square, if a gradient of independent numbers of mean 0 and variance 1
    arrives at the weights. At most 1/2 for two keys that share the weight,
    and 0 for a one-hot row.

    Args:
        weights: Rows of a softmax, shape ``(..., Tk)``.

    Returns:
        One norm for each row, shape ``(...)``.

    Example:
        >>> softmax_jacobian_norm(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
        tensor([0.5000, 0.0000])

    Built in :ref:`section 4.4 <sec-softmax-jacobian>`.
    """
    weights = _read_weights(weights)
    if weights.shape[-1] == 0:
        return weights.sum(dim=-1)
    largest, place = weights.max(dim=-1, keepdim=True)
    others = weights.scatter(-1, place, 0.0)
    # No term cancels against the largest weight, so that norms far below
    # the rounding error of 1 are right too.
    squares = others.square().sum(dim=-1)
    cubes = others.pow(3).sum(dim=-1)
    total = others.sum(dim=-1).square() + 2.0 * squares
    total = largest[..., 0].square() * total
    total = total + squares - 2.0 * cubes + squares.square()
    positive = total > 0
    return torch.where(positive, total, 1.0).sqrt() * positive


def score_variance(
    scores: Float[Tensor, "*batch Tk"],
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch"]:
    """Variance of each query's scores over the keys it may attend to.

    A softmax ignores what all scores of a row have in common, so the spread
    within the row is what decides how sharp the weights are.

    Args:
        scores: Shape ``(..., Tk)``, usually ``(..., Tq, Tk)``.
        mask: Boolean, ``True`` = may be attended; broadcast to ``scores``.

    Returns:
        One variance (divided by the number of keys) for each row, ``(...)``.

    Raises:
        TypeError: If ``mask`` is not boolean.

    Example:
        >>> score_variance(torch.tensor([[1.0, 3.0, 9.0]]),
        ...                torch.tensor([True, True, False]))
        tensor([1.])

    Built in :ref:`section 4.5 <sec-gradient-widths>`.
    """
    check_tensor("scores", scores, "floating-point", "(..., Tk)")
    if mask is None:
        mask = torch.ones((), dtype=torch.bool, device=scores.device)
    check_type("mask", mask, Tensor, "a boolean torch.Tensor")
    if mask.device != scores.device:
        raise ValueError(f"mask is on {mask.device}, scores {scores.device}")
    if not _fits(mask.shape, scores.shape):
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} does not broadcast to "
            f"scores of shape {tuple(scores.shape)}"
        )
    if mask.dtype != torch.bool:
        raise TypeError(
            "mask must be boolean (True = may be attended), got "
            f"{mask.dtype}; convert a 0/1 mask with mask.bool()"
        )
    scores = _widen(scores)
    keep = mask.broadcast_to(scores.shape)
    count = keep.sum(dim=-1, keepdim=True).clamp(min=1)
    mean = torch.where(keep, scores, 0.0).sum(dim=-1, keepdim=True) / count
    distance = torch.where(keep, scores, mean) - mean
    return distance.square().sum(dim=-1) / count[..., 0]


def attention_entropy(
    weights: Float[Tensor, "*batch Tk"],
) -> Float[Tensor, "*batch"]:
    """Entropy of each row of weights, in nats.

    Its exponential is the effective number of keys that a query listens to:
    1 for a one-hot row, ``Tk`` for equal weights.

    Args:
        weights: Rows of a softmax, shape ``(..., Tk)``.

    Returns:
        One entropy for each row, shape ``(...)``, 0 to ``log(Tk)``.

    Example:
        >>> weights = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
        >>> attention_entropy(weights).exp()
        tensor([2., 1.])

    Built in :ref:`section 4.5 <sec-gradient-widths>`.
    """
    weights = _read_weights(weights)
    logarithm = torch.where(weights > 0, weights, 1.0).log()
    return (weights * -logarithm).sum(dim=-1)


def largest_weight(
    weights: Float[Tensor, "*batch Tk"],
) -> Float[Tensor, "*batch"]:
    """The weight of the key that each query listens to most.

    Args:
        weights: Rows of a softmax, shape ``(..., Tk)``.

    Returns:
        One weight for each row, shape ``(...)``.

    Example:
        >>> largest_weight(torch.tensor([[0.5, 0.3, 0.2]]))
        tensor([0.5000])

    Built in :ref:`section 4.5 <sec-gradient-widths>`.
    """
    weights = _read_weights(weights)
    if weights.shape[-1] == 0:
        return weights.sum(dim=-1)
    return weights.amax(dim=-1)
