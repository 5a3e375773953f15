# Written by tools/export.py from these cells, to be edited there:
# 02_attention_by_hand.ipynb
"""Attention in NumPy and float64: slow, plain, and what tests compare to."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attention_lib._checks import check_array, check_number, check_shapes

__all__ = [
    "attention",
    "softmax",
]


def softmax(
    scores: ArrayLike, mask: ArrayLike | None = None, *, axis: int = -1
) -> NDArray[np.float64]:
    """Turn scores into weights that sum to one over the allowed keys.

    Args:
        scores: Any shape, usually ``(..., Tq, Tk)``.
        mask: Boolean, ``True`` = may be attended; broadcast to ``scores``.
        axis: The axis over which the weights sum to one: the keys.

    Returns:
        The weights in float64. A row with no allowed key is all zeros.

    Raises:
        TypeError: If ``mask`` is not boolean.
        ValueError: If ``mask`` does not broadcast to ``scores``.

    Example:
        >>> softmax([0.0, np.log(3.0)]).round(4)
        array([0.25, 0.75])

    Built in :ref:`section 2.4 <sec-stable-softmax>`.
    """
    scores = check_array("scores", scores)
    if mask is not None:
        mask = np.asarray(mask)
        if mask.dtype != np.bool_:
            raise TypeError(
                "mask must be boolean (True = may be attended), got "
                f"{mask.dtype}"
            )
        try:
            mask = np.broadcast_to(mask, scores.shape)
        except ValueError:
            raise ValueError(
                f"mask of shape {mask.shape} does not broadcast to scores "
                f"of shape {scores.shape}"
            ) from None
        scores = np.where(mask, scores, -np.inf)
    highest = scores.max(axis=axis, keepdims=True, initial=-np.inf)
    highest = np.where(highest == -np.inf, 0.0, highest)
    exponentials = np.exp(scores - highest)
    total = exponentials.sum(axis=axis, keepdims=True)
    weights: NDArray[np.float64] = exponentials / np.where(
        total == 0.0, 1.0, total
    )
    return weights


def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    scale: float | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute scaled dot-product attention, one matrix at a time.

    Args:
        query: ``(..., Tq, d_k)``.
        key: ``(..., Tk, d_k)``.
        value: ``(..., Tk, d_v)``.
        mask: Boolean, ``True`` = may be attended; broadcast to
            ``(..., Tq, Tk)``.
        scale: The factor of the scores; ``None`` stands for
            ``1 / sqrt(d_k)``, and 1 gives the plain dot product.

    Returns:
        The context ``(..., Tq, d_v)`` and the weights ``(..., Tq, Tk)``,
        both in float64.

    References:
        Vaswani et al. (2017), equation 1.

    Example:
        >>> context, weights = attention([[0.0]], [[1.0], [2.0]], [[3], [5]])
        >>> weights, context
        (array([[0.5, 0.5]]), array([[4.]]))

    Built in :ref:`section 2.4 <sec-stable-softmax>`.
    """
    query = check_array("query", query, 2)
    key = check_array("key", key, 2)
    value = check_array("value", value, 2)
    check_shapes(query.shape, key.shape, value.shape)
    if scale is None:
        scale = 1.0 / np.sqrt(query.shape[-1])
    check_number("scale", scale)
    scores = scale * (query @ np.swapaxes(key, -1, -2))
    weights = softmax(scores, mask)
    return weights @ value, weights
