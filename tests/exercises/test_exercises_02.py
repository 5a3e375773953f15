"""Each exercise of the chapter: the solution passes, mistakes are named."""

import numpy as np
import pytest
import torch

from attention_lib.attention import attend, masked_softmax
from attention_lib.course.exercises import _core
from attention_lib.course.exercises._core import evaluate
from attention_lib.reference import attention, softmax


def rejected(name, answer, words):
    verdict = evaluate(name, answer)
    assert verdict.status == "wrong", verdict.text
    assert words in verdict.text, verdict.text


def test_every_exercise_of_the_chapter_is_tested_here():
    names = {name for name in _core.names() if name.startswith("02-")}
    assert names == {
        "02-attention",
        "02-masked",
        "02-read",
        "02-scores",
        "02-sharp",
        "02-softmax",
        "02-twins",
        "02-unscaled",
        "02-value",
    }


# --- values ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("02-sharp", [0.5, 0, 0.5]),
        ("02-sharp", (0.5, 0.0, 0.5)),
        ("02-sharp", torch.tensor([0.5, 0.0, 0.5])),
        ("02-unscaled", [0.212, 0.212, 0.576]),
        ("02-unscaled", softmax([1, 1, 2])),
        ("02-value", [1, 2]),
        ("02-value", np.array([1.0, 2.0])),
        ("02-scores", np.log([0.7, 0.1, 0.1, 0.1])),
        ("02-scores", [5.946, 4, 4, 4]),
        ("02-scores", torch.tensor([[0.7, 0.1, 0.1, 0.1]]).log()),
        ("02-twins", ([0.5, 0.5, 0, 0], [0, 0, 0, 1])),
        ("02-twins", np.array([[0.3, 0.3, 0.2, 0.2], [0.1, 0.1, 0.2, 0.6]])),
    ],
)
def test_right_values_are_correct(name, answer):
    assert evaluate(name, answer).status == "correct"


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("02-sharp", [1, 0, 0], "Only one winner?"),
        ("02-sharp", [1 / 3] * 3, "the other limit"),
        ("02-sharp", [0.333, 0.333, 0.333], "the other limit"),
        ("02-sharp", [0.4011, 0.1978, 0.4011], "the query [1, 0]"),
        ("02-sharp", [1, 0, 1], "sums to two"),
        ("02-sharp", [0.5, 0.5], "shape is (2,), not (3,)"),
        ("02-unscaled", [0.248, 0.248, 0.503], "with the scale"),
        ("02-unscaled", [0.25, 0.25, 0.5], "divide the scores"),
        ("02-unscaled", [2.718, 2.718, 7.389], "the exponentials"),
        ("02-unscaled", softmax([1, 0, 1]), "that of [1, 1]"),
        ("02-value", [1, 1], "in the example"),
        ("02-value", [0.5, 1], "not their mean"),
        ("02-value", [2, 1], "other way round"),
        ("02-scores", [0.7, 0.1, 0.1, 0.1], "undoes the exponential"),
        ("02-scores", [7, 1, 1, 1], "softmax of these scores is [0.993"),
        ("02-scores", [1, 2, 3], "Give 4 numbers"),
        ("02-scores", [np.nan, 0, 0, 0], "finite"),
        ("02-scores", "many", "not numbers"),
        ("02-twins", [[1, 0, 0, 0], [1, 0, 0, 0]], "nearly the same"),
        ("02-twins", [[1, 0, 0, 0], [0, 1, 0, 0]], "mixture of others"),
        ("02-twins", [[1, 1, 0, 0], [0, 0, 0, 1]], "sums to 2.000"),
        ("02-twins", [[1.5, -0.5, 0, 0], [0, 0, 0, 1]], "negative"),
        ("02-twins", [[0.5, 0.5, 0], [0, 0, 1]], "Give 4 numbers"),
        ("02-twins", 3, "as a pair"),
    ],
)
def test_wrong_values_get_their_hint(name, answer, words):
    rejected(name, answer, words)


# --- 02-softmax --------------------------------------------------------------


def numpy_softmax(scores):
    powers = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return powers / np.sum(powers, axis=-1, keepdims=True)


@pytest.mark.parametrize(
    "answer",
    [
        numpy_softmax,
        softmax,
        masked_softmax,
        lambda s: torch.nn.functional.softmax(s, -1),
        lambda s: (s - s.logsumexp(-1, keepdim=True)).exp(),
    ],
)
def test_any_right_softmax_is_correct(answer):
    assert evaluate("02-softmax", answer).status == "correct"


def without_shift(s):
    return np.exp(s) / np.exp(s).sum(-1, keepdims=True)


def without_keepdims(s):
    powers = np.exp(s - s.max())
    return powers / powers.sum(-1)


def over_columns(s):
    axis = 0 if s.ndim == 1 else -2
    powers = np.exp(s - s.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def one_maximum(s):
    powers = (s - s.max()).exp()
    return powers / powers.sum(-1, keepdim=True)


def writes_into_it(s):
    s -= s.max(-1, keepdims=True)
    return np.exp(s) / np.exp(s).sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (np.exp, "These are the exponentials"),
        (lambda s: s / s.sum(-1, keepdims=True), "divide the scores"),
        (without_shift, "exp overflows"),
        (lambda s: s.exp() / s.exp().sum(-1, keepdim=True), "exp overflows"),
        (lambda s: s.exp() / s.exp().sum(), "All weights together"),
        (
            lambda s: (s - s.max()).exp() / (s - s.max()).exp().sum(),
            "All weights together",
        ),
        (over_columns, "down each column"),
        (one_maximum, "one maximum from all rows"),
        (without_keepdims, "two queries, three keys"),
        (writes_into_it, "changes its argument scores"),
        (lambda s: torch.softmax(s, -1).double(), "type is torch.float64"),
    ],
)
def test_wrong_softmaxes_get_their_hint(answer, words):
    rejected("02-softmax", answer, words)


# --- 02-attention ------------------------------------------------------------


def numpy_attention(query, key, value):
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    weights = numpy_softmax(scores)
    return weights @ value, weights


@pytest.mark.parametrize("answer", [numpy_attention, attention])
def test_any_right_attention_is_correct(answer):
    assert evaluate("02-attention", answer).status == "correct"


def variant(divisor=lambda q, k, v: q.shape[-1] ** 0.5, dim=-1):
    def answer(query, key, value):
        scores = query @ key.mT / divisor(query, key, value)
        weights = scores.softmax(dim)
        return weights @ value, weights

    return answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (variant(lambda q, k, v: 1), "those of unscaled scores"),
        (variant(lambda q, k, v: q.shape[-1]), "not by its root"),
        (variant(lambda q, k, v: v.shape[-1] ** 0.5), "width of the values"),
        (variant(lambda q, k, v: k.shape[-2] ** 0.5), "number of keys"),
        (variant(lambda q, k, v: q.shape[-1] ** -0.5), "You multiply"),
        (variant(dim=-2), "runs over the queries"),
        (lambda q, k, v: variant()(q, k, v)[::-1], "are exchanged"),
        (lambda q, k, v: variant()(q, k, v)[0], "1 result, not 2"),
        (lambda q, k, v: variant()(q, k, k), "in result 1: its shape"),
        (
            lambda q, k, v: (
                q @ k.mT / q.shape[-1] ** 0.5 @ v,
                q @ k.mT / q.shape[-1] ** 0.5,
            ),
            "The softmax is missing",
        ),
        (lambda q, k, v: variant()(q, k.T, v), "stops with RuntimeError"),
    ],
)
def test_wrong_attentions_get_their_hint(answer, words):
    rejected("02-attention", answer, words)


# --- 02-read -----------------------------------------------------------------


def by_attend(states, query):
    context, weights = attend(
        query.expand(len(states), 1, -1),
        states,
        states,
        score=lambda q, k: q @ k.mT,
    )
    return context[:, 0], weights[:, 0]


def by_sum(states, query):
    weights = masked_softmax((states * query).sum(-1))
    return (weights[..., None] * states).sum(1), weights


@pytest.mark.parametrize("answer", [by_attend, by_sum])
def test_any_right_reader_is_correct(answer):
    assert evaluate("02-read", answer).status == "correct"


def reader(score=lambda s, q: s @ q, dim=-1):
    def answer(states, query):
        weights = score(states, query).softmax(dim)
        return torch.einsum("bt,btd->bd", weights, states), weights

    return answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (reader(lambda s, q: 0 * (s @ q)), "the query has no say"),
        (reader(dim=0), "over the texts"),
        (reader(lambda s, q: s @ q / len(q) ** 0.5), "plain dot product"),
        (lambda s, q: reader()(s, q)[::-1], "are exchanged"),
        (lambda s, q: reader()(s, q)[0], "1 result, not 2"),
        (
            lambda s, q: (torch.einsum("bt,btd->bd", s @ q, s), s @ q),
            "softmax is missing",
        ),
    ],
)
def test_wrong_readers_get_their_hint(answer, words):
    rejected("02-read", answer, words)


# --- 02-masked ---------------------------------------------------------------


def before_and_after(scores, mask):
    dead = ~mask.any(-1, keepdim=True)
    filled = torch.where(mask, scores, -torch.inf).masked_fill(dead, 0)
    return filled.softmax(-1) * ~dead


@pytest.mark.parametrize("answer", [masked_softmax, before_and_after])
def test_any_right_masked_softmax_is_correct(answer):
    assert evaluate("02-masked", answer).status == "correct"


def filled(value):
    return lambda s, m: s.masked_fill(~m, value).softmax(-1)


def additive_then_repaired(scores, mask):
    bias = torch.zeros(mask.shape).masked_fill(mask.logical_not(), -torch.inf)
    weights = (scores + bias).softmax(-1)
    return torch.where(weights.isnan(), 0.0, weights)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda s, m: s.softmax(-1) * m, "no longer sum to one"),
        (lambda s, m: (s * m).softmax(-1), "score of 0 still"),
        (filled(0.0), "score of 0 still"),
        (lambda s, m: masked_softmax(s, ~m), "wrong way round"),
        (filled(-1e9), "is a number like others"),
        (lambda s, m: filled(-1e9)(s, m) * m, "lower still"),
        (filled(-torch.inf), "0 / 0"),
        (additive_then_repaired, "the gradient is nan"),
        (lambda s, m: s.softmax(-1), "right"),
    ],
)
def test_wrong_masked_softmaxes_get_their_hint(answer, words):
    rejected("02-masked", answer, words)
