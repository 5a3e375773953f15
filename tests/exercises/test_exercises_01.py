"""The checkers of chapter 1: solutions pass, mistakes are named."""

import numpy as np
import pytest
import torch

from attention_lib.course.exercises._core import evaluate


def verdict(name, answer):
    return evaluate(name, answer)


def last_states_by_loop(states, lengths):
    return torch.stack(
        [s[int(n) - 1] for s, n in zip(states, lengths, strict=True)]
    )


def shift_in_numpy(target):
    begin = np.ones((len(target), 1), dtype=target.dtype)
    return np.concatenate([begin, target[:, :-1]], axis=1)


def tile_by_loop(memory, beam_size):
    return torch.stack([row for row in memory for _ in range(beam_size)])


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("01-translate", "三位喜欢狗的安静的老师画一朵花"),
        ("01-translate", " 三位喜欢狗的安静的老师画一朵花\n"),
        ("01-scores", [0.333, 0.5]),
        ("01-scores", (1 / 3, 0.5)),
        ("01-last-state", last_states_by_loop),
        (
            "01-last-state",
            lambda s, n: s[np.arange(len(s)), np.asarray(n) - 1],
        ),
        ("01-shift", shift_in_numpy),
        ("01-tile", tile_by_loop),
        ("01-leak", (0.01, 0.0)),
        ("01-leak", [torch.tensor(0.02), 0]),
    ],
)
def test_right_answers_pass_however_they_are_written(name, answer):
    assert verdict(name, answer).status == "correct"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("01-translate", ""),
        ("01-scores", [..., ...]),
        ("01-last-state", lambda states, lengths: None),
        ("01-shift", lambda target: None),
        ("01-tile", lambda memory, beam_size: None),
        ("01-leak", (..., ...)),
    ],
)
def test_stubs_are_not_attempted(name, answer):
    assert verdict(name, answer).status == "not attempted"


def clipped(target):
    return torch.cat([torch.ones(len(target), 1).long(), target], 1)


def ones_first(target):
    result = target.clone()
    result[:, 0] = 1
    return result


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("01-translate", "三位安静的喜欢狗的老师画一朵花", "order"),
        ("01-translate", "三个喜欢狗的安静的老师画一个花", "measure word"),
        ("01-translate", "三位喜欢狗的安静的老师画花", "a is 一"),
        ("01-translate", "三位喜欢狗安静老师画一朵花", "的"),
        ("01-translate", "老师", "text differs"),
        ("01-scores", [1 / 3, 0.4545], "end marks"),
        ("01-scores", [1 / 3, 0.583], "averaged"),
        ("01-scores", [0.33, 0.786], "anywhere"),
        ("01-scores", [0.5, 0.33], "first"),
        ("01-last-state", lambda s, n: s[:, s.shape[1] - 1], "padding"),
        (
            "01-last-state",
            lambda s, n: s[torch.arange(len(s)), n - 1].squeeze(),
            "squeeze",
        ),
        ("01-last-state", lambda s, n: s.sum(1) / s.shape[1], "mean"),
        (
            "01-last-state",
            lambda s, n: torch.stack(
                [r[min(int(k), len(r) - 1)] for r, k in zip(s, n, strict=True)]
            ),
            "too far",
        ),
        ("01-last-state", lambda s, n: s.transpose(0, 1)[n - 1], "row"),
        ("01-shift", lambda target: target + 0, "very word"),
        ("01-shift", clipped, "too long"),
        ("01-shift", lambda t: torch.roll(t, 1, 1), "roll"),
        ("01-shift", ones_first, "replaced"),
        (
            "01-shift",
            lambda t: torch.nn.functional.pad(t, (0, 1))[:, 1:],
            "left",
        ),
        ("01-tile", lambda m, k: torch.cat([m] * k), "0, 1, 0, 1"),
        ("01-tile", lambda m, k: torch.stack([m] * k, 1), "axis of their"),
        ("01-tile", lambda m, k: m.repeat_interleave(k, 1), "sentences"),
        ("01-leak", (2.3, 0.0), "honest model"),
        ("01-leak", (0.01, 0.9), "evaluate"),
        ("01-leak", 3, "two numbers"),
    ],
)
def test_a_known_mistake_is_named(name, answer, hint):
    outcome = verdict(name, answer)
    assert outcome.status == "wrong"
    assert hint in outcome.text


def test_changing_the_argument_is_noticed():
    def in_place(target):
        target[:, 1:] = target[:, :-1].clone()
        target[:, 0] = 1
        return target

    outcome = verdict("01-shift", in_place)
    assert outcome.status == "wrong"
    assert "changes its argument" in outcome.text
