"""Answers to the exercises of chapter 2, and what they are told."""

import numpy as np
import torch
from verdicts import RIGHT, verdicts

from attention_lib.attention import attend, masked_softmax
from attention_lib.reference import attention, softmax


def shares(powers):
    return powers / powers.sum(-1, keepdims=True)


def numpy_softmax(scores):
    return shares(np.exp(scores - np.max(scores, axis=-1, keepdims=True)))


def over_columns(scores):
    powers = np.exp(scores - scores.max(0 if scores.ndim == 1 else -2))
    return powers / powers.sum(0 if scores.ndim == 1 else -2, keepdims=True)


def without_keepdims(scores):
    powers = np.exp(scores - scores.max())
    return powers / powers.sum(-1)


def in_place(scores):
    scores -= scores.max(-1, keepdims=True)
    return shares(np.exp(scores))


def numpy_attention(query, key, value):
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    weights = numpy_softmax(scores)
    return weights @ value, weights


def attending(divisor=lambda q, k, v: q.shape[-1] ** 0.5, dim=-1):
    def answer(query, key, value):
        weights = (query @ key.mT / divisor(query, key, value)).softmax(dim)
        return weights @ value, weights

    return answer


def reading(score=lambda s, q: s @ q, dim=-1):
    def answer(states, query):
        weights = score(states, query).softmax(dim)
        return torch.einsum("bt,btd->bd", weights, states), weights

    return answer


def read_by_attend(states, query):
    query = query.expand(len(states), 1, -1)
    context, weights = attend(
        query, states, states, score=lambda q, k: q @ k.mT
    )
    return context[:, 0], weights[:, 0]


def emptied(scores, mask):
    dead = ~mask.any(-1, keepdim=True)
    filled = torch.where(mask, scores, -torch.inf).masked_fill(dead, 0)
    return filled.softmax(-1) * ~dead


def filled(value):
    return lambda s, m: s.masked_fill(~m, value).softmax(-1)


def repaired(scores, mask):
    bias = torch.zeros(mask.shape).masked_fill(mask.logical_not(), -torch.inf)
    weights = (scores + bias).softmax(-1)
    return torch.where(weights.isnan(), 0.0, weights)


test_an_answer_gets_its_verdict = verdicts(
    {
        "02-sharp": [
            ((0.5, 0.0, 0.5), RIGHT),
            (torch.tensor([0.5, 0.0, 0.5]), RIGHT),
            ([0.333, 0.333, 0.333], "the other limit"),
            ([0.4011, 0.1978, 0.4011], "the query [1, 0]"),
            ([0.5, 0.5], "shape is (2,), not (3,)"),
        ],
        "02-unscaled": [
            ([0.212, 0.212, 0.576], RIGHT),
            (softmax([1, 1, 2]), RIGHT),
            ([0.248, 0.248, 0.503], "with the scale"),
            (softmax([1, 0, 1]), "that of [1, 1]"),
        ],
        "02-value": [([1, 2], RIGHT), (np.array([1.0, 2.0]), RIGHT)],
        "02-softmax": [
            (numpy_softmax, RIGHT),
            (softmax, RIGHT),
            (masked_softmax, RIGHT),
            (lambda s: (s - s.logsumexp(-1, keepdim=True)).exp(), RIGHT),
            (np.exp, "These are the exponentials"),
            (shares, "divide the scores"),
            (lambda s: shares(np.exp(s)), "exp overflows"),
            (lambda s: s.exp() / s.exp().sum(), "All weights together"),
            (over_columns, "down each column"),
            (lambda s: shares((s - s.max()).exp()), "one maximum from all"),
            (without_keepdims, "two queries, three keys"),
            (in_place, "changes its argument scores"),
            (lambda s: s.softmax(-1).double(), "type is torch.float64"),
        ],
        "02-attention": [
            (numpy_attention, RIGHT),
            (attention, RIGHT),
            (attending(lambda q, k, v: 1), "those of unscaled scores"),
            (attending(lambda q, k, v: q.shape[-1]), "not by its root"),
            (attending(dim=-2), "runs over the queries"),
            (lambda q, k, v: attending()(q, k, v)[::-1], "are exchanged"),
            (lambda q, k, v: attending()(q, k, v)[0], "1 result, not 2"),
            (lambda q, k, v: attending()(q, k, k), "in result 1: its shape"),
            (lambda q, k, v: attending()(q, k.T, v), "stops with RuntimeErr"),
        ],
        "02-read": [
            (read_by_attend, RIGHT),
            (reading(lambda s, q: (s * q).sum(-1)), RIGHT),
            (reading(lambda s, q: 0 * (s @ q)), "the query has no say"),
            (reading(dim=0), "over the texts"),
            (reading(lambda s, q: s @ q / len(q) ** 0.5), "plain dot product"),
            (lambda s, q: reading()(s, q)[::-1], "are exchanged"),
            (lambda s, q: reading()(s, q)[0], "1 result, not 2"),
        ],
        "02-scores": [
            (np.log([0.7, 0.1, 0.1, 0.1]), RIGHT),
            ([5.946, 4, 4, 4], RIGHT),
            (torch.tensor([[0.7, 0.1, 0.1, 0.1]]).log(), RIGHT),
            ([0.7, 0.1, 0.1, 0.1], "undoes the exponential"),
            ([7, 1, 1, 1], "softmax of these scores is [0.993"),
            ([1, 2, 3], "Give 4 numbers"),
            ([np.nan, 0, 0, 0], "finite"),
            ("many", "not numbers"),
        ],
        "02-twins": [
            (([0.5, 0.5, 0, 0], [0, 0, 0, 1]), RIGHT),
            (np.array([[0.3, 0.3, 0.2, 0.2], [0.1, 0.1, 0.2, 0.6]]), RIGHT),
            ([[1, 0, 0, 0], [1, 0, 0, 0]], "nearly the same"),
            ([[1, 0, 0, 0], [0, 1, 0, 0]], "mixture of others"),
            ([[1, 1, 0, 0], [0, 0, 0, 1]], "sums to 2.000"),
            ([[1.5, -0.5, 0, 0], [0, 0, 0, 1]], "negative"),
            ([[0.5, 0.5, 0], [0, 0, 1]], "Give 4 numbers"),
            (3, "as a pair"),
        ],
        "02-masked": [
            (masked_softmax, RIGHT),
            (emptied, RIGHT),
            (lambda s, m: s.softmax(-1) * m, "no longer sum to one"),
            (lambda s, m: (s * m).softmax(-1), "score of 0 still"),
            (filled(0.0), "score of 0 still"),
            (lambda s, m: masked_softmax(s, ~m), "wrong way round"),
            (filled(-1e9), "is a number like others"),
            (lambda s, m: filled(-1e9)(s, m) * m, "lower still"),
            (filled(-torch.inf), "0 / 0"),
            (repaired, "the gradient is nan"),
            (lambda s, m: s.softmax(-1), "right"),
        ],
    }
)
