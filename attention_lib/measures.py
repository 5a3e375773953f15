# Written by tools/export.py from these cells, to be edited there:
# 03_scoring.ipynb, 04_scaling.ipynb, 06_multihead.ipynb
"""What weights and scores look like, in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attention_lib._checks import check_number, check_sizes, fit_mask
from attention_lib._numerics import widen
from attention_lib.multihead import MultiHeadAttention

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


def hard_alignment(weights: Float[Tensor, "Tt Ts"]) -> set[tuple[int, int]]:
    """Link every target word to the source word with the largest weight.

    ``weights`` are those of one sentence, ``(Tt, Ts)``. Returns one pair
    (target index, source index) for each row.

    Source: Luong et al. (2015), section 5.4.

    >>> sorted(hard_alignment(torch.tensor([[0.2, 0.8], [0.6, 0.4]])))
    [(0, 1), (1, 0)]

    Built in section 3.7 (sec-alignment).
    """
    return set(enumerate(weights.argmax(dim=-1).tolist()))


def alignment_error_rate(
    predicted: Sequence[set[tuple[int, int]]],
    sure: Sequence[set[tuple[int, int]]],
    possible: Sequence[set[tuple[int, int]]] | None = None,
) -> float:
    """Compare predicted links with true ones: 0 is best, 1 is worst.

    ``1 - (|A & S| + |A & P|) / (|A| + |S|)`` with the predicted links A,
    the sure links S and the possible links P (S if omitted, and S is always
    possible), one set for each sentence. 0 if there is no link at all.
    Raises ValueError for different numbers of sentences.

    Source: Och and Ney (2003), section 2.

    >>> alignment_error_rate([{(0, 1), (1, 0)}], [{(0, 1), (1, 1)}])
    0.5

    Built in section 3.7 (sec-alignment).
    """
    possible = sure if possible is None else possible
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

    The ``width`` pairs of components are independent and distributed alike;
    with a ``correlation`` between query and key they are jointly normal.
    Raises ValueError for a negative width or standard deviation, or a
    correlation beyond -1 and 1.

    Source: Vaswani et al. (2017), footnote 4, for means 0, deviations 1.

    >>> dot_product_moments(64)
    (0.0, 64.0)
    >>> dot_product_moments(64, query_std=2.0, correlation=0.5)
    (64.0, 320.0)

    Built in section 4.3 (sec-root-not-width).
    """
    check_sizes(0, width=width)
    check_number("query_std", query_std, low=0.0)
    check_number("key_std", key_std, low=0.0)
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


def softmax_jacobian(
    weights: Float[Tensor, "*batch Tk"],
) -> Float[Tensor, "*batch Tk Tk"]:
    """Derivative of every weight ``(..., Tk)`` by every score of its row.

    Entry ``[i, j]`` is weights[i] * ((i == j) - weights[j]).

    >>> softmax_jacobian(torch.tensor([0.5, 0.5]))
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]])

    Built in section 4.4 (sec-softmax-jacobian).
    """
    weights = widen(weights)
    products = weights[..., :, None] * weights[..., None, :]
    own = torch.diag_embed(torch.diagonal(products, dim1=-2, dim2=-1))
    products = products - own
    # p (1 - p) as the sum of the others: exact where p is nearly 1.
    return torch.diag_embed(products.sum(dim=-1)) - products


def softmax_jacobian_norm(
    weights: Float[Tensor, "*batch Tk"],
) -> Float[Tensor, "*batch"]:
    """Frobenius norm of the softmax's Jacobian, without building it.

    It is the size of the gradient that reaches the scores when independent
    numbers of variance 1 arrive at the weights ``(..., Tk)``: 1/2 for two
    keys that share the weight, 0 for a one-hot row.

    >>> softmax_jacobian_norm(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([0.5000, 0.0000])

    Built in section 4.4 (sec-softmax-jacobian).
    """
    weights = widen(weights)
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

    ``mask``, True = may be attended, broadcasts to ``scores`` ``(..., Tk)``.
    Raises TypeError or ValueError for one that does not.

    >>> mask = torch.tensor([True, True, False])
    >>> score_variance(torch.tensor([[1.0, 3.0, 9.0]]), mask)
    tensor([1.])

    Built in section 4.5 (sec-gradient-widths).
    """
    scores = widen(scores)
    keep = torch.ones_like(scores, dtype=torch.bool)
    if mask is not None:
        keep = keep & fit_mask(mask, scores)
    count = keep.sum(dim=-1, keepdim=True).clamp(min=1)
    mean = torch.where(keep, scores, 0.0).sum(dim=-1, keepdim=True) / count
    distance = torch.where(keep, scores, mean) - mean
    return distance.square().sum(dim=-1) / count[..., 0]


def attention_entropy(
    weights: Float[Tensor, "*batch Tk"],
) -> Float[Tensor, "*batch"]:
    """Entropy of each row of weights ``(..., Tk)``, in nats.

    Its exponential is the effective number of keys that a query listens to:
    1 for a one-hot row, Tk for equal weights.

    >>> weights = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    >>> attention_entropy(weights).exp()
    tensor([2., 1.])

    Built in section 4.5 (sec-gradient-widths).
    """
    weights = widen(weights)
    logarithm = torch.where(weights > 0, weights, 1.0).log()
    return (weights * -logarithm).sum(dim=-1)


def largest_weight(
    weights: Float[Tensor, "*batch Tk"],
) -> Float[Tensor, "*batch"]:
    """The weight of the key that each query listens to most.

    ``(..., Tk)`` gives ``(...)``; 0 where there is no key.

    >>> largest_weight(torch.tensor([[0.5, 0.3, 0.2]]))
    tensor([0.5000])

    Built in section 4.5 (sec-gradient-widths).
    """
    weights = widen(weights)
    if weights.shape[-1] == 0:
        return weights.sum(dim=-1)
    return weights.amax(dim=-1)


@contextmanager
def head_gates(
    layer: MultiHeadAttention, gates: Float[Tensor, " H"]
) -> Iterator[None]:
    """Multiply what each head adds to the output by a number.

    ``gates`` ``(H,)`` may require a gradient: its absolute value is a
    head's importance. After the ``with`` block the layer is what it was.
    Raises ValueError for another number of gates.

    Source: Michel et al. (2019), equations 2 and 3.

    >>> layer = MultiHeadAttention(4, 2)
    >>> with head_gates(layer, torch.zeros(2)):
    ...     output, _ = layer(torch.randn(1, 3, 4))
    >>> bool((output == layer.output_proj.bias).all())
    True

    Built in section 6.9 (sec-weights-not-importance).
    """
    if gates.shape != (layer.num_heads,):
        raise ValueError(
            f"gates must have shape ({layer.num_heads},), one for each head, "
            f"got {tuple(gates.shape)}"
        )
    projection = layer.output_proj
    layer.output_proj = nn.Sequential(_Gate(gates, layer.d_head), projection)
    try:
        yield
    finally:
        layer.output_proj = projection


class _Gate(nn.Module):
    """Multiplies heads ``(..., H * d_head)`` by one number each."""

    def __init__(self, gates: Tensor, d_head: int) -> None:
        super().__init__()
        self.gates, self.d_head = gates, d_head

    def forward(self, merged: Tensor) -> Tensor:
        return merged * self.gates.to(merged).repeat_interleave(self.d_head)
