"""Each exercise of the chapter: the solution passes, mistakes are named."""

import math

import numpy as np
import pytest
import torch

from attention_lib.course.exercises import _core
from attention_lib.course.exercises._core import evaluate
from attention_lib.interop import from_key_padding_mask, from_mha_mask
from attention_lib.masks import causal_mask


def rejected(name, answer, words):
    verdict = evaluate(name, answer)
    assert verdict.status == "wrong", verdict.text
    assert words in verdict.text, verdict.text


def test_every_exercise_of_the_chapter_is_tested_here():
    names = {name for name in _core.names() if name.startswith("05-")}
    assert names == {
        "05-combine",
        "05-corner",
        "05-packing",
        "05-smuggle",
        "05-window",
        "05-zero-fill",
    }


# --- values ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("05-zero-fill", 0.909),
        ("05-zero-fill", torch.tensor([-3.0, -3.0, 0.0]).softmax(-1)[2]),
        ("05-corner", 18),
        ("05-corner", int(causal_mask(3, 7).sum())),
    ],
)
def test_right_values_are_correct(name, answer):
    assert evaluate(name, answer).status == "correct"


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("05-zero-fill", 0, "minus infinity"),
        ("05-zero-fill", 1.0, "keep a little"),
        (
            "05-zero-fill",
            torch.tensor([-3.0, -3.0, 2.0]).softmax(-1)[2],
            "without any mask",
        ),
        ("05-zero-fill", 0.3333, "-3"),
        ("05-zero-fill", 0.0906, "two words share"),
        ("05-zero-fill", 0.5, "numbers differ"),
        ("05-corner", int(causal_mask(3, 7, offset=0).sum()), "upper left"),
        ("05-corner", 3 * 7, "every pair"),
        ("05-corner", 3 * 4, "cached keys only"),
        ("05-corner", int(causal_mask(3, 7, offset=3).sum()), "diagonal"),
        ("05-corner", int(causal_mask(7).sum()), "all seven"),
        ("05-corner", 17, "differ"),
    ],
)
def test_wrong_values_get_their_hint(name, answer, words):
    rejected(name, answer, words)


# --- functions ---------------------------------------------------------------


def window_by_loops(query_length, key_length, window):
    mask = torch.zeros(query_length, key_length, dtype=torch.bool)
    for i in range(query_length):
        own = i + key_length - query_length
        for j in range(key_length):
            mask[i, j] = own - window < j <= own
    return mask


def window_by_two_triangles(query_length, key_length, window):
    offset = key_length - query_length
    near = causal_mask(query_length, key_length, offset=offset)
    return near & ~causal_mask(
        query_length, key_length, offset=offset - window
    )


def window_in_numpy(query_length, key_length, window):
    position = np.arange(query_length)[:, None] + key_length - query_length
    distance = position - np.arange(key_length)
    return np.logical_and(distance >= 0, distance < window)


def combine_with_converters(key_padding_mask, attn_mask):
    return from_key_padding_mask(key_padding_mask) & from_mha_mask(attn_mask)


def packing_by_loops(document):
    batch, length = document.shape
    mask = torch.zeros(batch, length, length, dtype=torch.bool)
    for b in range(batch):
        for i in range(length):
            for j in range(i + 1):
                same = document[b, i] == document[b, j]
                mask[b, i, j] = same and document[b, j] >= 0
    return mask


def door_for_large_numbers(x):
    return x + (x.flip(1) > 1e5)


def door_for_tiny_numbers(x):
    return x + (x[:, -1:].abs() < 1e-4)


def door_for_whole_numbers(x):
    return x + (x[:, -1:] == 2.0)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("05-window", window_by_loops),
        ("05-window", window_by_two_triangles),
        ("05-window", window_in_numpy),
        ("05-combine", combine_with_converters),
        ("05-combine", lambda a, b: ~a[:, None] & ~b),
        ("05-packing", packing_by_loops),
        ("05-smuggle", door_for_large_numbers),
        ("05-smuggle", door_for_tiny_numbers),
        ("05-smuggle", door_for_whole_numbers),
    ],
)
def test_right_functions_are_correct(name, answer):
    verdict = evaluate(name, answer)
    assert verdict.status == "correct", verdict.text


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (
            "05-window",
            lambda q, k, w: torch.ones(q, k).tril().triu(1 - w).bool(),
            "Your first query",
        ),
        (
            "05-window",
            lambda q, k, w: (
                torch.ones(q, k).tril(k - q).triu(k - q - w).bool()
            ),
            "one too wide",
        ),
        (
            "05-window",
            lambda q, k, w: (
                torch.ones(q, k).tril(k - q - 1).triu(k - q - w).bool()
            ),
            "sees itself",
        ),
        (
            "05-window",
            lambda q, k, w: (
                torch.ones(q, k).tril(k - q + w - 1).triu(k - q - w + 1).bool()
            ),
            "looks ahead",
        ),
        (
            "05-window",
            lambda q, k, w: ~window_by_loops(q, k, w),
            "upside down",
        ),
        ("05-window", lambda q, k, w: causal_mask(q, k), "whole causal"),
        (
            "05-window",
            lambda q, k, w: window_by_loops(q, k, w).float(),
            "boolean",
        ),
        (
            "05-combine",
            lambda a, b: ~torch.logical_and(a.unsqueeze(1), b),
            "one of them is enough",
        ),
        (
            "05-combine",
            lambda a, b: torch.logical_or(a.unsqueeze(1), b),
            "blocked pairs",
        ),
        (
            "05-combine",
            lambda a, b: torch.logical_and(a.unsqueeze(1), b),
            "invert first",
        ),
        (
            "05-combine",
            lambda a, b: ~a.unsqueeze(1).expand(-1, b.shape[0], -1),
            "attn_mask?",
        ),
        (
            "05-combine",
            lambda a, b: ~b.unsqueeze(0).expand(a.shape[0], -1, -1),
            "the padding?",
        ),
        (
            "05-packing",
            lambda d: (
                (d.unsqueeze(2) == d.unsqueeze(1)) & (d >= 0).unsqueeze(1)
            ),
            "later words",
        ),
        (
            "05-packing",
            lambda d: packing_by_loops(d).tril(-1),
            "the diagonal stays",
        ),
        (
            "05-packing",
            lambda d: causal_mask(d.shape[1]) & (d >= 0)[:, None],
            "documents before",
        ),
        (
            "05-packing",
            lambda d: (d[:, :, None] == d[:, None]).tril(),
            "a document of their own",
        ),
        ("05-packing", lambda d: packing_by_loops(d).mT, "swapped"),
        ("05-packing", lambda d: ~packing_by_loops(d), "upside down"),
        ("05-smuggle", lambda x: x.flip(1), "The detector caught it"),
        ("05-smuggle", lambda x: x.cumsum(1), "really depend"),
        ("05-smuggle", lambda x: x.sum(), "the shape of x"),
        ("05-smuggle", lambda x: None, "nothing yet"),
        ("05-smuggle", 3.0, "asks for a function"),
    ],
)
def test_wrong_functions_get_their_hint(name, answer, words):
    rejected(name, answer, words)


def test_padding_on_the_query_axis_is_recognised():
    """It runs only where there are as many queries as keys."""

    def on_the_query_axis(pads, pairs):
        if pairs.shape[0] != pairs.shape[1]:
            return combine_with_converters(pads, pairs)
        return ~(pads[:, :, None] | pairs)

    rejected("05-combine", on_the_query_axis, "on the query axis")


def test_unattempted_stubs_are_not_wrong():
    for name in _core.names():
        if name.startswith("05-"):
            assert evaluate(name, ...).status == "not attempted"


def test_the_first_answer_is_right_by_pencil():
    tiny = math.exp(-3)
    assert evaluate("05-zero-fill", 1 / (1 + 2 * tiny)).status == "correct"
