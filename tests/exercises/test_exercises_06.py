"""Answers to the exercises of chapter 6, and what they are told."""

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from verdicts import RIGHT, verdicts

from attention_lib.multihead import merge_heads, split_heads


def in_heads(split=split_heads, merge=merge_heads, scale=None):
    def answer(query, key, value, num_heads):
        heads = [split(part, num_heads) for part in (query, key, value)]
        options = {"scale": scale and scale(query.shape[-1], num_heads)}
        return merge(scaled_dot_product_attention(*heads, **options))

    return answer


def heads_in_numpy(query, key, value, num_heads):
    parts = []
    for q, k, v in zip(
        *(np.split(x, num_heads, axis=-1) for x in (query, key, value)),
        strict=True,
    ):
        scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        parts.append(weights / weights.sum(-1, keepdims=True) @ v)
    return np.concatenate(parts, axis=-1)


def without_transpose(features, num_heads):
    batch, length, width = features.shape
    return features.view(batch, num_heads, length, width // num_heads)


def flat(context):
    batch, heads, length, width = context.shape
    return context.reshape(batch, length, heads * width)


def grouped(key, num_heads):
    owner = torch.arange(num_heads) * key.shape[1] // num_heads
    return key[:, owner]


def pruning(rows, columns):
    """Choose rows of three matrices and columns of the fourth."""

    def answer(query, key, value, output, num_heads, head):
        index = torch.arange(len(query))
        kept = rows(index, len(query) // num_heads, num_heads, head)
        small = [part[kept] for part in (query, key, value)]
        return *small, columns(output, kept)

    return answer


def other_heads(index, width, num_heads, head):
    return index // width != head


def every_feature(index, width, num_heads, head):
    return index % num_heads != head


def that_head(index, width, num_heads, head):
    return index // width == head


def columns(output, kept):
    return output[:, kept]


test_an_answer_gets_its_verdict = verdicts(
    {
        "06-shapes": [
            ((4, 8, 10, 12), RIGHT),
            (torch.Size([4, 8, 10, 12]), RIGHT),
            ((32, 10, 12), "one axis"),
        ],
        "06-parameters": [
            (2 * 512 * 513 + 2 * 128 * 513, RIGHT),
            (4 * 512 * 513, "8 key heads"),
            (3 * 512 * 513 + 128 * 513, "both shared"),
        ],
        "06-heads": [
            (in_heads(), RIGHT),
            (heads_in_numpy, RIGHT),
            (in_heads(without_transpose, flat), "mix positions"),
            (in_heads(merge=flat), "merging is not"),
            (in_heads(scale=lambda d, h: d**-0.5), "root of num_heads"),
            (in_heads(scale=lambda d, h: 1.0), "lack the division"),
            (lambda q, k, v, h: in_heads()(q, k, v, 1), "full width"),
        ],
        "06-grouped": [
            (grouped, RIGHT),
            (lambda k, h: torch.cat([k] * (h // k.shape[1]), 1), "10, 20, 10"),
        ],
        "06-prune": [
            (pruning(other_heads, columns), RIGHT),
            (pruning(other_heads, lambda o, kept: o[kept]), "drop columns"),
            (pruning(other_heads, lambda o, kept: o), "still expects"),
            (pruning(that_head, columns), "keep the head"),
            (pruning(every_feature, columns), "neighbouring"),
        ],
        "06-same-context": [
            ([0.5, 0.4, 0.1, 0.0], RIGHT),
            ((0.2, 0.1, 0.4, 0.3), RIGHT),
            (np.array([0.3, 0.2, 0.3, 0.2]), RIGHT),
            ([0.4, 0.3, 0.2, 0.1], "Go further"),
            ([0.25] * 4, "cannot see"),
            ([0.6, 0.5, 0.0, -0.1], "not negative"),
            ([0.5, 0.4, 0.1], "four numbers"),
            ([0.5, 0.4, 0.1, 0.1], "not to 1"),
            ("many", "four numbers"),
        ],
    }
)
