"""Answers to the exercises of chapter 8, and what they are told."""

import math

import numpy as np
import torch
from torch.nn.functional import elu
from verdicts import RIGHT, verdicts

from attention_lib.course.exercises import _core
from attention_lib.efficient import linear_attention

pairs = [sum(min(i + 1, 256) for i in range(n)) for n in (2048, 16384)]


def merge_by_logs(first, second):
    """Another way: find the new maximum, compare with it, add."""
    largest = torch.stack([first[0], second[0]]).amax(0)
    one, two = (
        torch.where(part[0] == -math.inf, 0.0, (part[0] - largest).exp())
        for part in (first, second)
    )
    sums = (
        one * a + two * b for a, b in zip(first[1:], second[1:], strict=True)
    )
    return largest, *sums


def merge_in_numpy(first, second):
    largest = np.maximum(first[0], second[0])
    shift = np.where(np.isinf(largest), np.float32(0), largest)
    one, two = np.exp(first[0] - shift), np.exp(second[0] - shift)
    total = one * first[1] + two * second[1]
    return largest, total, one * first[2] + two * second[2]


def merging(first_factor=True, second_factor=True, sign=1):
    """Rescale one half, both or none, possibly upside down."""

    def answer(first, second):
        largest = torch.maximum(first[0], second[0])
        one = (sign * first_factor * (first[0] - largest)).exp()
        two = (sign * second_factor * (second[0] - largest)).exp()
        total = one * first[1] + two * second[1]
        return largest, total, one * first[2] + two * second[2]

    return answer


def layers_needed(distance, window):
    layers = 0
    while layers * (window - 1) < distance:
        layers += 1
    return layers


def step_in_numpy(state, query, key, value):
    query, key = (
        np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (query, key)
    )
    memory, total = state[0] + key[:, None] * value, state[1] + key
    return (memory, total), query @ memory / (query @ total)


def stepping(after=True, features="qk", divide=True, keep=1.0):
    def answer(state, query, key, value):
        key = elu(key) + 1 if "k" in features else key
        query = elu(query) + 1 if "q" in features else query
        new = keep * state[0] + torch.outer(key, value), keep * state[1] + key
        memory, total = new if after else state
        return new, query @ memory / ((query @ total) if divide else 1)

    return answer


def test_a_merge_of_two_halves_is_attention():
    merge = _core._exercises["08-merge"].solution
    query, key, value = torch.randn(3, 6, 4)
    scores = query @ key.T / 2

    def part(keys):
        largest = scores[:, keys].amax(1, keepdim=True)
        weights = (scores[:, keys] - largest).exp()
        return largest, weights.sum(1, keepdim=True), weights @ value[keys]

    _, total, mixed = merge(part(slice(0, 2)), part(slice(2, 6)))
    torch.testing.assert_close(mixed / total, scores.softmax(-1) @ value)


def test_steps_one_by_one_are_causal_linear_attention():
    step = _core._exercises["08-recurrent"].solution
    query, key, value = torch.randn(3, 7, 4)
    state, contexts = (torch.zeros(4, 4), torch.zeros(4)), []
    for word in zip(query, key, value, strict=True):
        state, context = step(state, *word)
        contexts.append(context)
    expected = linear_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(torch.stack(contexts), expected)


test_an_answer_gets_its_verdict = verdicts(
    {
        "08-growth": [
            ([64.0, 8.0, 8.5], RIGHT),
            ((64, 8, pairs[1] / pairs[0]), RIGHT),
            ((8, 8, 8), "for each pair"),
            ((16, 8, 8), "square of the length"),
            ((64, 64, 8), "each token alone"),
            ((64, 8, 64), "256 keys at most"),
            ((64, 8, 1), "in both texts"),
            (64, "three numbers"),
            (("a", "b", "c"), "three numbers"),
        ],
        "08-cache": [
            (320 * 1024 * 4096, RIGHT),
            (80 * 8 * 128 * 2 * 4096, "keys alone"),
            (2 * 80 * 8 * 128 * 4096, "two bytes"),
            (7, "differ"),
        ],
        "08-merge": [
            (merge_by_logs, RIGHT),
            (merge_in_numpy, RIGHT),
            (merging(False, False), "different units"),
            (merging(second_factor=False), "first half only"),
            (merging(sign=-1), "above 1"),
            (merging(), "difference is NaN"),
        ],
        "08-overflow": [
            ([0, 1, 120, 3], RIGHT),
            ((0.0, 0.0, 0.0, 89.0), RIGHT),
            ([-190, -195, 0, 0], RIGHT),
            ([0, 0, 0, 80], "still fits"),
            ([120, 0, 0, 3], "first block holds"),
            ([0, 0, 0, 300], "No score above 200"),
            ([0, 0, math.inf, 0], "infinite one"),
            ([0, 120], "got 2"),
            ("scores", "four scores"),
        ],
        "08-reach": [
            (layers_needed, RIGHT),
            (lambda d, w: math.ceil(d / w), "w - 1 before"),
            (lambda d, w: d // (w - 1) + 1, "a layer too many"),
        ],
        "08-recurrent": [
            (step_in_numpy, RIGHT),
            (stepping(), RIGHT),
            (stepping(after=False), "does not see itself"),
            (stepping(features=""), "as they are"),
            (stepping(features="k"), "the query does not"),
            (stepping(divide=False), "below the fraction"),
            (stepping(keep=0.0), "add to it"),
        ],
    }
)
