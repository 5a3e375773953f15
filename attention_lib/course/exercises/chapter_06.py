"""Answers to the exercises of the chapter on many heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_lib.course.exercises._core import (
    Case,
    Exercise,
    Mistake,
    register,
)

# --- 06-shapes and 06-parameters: predict and compute ------------------------

register(
    Exercise(
        name="06-shapes",
        solution=[4, 8, 10, 12],
        mistakes=[
            Mistake(
                [4, 10, 12],
                "This would be the shape for a single head. Every head has "
                "scores of its own.",
            ),
            Mistake(
                [32, 10, 12],
                "The numbers are all there, but batch and heads are one "
                "axis. PyTorch's masks look like that; our scores do not.",
            ),
            Mistake(
                [4, 10, 8, 12],
                "The head axis is one place too late: it has to stand "
                "before the two time axes, so that each head is a matrix.",
            ),
            Mistake(
                [4, 8, 12, 10],
                "Queries and keys are swapped. A row belongs to a query.",
            ),
            Mistake(
                [4, 8, 10, 8],
                "The last axis is the width of a head, 64 / 8. A score is "
                "one number for each query and key.",
            ),
            Mistake(
                [4, 8, 10, 10],
                "Both time axes have the length of the query. In "
                "cross-attention the keys have a length of their own.",
            ),
        ],
        checked="the four axes and their order",
    )
)

register(
    Exercise(
        name="06-parameters",
        solution=656640,
        mistakes=[
            Mistake(
                1050624,
                "This is the layer with 8 key heads. With 2, the key and "
                "value projections have fewer columns.",
            ),
            Mistake(
                655360,
                "The four weights are right. Each projection has a bias too, "
                "one number for each of its outputs.",
            ),
            Mistake(
                460032,
                "You shrank one projection too many: the output projection "
                "still joins 8 heads.",
            ),
            Mistake(
                853632,
                "Only one projection is smaller in your count. Keys and "
                "values are both shared.",
            ),
            Mistake(
                393984,
                "The output projection is missing. There are four: two of "
                "full width, two of a quarter.",
            ),
            Mistake(
                657408,
                "The weights are right. A shared projection has as many "
                "biases as outputs, 128, not 512.",
            ),
        ],
        tolerance=1e-9,
        checked="weights and biases of the four projections",
    )
)

# --- 06-heads: attention in every head ---------------------------------------


def _heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    *,
    wrong: str = "",
) -> Tensor:
    """Attend in each head of projected inputs, or go wrong in one way."""
    batch, length, width = query.shape
    d_head = width // num_heads

    def split(features: Tensor) -> Tensor:
        shape = (batch, features.shape[1], num_heads, d_head)
        if wrong == "split":
            return features.reshape(shape[0], num_heads, -1, d_head)
        if wrong == "interleaved":
            heads = features.reshape(*shape[:2], d_head, num_heads)
            return heads.permute(0, 3, 1, 2)
        return features.reshape(shape).transpose(1, 2)

    query, key, value = split(query), split(key), split(value)
    scale = {"unscaled": 1.0, "model": width**-0.5}.get(wrong, d_head**-0.5)
    scores = scale * (query @ key.transpose(-2, -1))
    dims = {"queries": -2, "heads": 1}
    context = torch.softmax(scores, dim=dims.get(wrong, -1)) @ value
    if wrong != "merge":
        context = context.transpose(1, 2)
    return context.reshape(batch, length, width)


def _wrong_heads(wrong: str) -> Any:
    def answer(
        query: Tensor, key: Tensor, value: Tensor, num_heads: int
    ) -> Tensor:
        return _heads(query, key, value, num_heads, wrong=wrong)

    return answer


def _one_head(
    query: Tensor, key: Tensor, value: Tensor, num_heads: int
) -> Tensor:
    return _heads(query, key, value, 1)


def _case(
    batch: int,
    query_length: int,
    key_length: int,
    width: int,
    num_heads: int,
    note: str,
) -> Case:
    generator = torch.Generator().manual_seed(width)
    query, key, value = (
        torch.randn(batch, length, width, generator=generator).double()
        for length in (query_length, key_length, key_length)
    )
    return Case(query, key, value, num_heads, note=note)


register(
    Exercise(
        name="06-heads",
        solution=_heads,
        cases=[
            _case(1, 1, 2, 4, 2, "one query, two keys, two heads of width 2"),
            _case(1, 2, 2, 6, 2, "two queries"),
            _case(1, 3, 5, 6, 3, "three queries, five keys"),
            _case(2, 4, 3, 12, 3, "a batch of two"),
            _case(3, 2, 4, 5, 1, "one head"),
        ],
        mistakes=[
            Mistake(
                _one_head,
                "You attend once with the full width. Cut the features into "
                "num_heads slices and attend in each.",
            ),
            Mistake(
                _wrong_heads("split"),
                "Your heads mix positions: view(B, H, T, d_head) cuts the "
                "time axis. View as (B, T, H, d_head) first, then transpose.",
            ),
            Mistake(
                _wrong_heads("interleaved"),
                "Your head 0 takes every num_heads-th feature. A head is a "
                "slice of neighbouring features.",
            ),
            Mistake(
                _wrong_heads("merge"),
                "The heads are right, merging is not: without moving the "
                "head axis back behind time, rows mix positions.",
            ),
            Mistake(
                _wrong_heads("model"),
                "Your scores are too small by the root of num_heads. The "
                "scale is that of the width of one head.",
            ),
            Mistake(
                _wrong_heads("unscaled"),
                "The scores lack the division by the root of the width of a "
                "head.",
            ),
            Mistake(
                _wrong_heads("queries"),
                "Your weights sum to one over the queries. The softmax runs "
                "over the keys, the last axis.",
            ),
            Mistake(
                _wrong_heads("heads"),
                "Your weights sum to one over the heads. Each head has a "
                "softmax of its own, over the keys.",
            ),
        ],
        checked="one to three heads, batches, queries and keys of different "
        "number",
        tolerance=1e-6,
    )
)

# --- 06-grouped: shared key heads --------------------------------------------


def _grouped(key: Tensor, num_heads: int) -> Tensor:
    return torch.repeat_interleave(key, num_heads // key.shape[1], dim=1)


def _tiled(key: Tensor, num_heads: int) -> Tensor:
    return key.repeat(1, num_heads // key.shape[1], 1, 1)


def _grouped_in_time(key: Tensor, num_heads: int) -> Tensor:
    return torch.repeat_interleave(key, num_heads // key.shape[1], dim=2)


def _grouped_too_often(key: Tensor, num_heads: int) -> Tensor:
    return torch.repeat_interleave(key, num_heads, dim=1)


register(
    Exercise(
        name="06-grouped",
        solution=_grouped,
        cases=[
            Case(
                torch.tensor([10.0, 20.0]).view(1, 2, 1, 1),
                4,
                note="two key heads for four query heads",
            ),
            Case(torch.arange(6.0).view(1, 1, 2, 3), 3, note="one key head"),
            Case(
                torch.arange(24.0).view(2, 3, 2, 2), 6, note="a batch of two"
            ),
            Case(
                torch.arange(8.0).view(1, 2, 2, 2),
                2,
                note="as many key heads as query heads",
            ),
        ],
        mistakes=[
            Mistake(
                _tiled,
                "The order is 10, 20, 10, 20: that is repeat. Neighbouring "
                "query heads share a key head: 10, 10, 20, 20.",
            ),
            Mistake(
                _grouped_in_time,
                "You repeat positions. The axis to repeat is that of the "
                "heads.",
            ),
            Mistake(
                _grouped_too_often,
                "Each key head serves num_heads / num_kv_heads query heads; "
                "you repeat it num_heads times.",
            ),
        ],
        checked="one to three key heads, and nothing to do when all are there",
    )
)

# --- 06-prune: remove a head -------------------------------------------------

_Matrices = tuple[Tensor, Tensor, Tensor, Tensor]


def _prune(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    num_heads: int,
    head: int,
    *,
    wrong: str = "",
) -> _Matrices:
    """Drop a head from four matrices (out, in), or go wrong in one way."""
    width = query.shape[0] // num_heads
    features = torch.arange(query.shape[0])
    owner = features % num_heads if wrong == "every" else features // width
    keep = owner == head if wrong == "opposite" else owner != head
    columns = output[keep] if wrong == "rows" else output[:, keep]
    if wrong == "columns":
        return query[:, keep], key[:, keep], value[:, keep], columns
    if wrong == "zero":
        kept = keep.to(query)
        rows = [matrix * kept[:, None] for matrix in (query, key, value)]
        return rows[0], rows[1], rows[2], output * kept
    if wrong == "output":
        return query[keep], key[keep], value[keep], output
    return query[keep], key[keep], value[keep], columns


def _wrong_prune(wrong: str) -> Any:
    def answer(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        num_heads: int,
        head: int,
    ) -> _Matrices:
        return _prune(query, key, value, output, num_heads, head, wrong=wrong)

    return answer


def _prune_case(width: int, num_heads: int, head: int, note: str) -> Case:
    numbers = torch.arange(4.0 * width * width).view(4, width, width)
    return Case(*numbers.unbind(), num_heads, head, note=note)


register(
    Exercise(
        name="06-prune",
        solution=_prune,
        cases=[
            _prune_case(4, 2, 1, "the second of two heads of width 2"),
            _prune_case(6, 2, 0, "the first of two heads of width 3"),
            _prune_case(12, 4, 2, "the third of four heads"),
        ],
        mistakes=[
            Mistake(
                _wrong_prune("rows"),
                "You drop rows of the output matrix. Its inputs are the "
                "heads, and torch stores (out, in): drop columns there.",
            ),
            Mistake(
                _wrong_prune("columns"),
                "You drop columns of the input matrices. Their outputs are "
                "the heads, and torch stores (out, in): drop rows there.",
            ),
            Mistake(
                _wrong_prune("opposite"),
                "You keep the head that should go.",
            ),
            Mistake(
                _wrong_prune("every"),
                "You drop every num_heads-th feature. A head owns "
                "neighbouring features.",
            ),
            Mistake(
                _wrong_prune("zero"),
                "Zeros give the right output but save nothing. The matrices "
                "have to become smaller.",
            ),
            Mistake(
                _wrong_prune("output"),
                "The output matrix still expects the head that you dropped.",
            ),
        ],
        checked="first, middle and last head of two and four",
    )
)

# --- 06-same-context: other weights, same context ----------------------------

_WEIGHTS = (0.4, 0.3, 0.2, 0.1)
_VALUES = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.0, 0.0))


def _judge_same_context(answer: Any) -> str | None:
    """Accept other weights that give the same average of the values."""
    try:
        weights = torch.as_tensor(answer, dtype=torch.float64).flatten()
    except (TypeError, ValueError):
        return "Give four numbers, one weight for each key."
    if weights.shape != (4,):
        return f"Give four numbers, one for each key; got {len(weights)}."
    if not weights.isfinite().all() or (weights < 0).any():
        return "Weights from a softmax are not negative."
    given = torch.tensor(_WEIGHTS, dtype=torch.float64)
    values = torch.tensor(_VALUES, dtype=torch.float64)
    if abs(weights.sum() - 1) > 1e-6:
        return f"The weights sum to {weights.sum():.4f}, not to 1."
    context, wanted = weights @ values, given @ values
    if not torch.allclose(context, wanted, atol=1e-6):
        return (
            f"These weights give the context {context.tolist()}, not "
            f"{[round(number, 4) for number in wanted.tolist()]}. Look for a "
            "change of the weights that the values cannot see: it sums to "
            "zero, and so does its product with each column of the values."
        )
    if (weights - given).abs().max() < 0.05:
        return "These are nearly the weights we started from. Go further."
    return None


register(
    Exercise(
        name="06-same-context",
        judge=_judge_same_context,
        checked="no weight is negative, they sum to one, the context is the "
        "same, the weights are not",
    )
)
