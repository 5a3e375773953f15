"""Each exercise of the chapter: the solution passes, mistakes are named."""

import numpy as np
import pytest
import torch

from attention_lib.course.exercises import _core
from attention_lib.course.exercises._core import evaluate
from attention_lib.measures import alignment_error_rate
from attention_lib.scores import AdditiveScore


def rejected(name, answer, words):
    verdict = evaluate(name, answer)
    assert verdict.status == "wrong", verdict.text
    assert words in verdict.text, verdict.text


def test_every_exercise_of_the_chapter_is_tested_here():
    names = {name for name in _core.names() if name.startswith("03-")}
    assert names == {
        "03-additive",
        "03-aer",
        "03-blocks",
        "03-bytes",
        "03-longer",
        "03-merge",
        "03-parameters",
        "03-pencil",
    }


# --- values ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("03-bytes", [4 * 2**20, 2**31]),
        ("03-bytes", (4194304, 2147483648)),
        ("03-bytes", [4.194304e6, 2.1474836e9]),
        ("03-pencil", [5, 4]),
        ("03-pencil", torch.tensor([5.0, 4.0])),
        ("03-parameters", [8192, 6176]),
        ("03-longer", ([1, 0], [1, 0], [2, 0])),
        ("03-longer", ([1, 1], [1, 1], [0, 3])),
        ("03-longer", (torch.ones(2), torch.ones(2), 2 * torch.ones(2))),
    ],
)
def test_right_values_are_correct(name, answer):
    assert evaluate(name, answer).status == "correct"


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("03-bytes", [2**20, 2**29], "four bytes"),
        ("03-bytes", [2**16, 2**25], "one sentence"),
        ("03-bytes", [2**22, 2**25], "one for each pair"),
        ("03-bytes", [2**31, 2**22], "dot first"),
        ("03-bytes", [2**23, 2**32], "not eight"),
        ("03-bytes", [1, 2], "numbers differ"),
        ("03-pencil", [1, 4], "three numbers first"),
        ("03-pencil", [0.731, 0.269], "after the softmax"),
        ("03-pencil", [4, 5], "order is not"),
        ("03-pencil", [4, 2], "has not had its say"),
        ("03-pencil", 5, "shape"),
        ("03-parameters", [8192, 6144], "a third part"),
        ("03-parameters", [8192, 6240], "a bias"),
        ("03-parameters", [4096, 6176], "that of the key"),
        ("03-parameters", [192, 6176], "product of its sides"),
        ("03-parameters", [6176, 8192], "general first"),
        ("03-longer", ([1, 0], [1, 0], [0, 1]), "does not lose"),
        ("03-longer", ([1, 0], [1, 0], [1, 0]), "must differ"),
        ("03-longer", ([1, 0], [2, 0], [3, 0]), "the query itself"),
        ("03-longer", ([0, 0], [0, 0], [1, 0]), "a draw"),
        ("03-longer", ([1, 0], [1, 0], [1]), "one width"),
        ("03-longer", ([1], [1], [np.inf]), "finite"),
        ("03-longer", ([1, 0], [2, 0]), "three vectors"),
        ("03-longer", "long", "three vectors"),
    ],
)
def test_wrong_values_get_their_hint(name, answer, words):
    rejected(name, answer, words)


# --- 03-additive -------------------------------------------------------------


def by_concat(query, key, to_query, to_key, vector):
    joined = torch.cat(
        [
            query[:, :, None].expand(-1, -1, key.shape[1], -1),
            key[:, None].expand(-1, query.shape[1], -1, -1),
        ],
        dim=-1,
    )
    hidden = torch.tanh(joined @ torch.cat([to_query, to_key], 1).T)
    return (hidden * vector).sum(-1)


def by_library(query, key, to_query, to_key, vector):
    score = AdditiveScore(query.shape[-1], key.shape[-1], len(vector))
    with torch.no_grad():
        score.query_proj.weight.copy_(to_query)
        score.key_proj.weight.copy_(to_key)
        score.vector.copy_(vector)
        return score(query, key)


def by_numpy(query, key, to_query, to_key, vector):
    left, right = query @ to_query.T, key @ to_key.T
    return np.tanh(left[:, :, None] + right[:, None]) @ vector


@pytest.mark.parametrize("answer", [by_concat, by_library, by_numpy])
def test_any_right_additive_score_is_correct(answer):
    assert evaluate("03-additive", answer).status == "correct"


def additive(inner=torch.tanh, outer=lambda scores: scores):
    def answer(query, key, to_query, to_key, vector):
        left, right = query @ to_query.T, key @ to_key.T
        hidden = inner(left.unsqueeze(2) + right.unsqueeze(1))
        return outer(hidden.matmul(vector))

    return answer


def linear_layers(query, key, to_query, to_key, vector):
    left, right = query @ to_query.T, key @ to_key.T
    hidden = torch.tanh(left[:, :, None] + right[:, None])
    return (hidden @ vector[:, None]).squeeze()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (linear_layers, "bare squeeze()"),
        (additive(outer=torch.squeeze), "bare squeeze()"),
        (additive(inner=lambda x: x), "There is no tanh"),
        (additive(inner=lambda x: x, outer=torch.tanh), "after the vector"),
        (additive(outer=lambda s: s.transpose(1, 2)), "Rows and columns"),
        (additive(outer=lambda s: s.softmax(-1)), "These are the weights"),
        (
            lambda q, k, a, b, v: (
                (
                    torch.tanh(q @ a.T)[:, :, None]
                    + torch.tanh(k @ b.T)[:, None]
                )
                @ v
            ),
            "query and key apart",
        ),
        (
            lambda q, k, a, b, v: torch.tanh(
                (q @ a.T)[:, :, None] + (k @ b.T)[:, None]
            ).sum(-1),
            "The hidden units are added up alike",
        ),
        (additive(inner=torch.sigmoid), "numbers differ"),
        (lambda q, k, a, b, v: q @ k.mT, "not yet"),
    ],
)
def test_wrong_additive_scores_get_their_hint(answer, words):
    rejected("03-additive", answer, words)


# --- 03-merge ----------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        lambda a, b: torch.einsum("hq,hk->qk", a, b),
        lambda a, b: a.T @ b,
        lambda a, b: np.dot(a.T, b),
    ],
)
def test_any_right_merge_is_correct(answer):
    assert evaluate("03-merge", answer).status == "correct"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda a, b: b.T @ a, "This is the transpose"),
        (lambda a, b: a @ b.T if a.shape == b.shape else a.T @ b, "hidden"),
        (lambda a, b: a.T @ b / len(a) ** 0.5, "not scaled"),
        (lambda a, b: a @ b, "stops with RuntimeError"),
    ],
)
def test_wrong_merges_get_their_hint(answer, words):
    rejected("03-merge", answer, words)


# --- 03-aer ------------------------------------------------------------------


def aer(predicted, sure, possible):
    return alignment_error_rate([predicted], [sure], [possible])


def test_the_library_function_is_correct():
    assert evaluate("03-aer", aer).status == "correct"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda a, s, p: 1 - aer(a, s, p), "share that is right"),
        (
            lambda a, s, p: 1 - 2 * len(a & s) / (len(a) + len(s)),
            "Possible links count for nothing",
        ),
        (
            lambda a, s, p: 1 - 2 * len(a & p) / (len(a) + len(s)),
            "a term of their own",
        ),
        (
            lambda a, s, p: 1 - (len(a & s) + len(a & p)) / (len(a) + len(p)),
            "need not be found",
        ),
        (
            lambda a, s, p: (
                1 - (len(a & s) + len(a & (p - s))) / (len(a) + len(s))
            ),
            "counts in both terms",
        ),
        (lambda a, s, p: len(a - s) / len(a), "that are missing"),
    ],
)
def test_wrong_rates_get_their_hint(answer, words):
    rejected("03-aer", answer, words)


# --- 03-blocks ---------------------------------------------------------------


def with_a_loop(query, key, vector, block):
    scores = query.new_empty(query.shape[0], query.shape[1], key.shape[1])
    for start in range(0, query.shape[1], block):
        part = query[:, start : start + block]
        inside = (part.unsqueeze(2) + key.unsqueeze(1)).tanh_()
        scores[:, start : start + block] = inside @ vector
    return scores


def one_by_one(query, key, vector, block):
    rows = [torch.tanh(q[:, None] + key) @ vector for q in query.unbind(1)]
    return torch.stack(rows, dim=1)


@pytest.mark.parametrize("answer", [with_a_loop, one_by_one])
def test_any_right_blocked_score_is_correct(answer):
    assert evaluate("03-blocks", answer).status == "correct"


def whole(query, key, vector, block):
    inside = query.unsqueeze(2) + key.unsqueeze(1)
    return with_a_loop(query, key, vector, block) + 0 * inside.sum(-1)


def in_chunks(query, key, vector, block, dim=1, keep=False):
    full = query.shape[1] // block * block
    parts = [
        torch.tanh(part[:, :, None] + key[:, None]) @ vector
        for part in query[:, : full if keep else None].split(block, 1)
    ]
    return torch.cat(parts, dim)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (whole, "the whole tensor was there"),
        (
            lambda q, k, v, b: torch.tanh(q[:, :, None] + k[:, None]) @ v,
            "the whole tensor was there",
        ),
        (lambda *a: in_chunks(*a, keep=True), "left over at the end"),
        (lambda *a: in_chunks(*a, dim=0), "along the batch"),
        (lambda *a: in_chunks(*a).mT, "Rows and columns"),
        (lambda q, k, v, b: q @ k.mT, "numbers differ"),
    ],
)
def test_wrong_blocks_get_their_hint(answer, words):
    rejected("03-blocks", answer, words)


# --- stubs -------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["03-additive", "03-merge", "03-aer", "03-blocks"]
)
def test_an_empty_function_is_no_attempt(name):
    assert evaluate(name, lambda *args: None).status == "not attempted"


def test_empty_values_are_no_attempt():
    for name in ("03-bytes", "03-pencil", "03-parameters"):
        assert evaluate(name, [..., ...]).status == "not attempted"
    blank = ([..., ...], [..., ...], [..., ...])
    assert evaluate("03-longer", blank).status == "not attempted"
