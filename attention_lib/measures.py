# Written by tools/export.py from these cells, to be edited there:
# 03_scoring.ipynb, 04_scaling.ipynb, 06_multihead.ipynb
"""What weights and scores look like, in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attention_lib._checks import (
    check_items,
    check_number,
    check_sizes,
    check_tensor,
    check_type,
)
from attention_lib.attention import _widen as _wide
from attention_lib.multihead import MultiHeadAttention
from attention_lib.scores import _fits

__all__ = [
    "alignment_error_rate",
    "attention_entropy",
    "dot_product_moments",
    "hard_alignment",
    "head_gates",
    "largest_weight",
    "score_variance",
    "softmax_jacobian",
    "softmax_jacobian_norm",
]


def hard_alignment(weights: Float[Tensor, "Tq Tk"]) -> set[tuple[int, int]]:
    """Link every target word to the source word with the largest weight.

    Args:
        weights: One sentence's weights, (Tq, Tk): a row per target word.

    Returns:
        One link (target index, source index) for each row.

    References:
        Luong, Pham and Manning (2015), section 5.4.

    Example:
        >>> sorted(hard_alignment(torch.tensor([[0.2, 0.8], [0.6, 0.4]])))
        [(0, 1), (1, 0)]

    Built in :ref:`section 3.7 <sec-alignment>`.
    """
    check_tensor("weights", weights, "floating-point")
    if weights.dim() != 2:
        raise ValueError(
            "weights must be those of one sentence, (Tq, Tk), got shape "
            f"{tuple(weights.shape)}"
        )
    if weights.shape[0] and not weights.shape[1]:
        raise ValueError("weights have no source word to link to")
    return set(enumerate(weights.argmax(dim=-1).tolist()))


def alignment_error_rate(
    predicted: Sequence[set[tuple[int, int]]],
    sure: Sequence[set[tuple[int, int]]],
    possible: Sequence[set[tuple[int, int]]] | None = None,
) -> float:
    """Compare predicted links with true ones: 0 is best, 1 is worst.

    ``1 - (|A & S| + |A & P|) / (|A| + |S|)`` with the predicted links A, the
    sure links S and the possible links P, each counted over all sentences. A
    sure link is possible as well. If all true links are sure, this is one
    minus the F1 score.

    Args:
        predicted: For each sentence its links (target index, source index).
        sure: For each sentence the links that must be found.
        possible: For each sentence the links that may be found; ``sure`` if
            not given.

    Returns:
        The rate, between 0 and 1; 0 if there is no link at all.

    Raises:
        ValueError: If the arguments are of different length.

    References:
        Och and Ney (2003), *A Systematic Comparison of Various Statistical
        Alignment Models*.

    Example:
        >>> alignment_error_rate([{(0, 1), (1, 0)}], [{(0, 1), (1, 1)}])
        0.5

    Built in :ref:`section 3.7 <sec-alignment>`.
    """
    possible = sure if possible is None else possible
    predicted = check_items("predicted", predicted, Set, "sets of links")
    sure = check_items("sure", sure, Set, "sets of links")
    possible = check_items("possible", possible, Set, "sets of links")
    if not len(predicted) == len(sure) == len(possible):
        raise ValueError(
            "predicted, sure and possible must be of one length, got "
            f"{len(predicted)}, {len(sure)} and {len(possible)}"
        )
    right = total = 0
    for links, must, may in zip(predicted, sure, possible, strict=True):
        right += len(links & must) + len(links & (must | may))
        total += len(links) + len(must)
    return 1 - right / total if total else 0.0


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
    return _wide(weights)


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
    scores = _wide(scores)
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


@contextmanager
def head_gates(
    layer: MultiHeadAttention, gates: Float[Tensor, " H"]
) -> Iterator[None]:
    """Multiply what each head adds to the output by a number.

    A gate of 0 removes a head, 1 leaves it as it is. The parameters are not
    touched, and after the ``with`` block the layer is what it was. Gates may
    require a gradient: its absolute value is the importance of Michel et
    al. (2019).

    Args:
        layer: The layer whose heads are gated.
        gates: One number for each head, ``(H,)``.

    Raises:
        ValueError: If there is not one gate for each head.

    References:
        Michel, Levy and Neubig (2019), equations 2 and 3.

    Example:
        >>> import torch
        >>> layer = MultiHeadAttention(4, 2)
        >>> with head_gates(layer, torch.zeros(2)):
        ...     output, _ = layer(torch.randn(1, 3, 4))
        >>> bool((output == layer.output_proj.bias).all())
        True

    Built in :ref:`section 6.9 <sec-weights-not-importance>`.
    """
    check_type("layer", layer, MultiHeadAttention, "a MultiHeadAttention")
    check_tensor("gates", gates, "floating-point")
    if gates.shape != (layer.num_heads,):
        raise ValueError(
            f"gates must have shape ({layer.num_heads},), one for each head, "
            f"got {tuple(gates.shape)}"
        )

    def gate(_: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
        (merged,) = inputs
        return (merged * gates.to(merged).repeat_interleave(layer.d_head),)

    handle = layer.output_proj.register_forward_pre_hook(gate)
    try:
        yield
    finally:
        handle.remove()
