"""Answers to the exercises of chapter 1, and what they are told."""

import numpy as np
import torch
from verdicts import RIGHT, verdicts


def in_place(target):
    target[:, 1:] = target[:, :-1].clone()
    target[:, 0] = 1
    return target


def shift_in_numpy(target):
    begin = np.ones((len(target), 1), dtype=target.dtype)
    return np.concatenate([begin, target[:, :-1]], axis=1)


def begin_first(target):
    return torch.cat([torch.ones(len(target), 1).long(), target], 1)


def last(row, length):
    return row[min(int(length), len(row) - 1)]


def by_row(choose):
    return lambda s, n: torch.stack(list(map(choose, s, n)))


test_an_answer_gets_its_verdict = verdicts(
    {
        "01-translate": [
            (" 三位喜欢狗的安静的老师画一朵花\n", RIGHT),
            ("老师", "text differs"),
        ],
        "01-scores": [
            ([0.333, 0.5], RIGHT),
            ((1 / 3, 0.5), RIGHT),
            ([1 / 3, 0.4545], "end marks"),
            ([0.33, 0.786], "anywhere"),
        ],
        "01-last-state": [
            (by_row(lambda row, length: row[int(length) - 1]), RIGHT),
            (lambda s, n: s[np.arange(len(s)), np.asarray(n) - 1], RIGHT),
            (lambda s, n: s[:, s.shape[1] - 1], "after the padding"),
            (lambda s, n: s.sum(1) / s.shape[1], "mean"),
            (by_row(last), "too far"),
            (lambda s, n: s.transpose(0, 1)[n - 1], "row"),
        ],
        "01-shift": [
            (shift_in_numpy, RIGHT),
            (in_place, "changes its argument"),
            (lambda t: t + 0, "very word"),
            (begin_first, "too long"),
            (lambda t: torch.roll(t, 1, 1), "roll"),
            (lambda t: torch.nn.functional.pad(t, (0, 1))[:, 1:], "left"),
        ],
        "01-tile": [
            (
                lambda m, k: torch.stack([r for r in m for _ in range(k)]),
                RIGHT,
            ),
            (lambda m, k: torch.cat([m] * k), "0, 1, 0, 1"),
            (lambda m, k: torch.stack([m] * k, 1), "axis of their"),
        ],
        "01-leak": [
            ((0.01, 0.0), RIGHT),
            ([torch.tensor(0.02), 0], RIGHT),
            ((2.3, 0.0), "honest model"),
            ((0.01, 0.9), "evaluate"),
            (3, "two numbers"),
        ],
    }
)
