"""Answers to the exercises of the chapter on attention by hand."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention_lib.course.exercises._core import (
    Case,
    Exercise,
    Mistake,
    register,
)

# --- 02-sharp and 02-unscaled: weights by head and by pencil ----------------

register(
    Exercise(
        name="02-sharp",
        solution=[0.5, 0.0, 0.5],
        tolerance=1e-3,
        mistakes=[
            Mistake(
                [1.0, 0.0, 0.0],
                "Only one winner? Look at the scores again: two keys are "
                "equally far ahead of the third.",
            ),
            Mistake(
                [1 / 3, 1 / 3, 1 / 3],
                "That is the other limit, a query so short that all scores "
                "are nearly equal. This one is very long.",
            ),
            Mistake(
                [0.401, 0.198, 0.401],
                "These are the weights of the query [1, 0]. The scores are "
                "10,000 times as large now: what does that do to their "
                "differences?",
            ),
            Mistake(
                [1.0, 0.0, 1.0],
                "This row sums to two. The weights of a query sum to one.",
            ),
        ],
        checked="three weights that sum to one",
    )
)

register(
    Exercise(
        name="02-unscaled",
        solution=[0.2119, 0.2119, 0.5761],
        tolerance=1e-3,
        mistakes=[
            Mistake(
                [0.2483, 0.2483, 0.5035],
                "These are the weights with the scale. Leave the division by "
                "the root of two out.",
            ),
            Mistake(
                [0.25, 0.25, 0.5],
                "You divide the scores by their sum. The softmax takes the "
                "exponentials first.",
            ),
            Mistake(
                [2.7183, 2.7183, 7.3891],
                "These are the exponentials. Divide them by their sum.",
            ),
            Mistake(
                [0.4223, 0.1554, 0.4223],
                "This is the row of the query [1, 0]; the exercise asks for "
                "that of [1, 1].",
            ),
        ],
        checked="three weights, to three digits",
    )
)


# --- 02-value: what a projection hands over ----------------------------------

register(
    Exercise(
        name="02-value",
        solution=[1.0, 2.0],
        tolerance=1e-3,
        mistakes=[
            Mistake(
                [1.0, 1.0],
                "That is the value in the example. Which one does the matrix "
                "give that makes the other two?",
            ),
            Mistake(
                [0.5, 1.0],
                "That is the mean of the two values. The vector of fish is "
                "the sum of the other two, not their mean.",
            ),
            Mistake(
                [2.0, 1.0],
                "The order of the two numbers is the other way round.",
            ),
        ],
        checked="the two numbers of the value",
    )
)


# --- 02-softmax --------------------------------------------------------------


def _softmax(scores: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1)


def _softmax_over_queries(scores: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-2 if scores.dim() > 1 else -1)


def _softmax_over_all(scores: Tensor) -> Tensor:
    return torch.softmax(scores.flatten(), dim=0).view_as(scores)


def _softmax_overflowing(scores: Tensor) -> Tensor:
    exponentials = torch.exp(scores)
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def _softmax_of_one_maximum(scores: Tensor) -> Tensor:
    exponentials = torch.exp(scores - scores.max())
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def _plain_division(scores: Tensor) -> Tensor:
    return scores / scores.sum(dim=-1, keepdim=True)


register(
    Exercise(
        name="02-softmax",
        solution=_softmax,
        cases=[
            Case(torch.tensor([1.0, 0.0]), note="two scores"),
            Case(
                torch.tensor([[1.0, 0.0, 1.0], [0.0, 2.0, -1.0]]),
                note="two queries, three keys",
            ),
            Case(torch.tensor([[1000.0, 999.0]]), note="large scores"),
            Case(torch.tensor([[-1000.0, -1001.0]]), note="very negative"),
            Case(
                torch.tensor([[1000.0, 999.0], [1.0, 0.0]]),
                note="rows of very different size",
            ),
            Case(
                torch.linspace(-1, 1, 24).view(2, 3, 4), note="a batch of two"
            ),
        ],
        mistakes=[
            Mistake(
                torch.exp,
                "These are the exponentials. They still have to be divided "
                "by their sum, so that each row sums to one.",
            ),
            Mistake(
                _plain_division,
                "You divide the scores by their sum. Scores may be negative "
                "or sum to zero; exponentials cannot.",
            ),
            Mistake(
                _softmax_over_all,
                "All weights together sum to one. Each row must: take the "
                "sum over the last axis only, and keep that axis.",
            ),
            Mistake(
                _softmax_over_queries,
                "The weights sum to one down each column. They must sum to "
                "one along each row: every query shares out its own weight.",
            ),
            Mistake(
                _softmax_overflowing,
                "exp overflows on large scores, or all of it rounds to zero "
                "on very negative ones, and inf / inf and 0 / 0 are nan. "
                "What can be subtracted from a row without changing its "
                "weights?",
            ),
            Mistake(
                _softmax_of_one_maximum,
                "You subtract one maximum from all rows, so the exponentials "
                "of a row of much smaller scores round to zero. Each row "
                "has a maximum of its own.",
            ),
        ],
        checked="one row, many rows, a batch, scores of 1000 and of -1000, "
        "and that the scores are left as they were",
    )
)


# --- 02-attention ------------------------------------------------------------

_Pair = tuple[Tensor, Tensor]


def _attention(query: Tensor, key: Tensor, value: Tensor) -> _Pair:
    return _attention_by(query, key, value, 1.0 / math.sqrt(query.shape[-1]))


def _attention_by(
    query: Tensor, key: Tensor, value: Tensor, scale: float, dim: int = -1
) -> _Pair:
    weights = torch.softmax(query @ key.mT * scale, dim=dim)
    return weights @ value, weights


def _unscaled(query: Tensor, key: Tensor, value: Tensor) -> _Pair:
    return _attention_by(query, key, value, 1.0)


def _scaled_by_width(query: Tensor, key: Tensor, value: Tensor) -> _Pair:
    return _attention_by(query, key, value, 1.0 / query.shape[-1])


def _scaled_by_value(query: Tensor, key: Tensor, value: Tensor) -> _Pair:
    return _attention_by(query, key, value, 1.0 / math.sqrt(value.shape[-1]))


def _scaled_by_count(query: Tensor, key: Tensor, value: Tensor) -> _Pair:
    return _attention_by(query, key, value, 1.0 / math.sqrt(key.shape[-2]))


def _multiplied(query: Tensor, key: Tensor, value: Tensor) -> _Pair:
    return _attention_by(query, key, value, math.sqrt(query.shape[-1]))


def _over_queries(query: Tensor, key: Tensor, value: Tensor) -> _Pair:
    scale = 1.0 / math.sqrt(query.shape[-1])
    return _attention_by(query, key, value, scale, dim=-2)


def _swapped(query: Tensor, key: Tensor, value: Tensor) -> _Pair:
    context, weights = _attention(query, key, value)
    return weights, context


def _without_softmax(query: Tensor, key: Tensor, value: Tensor) -> _Pair:
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    return scores @ value, scores


register(
    Exercise(
        name="02-attention",
        solution=_attention,
        cases=[
            Case(
                torch.tensor([[1.0, 0.0]]),
                torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
                torch.tensor([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]]),
                note="one query, two keys, values of width three",
            ),
            Case(
                torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
                torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
                torch.tensor([[1.0], [0.0], [2.0]]),
                note="two queries, three keys, values of width one",
            ),
            Case(
                torch.linspace(-2, 2, 24).view(2, 3, 4),
                torch.linspace(3, -1, 40).view(2, 5, 4),
                torch.linspace(0, 1, 60).view(2, 5, 6),
                note="a batch of two, width four",
            ),
        ],
        mistakes=[
            Mistake(
                _unscaled,
                "The weights are those of unscaled scores. Divide by the "
                "root of the width before the softmax.",
            ),
            Mistake(
                _scaled_by_width,
                "You divide the scores by the width d_k itself, not by its "
                "root.",
            ),
            Mistake(
                _scaled_by_value,
                "You divide by the root of the width of the values. Scores "
                "come from queries and keys, so their width counts.",
            ),
            Mistake(
                _scaled_by_count,
                "You divide by the root of the number of keys. It is the "
                "width of a key that counts.",
            ),
            Mistake(
                _multiplied, "You multiply by the root instead of dividing."
            ),
            Mistake(
                _over_queries,
                "The softmax runs over the queries, the columns sum to one. "
                "It must run over the keys, the last axis.",
            ),
            Mistake(
                _swapped,
                "Context and weights are exchanged: return the context first.",
            ),
            Mistake(
                _without_softmax,
                "These are scores, and a sum weighted by scores. The softmax "
                "is missing.",
            ),
        ],
        checked="context and weights of one query, of two, and of a batch, "
        "with all sizes different",
    )
)


# --- 02-read: one learned query for every text -------------------------------


def _read(states: Tensor, query: Tensor) -> _Pair:
    return _read_by(states, query)


def _read_by(
    states: Tensor, query: Tensor, scale: float = 1.0, dim: int = 1
) -> _Pair:
    weights = torch.softmax(scale * (states @ query), dim=dim)
    return (weights[:, None] @ states)[:, 0], weights


def _read_over_texts(states: Tensor, query: Tensor) -> _Pair:
    return _read_by(states, query, dim=0)


def _read_scaled(states: Tensor, query: Tensor) -> _Pair:
    return _read_by(states, query, scale=len(query) ** -0.5)


def _read_mean(states: Tensor, query: Tensor) -> _Pair:
    return _read_by(states, torch.zeros_like(query))


def _read_best(states: Tensor, query: Tensor) -> _Pair:
    return _read_by(states, query, scale=1e6)


def _read_without_softmax(states: Tensor, query: Tensor) -> _Pair:
    scores = states @ query
    return (scores[:, None] @ states)[:, 0], scores


def _read_swapped(states: Tensor, query: Tensor) -> _Pair:
    summary, weights = _read(states, query)
    return weights, summary


register(
    Exercise(
        name="02-read",
        solution=_read,
        cases=[
            Case(
                torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]),
                torch.tensor([1.0, 0.0]),
                note="one text of three words",
            ),
            Case(
                torch.linspace(-2, 2, 40).view(2, 5, 4).sin(),
                torch.tensor([1.0, -1.0, 0.5, 2.0]),
                note="two texts of five words, width four",
            ),
        ],
        mistakes=[
            Mistake(
                _read_mean,
                "These are equal weights: the query has no say. Compare it "
                "with every word.",
            ),
            Mistake(
                _read_over_texts,
                "The weights sum to one over the texts. Each text shares out "
                "its own weight, over its words.",
            ),
            Mistake(
                _read_scaled,
                "You divide by the root of the width. The exercise asks for "
                "the plain dot product.",
            ),
            Mistake(
                _read_best,
                "Only the best word of each text is taken. A weighted sum "
                "lets the others speak too, and has a gradient.",
            ),
            Mistake(
                _read_without_softmax,
                "These are scores, and a sum weighted by scores. The softmax "
                "is missing.",
            ),
            Mistake(
                _read_swapped,
                "Summaries and weights are exchanged: return the summaries "
                "first.",
            ),
        ],
        checked="summaries and weights of one text and of two",
    )
)


# --- 02-scores: any row that differs from the logarithms by a constant -------


def _numbers(answer: Any, count: int) -> Any:
    """Return the answer as a float64 row, or a hint."""
    try:
        if isinstance(answer, Tensor):
            answer = answer.detach().cpu().double().numpy()
        row = np.asarray(answer, dtype=np.float64).squeeze()
    except (TypeError, ValueError):
        return "These are not numbers."
    if row.shape != (count,):
        return f"Give {count} numbers; yours have the shape {row.shape}."
    if not np.isfinite(row).all():
        return "All the numbers must be finite."
    return row


def _judge_scores(answer: Any) -> str | None:
    wanted = np.array([0.7, 0.1, 0.1, 0.1])
    scores = _numbers(answer, 4)
    if isinstance(scores, str):
        return scores
    exponentials = np.exp(scores - scores.max())
    weights = exponentials / exponentials.sum()
    if np.abs(weights - wanted).max() < 2e-3:
        return None
    if np.abs(scores - wanted).max() < 2e-3:
        return (
            "These are the weights themselves. Their softmax is "
            f"{weights.round(3).tolist()}: exponentials of small numbers "
            "are all near one. Which function undoes the exponential?"
        )
    return f"The softmax of these scores is {weights.round(3).tolist()}."


register(
    Exercise(
        name="02-scores",
        judge=_judge_scores,
        checked="the softmax of your scores, to two digits; any constant "
        "added to all of them would do as well",
    )
)


# --- 02-twins: two mixtures, one context -------------------------------------


def _judge_twins(answer: Any) -> str | None:
    value = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [0.5, 1.0]])
    try:
        first, second = answer
    except (TypeError, ValueError):
        return "Give two rows of four weights, as a pair."
    rows = []
    for name, row in (("first", first), ("second", second)):
        row = _numbers(row, len(value))
        if isinstance(row, str):
            return f"The {name} row: {row}"
        if (row < 0).any():
            return f"The {name} row has a negative weight; a softmax has none."
        if abs(row.sum() - 1) > 1e-3:
            return f"The {name} row sums to {row.sum():.3f}, not to one."
        rows.append(row)
    if np.abs(rows[0] - rows[1]).max() < 0.1:
        return "The two rows are nearly the same; let some weight differ."
    contexts = [row @ value for row in rows]
    if np.abs(contexts[0] - contexts[1]).max() > 1e-3:
        one, other = (context.round(3).tolist() for context in contexts)
        return (
            f"The contexts are {one} and {other}. Which of the four values "
            "is a mixture of others?"
        )
    return None


register(
    Exercise(
        name="02-twins",
        judge=_judge_twins,
        checked="two rows of weights that differ by 0.1 or more and give the "
        "same context",
    )
)


# --- 02-masked: weights and gradients, dead rows included --------------------


def _weights_and_gradient(
    answer: Callable[[Tensor, Tensor], Tensor], scores: Tensor, mask: Tensor
) -> Any:
    scores = scores.clone().requires_grad_()
    weights = answer(scores, mask)
    if not isinstance(weights, Tensor):
        return weights
    (gradient,) = torch.autograd.grad(weights[..., 0].sum(), scores)
    return weights.detach(), gradient


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    dead = ~mask.any(dim=-1, keepdim=True)
    hidden = scores.masked_fill(~(mask | dead), -torch.inf)
    return torch.softmax(hidden, dim=-1).masked_fill(dead, 0.0)


def _masked_late(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1) * mask


def _masked_by_zero(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores * mask, dim=-1)


def _masked_inverted(scores: Tensor, mask: Tensor) -> Tensor:
    return _masked(scores, ~mask)


def _masked_finite(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores.masked_fill(~mask, -1e9), dim=-1)


def _masked_finite_then_zeroed(scores: Tensor, mask: Tensor) -> Tensor:
    return _masked_finite(scores, mask) * mask


def _masked_nan(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores.masked_fill(~mask, -torch.inf), dim=-1)


def _masked_nan_to_zero(scores: Tensor, mask: Tensor) -> Tensor:
    added = torch.zeros_like(scores).masked_fill(~mask, -torch.inf)
    return torch.softmax(scores + added, dim=-1).nan_to_num(0.0)


register(
    Exercise(
        name="02-masked",
        solution=_masked,
        call=_weights_and_gradient,
        cases=[
            Case(
                torch.tensor([[0.0, 0.0, 0.0]]),
                torch.tensor([[True, True, False]]),
                note="the last key is hidden",
            ),
            Case(
                torch.tensor([[-1.0, -2.0, 3.0]]),
                torch.tensor([[True, True, False]]),
                note="the hidden key has the largest score",
            ),
            Case(
                torch.tensor([[1.0, 2.0], [1.0, 2.0]]),
                torch.tensor([[True, True], [False, False]]),
                note="the second query may attend to nothing",
            ),
            Case(
                torch.tensor([[-2e9, -2e9, -2e9]]),
                torch.tensor([[True, True, False]]),
                note="scores of minus two thousand million",
            ),
        ],
        mistakes=[
            Mistake(
                _masked_late,
                "The weights that remain no longer sum to one: you mask "
                "after the softmax. Hide the scores before it.",
            ),
            Mistake(
                _masked_by_zero,
                "A hidden score of 0 still has the exponential 1. Which "
                "score has the exponential 0?",
            ),
            Mistake(
                _masked_inverted,
                "The mask is read the wrong way round: True means that a key "
                "may be attended.",
            ),
            Mistake(
                _masked_finite,
                "A fill such as -1e9 is a number like others: a row with "
                "nothing else in it becomes a uniform average, and scores "
                "below it lose to it.",
            ),
            Mistake(
                _masked_finite_then_zeroed,
                "A fill such as -1e9 wins over scores that are lower still, "
                "and takes their weight with it. Which fill is below every "
                "number?",
            ),
            Mistake(
                _masked_nan,
                "A row with every key hidden is 0 / 0. Its weights should "
                "be 0.",
            ),
            Mistake(
                _masked_nan_to_zero,
                "The weights are right, but the gradient is nan: repairing "
                "the result of 0 / 0 comes too late for the backward pass. "
                "Keep the division from happening.",
            ),
        ],
        checked="hidden keys, a row with every key hidden, very negative "
        "scores, and the gradients of all these",
    )
)
