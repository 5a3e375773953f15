"""Answers to the exercises of the chapter on scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attention_lib.course.exercises._core import (
    Case,
    Exercise,
    Mistake,
    register,
)

# --- 03-bytes: [dot, additive], B = 64, Tq = Tk = 128, hidden = 512 ----------

_PAIRS = 64 * 128 * 128
register(
    Exercise(
        name="03-bytes",
        tolerance=1e-3,
        solution=[4 * _PAIRS, 4 * _PAIRS * 512],
        mistakes=[
            Mistake(
                [_PAIRS, _PAIRS * 512],
                "You count numbers. A float32 number takes four bytes.",
            ),
            Mistake(
                [4 * 128 * 128, 4 * 128 * 128 * 512],
                "That is one sentence. There are 64 in the batch.",
            ),
            Mistake(
                [4 * _PAIRS, 4 * 64 * (128 + 128) * 512],
                "Those are the projected queries and keys, one vector for "
                "each position. Inside the tanh there is one for each pair.",
            ),
            Mistake(
                [4 * _PAIRS * 512, 4 * _PAIRS],
                "The order is dot first, additive second.",
            ),
            Mistake(
                [8 * _PAIRS, 8 * _PAIRS * 512],
                "float32 takes four bytes, not eight.",
            ),
        ],
        checked="one number per pair against 512, in bytes",
    )
)


# --- 03-pencil: q = [1, 2], W = [[1, 0, 2], [0, 1, 1]], two keys -------------

register(
    Exercise(
        name="03-pencil",
        tolerance=1e-3,
        solution=[5.0, 4.0],
        mistakes=[
            Mistake(
                [1.0, 4.0],
                "These are dot products with the first two entries of each "
                "key. The matrix turns the query into three numbers first.",
            ),
            Mistake(
                [0.7311, 0.2689],
                "These are the weights, after the softmax. The question is "
                "for the scores.",
            ),
            Mistake([4.0, 5.0], "The numbers are right and the order is not."),
            Mistake(
                [4.0, 2.0],
                "You added up the matrix times each key; the query has not "
                "had its say.",
            ),
        ],
        checked="the scores of both keys",
    )
)


# --- 03-parameters: [general, additive], d_q = 64, d_k = 128, hidden = 32 ----

register(
    Exercise(
        name="03-parameters",
        solution=[64 * 128, 32 * 64 + 32 * 128 + 32],
        mistakes=[
            Mistake(
                [64 * 128, 32 * 64 + 32 * 128],
                "The additive score has a third part: the vector that turns "
                "the hidden layer into one number.",
            ),
            Mistake(
                [64 * 128, 32 * 64 + 32 * 128 + 3 * 32],
                "You count a bias for each of the two maps. There is none "
                "in the equation.",
            ),
            Mistake(
                [64 * 64, 32 * 64 + 32 * 128 + 32],
                "The matrix of the general score leads from the width of "
                "the query to that of the key.",
            ),
            Mistake(
                [64 + 128, 32 * 64 + 32 * 128 + 32],
                "A matrix has as many numbers as the product of its sides.",
            ),
            Mistake(
                [32 * 64 + 32 * 128 + 32, 64 * 128],
                "The order is general first, additive second.",
            ),
        ],
        checked="both counts",
    )
)


# --- 03-additive: the plain form ---------------------------------------------


def _inside(query: Tensor, key: Tensor, to_query: Any, to_key: Any) -> Tensor:
    left, right = query @ to_query.T, key @ to_key.T
    inside: Tensor = left[..., :, None, :] + right[..., None, :, :]
    return inside


def _finish(
    finish: Callable[[Tensor, Tensor], Tensor],
) -> Callable[..., Tensor]:
    """Make a score of what is done with the hidden layer and the vector."""

    def score(
        query: Tensor, key: Tensor, to_query: Any, to_key: Any, vector: Tensor
    ) -> Tensor:
        return finish(_inside(query, key, to_query, to_key), vector)

    return score


def _then(
    right: Callable[..., Tensor], change: Callable[[Tensor], Tensor]
) -> Callable[..., Tensor]:
    """Make a wrong answer: the right one, and one step too many."""
    return lambda *arguments: change(right(*arguments))


_additive = _finish(lambda inside, vector: torch.tanh(inside) @ vector)
_additive_linear = _finish(lambda inside, vector: inside @ vector)
_additive_late = _then(_additive_linear, torch.tanh)
_additive_squeezed = _then(_additive, torch.squeeze)
_additive_turned = _then(_additive, lambda scores: scores.mT)
_additive_weights = _then(_additive, lambda scores: scores.softmax(dim=-1))
_additive_one_vector = _finish(lambda inside, _: torch.tanh(inside).sum(-1))


def _additive_apart(
    query: Tensor, key: Tensor, to_query: Any, to_key: Any, vector: Tensor
) -> Tensor:
    left = torch.tanh(query @ to_query.T)
    right = torch.tanh(key @ to_key.T)
    return (left[..., :, None, :] + right[..., None, :, :]) @ vector


def _wave(*shape: int) -> Tensor:
    """Numbers between -1 and 1 that look like no pattern."""
    return torch.sin(torch.arange(1.0, 1 + int(np.prod(shape))) ** 2).view(
        shape
    )


_ADDITIVE_CASES = [
    Case(
        torch.tensor([[[1.0, 0.0]]]),
        torch.tensor([[[0.5, 1.0], [2.0, 0.0]]]),
        torch.tensor([[1.0, -1.0]]),
        torch.tensor([[1.0, 1.0]]),
        torch.tensor([2.0]),
        note="one sentence, one query, two keys, one hidden unit",
    ),
    Case(
        _wave(1, 2, 2),
        _wave(1, 3, 3),
        _wave(4, 2),
        _wave(4, 3),
        _wave(4),
        note="two queries of width two, three keys of width three",
    ),
    Case(
        _wave(5, 3, 2),
        _wave(5, 4, 3),
        _wave(6, 2),
        _wave(6, 3),
        _wave(6),
        note="a batch of five",
    ),
]
register(
    Exercise(
        name="03-additive",
        solution=_additive,
        cases=_ADDITIVE_CASES,
        mistakes=[
            Mistake(
                _additive_squeezed,
                "A bare squeeze() drops every axis of length one: the batch "
                "of one and the single query too. Name the axis, or use @.",
            ),
            Mistake(
                _additive_linear,
                "There is no tanh. Without it the query adds the same "
                "number to all scores of its row and is without effect.",
            ),
            Mistake(
                _additive_late,
                "The tanh comes after the vector. It belongs before it, "
                "around each hidden unit.",
            ),
            Mistake(
                _additive_apart,
                "You take the tanh of query and key apart. The two must meet "
                "inside it.",
            ),
            Mistake(
                _additive_turned,
                "Rows and columns are exchanged: the rows are the queries.",
            ),
            Mistake(
                _additive_weights,
                "These are the weights. A score function returns the scores "
                "and leaves the softmax to whoever called it.",
            ),
            Mistake(
                _additive_one_vector,
                "The hidden units are added up alike. The vector says how "
                "much each of them counts, and in which direction.",
            ),
        ],
        checked="a batch of one, a single query, widths that differ, and a "
        "batch of five",
    )
)


# --- 03-merge: two projections and a dot product are one bilinear form -------


def _merge(to_query: Tensor, to_key: Tensor) -> Tensor:
    merged: Tensor = to_query.T @ to_key
    return merged


def _merge_turned(to_query: Tensor, to_key: Tensor) -> Tensor:
    return _merge(to_key, to_query)


def _merge_outside(to_query: Tensor, to_key: Tensor) -> Tensor:
    return _merge(to_query.T, to_key.T)


def _merge_scaled(to_query: Tensor, to_key: Tensor) -> Tensor:
    return _merge(to_query, to_key) / float(to_query.shape[0] ** 0.5)


register(
    Exercise(
        name="03-merge",
        solution=_merge,
        cases=[
            Case(
                torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
                torch.tensor([[0.0, 1.0], [1.0, 3.0]]),
                note="all widths equal",
            ),
            Case(
                torch.tensor([[1.0, 2.0]]),
                torch.tensor([[0.0, 1.0, 3.0]]),
                note="projections to width one",
            ),
            Case(_wave(4, 3), _wave(4, 5), note="projections to width four"),
        ],
        mistakes=[
            Mistake(
                _merge_turned,
                "This is the transpose: the rows belong to the query.",
            ),
            Mistake(
                _merge_outside,
                "This compares the hidden units with each other. They are "
                "what has to be summed over.",
            ),
            Mistake(
                _merge_scaled,
                "You divide by the root of the width. The scores asked for "
                "are not scaled.",
            ),
        ],
        checked="projections to width one and four, and equal widths",
    )
)


# --- 03-aer ------------------------------------------------------------------

_Links = set[tuple[int, int]]


def _aer(predicted: _Links, sure: _Links, possible: _Links) -> float:
    right = len(predicted & sure) + len(predicted & (possible | sure))
    return 1 - right / (len(predicted) + len(sure))


def _aer_sure_only(predicted: _Links, sure: _Links, possible: _Links) -> float:
    return 1 - 2 * len(predicted & sure) / (len(predicted) + len(sure))


def _aer_possible_only(
    predicted: _Links, sure: _Links, possible: _Links
) -> float:
    return 1 - 2 * len(predicted & possible) / (len(predicted) + len(sure))


def _aer_turned(predicted: _Links, sure: _Links, possible: _Links) -> float:
    return 1 - _aer(predicted, sure, possible)


def _aer_precision(predicted: _Links, sure: _Links, possible: _Links) -> float:
    return 1 - len(predicted & sure) / len(predicted)


def _aer_divided(predicted: _Links, sure: _Links, possible: _Links) -> float:
    right = len(predicted & sure) + len(predicted & possible)
    return 1 - right / (len(predicted) + len(possible))


def _aer_exclusive(predicted: _Links, sure: _Links, possible: _Links) -> float:
    right = len(predicted & sure) + len(predicted & (possible - sure))
    return 1 - right / (len(predicted) + len(sure))


register(
    Exercise(
        name="03-aer",
        solution=_aer,
        cases=[
            Case(
                {(0, 0), (1, 2)},
                {(0, 0), (1, 1)},
                {(0, 0), (1, 1)},
                note="one link of two is right",
            ),
            Case(
                {(0, 0), (1, 1), (2, 2)},
                {(0, 0)},
                {(0, 0), (1, 1)},
                note="one link is sure, one possible, one wrong",
            ),
            Case(
                {(0, 0)},
                {(0, 0), (1, 1), (2, 2)},
                {(0, 0), (1, 1), (2, 2), (2, 3)},
                note="two sure links are missing",
            ),
        ],
        mistakes=[
            Mistake(
                _aer_turned,
                "This is the share that is right. The error rate is what is "
                "missing to one.",
            ),
            Mistake(
                _aer_exclusive,
                "A sure link is a possible link as well, so it counts in "
                "both terms above the line.",
            ),
            Mistake(
                _aer_precision,
                "This asks only which predicted links are right. Sure links "
                "that are missing have to count too.",
            ),
            Mistake(
                _aer_sure_only,
                "Possible links count for nothing in your formula. They "
                "stand in the second term above the line.",
            ),
            Mistake(
                _aer_divided,
                "Below the line stand the sure links, not the possible ones: "
                "a possible link need not be found.",
            ),
            Mistake(
                _aer_possible_only,
                "The sure links have a term of their own above the line.",
            ),
        ],
        checked="wrong, missing and merely possible links",
    )
)


# --- 03-longer: a key that equals the query and loses ------------------------


def _judge_longer(answer: Any) -> str | None:
    try:
        query, own, other = (
            np.asarray(
                part.detach().cpu() if isinstance(part, Tensor) else part,
                dtype=np.float64,
            ).ravel()
            for part in answer
        )
    except (TypeError, ValueError):
        return "Give three vectors: the query, its own key, the other key."
    if not query.shape == own.shape == other.shape:
        return "The three vectors must have one width."
    if not all(np.isfinite(part).all() for part in (query, own, other)):
        return "All the numbers must be finite."
    if not query.any():
        return "A query of zeros gives both keys the score 0: a draw."
    if np.abs(query - own).max() > 1e-9:
        return "The second vector must be the query itself, as a key."
    if np.abs(query - other).max() < 1e-9:
        return "The third vector must differ from the query."
    scores = float(query @ own), float(query @ other)
    if scores[1] <= scores[0]:
        return (
            f"The query's own key gets {scores[0]:.4g}, the other key "
            f"{scores[1]:.4g}: it does not lose. A dot product is the "
            "cosine of the angle times two lengths. Whose length is free?"
        )
    return None


register(
    Exercise(
        name="03-longer",
        judge=_judge_longer,
        checked="the other key differs from the query and scores higher than "
        "the query's own copy",
    )
)


# --- 03-blocks: the same scores, and never the whole tensor ------------------


class _Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            size = result.untyped_storage().nbytes() // result.element_size()
            self.numbers = max(self.numbers, size)
        return result


def _scores_and_size(
    answer: Callable[..., Any],
    query: Any,
    key: Any,
    vector: Any,
    block: int,
) -> Any:
    """Return the scores, and whether a tensor was larger than a block."""
    with torch.no_grad(), _Largest() as largest:
        scores = answer(query, key, vector, block)
    if scores is None:
        return None
    batch, queries, width = query.shape
    keys = key.shape[1]
    needed = max(
        batch * block * keys * width,
        batch * queries * max(keys, width),
        batch * keys * width,
    )
    return scores, largest.numbers > needed


def _blocked(query: Tensor, key: Tensor, vector: Tensor, block: int) -> Tensor:
    parts = [
        torch.tanh(part[:, :, None] + key[:, None]) @ vector
        for part in torch.split(query, block, dim=1)
    ]
    return torch.cat(parts, dim=1)


def _blocked_whole(
    query: Tensor, key: Tensor, vector: Tensor, block: int
) -> Tensor:
    return torch.tanh(query[:, :, None] + key[:, None]) @ vector


def _blocked_full_only(
    query: Tensor, key: Tensor, vector: Tensor, block: int
) -> Tensor:
    full = query.shape[1] // block * block
    return _blocked(query[:, :full], key, vector, block)


_blocked_turned = _then(_blocked, lambda scores: scores.mT)


def _blocked_stacked(
    query: Tensor, key: Tensor, vector: Tensor, block: int
) -> Tensor:
    scores = _blocked(query, key, vector, block)
    parts = torch.split(scores, block, dim=1)
    return torch.cat(parts, dim=0)


def _blocks_case(
    batch: int, queries: int, keys: int, width: int, block: int, note: str
) -> Case:
    return Case(
        _wave(batch, queries, width),
        _wave(batch, keys, width),
        torch.cos(torch.arange(float(width))),
        block,
        note=note,
    )


register(
    Exercise(
        name="03-blocks",
        solution=_blocked,
        call=_scores_and_size,
        cases=[
            _blocks_case(1, 4, 3, 2, 2, "two full blocks"),
            _blocks_case(2, 5, 3, 4, 2, "the last block is not full"),
            _blocks_case(3, 1, 1, 4, 8, "one query, fewer than a block"),
            _blocks_case(2, 48, 40, 16, 4, "many queries"),
        ],
        mistakes=[
            Mistake(
                _blocked_whole,
                "The scores are right and the whole tensor was there: some "
                "tensor on the way holds more numbers than a block needs.",
            ),
            Mistake(
                _blocked_full_only,
                "Some queries are left over at the end: the last block may "
                "be smaller than the others.",
            ),
            Mistake(
                _blocked_turned,
                "Rows and columns are exchanged: the rows are the queries.",
            ),
            Mistake(
                _blocked_stacked,
                "The blocks are joined along the batch. They belong one "
                "after the other along the queries.",
            ),
        ],
        checked="the plain form's scores, a last block that is not full, one "
        "query and one key, and the largest tensor made on the way",
    )
)
