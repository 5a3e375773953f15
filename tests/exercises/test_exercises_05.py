"""Answers to the exercises of chapter 5, and what they are told."""

import math

import numpy as np
import torch
from verdicts import RIGHT, verdicts

from attention_lib.interop import from_key_padding_mask, from_mha_mask
from attention_lib.masks import causal_mask


def window_by_loops(query_length, key_length, window):
    mask = torch.zeros(query_length, key_length, dtype=torch.bool)
    for i in range(query_length):
        own = i + key_length - query_length
        for j in range(key_length):
            mask[i, j] = own - window < j <= own
    return mask


def window_by_triangles(query_length, key_length, window):
    offset = key_length - query_length
    near = causal_mask(query_length, key_length, offset=offset)
    far = causal_mask(query_length, key_length, offset=offset - window)
    return near & ~far


def window_in_numpy(query_length, key_length, window):
    position = np.arange(query_length)[:, None] + key_length - query_length
    distance = position - np.arange(key_length)
    return np.logical_and(distance >= 0, distance < window)


def band(below, above):
    """Keys between two distances, of which the window w is one."""
    return lambda q, k, w: (
        torch.ones(q, k).tril(k - q + above(w)).triu(k - q - below(w)).bool()
    )


def with_converters(key_padding_mask, attn_mask):
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


test_an_answer_gets_its_verdict = verdicts(
    {
        "05-zero-fill": [
            (0.909, RIGHT),
            (1 / (1 + 2 * math.exp(-3)), RIGHT),
            (torch.tensor([-3.0, -3.0, 0.0]).softmax(-1)[2], RIGHT),
            (torch.tensor([-3.0, -3.0, 2.0]).softmax(-1)[2], "without any"),
            (0.0906, "two words share"),
            (0.5, "numbers differ"),
        ],
        "05-corner": [
            (int(causal_mask(3, 7).sum()), RIGHT),
            (int(causal_mask(3, 7, offset=0).sum()), "upper left"),
            (int(causal_mask(3, 7, offset=3).sum()), "diagonal"),
            (int(causal_mask(7).sum()), "all seven"),
            (17, "differ"),
        ],
        "05-window": [
            (window_by_loops, RIGHT),
            (window_by_triangles, RIGHT),
            (window_in_numpy, RIGHT),
            (band(lambda w: w, lambda w: 0), "one too wide"),
            (band(lambda w: w, lambda w: -1), "sees itself"),
            (band(lambda w: w - 1, lambda w: w - 1), "looks ahead"),
            (lambda *sizes: ~window_by_loops(*sizes), "upside down"),
            (lambda *sizes: window_by_loops(*sizes).float(), "boolean"),
            (lambda q, k, w: causal_mask(q, k), "whole causal"),
        ],
        "05-combine": [
            (with_converters, RIGHT),
            (lambda a, b: ~a[:, None] & ~b, RIGHT),
            (lambda a, b: ~torch.logical_and(a[:, None], b), "one of them"),
            (lambda a, b: torch.logical_or(a[:, None], b), "blocked pairs"),
            (lambda a, b: torch.logical_and(a[:, None], b), "invert first"),
            (lambda a, b: ~(a.unsqueeze(2) | b), "on the query axis"),
        ],
        "05-packing": [
            (packing_by_loops, RIGHT),
            (lambda d: packing_by_loops(d).tril(-1), "the diagonal stays"),
            (lambda d: packing_by_loops(d).mT, "swapped"),
            (lambda d: ~packing_by_loops(d), "upside down"),
            (
                lambda d: causal_mask(d.shape[1]) & (d >= 0)[:, None],
                "documents before",
            ),
        ],
        "05-smuggle": [
            (lambda x: x + (x.flip(1) > 1e5), RIGHT),  # a door for large ones
            (lambda x: x + (x[:, -1:].abs() < 1e-4), RIGHT),  # for tiny ones
            (lambda x: x + (x[:, -1:] == 2.0), RIGHT),  # for whole ones
            (lambda x: x.flip(1), "The detector caught it"),
            (lambda x: x.cumsum(1), "really depend"),
            (lambda x: x.sum(), "the shape of x"),
            (lambda x: None, "nothing yet"),
            (3.0, "asks for a function"),
        ],
    }
)
