"""Answers to the exercises of the chapter on attention by hand."""

import torch
from torch import Tensor

from attention_lib.exercises._core import Case, Exercise, Mistake, register


def _softmax(scores: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1)


def _softmax_over_queries(scores: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-2 if scores.dim() > 1 else -1)


def _softmax_over_all(scores: Tensor) -> Tensor:
    return torch.softmax(scores.flatten(), dim=0).view_as(scores)


def _softmax_unstable(scores: Tensor) -> Tensor:
    exponentials = torch.exp(scores)
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def _exponentials(scores: Tensor) -> Tensor:
    return torch.exp(scores)


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
        ],
        mistakes=[
            Mistake(
                _exponentials,
                "These are the exponentials. They still have to be divided "
                "by their sum, so that each row sums to one.",
            ),
            Mistake(
                _plain_division,
                "You divide the scores by their sum. Scores may be negative "
                "or sum to zero; exponentials cannot.",
            ),
            Mistake(
                _softmax_over_queries,
                "The weights sum to one down each column. They must sum to "
                "one along each row: every query shares out its own weight.",
            ),
            Mistake(
                _softmax_over_all,
                "All weights together sum to one. Each row must: the sum "
                "needs the last axis only, and keeps it with length 1.",
            ),
            Mistake(
                _softmax_unstable,
                "exp overflows on large scores and inf / inf is nan. What "
                "can be subtracted from a row without changing its weights?",
            ),
        ],
        checked="one row, many rows, scores of 1000 and of -1000, and that "
        "the scores are left as they were",
    )
)
