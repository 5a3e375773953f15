"""Answers to the exercises of chapter 3, and what they are told."""

import numpy as np
import torch
from verdicts import RIGHT, verdicts

from attention_lib.measures import alignment_error_rate
from attention_lib.scores import AdditiveScore


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


def additive(inner=torch.tanh, outer=lambda scores: scores):
    def answer(query, key, to_query, to_key, vector):
        left, right = query @ to_query.T, key @ to_key.T
        hidden = inner(left.unsqueeze(2) + right.unsqueeze(1))
        return outer(hidden.matmul(vector[:, None])[..., 0])

    return answer


def aer(predicted, sure, possible):
    return alignment_error_rate([predicted], [sure], [possible])


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


def whole(query, key, vector, block):
    inside = query.unsqueeze(2) + key.unsqueeze(1)
    return with_a_loop(query, key, vector, block) + 0 * inside.sum(-1)


test_an_answer_gets_its_verdict = verdicts(
    {
        "03-bytes": [
            ((4194304, 2147483648), RIGHT),
            ([4.194304e6, 2.1474836e9], RIGHT),
            ([1, 2], "numbers differ"),
        ],
        "03-pencil": [
            (torch.tensor([5.0, 4.0]), RIGHT),
            ([0.731, 0.269], "after the softmax"),
            (5, "shape"),
        ],
        "03-parameters": [([8192, 6176], RIGHT), ([8192, 6144], "third part")],
        "03-additive": [
            (by_concat, RIGHT),
            (by_library, RIGHT),
            (by_numpy, RIGHT),
            (additive(outer=torch.squeeze), "bare squeeze()"),
            (additive(inner=lambda x: x), "There is no tanh"),
            (additive(lambda x: x, torch.tanh), "after the vector"),
            (additive(outer=lambda s: s.transpose(1, 2)), "Rows and columns"),
            (additive(outer=lambda s: s.softmax(-1)), "These are the weights"),
            (additive(inner=torch.sigmoid), "numbers differ"),
            (lambda q, k, a, b, v: q @ k.mT, "not yet"),
        ],
        "03-merge": [
            (lambda a, b: torch.einsum("hq,hk->qk", a, b), RIGHT),
            (lambda a, b: np.dot(a.T, b), RIGHT),
            (lambda a, b: b.T @ a, "This is the transpose"),
            (lambda a, b: a @ b.T, "compares the hidden units"),
            (lambda a, b: a.T @ b / len(a) ** 0.5, "not scaled"),
            (lambda a, b: a.T @ b[:1], "stops with RuntimeError"),
        ],
        "03-aer": [
            (aer, RIGHT),
            (lambda a, s, p: 1 - aer(a, s, p), "share that is right"),
            (lambda a, s, p: aer(a, s, s), "Possible links count for nothing"),
            (
                lambda a, s, p: 1 - 2 * len(a & s) / (len(a) + len(p)),
                "not yet",
            ),
            (lambda a, s, p: len(a - s) / len(a), "that are missing"),
        ],
        "03-longer": [
            (([1, 0], [1, 0], [2, 0]), RIGHT),
            (([1, 1], [1, 1], [0, 3]), RIGHT),
            ((torch.ones(2), torch.ones(2), 2 * torch.ones(2)), RIGHT),
            (([1, 0], [1, 0], [0, 1]), "does not lose"),
            (([1, 0], [1, 0], [1, 0]), "must differ"),
            (([1, 0], [2, 0], [3, 0]), "the query itself"),
            (([0, 0], [0, 0], [1, 0]), "a draw"),
            (([1, 0], [1, 0], [1]), "one width"),
            (([1], [1], [np.inf]), "finite"),
            (([1, 0], [2, 0]), "three vectors"),
            ("long", "three vectors"),
        ],
        "03-blocks": [
            (with_a_loop, RIGHT),
            (one_by_one, RIGHT),
            (whole, "the whole tensor was there"),
            (lambda *a: with_a_loop(*a).mT, "Rows and columns"),
            (lambda q, k, v, b: q @ k.mT, "numbers differ"),
        ],
    }
)
