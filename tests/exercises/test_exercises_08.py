"""Each exercise of the chapter: the solution passes, mistakes are named."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attention_lib.course.exercises import _core
from attention_lib.course.exercises._core import evaluate
from attention_lib.efficient import blockwise_attention, linear_attention


def accepted(name, answer):
    verdict = evaluate(name, answer)
    assert verdict.status == "correct", verdict.text


def rejected(name, answer, words):
    verdict = evaluate(name, answer)
    assert verdict.status == "wrong", verdict.text
    assert words in verdict.text, verdict.text


def test_every_exercise_of_the_chapter_is_tested_here():
    names = {name for name in _core.names() if name.startswith("08-")}
    assert names == {
        "08-cache",
        "08-growth",
        "08-merge",
        "08-overflow",
        "08-reach",
        "08-recurrent",
    }


# --- 08-growth ---------------------------------------------------------------


@pytest.mark.parametrize("answer", [(64, 8, 8), [64.0, 8.0, 8.5]])
def test_the_factors_may_be_rounded(answer):
    accepted("08-growth", answer)


def test_the_factor_of_the_window_is_the_counted_one():
    pairs = [sum(min(i + 1, 256) for i in range(n)) for n in (2048, 16384)]
    accepted("08-growth", (64, 8, pairs[1] / pairs[0]))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((8, 8, 8), "for each pair"),
        ((16, 8, 8), "square of the length"),
        ((64, 64, 8), "each token alone"),
        ((64, 8, 64), "256 keys at most"),
        ((64, 8, 1), "in both texts"),
        (64, "three numbers"),
        (("a", "b", "c"), "three numbers"),
    ],
)
def test_mistakes_in_the_growth_are_named(answer, words):
    rejected("08-growth", answer, words)


# --- 08-cache ----------------------------------------------------------------


def test_the_cache_of_a_conversation():
    accepted("08-cache", 320 * 1024 * 4096)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (80 * 8 * 128 * 2 * 4096, "keys alone"),
        (2 * 80 * 64 * 128 * 2 * 4096, "Queries are not kept"),
        (2 * 80 * 8 * 128 * 4096 // 1, "keys alone"),
        (2 * 80 * 8 * 128 * 2, "one token"),
        (2 * 8 * 128 * 2 * 4096, "one layer"),
        (2 * 80 * 128 * 2 * 4096, "one head"),
        (7, "differ"),
    ],
)
def test_mistakes_in_the_bytes_are_named(answer, words):
    rejected("08-cache", answer, words)


# --- 08-merge ----------------------------------------------------------------


def merge_by_logs(first, second):
    """Another way: find the new maximum, compare with it, add."""
    parts = list(zip(first, second, strict=True))
    largest = torch.stack(parts[0]).amax(0)
    factors = [
        torch.where(part[0] == -math.inf, 0.0, (part[0] - largest).exp())
        for part in (first, second)
    ]
    return (
        largest,
        *(f[0] * factors[0] + f[1] * factors[1] for f in parts[1:]),
    )


def merge_in_numpy(first, second):
    largest = np.maximum(first[0], second[0])
    shift = np.where(np.isinf(largest), np.float32(0), largest)
    one, two = np.exp(first[0] - shift), np.exp(second[0] - shift)
    total = one * first[1] + two * second[1]
    return largest, total, one * first[2] + two * second[2]


def test_other_ways_to_merge_are_right():
    accepted("08-merge", merge_by_logs)
    accepted("08-merge", merge_in_numpy)


def test_a_merge_of_two_halves_is_attention():
    merge = _core._exercises["08-merge"].solution
    query, key, value = torch.randn(3, 6, 4)
    scores = query @ key.T / 2

    def part(keys):
        largest = scores[:, keys].amax(1, keepdim=True)
        weights = (scores[:, keys] - largest).exp()
        return largest, weights.sum(1, keepdim=True), weights @ value[keys]

    _, total, mixed = merge(part(slice(0, 2)), part(slice(2, 6)))
    torch.testing.assert_close(
        mixed / total, blockwise_attention(query, key, value)[0]
    )


def sums(first, second):
    largest = torch.maximum(first[0], second[0])
    return largest, first[1] + second[1], first[2] + second[2]


def with_factors(first, second, rescale_total, rescale_mixed):
    largest = torch.maximum(first[0], second[0])
    one, two = (first[0] - largest).exp(), (second[0] - largest).exp()
    plain = torch.ones_like(one)
    a, b = (one, two) if rescale_total else (plain, plain)
    c, d = (one, two) if rescale_mixed else (plain, plain)
    return (
        largest,
        a * first[1] + b * second[1],
        c * first[2] + d * second[2],
    )


def first_only(first, second):
    largest = torch.maximum(first[0], second[0])
    one = (first[0] - largest).exp()
    return largest, one * first[1] + second[1], one * first[2] + second[2]


def grows(first, second):
    largest = torch.maximum(first[0], second[0])
    one, two = (largest - first[0]).exp(), (largest - second[0]).exp()
    return (
        largest,
        one * first[1] + two * second[1],
        one * first[2] + two * second[2],
    )


def divides(first, second):
    largest, total, mixed = with_factors(first, second, True, True)
    return largest, total, mixed / total


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (sums, "different units"),
        (lambda a, b: with_factors(a, b, True, False), "not the mixed"),
        (lambda a, b: with_factors(a, b, False, True), "not the sums"),
        (first_only, "first half only"),
        (grows, "above 1"),
        (divides, "That waits until"),
        (lambda a, b: with_factors(a, b, True, True), "difference is NaN"),
    ],
)
def test_mistakes_in_the_merge_are_named(answer, words):
    rejected("08-merge", answer, words)


# --- 08-overflow -------------------------------------------------------------


@pytest.mark.parametrize(
    "answer", [[0, 1, 120, 3], (0.0, 0.0, 0.0, 89.0), [-190, -195, 0, 0]]
)
def test_a_high_second_block_breaks_the_careless(answer):
    accepted("08-overflow", answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([0, 0, 0, 80], "still fits"),
        ([120, 0, 0, 3], "first block holds"),
        ([0, 0, 0, 300], "No score above 200"),
        ([0, 0, math.inf, 0], "infinite one"),
        ([0, 120], "got 2"),
        ("scores", "four scores"),
    ],
)
def test_scores_that_break_nothing_are_explained(answer, words):
    rejected("08-overflow", answer, words)


# --- 08-reach ----------------------------------------------------------------


def test_counting_layer_by_layer_is_right():
    def layers_needed(distance, window):
        layers = 0
        while layers * (window - 1) < distance:
            layers += 1
        return layers

    accepted("08-reach", layers_needed)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda d, w: math.ceil(d / w), "w - 1 before"),
        (lambda d, w: d // (w - 1), "round down"),
        (lambda d, w: d // (w - 1) + 1, "a layer too many"),
        (lambda d, w: max(1, math.ceil(d / (w - 1))), "residual"),
    ],
)
def test_mistakes_in_the_reach_are_named(answer, words):
    rejected("08-reach", answer, words)


# --- 08-recurrent ------------------------------------------------------------


def elu(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def step_in_numpy(state, query, key, value):
    query, key = elu(query), elu(key)
    memory, total = state[0] + key[:, None] * value, state[1] + key
    return (memory, total), query @ memory / (query @ total)


def test_a_step_in_numpy_is_right():
    accepted("08-recurrent", step_in_numpy)


def test_steps_one_by_one_are_causal_linear_attention():
    step = _core._exercises["08-recurrent"].solution
    query, key, value = torch.randn(3, 7, 4)
    state, contexts = (torch.zeros(4, 4), torch.zeros(4)), []
    for word in zip(query, key, value, strict=True):
        state, context = step(state, *word)
        contexts.append(context)
    expected = linear_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(torch.stack(contexts), expected)


def written(state, query, key, value, after=True, features="qk", divide=True):
    key = F.elu(key) + 1 if "k" in features else key
    query = F.elu(query) + 1 if "q" in features else query
    new = (state[0] + torch.outer(key, value), state[1] + key)
    memory, total = new if after else state
    return new, query @ memory / ((query @ total) if divide else 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"after": False}, "does not see itself"),
        ({"features": ""}, "as they are"),
        ({"features": "k"}, "the query does not"),
        ({"divide": False}, "below the fraction"),
    ],
)
def test_mistakes_in_the_step_are_named(options, words):
    rejected("08-recurrent", lambda *a: written(*a, **options), words)


def test_a_step_that_forgets_is_named():
    def forgets(state, query, key, value):
        return written((0 * state[0], 0 * state[1]), query, key, value)

    rejected("08-recurrent", forgets, "add to it")


# --- stubs -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["08-merge", "08-reach", "08-recurrent"])
def test_stubs_count_as_not_attempted(name):
    assert evaluate(name, lambda *_: None).status == "not attempted"
    assert evaluate("08-growth", (..., ..., ...)).status == "not attempted"
