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

    ``axis`` is that of the keys. ``mask`` is boolean, True = may be
    attended, and broadcasts to ``scores``; a row with no allowed key is all
    zeros. Raises TypeError for a mask that is not boolean and ValueError for
    one that does not fit.

    >>> softmax([0.0, np.log(3.0)]).round(4)
    array([0.25, 0.75])

    Built in section 2.6 (sec-stable-softmax).
    """
    scores = check_array("scores", scores)
    if mask is not None:
        mask = np.asarray(mask)
        if mask.dtype != np.bool_:
            raise TypeError(
                "mask must be boolean (True = may be attended), got "
                f"{mask.dtype}"
            )
        mask = np.broadcast_to(mask, scores.shape)
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

    ``query`` ``(..., Tq, d_k)``, ``key`` ``(..., Tk, d_k)`` and ``value``
    ``(..., Tk, d_v)`` give the context ``(..., Tq, d_v)`` and the weights
    ``(..., Tq, Tk)``. ``mask`` is that of softmax; ``scale`` is
    ``1 / sqrt(d_k)`` if omitted, and 1 gives the plain dot product. Raises
    TypeError or ValueError for what does not fit together.

    Source: Vaswani et al. (2017), equation 1.

    >>> context, weights = attention([[0.0]], [[1.0], [2.0]], [[3], [5]])
    >>> weights, context
    (array([[0.5, 0.5]]), array([[4.]]))

    Built in section 2.6 (sec-stable-softmax).
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
