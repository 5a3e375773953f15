"""The checker: what it says, and that it never raises at a learner."""

import importlib
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import verdicts
from verdicts import BLANK, RIGHT

from attention_lib.course.exercises import _core, check
from attention_lib.course.exercises._core import (
    Case,
    Exercise,
    Mistake,
    evaluate,
    register,
)


def double(numbers):
    return 2 * numbers


class Doubler(torch.nn.Module):
    def forward(self, numbers):
        return 2 * numbers


class Tripler(torch.nn.Module):
    def forward(self, numbers):
        return 3 * numbers


def is_positive(answer):
    return None if answer[0] > 0 else "It must be positive."


ONE = [Case(torch.tensor([1.0]))]
EXERCISES = [
    Exercise(
        "99-double",
        solution=double,
        cases=[
            Case(torch.tensor([1.0]), note="one number"),
            Case(torch.tensor([1.0, -3.0]), note="a negative number"),
        ],
        mistakes=[
            Mistake(lambda numbers: numbers**2, "You square it."),
            Mistake(lambda numbers: numbers.abs() * 2, "Mind the sign."),
        ],
        checked="both signs",
    ),
    Exercise(
        "99-pi",
        solution=math.pi,
        tolerance=5e-3,
        mistakes=[Mistake(2 * math.pi, "That is the full circle.")],
    ),
    Exercise("99-two", solution=lambda x: (x, 2 * x), cases=ONE),
    Exercise("99-open", judge=is_positive, checked="the sign"),
    Exercise("99-judged", judge=lambda answer: answer(1)),
    Exercise("99-noise", solution=torch.rand_like, cases=ONE),
    Exercise(
        "99-class",
        solution=Doubler,
        cases=ONE,
        call=lambda answer, numbers: answer()(numbers),
    ),
    Exercise("99-large", solution=double, cases=[Case(torch.zeros(30, 40))]),
    Exercise(
        "99-clip",
        solution=lambda x: x.clip(0, 1),
        cases=[Case(torch.tensor([-1.0])), Case(torch.tensor([2.0]))],
        mistakes=[
            Mistake(lambda x: x.abs(), "That is the absolute value."),
            Mistake(lambda x: x.clip(0), "There is an upper end, too."),
        ],
    ),
]


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """Add these exercises to those of the book, for one test."""
    _core.names()
    monkeypatch.setattr(_core, "_exercises", dict(_core._exercises))
    for exercise in EXERCISES:
        register(exercise)


def blank(numbers): ...


def unfinished(numbers):
    raise NotImplementedError


def in_place(numbers):
    numbers *= 2
    return numbers


def recursive(numbers):
    return recursive(numbers)


def exiting(numbers):
    raise SystemExit(3)


def broken(numbers):
    return numbers.nonsense  # here


ANSWERS = {
    "99-double": [
        (None, BLANK),
        ([..., ...], BLANK),
        ([None], BLANK),
        ("", BLANK),
        (blank, BLANK),
        (unfinished, BLANK),
        (lambda numbers: ..., BLANK),
        (lambda numbers: (None, None), BLANK),
        (lambda numbers: numbers + numbers, RIGHT),
        (lambda numbers: np.multiply(numbers, 2), RIGHT),
        (lambda numbers: torch.mul(numbers, 2), RIGHT),
        (lambda numbers: [2 * float(x) for x in numbers], RIGHT),
        (lambda ns: np.array([2 * x for x in ns.astype(float)]), RIGHT),
        (np.square, "You square it."),
        (lambda numbers: (numbers**2).tolist(), "You square it."),
        (lambda numbers: (2 * numbers)[None], "shape is (1, 1), not (1,)"),
        (lambda numbers: numbers * math.nan, "contains nan"),
        (lambda numbers: numbers * math.inf, "contains inf"),
        (lambda numbers: (2 * numbers).int(), "integer, not floating point"),
        (lambda numbers: 2 * numbers > 0, "boolean, not floating point"),
        (
            lambda numbers: torch.mul(numbers, 2).double(),
            "type is torch.float64, not torch.float32",
        ),
        (lambda numbers: "2", "it is of type str, not numbers"),
        (lambda numbers: object(), "it is of type object, not numbers"),
        (lambda numbers: [[1], [1, 2]], "not numbers"),
        (lambda numbers: 3 * numbers, "the numbers differ"),
        (in_place, "changes its argument numbers"),
        (lambda numbers: 1 / 0, "stops with ZeroDivisionError: division by"),
        (broken, "in the line: return numbers.nonsense # here"),
        (lambda: 3, "stops with TypeError"),
        (recursive, "stops with RecursionError"),
        (exiting, "stops with SystemExit: 3"),
        (torch.tensor([2.0]), 'check("99-double", my_function)'),
    ],
    "99-pi": [
        (None, BLANK),
        ([...], BLANK),
        ("", BLANK),
        (3.14, RIGHT),
        (torch.tensor(3.1416), RIGHT),
        (np.float32(3.1416), RIGHT),
        (np.array(3.14), RIGHT),
        (6.283, "That is the full circle."),
        (3.2, "differ"),
        ("pi", "not numbers"),
        ([3.14, 3.14], "shape"),
        (math.nan, "contains nan"),
        (3 + 0j, "not numbers"),
    ],
    "99-two": [
        (lambda x: [x, 2 * x], RIGHT),
        (lambda x: x, "1 result, not 2"),
        (lambda x: (x, x), "in result 2:"),
    ],
    "99-open": [
        ([1], "correct"),
        ([-1], "It must be positive."),
        (7, "TypeError"),
    ],
    "99-judged": [(unfinished, BLANK)],
    "99-class": [(Tripler, "the numbers differ")],
    # A mistake has to explain the earlier cases too.
    "99-clip": [(lambda x: x * (x > 0), "There is an upper end, too.")],
}
test_an_answer_gets_its_verdict = verdicts.verdicts(
    ANSWERS, {exercise.name: exercise for exercise in EXERCISES}
)


def test_each_exercise_of_the_book_has_a_right_answer_in_its_table():
    for path in Path(__file__).parent.glob("test_exercises_0*.py"):
        importlib.import_module(path.stem)
    ours = {exercise.name for exercise in EXERCISES}
    assert set(_core.names()) - ours <= verdicts.answered


def test_a_verdict_is_printed_whole(capsys):
    check("99-double", double)
    check("99-double", blank)
    check("99-double", lambda numbers: abs(numbers) * 2)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "99-double: correct. Checked: both signs."
    assert said[1] == "99-double: not attempted yet."
    assert said[2] == "99-double: not yet. Mind the sign."
    assert said[3] == "The smallest input that shows it (a negative number):"
    assert said[4].split() == ["numbers", "=", "[", "1.,", "-3.]"]
    assert said[5].split() == ["yours", "=", "[2.,", "6.]"]
    assert said[6].split() == ["right", "=", "[", "2.,", "-6.]"]


def test_the_solution_is_never_shown():
    for answer in (lambda numbers: 3 * numbers, lambda numbers: 1 / 0):
        assert "2 * numbers" not in evaluate("99-double", answer).text
    assert "3.14" not in evaluate("99-pi", 3.2).text


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("99-duoble", "99-double"),
        ("02-sofmax", "02-softmax"),
        *((name, "-") for name in ("", "99", "a.b", "77-x", 3, None)),
    ],
)
def test_an_unknown_name_lists_near_ones(name, near):
    verdict = evaluate(name, double)
    assert verdict.status == "unknown"
    assert near in verdict.text.split("Did you mean: ")[1]


def test_warnings_of_an_answer_stay_out_of_the_page():
    def warned(numbers):
        warnings.warn("look", stacklevel=1)
        np.log(np.array([-1.0]))
        return 2 * numbers

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert evaluate("99-double", warned).status == "correct"


def test_random_answers_get_the_same_numbers_and_disturb_no_one():
    drawn = []
    for checked in (True, False):
        torch.manual_seed(5)
        np.random.seed(5)  # noqa: NPY002
        if checked:
            verdict = evaluate("99-noise", torch.rand_like)
            assert verdict.status == "correct"
        drawn.append((torch.rand(1), np.random.rand()))  # noqa: NPY002
    assert drawn[0] == drawn[1]


def test_large_inputs_are_shown_by_their_shape():
    text = evaluate("99-large", lambda numbers: numbers + 1).text
    assert "numbers: numbers of shape (30, 40)" in text
    assert len(text) < 400
