"""Each exercise of the chapter: the solution passes, mistakes are named."""

import math

import numpy as np
import pytest
import torch

from attention_lib.course.exercises import _core
from attention_lib.course.exercises._core import evaluate


def rejected(name, answer, words):
    verdict = evaluate(name, answer)
    assert verdict.status == "wrong", verdict.text
    assert words in " ".join(verdict.text.split()), verdict.text


def test_every_exercise_of_the_chapter_is_tested_here():
    names = {name for name in _core.names() if name.startswith("04-")}
    assert names == {
        "04-backward",
        "04-break",
        "04-cosine",
        "04-jacobian",
        "04-variance",
        "04-width",
    }


# --- values ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("04-variance", [1, 4]),
        ("04-variance", (1.0, 4.0)),
        ("04-variance", torch.tensor([1.0, 4.0])),
        ("04-jacobian", [[0.09, -0.09], [-0.09, 0.09]]),
        (
            "04-jacobian",
            np.diag([0.9, 0.1]) - np.outer([0.9, 0.1], [0.9, 0.1]),
        ),
        ("04-width", 55),
        ("04-width", math.ceil((math.log(999) + 0.5) ** 2)),
    ],
)
def test_right_values_are_correct(name, answer):
    assert evaluate(name, answer).status == "correct"


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("04-variance", [64, 256], "plain dot products"),
        ("04-variance", [8, 32], "root of the width"),
        ("04-variance", [1, 2], "standard deviations"),
        ("04-variance", [1 / 64, 1 / 16], "divide by the width"),
        ("04-variance", [4.25, 5], "add the two"),
        ("04-jacobian", [[0.09, 0.09], [0.09, 0.09]], "signs"),
        ("04-jacobian", [[-0.09, 0.09], [0.09, -0.09]], "turned around"),
        ("04-jacobian", np.diag([0.9, 0.1]), "diag(p)"),
        ("04-jacobian", np.outer([0.9, 0.1], [0.9, 0.1]), "outer product"),
        ("04-width", 54, "wrong way"),
        ("04-width", round(math.log(999) ** 2), "do not all score 0"),
        ("04-width", math.ceil(math.log(999) + 0.5), "Its square"),
        ("04-width", 10_000, ""),
    ],
)
def test_wrong_values_get_their_hint(name, answer, words):
    rejected(name, answer, words)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("04-variance", [..., ...]),
        ("04-jacobian", [[..., ...], [..., ...]]),
        ("04-width", ...),
        ("04-backward", lambda weights, gradient: None),
        ("04-cosine", lambda query, key, factor: None),
    ],
)
def test_a_stub_is_not_an_answer(name, answer):
    assert evaluate(name, answer).status == "not attempted"


# --- 04-backward -------------------------------------------------------------


def test_the_backward_pass_may_be_written_in_any_way():
    def by_the_matrix(weights, gradient):
        outer = weights[..., :, None] * weights[..., None, :]
        jacobian = torch.diag_embed(weights) - outer
        return (jacobian @ gradient[..., None])[..., 0]

    def in_numpy(weights, gradient):
        average = np.sum(weights * gradient, axis=-1, keepdims=True)
        return weights * (gradient - average)

    for answer in (by_the_matrix, in_numpy):
        assert evaluate("04-backward", answer).status == "correct"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda p, u: u * p, "diag(p) alone"),
        (lambda p, u: u * (p - p**2), "diagonal"),
        (lambda p, u: p * (u - u.mean(-1, keepdim=True)), "under the weights"),
        (lambda p, u: p * u - p * u.sum(-1, keepdim=True), "sum of the grad"),
        (lambda p, u: p * u - p * torch.sum(p * u), "softmax of its own"),
        (lambda p, u: u - (p * u).sum(-1, keepdim=True), "multiplied by"),
        (lambda p, u: p * (u - (p * u).sum(-1)), ""),
    ],
)
def test_wrong_backward_passes_get_their_hint(answer, words):
    rejected("04-backward", answer, words)


# --- 04-cosine ---------------------------------------------------------------


def test_cosine_scores_may_be_written_in_any_way():
    def by_torch(query, key, factor):
        unit = torch.nn.functional.normalize
        return factor * unit(query, dim=-1) @ unit(key, dim=-1).mT

    def in_numpy(query, key, factor):
        lengths = np.linalg.norm(query, axis=-1)[..., :, None]
        lengths = lengths * np.linalg.norm(key, axis=-1)[..., None, :]
        scores = query @ np.swapaxes(key, -1, -2)
        return factor * scores / np.where(lengths > 0, lengths, 1)

    for answer in (by_torch, in_numpy):
        assert evaluate("04-cosine", answer).status == "correct"


def cosines(query, key):
    unit = torch.nn.functional.normalize
    return unit(query, dim=-1) @ unit(key, dim=-1).mT


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            lambda q, k, f: (
                f
                * (q @ k.mT)
                / (q.norm(dim=-1)[..., None] * k.norm(dim=-1)[..., None, :])
            ),
            "0/0 is NaN",
        ),
        (lambda q, k, f: f * cosines(q, k) / q.shape[-1] ** 0.5, "root of"),
        (lambda q, k, f: cosines(q, k), "factor is missing"),
        (lambda q, k, f: cosines(q, k) / f, "multiplies"),
        (
            lambda q, k, f: f * cosines(q, k) * k.norm(dim=-1)[..., None, :],
            "Only the queries",
        ),
        (
            lambda q, k, f: f * cosines(q, k) * q.norm(dim=-1)[..., None],
            "Only the keys",
        ),
        (lambda q, k, f: f * (q @ k.mT), "plain dot"),
    ],
)
def test_wrong_cosine_scores_get_their_hint(answer, words):
    rejected("04-cosine", answer, words)


# --- 04-break ----------------------------------------------------------------


def signs(rows, width, generator):
    draw = torch.rand(rows, width, generator=generator)
    return 2.0 * (draw < 0.5) - 1


def test_sizes_that_depend_on_each_other_break_the_theorem():
    def by_a_coin(rows, width, generator):
        turn = torch.rand(rows, width, generator=generator) < 0.5
        query = 2**0.5 * signs(rows, width, generator) * turn
        return query, 2**0.5 * signs(rows, width, generator) * ~turn

    def by_one_coin_a_row(rows, width, generator):
        turn = torch.rand(rows, 1, generator=generator) < 0.5
        query = 2**0.5 * signs(rows, width, generator) * turn
        return query, 2**0.5 * signs(rows, width, generator) * ~turn

    for answer in (by_a_coin, by_one_coin_a_row):
        assert evaluate("04-break", answer).status == "correct"


def test_samples_that_break_something_else_get_their_hint():
    def normal(rows, width, generator):
        return torch.randn(rows, width, generator=generator)

    def assumed(rows, width, generator):
        return normal(rows, width, generator), normal(rows, width, generator)

    def small(rows, width, generator):
        query, key = assumed(rows, width, generator)
        return 0.5 * query, key

    def shifted(rows, width, generator):
        query, key = assumed(rows, width, generator)
        return query, key + 1

    def opposite(rows, width, generator):
        query = normal(rows, width, generator)
        return query, -query

    def one_pair_apart(rows, width, generator):
        query, key = assumed(rows, width, generator)
        key[:, 0] = query[:, -1]
        return query, key

    rejected("04-break", assumed, "not below 4.0")
    rejected("04-break", small, "component of the query has variance 0.2")
    rejected("04-break", shifted, "component of the key has mean 1.0")
    rejected("04-break", opposite, "correlated")
    rejected("04-break", one_pair_apart, "correlated")
    rejected("04-break", lambda r, w, g: normal(r, w, g), "Return two")
    rejected("04-break", lambda r, w, g: assumed(w, r, g), "has shape")
    rejected("04-break", lambda r, w, g: None, "nothing yet")
    rejected("04-break", 3, "function")


def test_a_stub_that_raises_does_not_break_the_theorem():
    def stub(rows, width, generator):
        raise NotImplementedError

    rejected("04-break", stub, "nothing yet")
