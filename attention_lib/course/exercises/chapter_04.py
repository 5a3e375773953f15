"""Answers to the exercises of the chapter on scaling."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attention_lib.course.exercises._core import (
    Case,
    Exercise,
    Mistake,
    register,
)

# --- 04-variance, 04-jacobian and 04-width: by head and by pencil ------------

register(
    Exercise(
        name="04-variance",
        solution=[1.0, 4.0],
        tolerance=1e-3,
        mistakes=[
            Mistake(
                [64.0, 256.0],
                "These are the variances of the plain dot products. Dividing "
                "scores by the root of 64 divides their variance by 64.",
            ),
            Mistake(
                [8.0, 32.0],
                "You divide the variance by the root of the width. The "
                "scores are divided by it; a variance changes by its square.",
            ),
            Mistake(
                [1.0, 2.0],
                "You multiply standard deviations. The variance of a product "
                "of independent numbers is the product of the variances, "
                "that is of the squares.",
            ),
            Mistake(
                [1 / 64, 4 / 64],
                "You divide by the width, and so the variance by its square. "
                "The exercise divides by the root of the width.",
            ),
            Mistake(
                [4.25, 5.0],
                "You add the two variances. For a product of independent "
                "numbers with mean 0 they are multiplied.",
            ),
        ],
        checked="both variances",
    )
)

register(
    Exercise(
        name="04-jacobian",
        solution=[[0.09, -0.09], [-0.09, 0.09]],
        tolerance=1e-3,
        mistakes=[
            Mistake(
                [[0.09, 0.09], [0.09, 0.09]],
                "Check the signs: if one weight grows, the other must "
                "shrink, so every row sums to zero.",
            ),
            Mistake(
                [[-0.09, 0.09], [0.09, -0.09]],
                "The signs are turned around. A key's own score raises its "
                "weight.",
            ),
            Mistake(
                [[0.9, 0.0], [0.0, 0.1]],
                "That is diag(p), the first of the two terms. Subtract the "
                "outer product of p with itself.",
            ),
            Mistake(
                [[0.81, 0.09], [0.09, 0.01]],
                "That is the outer product, the second of the two terms. "
                "Subtract it from diag(p).",
            ),
            Mistake(
                [[0.09, -0.81], [-0.01, 0.09]],
                "Beside the diagonal stands the product of the two weights, "
                "not the square of one.",
            ),
        ],
        checked="all four derivatives",
    )
)

register(
    Exercise(
        name="04-width",
        solution=55,
        tolerance=1e-6,
        mistakes=[
            Mistake(
                54,
                "Rounded the wrong way: at width 54 the match gets a little "
                "less than half.",
            ),
            Mistake(
                48,
                "That is the square of ln 999. The other keys do not all "
                "score 0: their exponentials average to the root of e.",
            ),
            Mistake(
                8,
                "That is the score that is needed. Its square is the width.",
            ),
            Mistake(
                56,
                "One too many. Is it 1000 other keys that you counted, or "
                "did you round up twice?",
            ),
            Mistake(
                3009,
                "With the scale 1/d the match would score 1 at any width. "
                "Squared once too often: the scaled score is the root of d.",
            ),
        ],
        checked="the smallest width",
    )
)


# --- 04-backward -------------------------------------------------------------


def _backward(weights: Tensor, gradient: Tensor) -> Tensor:
    average = (weights * gradient).sum(dim=-1, keepdim=True)
    return weights * (gradient - average)


def _without_average(weights: Tensor, gradient: Tensor) -> Tensor:
    return weights * gradient


def _elementwise(weights: Tensor, gradient: Tensor) -> Tensor:
    return weights * (1 - weights) * gradient


def _plain_average(weights: Tensor, gradient: Tensor) -> Tensor:
    return weights * (gradient - gradient.mean(dim=-1, keepdim=True))


def _plain_sum(weights: Tensor, gradient: Tensor) -> Tensor:
    return weights * (gradient - gradient.sum(dim=-1, keepdim=True))


def _average_over_everything(weights: Tensor, gradient: Tensor) -> Tensor:
    return weights * (gradient - (weights * gradient).sum())


def _average_over_queries(weights: Tensor, gradient: Tensor) -> Tensor:
    dim = -2 if weights.dim() > 1 else -1
    average = (weights * gradient).sum(dim=dim, keepdim=True)
    return weights * (gradient - average)


def _not_weighted(weights: Tensor, gradient: Tensor) -> Tensor:
    return gradient - (weights * gradient).sum(dim=-1, keepdim=True)


_rows = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
_arriving = torch.tensor([[1.0, 0.0, -2.0], [3.0, 1.0, 0.5]])

register(
    Exercise(
        name="04-backward",
        solution=_backward,
        cases=[
            Case(
                torch.tensor([0.9, 0.1]),
                torch.tensor([1.0, 0.0]),
                note="two keys, the gradient at one of them",
            ),
            Case(_rows[0], _arriving[0], note="three keys"),
            Case(_rows, _arriving, note="two rows"),
            Case(
                torch.tensor([1.0, 0.0]),
                torch.tensor([5.0, -5.0]),
                note="a one-hot row",
            ),
            Case(
                torch.softmax(torch.arange(24.0).sin().view(2, 3, 4), -1),
                torch.arange(24.0).cos().view(2, 3, 4),
                note="two heads, three queries, four keys",
            ),
        ],
        mistakes=[
            Mistake(
                _without_average,
                "That is diag(p) alone. The second term of the Jacobian "
                "takes an average away from the gradient first.",
            ),
            Mistake(
                _elementwise,
                "You use the diagonal p (1 - p) only. Raising one score also "
                "lowers the weights of all other keys.",
            ),
            Mistake(
                _plain_average,
                "The average to take away is the one under the weights, not "
                "the plain one.",
            ),
            Mistake(
                _plain_sum,
                "You take the sum of the gradient away; p · u is the sum of "
                "the gradient times the weights.",
            ),
            Mistake(
                _average_over_everything,
                "The average runs over all rows together. Each row has a "
                "softmax of its own: sum over the last axis and keep it.",
            ),
            Mistake(
                _average_over_queries,
                "The average runs over the queries. The keys are the last "
                "axis.",
            ),
            Mistake(
                _not_weighted,
                "The average is right. What is left has to be multiplied by "
                "the weights.",
            ),
        ],
        checked="any leading axes, one-hot rows, and no matrix needed",
    )
)


# --- 04-cosine ---------------------------------------------------------------


def _unit(x: Tensor) -> Tensor:
    length = x.square().sum(dim=-1, keepdim=True).sqrt()
    unit: Tensor = x / torch.where(length > 0, length, 1.0)
    return unit


def _cosine(query: Tensor, key: Tensor, factor: float) -> Tensor:
    return factor * _unit(query) @ _unit(key).mT


def _zero_by_zero(query: Tensor, key: Tensor, factor: float) -> Tensor:
    def divide(x: Tensor) -> Tensor:
        return x / x.square().sum(dim=-1, keepdim=True).sqrt()

    return factor * divide(query) @ divide(key).mT


def _squared_length(query: Tensor, key: Tensor, factor: float) -> Tensor:
    def divide(x: Tensor) -> Tensor:
        return x / x.square().sum(dim=-1, keepdim=True)

    return factor * divide(query) @ divide(key).mT


def _root_too(query: Tensor, key: Tensor, factor: float) -> Tensor:
    return _cosine(query, key, factor) / math.sqrt(query.shape[-1])


def _no_factor(query: Tensor, key: Tensor, factor: float) -> Tensor:
    return _cosine(query, key, 1.0)


def _divided(query: Tensor, key: Tensor, factor: float) -> Tensor:
    return _cosine(query, key, 1.0) / factor


def _query_only(query: Tensor, key: Tensor, factor: float) -> Tensor:
    return factor * _unit(query) @ key.mT


def _key_only(query: Tensor, key: Tensor, factor: float) -> Tensor:
    return factor * query @ _unit(key).mT


def _over_positions(query: Tensor, key: Tensor, factor: float) -> Tensor:
    return factor * _unit(query.mT).mT @ _unit(key.mT)


def _plain_dot(query: Tensor, key: Tensor, factor: float) -> Tensor:
    return factor * query @ key.mT


_query = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.5, -0.5]])
_key = torch.tensor([[2.0, 0.0], [0.0, 0.5], [-1.0, 1.0], [3.0, 4.0]])

register(
    Exercise(
        name="04-cosine",
        solution=_cosine,
        cases=[
            Case(
                torch.tensor([[3.0, 4.0]]),
                torch.tensor([[2.0, 0.0]]),
                2.0,
                note="one query, one key",
            ),
            Case(_query, _key, 10.0, note="three queries, four keys"),
            Case(
                torch.stack([_query, 2 * _query]),
                torch.stack([_key, -_key]),
                5.0,
                note="two heads",
            ),
            Case(
                torch.tensor([[0.0, 0.0], [1.0, 1.0]]),
                torch.tensor([[1.0, 2.0], [0.0, 0.0]]),
                10.0,
                note="vectors of zeros",
            ),
        ],
        mistakes=[
            Mistake(
                _zero_by_zero,
                "A vector of zeros has length 0, and 0/0 is NaN. Divide "
                "such a vector by something else than its length.",
            ),
            Mistake(
                _squared_length,
                "You divide by the square of the length. Take the root.",
            ),
            Mistake(
                _root_too,
                "You also divide by the root of the width. Lengths are gone, "
                "so there is nothing left for it to correct; the factor "
                "takes its place.",
            ),
            Mistake(
                _no_factor,
                "The factor is missing: these are the bare cosines.",
            ),
            Mistake(_divided, "The factor multiplies; you divide by it."),
            Mistake(
                _query_only,
                "Only the queries have been divided by their length. The "
                "keys too, please.",
            ),
            Mistake(
                _key_only,
                "Only the keys have been divided by their length. The "
                "queries too, please.",
            ),
            Mistake(
                _over_positions,
                "The length of a vector is taken over its components, the "
                "last axis; you take it over the positions.",
            ),
            Mistake(
                _plain_dot,
                "These are plain dot products times the factor. Divide by "
                "the lengths first.",
            ),
        ],
        checked="values, leading axes, and vectors of zeros",
    )
)


# --- 04-break ----------------------------------------------------------------


def _judge_sample(sample: Any) -> str | None:
    """Check the components by their statistics; the variance must be low."""
    if not callable(sample):
        return (
            "This exercise asks for a function sample(rows, width, "
            "generator). Pass the function itself."
        )
    rows, width = 40_000, 8
    pair = _draw(sample, rows, width)
    if pair is None:
        return "Your function returns nothing yet."
    if isinstance(pair, str):
        return pair
    query, key = pair
    # Of 40,000 samples a mean, a correlation or a variance is off by less
    # than this unless the component is off itself.
    slack = 0.08
    for name, vector in (("query", query), ("key", key)):
        mean = vector.mean(dim=0).abs().max().item()
        if mean > slack:
            return (
                f"Some component of the {name} has mean {mean:.2f} in size, "
                "not 0. Random signs would repair that."
            )
        variance = vector.var(dim=0)
        worst = variance[(variance - 1).abs().argmax()].item()
        if abs(worst - 1) > 2 * slack:
            return (
                f"Some component of the {name} has variance {worst:.2f}, "
                "not 1."
            )
    cross = (query.T @ key / rows).abs().max().item()
    if cross > slack:
        return (
            "Some component of the query is correlated with one of the key "
            f"(correlation {cross:.2f}). Independent signs on both sides "
            "would remove that."
        )
    found = (query * key).sum(dim=1).var().item()
    if found >= width / 2:
        return (
            f"All assumptions on single components hold, but at width "
            f"{width} the variance of the dot product is {found:.1f}, not "
            f"below {width / 2:.1f}. The sizes of q_i and k_i may depend on "
            "each other even if their signs do not."
        )
    return None


def _draw(
    sample: Callable[..., Any], rows: int, width: int
) -> tuple[Tensor, Tensor] | str | None:
    """Call the answer; return its two vectors or what is wrong with them."""
    try:
        pair = sample(rows, width, torch.Generator().manual_seed(0))
    except NotImplementedError:
        return None
    if pair is None or pair is Ellipsis:
        return None
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        return "Return two results, query and key."
    query, key = (torch.as_tensor(part).double() for part in pair)
    for name, vector in (("query", query), ("key", key)):
        if vector.shape != (rows, width):
            return (
                f"The {name} has shape {tuple(vector.shape)}; asked for was "
                f"(rows, width) = ({rows}, {width})."
            )
    return query, key


register(
    Exercise(
        name="04-break",
        judge=_judge_sample,
        checked="means, variances, correlations and the dot product",
    )
)
