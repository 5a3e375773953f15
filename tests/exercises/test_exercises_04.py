"""Answers to the exercises of chapter 4, and what they are told."""

import math

import numpy as np
import torch
from torch.nn.functional import normalize
from verdicts import RIGHT, verdicts


def by_the_matrix(weights, gradient):
    outer = weights[..., :, None] * weights[..., None, :]
    jacobian = torch.diag_embed(weights) - outer
    return (jacobian @ gradient[..., None])[..., 0]


def in_numpy(weights, gradient):
    average = np.sum(weights * gradient, axis=-1, keepdims=True)
    return weights * (gradient - average)


def cosines(query, key):
    return normalize(query, dim=-1) @ normalize(key, dim=-1).mT


def cosines_in_numpy(query, key, factor):
    lengths = np.linalg.norm(query, axis=-1)[..., :, None]
    lengths = lengths * np.linalg.norm(key, axis=-1)[..., None, :]
    scores = query @ np.swapaxes(key, -1, -2)
    return factor * scores / np.where(lengths > 0, lengths, 1)


def zero_by_zero(query, key, factor):
    lengths = query.norm(dim=-1)[..., None] * key.norm(dim=-1)[..., None, :]
    return factor * (query @ key.mT) / lengths


def normal(rows, width, generator):
    return torch.randn(rows, width, generator=generator)


def assumed(*size):
    return normal(*size), normal(*size)


def changed(change):
    return lambda *size: change(*assumed(*size))


def signs(rows, width, generator):
    return 2.0 * (torch.rand(rows, width, generator=generator) < 0.5) - 1


def by_a_coin(rows, width, generator, coins=None):
    coin = signs(rows, width if coins is None else coins, generator) > 0
    query = 2**0.5 * signs(rows, width, generator) * coin
    return query, 2**0.5 * signs(rows, width, generator) * ~coin


def stub(rows, width, generator):
    raise NotImplementedError


test_an_answer_gets_its_verdict = verdicts(
    {
        "04-variance": [
            ((1.0, 4.0), RIGHT),
            (torch.tensor([1.0, 4.0]), RIGHT),
            ([8, 32], "root of the width"),
        ],
        "04-jacobian": [
            (np.diag([0.9, 0.1]) - np.outer([0.9, 0.1], [0.9, 0.1]), RIGHT),
            (np.diag([0.9, 0.1]), "diag(p)"),
            (np.outer([0.9, 0.1], [0.9, 0.1]), "outer product"),
        ],
        "04-width": [
            (math.ceil((math.log(999) + 0.5) ** 2), RIGHT),
            (round(math.log(999) ** 2), "do not all score 0"),
            (math.ceil(math.log(999) + 0.5), "Its square"),
            (10_000, "not yet"),
        ],
        "04-backward": [
            (by_the_matrix, RIGHT),
            (in_numpy, RIGHT),
            (lambda p, u: u * p, "diag(p) alone"),
            (lambda p, u: u * (p - p**2), "diagonal"),
            (lambda p, u: p * u - p * torch.sum(p * u), "softmax of its own"),
            (lambda p, u: p * (u - (p * u).sum(-1)), "not yet"),
        ],
        "04-cosine": [
            (lambda q, k, f: f * cosines(q, k), RIGHT),
            (cosines_in_numpy, RIGHT),
            (zero_by_zero, "0/0 is NaN"),
            (
                lambda q, k, f: cosines(q, k) * f / q.shape[-1] ** 0.5,
                "root of",
            ),
            (lambda q, k, f: cosines(q, k), "factor is missing"),
            (lambda q, k, f: cosines(q, k) / f, "multiplies"),
            (lambda q, k, f: f * (q @ k.mT), "plain dot"),
        ],
        "04-break": [
            (by_a_coin, RIGHT),
            (lambda *size: by_a_coin(*size, coins=1), RIGHT),
            (assumed, "not below 4.0"),
            (changed(lambda q, k: (q / 2, k)), "the query has variance 0.2"),
            (changed(lambda q, k: (q, k + 1)), "of the key has mean 1.0"),
            (changed(lambda q, k: (q, -q)), "correlated"),
            (changed(lambda q, k: (q, q.roll(1, 1))), "correlated"),
            (normal, "Return two"),
            (lambda rows, width, g: assumed(width, rows, g), "has shape"),
            (lambda rows, width, g: None, "nothing yet"),
            (stub, "nothing yet"),
            (3, "function"),
        ],
    }
)
