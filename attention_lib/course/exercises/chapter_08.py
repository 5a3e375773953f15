"""Checkers for the exercises of the chapter on what attention costs."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_lib.course.exercises._core import (
    Case,
    Exercise,
    Mistake,
    register,
)

# --- 08-growth: eight times as long ----------------------------------------


def _judge_growth(answer: Any) -> str | None:
    """Compare the three factors, the last one roughly."""
    try:
        scores, projections, window = (float(number) for number in answer)
    except (TypeError, ValueError):
        return "Give three numbers: scores, projections, window."
    if scores != 64:
        if scores == 8:
            return (
                "There is a score for each pair: with eight times as many "
                "queries and eight times as many keys there are more than "
                "eight times as many."
            )
        return "The scores grow with the square of the length."
    if projections != 8:
        return (
            "A projection treats each token alone, so its FLOPs grow as the "
            "number of tokens does."
        )
    if not 8 <= window <= 8.6:
        if window == 64:
            return (
                "In a window a query sees 256 keys at most, however long "
                "the text is."
            )
        return "A query far from the start sees 256 keys in both texts."
    return None


register(
    Exercise(
        name="08-growth",
        judge=_judge_growth,
        checked="the three factors",
    )
)

# --- 08-cache: the memory of a conversation --------------------------------

_LAYERS, _HEADS, _KV_HEADS, _WIDTH, _NUMBER, _TOKENS = 80, 64, 8, 128, 2, 4096
_CACHE = 2 * _LAYERS * _KV_HEADS * _WIDTH * _NUMBER * _TOKENS

register(
    Exercise(
        name="08-cache",
        solution=_CACHE,
        tolerance=1e-9,
        mistakes=[
            Mistake(
                _CACHE // 2,
                "Half of it. Are these the keys alone, or the values alone? "
                "Or numbers, each of which takes two bytes?",
            ),
            Mistake(
                _CACHE * _HEADS // _KV_HEADS,
                "You count the query heads. Queries are not kept.",
            ),
            Mistake(
                _CACHE // _TOKENS,
                "That is one token. There are 4,096.",
            ),
            Mistake(
                _CACHE // _LAYERS,
                "That is one layer. Each layer has keys and values of its "
                "own.",
            ),
            Mistake(
                _CACHE // _KV_HEADS,
                "That is one head of keys and values. There are eight.",
            ),
        ],
        checked="keys and values, layers, heads, width, bytes and tokens",
    )
)

# --- 08-merge: two halves of a text ----------------------------------------

Partial = tuple[Tensor, Tensor, Tensor]


def _merge(first: Partial, second: Partial) -> Partial:
    largest = torch.maximum(first[0], second[0])
    shift = largest.masked_fill(largest == -math.inf, 0.0)
    one, two = (first[0] - shift).exp(), (second[0] - shift).exp()
    total = one * first[1] + two * second[1]
    return largest, total, one * first[2] + two * second[2]


def _merge_nan(first: Partial, second: Partial) -> Partial:
    largest = torch.maximum(first[0], second[0])
    one, two = (first[0] - largest).exp(), (second[0] - largest).exp()
    total = one * first[1] + two * second[1]
    return largest, total, one * first[2] + two * second[2]


def _merge_sums(first: Partial, second: Partial) -> Partial:
    largest = torch.maximum(first[0], second[0])
    return largest, first[1] + second[1], first[2] + second[2]


def _merge_total_only(first: Partial, second: Partial) -> Partial:
    largest, total, _ = _merge(first, second)
    return largest, total, first[2] + second[2]


def _merge_mixed_only(first: Partial, second: Partial) -> Partial:
    largest, _, mixed = _merge(first, second)
    return largest, first[1] + second[1], mixed


def _merge_into_first(first: Partial, second: Partial) -> Partial:
    largest = torch.maximum(first[0], second[0])
    shrink = (first[0] - largest).exp()
    total = shrink * first[1] + second[1]
    return largest, total, shrink * first[2] + second[2]


def _merge_upside_down(first: Partial, second: Partial) -> Partial:
    largest = torch.maximum(first[0], second[0])
    one, two = (largest - first[0]).exp(), (largest - second[0]).exp()
    total = one * first[1] + two * second[1]
    return largest, total, one * first[2] + two * second[2]


def _merge_divides(first: Partial, second: Partial) -> Partial:
    largest, total, mixed = _merge(first, second)
    return largest, total, mixed / total


def _part(
    largest: list[float], total: list[float], mixed: list[list[float]]
) -> Partial:
    return (
        torch.tensor(largest)[:, None],
        torch.tensor(total)[:, None],
        torch.tensor(mixed),
    )


_NOTHING = _part([-math.inf], [0.0], [[0.0, 0.0]])

register(
    Exercise(
        name="08-merge",
        solution=_merge,
        cases=[
            Case(
                _part([1.0], [1.5], [[2.0, 1.0]]),
                _part([1.0], [1.0], [[0.0, 3.0]]),
                note="the same maximum",
            ),
            Case(
                _part([1.0], [1.5], [[2.0, 1.0]]),
                _part([2.0], [1.25], [[4.0, 3.0]]),
                note="the second maximum is larger",
            ),
            Case(
                _part([3.0, -1.0], [1.5, 2.0], [[2.0, 1.0], [0.0, 1.0]]),
                _part([1.0, -1.5], [1.25, 1.0], [[4.0, 3.0], [5.0, -2.0]]),
                note="two queries, the first maximum is larger",
            ),
            Case(
                _NOTHING,
                _part([2.0], [1.25], [[4.0, 3.0]]),
                note="a half in which the query sees nothing",
            ),
            Case(_NOTHING, _NOTHING, note="two such halves"),
        ],
        mistakes=[
            Mistake(
                _merge_sums,
                "You add up sums that are measured in different units: each "
                "half is relative to its own maximum.",
            ),
            Mistake(
                _merge_total_only,
                "You rescale the sums, but not the mixed values: they are "
                "relative to the old maxima too.",
            ),
            Mistake(
                _merge_mixed_only,
                "You rescale the mixed values, but not the sums.",
            ),
            Mistake(
                _merge_into_first,
                "You rescale the first half only. In a loop, where the "
                "second comes relative to the new maximum, that is right; "
                "here either half may hold the larger score.",
            ),
            Mistake(
                _merge_upside_down,
                "Your factors are above 1: the exponent is the old maximum "
                "less the new one.",
            ),
            Mistake(
                _merge_divides,
                "You divide by the sum. That waits until all parts are "
                "merged, or they could not be merged any more.",
            ),
            Mistake(
                _merge_nan,
                "Where both maxima are -inf their difference is NaN. "
                "Subtract 0 there instead.",
            ),
        ],
        checked="equal and different maxima, several queries, halves without "
        "any key",
    )
)

# --- 08-overflow: break the careless one -----------------------------------


def _judge_overflow(answer: Any) -> str | None:
    """Run the colleague's softmax on the scores."""
    try:
        scores = torch.as_tensor(answer, dtype=torch.float32).flatten()
    except (TypeError, ValueError):
        return "Give four scores."
    if scores.shape != (4,):
        return f"Give four scores, two for each block; got {len(scores)}."
    if not scores.isfinite().all():
        return "Finite scores, please: an infinite one breaks anything."
    if scores.max() > 200:
        return "No score above 200."
    careless = (scores - scores[:2].max()).exp()
    careless = careless / careless.sum()
    if not torch.allclose(careless, scores.softmax(0), equal_nan=False):
        return None
    rise = (scores[2:].max() - scores[:2].max()).item()
    if rise <= 0:
        return (
            "Here the first block holds the largest score, and the careless "
            "way is the right one."
        )
    return (
        f"With these the second block rises {rise:.0f} above the maximum of "
        "the first; the exponential of that still fits into float32, and "
        "division makes up for the wrong unit. Go further."
    )


register(
    Exercise(
        name="08-overflow",
        judge=_judge_overflow,
        checked="four finite scores up to 200 whose careless weights are "
        "wrong",
    )
)

# --- 08-reach: how deep must it be? ----------------------------------------


def _reach(distance: int, window: int) -> int:
    return math.ceil(distance / (window - 1))


register(
    Exercise(
        name="08-reach",
        solution=_reach,
        tolerance=1e-9,
        cases=[
            Case(3, 4, note="as far as one layer sees"),
            Case(5, 4, note="a little further"),
            Case(0, 4, note="its own position needs no layer"),
            Case(7, 2, note="only the neighbour"),
            Case(16_384, 4096, note="a long text"),
        ],
        mistakes=[
            Mistake(
                lambda distance, window: math.ceil(distance / window),
                "A window of w holds the position itself and w - 1 before it.",
            ),
            Mistake(
                lambda distance, window: distance // (window - 1),
                "You round down: what one layer more would see is missing.",
            ),
            Mistake(
                lambda distance, window: distance // (window - 1) + 1,
                "Where the distance is a multiple of what a layer reaches, "
                "you build a layer too many.",
            ),
            Mistake(
                lambda distance, window: max(1, _reach(distance, window)),
                "A position sees itself through the residual connection, "
                "without any attention.",
            ),
        ],
        checked="distances within one layer, at its edge, beyond it and none",
    )
)

# --- 08-recurrent: attention as a recurrent network ------------------------

State = tuple[Tensor, Tensor]


def _features(x: Tensor) -> Tensor:
    return F.elu(x) + 1


def _step(
    state: State, query: Tensor, key: Tensor, value: Tensor
) -> tuple[State, Tensor]:
    query, key = _features(query), _features(key)
    memory, total = state[0] + torch.outer(key, value), state[1] + key
    return (memory, total), query @ memory / (query @ total)


def _step_too_late(
    state: State, query: Tensor, key: Tensor, value: Tensor
) -> tuple[State, Tensor]:
    new, _ = _step(state, query, key, value)
    query = _features(query)
    return new, query @ state[0] / (query @ state[1])


def _step_without_features(
    state: State, query: Tensor, key: Tensor, value: Tensor
) -> tuple[State, Tensor]:
    memory, total = state[0] + torch.outer(key, value), state[1] + key
    return (memory, total), query @ memory / (query @ total)


def _step_undivided(
    state: State, query: Tensor, key: Tensor, value: Tensor
) -> tuple[State, Tensor]:
    new, _ = _step(state, query, key, value)
    return new, _features(query) @ new[0]


def _step_plain_query(
    state: State, query: Tensor, key: Tensor, value: Tensor
) -> tuple[State, Tensor]:
    new, _ = _step(state, query, key, value)
    return new, query @ new[0] / (query @ new[1])


def _step_forgets(
    state: State, query: Tensor, key: Tensor, value: Tensor
) -> tuple[State, Tensor]:
    fresh = torch.zeros_like(state[0]), torch.zeros_like(state[1])
    return _step(fresh, query, key, value)


_START = (torch.zeros(2, 3), torch.zeros(2))
_LATER = (
    torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]]),
    torch.tensor([2.0, 1.5]),
)
_QUERY, _KEY = torch.tensor([0.5, -1.0]), torch.tensor([-0.5, 2.0])
_VALUE = torch.tensor([1.0, -2.0, 4.0])

register(
    Exercise(
        name="08-recurrent",
        solution=_step,
        cases=[
            Case(_START, _QUERY, _KEY, _VALUE, note="the first word"),
            Case(_LATER, _QUERY, _KEY, _VALUE, note="a later word"),
        ],
        mistakes=[
            Mistake(
                _step_too_late,
                "Your word does not see itself: read the state after the "
                "update.",
            ),
            Mistake(
                _step_without_features,
                "Query and key go in as they are. The formula takes "
                "elu(x) + 1 of both, so that no weight is negative.",
            ),
            Mistake(
                _step_plain_query,
                "The key goes through elu(x) + 1, the query does not.",
            ),
            Mistake(
                _step_undivided,
                "The sum of the weights is missing below the fraction.",
            ),
            Mistake(
                _step_forgets,
                "Your state forgets what came before: add to it.",
            ),
        ],
        checked="the first word and a later one, state and context",
    )
)
