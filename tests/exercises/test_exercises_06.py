"""The exercises on many heads know right answers and name wrong ones."""

import numpy as np
import pytest
import torch
from torch import nn

from attention_lib.course.exercises import _core
from attention_lib.multihead import merge_heads, split_heads

VALUES = {
    "06-shapes": (4, 8, 10, 12),
    "06-parameters": 2 * 512 * 513 + 2 * 128 * 513,
}


def heads(query, key, value, num_heads):
    context = nn.functional.scaled_dot_product_attention(
        *(split_heads(part, num_heads) for part in (query, key, value))
    )
    return merge_heads(context)


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


def grouped(key, num_heads):
    return torch.stack(
        [
            key[:, head * key.shape[1] // num_heads]
            for head in range(num_heads)
        ],
        dim=1,
    )


def prune(query, key, value, output, num_heads, head):
    rows = [part.chunk(num_heads) for part in (query, key, value)]
    columns = output.chunk(num_heads, dim=1)
    kept = [n for n in range(num_heads) if n != head]
    return (
        *(torch.cat([part[n] for n in kept]) for part in rows),
        torch.cat([columns[n] for n in kept], dim=1),
    )


def status(name, answer):
    return _core.evaluate(name, answer)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        *VALUES.items(),
        ("06-shapes", [4, 8, 10, 12]),
        ("06-shapes", torch.Size([4, 8, 10, 12])),
        ("06-heads", heads),
        ("06-heads", heads_in_numpy),
        ("06-grouped", grouped),
        ("06-prune", prune),
        ("06-same-context", [0.5, 0.4, 0.1, 0.0]),
        ("06-same-context", (0.2, 0.1, 0.4, 0.3)),
        ("06-same-context", np.array([0.3, 0.2, 0.3, 0.2])),
    ],
)
def test_right_answers_pass(name, answer):
    verdict = status(name, answer)
    assert verdict.status == "correct", verdict.text


def view_without_transpose(query, key, value, num_heads):
    batch, length, width = query.shape

    def split(x):
        return x.view(batch, num_heads, x.shape[1], width // num_heads)

    context = nn.functional.scaled_dot_product_attention(
        split(query), split(key), split(value)
    )
    return context.reshape(batch, length, width)


def transpose_forgotten_in_merge(query, key, value, num_heads):
    context = nn.functional.scaled_dot_product_attention(
        *(split_heads(part, num_heads) for part in (query, key, value))
    )
    return context.reshape(query.shape)


def scaled_by(scale):
    def answer(query, key, value, num_heads):
        context = nn.functional.scaled_dot_product_attention(
            *(split_heads(part, num_heads) for part in (query, key, value)),
            scale=scale(query.shape[-1], num_heads),
        )
        return merge_heads(context)

    return answer


def single_head(query, key, value, num_heads):
    return nn.functional.scaled_dot_product_attention(query, key, value)


def softmax_down_the_columns(query, key, value, num_heads):
    query, key, value = (
        split_heads(x, num_heads) for x in (query, key, value)
    )
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return merge_heads(scores.softmax(2) @ value)


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("06-shapes", (4, 10, 12), "single head"),
        ("06-shapes", (32, 10, 12), "one axis"),
        ("06-shapes", (4, 10, 8, 12), "one place too late"),
        ("06-shapes", (4, 8, 12, 10), "swapped"),
        ("06-shapes", (4, 8, 10, 8), "width of a head"),
        ("06-shapes", (4, 8, 10, 10), "length of the query"),
        ("06-parameters", 4 * 512 * 513, "8 key heads"),
        ("06-parameters", 2 * 512**2 + 2 * 128 * 512, "bias"),
        ("06-parameters", 2 * 512**2 + 2 * 128 * 512 + 4 * 512, "128, not"),
        ("06-parameters", 3 * 512 * 513 + 128 * 513, "both shared"),
        ("06-parameters", 512 * 513 + 2 * 128 * 513, "is missing"),
        (
            "06-parameters",
            512 * 513 + 2 * 128 * 513 + 512 * 129,
            "one projection too many",
        ),
        ("06-heads", view_without_transpose, "mix positions"),
        ("06-heads", transpose_forgotten_in_merge, "merging is not"),
        ("06-heads", scaled_by(lambda d, h: d**-0.5), "root of num_heads"),
        ("06-heads", scaled_by(lambda d, h: 1.0), "lack the division"),
        ("06-heads", single_head, "full width"),
        ("06-heads", softmax_down_the_columns, "over the queries"),
        ("06-grouped", lambda k, h: torch.cat([k] * (h // k.shape[1]), 1),
         "10, 20, 10, 20"),
        ("06-grouped",
         lambda k, h: k.repeat_interleave(h // k.shape[1], -2),
         "positions"),
        ("06-prune",
         lambda q, k, v, o, n, h: tuple(
             torch.cat([m[: h * len(m) // n], m[(h + 1) * len(m) // n :]])
             for m in (q, k, v, o)
         ),
         "drop columns there"),
        ("06-prune",
         lambda q, k, v, o, n, h: (
             *(m.chunk(n)[h] for m in (q, k, v)), o.chunk(n, 1)[h]
         ),
         "keep the head"),
        ("06-prune",
         lambda q, k, v, o, n, h: (
             *(m[[i for i in range(len(m)) if i % n != h]]
               for m in (q, k, v)),
             o[:, [i for i in range(len(o)) if i % n != h]],
         ),
         "neighbouring"),
        ("06-same-context", [0.4, 0.3, 0.2, 0.1], "Go further"),
        ("06-same-context", [0.25] * 4, "cannot see"),
        ("06-same-context", [0.6, 0.5, 0.0, -0.1], "not negative"),
        ("06-same-context", [0.5, 0.4, 0.1], "four numbers"),
        ("06-same-context", [0.5, 0.4, 0.1, 0.1], "not to 1"),
        ("06-same-context", "many", "four numbers"),
    ],
)  # fmt: skip
def test_wrong_answers_are_told_what_is_wrong(name, answer, hint):
    verdict = status(name, answer)
    assert verdict.status == "wrong"
    assert hint in " ".join(verdict.text.split())
