"""The checker: what it says, and that it never raises at a learner."""

import math
import warnings

import numpy as np
import pytest
import torch

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


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """Let each test register exercises of its own."""
    _core.names()
    monkeypatch.setattr(_core, "_exercises", dict(_core._exercises))
    register(
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
        )
    )
    register(
        Exercise(
            "99-pi",
            solution=math.pi,
            tolerance=5e-3,
            mistakes=[Mistake(2 * math.pi, "That is the full circle.")],
        )
    )


def said(capsys, name, answer):
    check(name, answer)
    return capsys.readouterr().out


# --- verdicts ----------------------------------------------------------------


def blank(numbers): ...


def passing(numbers):
    pass


def unfinished(numbers):
    raise NotImplementedError


@pytest.mark.parametrize(
    "answer",
    [
        None,
        ...,
        [..., ...],
        [None],
        "",
        blank,
        passing,
        unfinished,
        lambda numbers: ...,
        lambda numbers: (None, None),
    ],
)
@pytest.mark.parametrize("name", ["99-double", "99-pi"])
def test_a_stub_is_not_attempted_yet(name, answer, capsys):
    if callable(answer) and name == "99-pi":
        return
    assert said(capsys, name, answer) == f"{name}: not attempted yet.\n"


@pytest.mark.parametrize(
    "answer",
    [
        double,
        lambda numbers: numbers + numbers,
        lambda numbers: np.multiply(numbers, 2),
        lambda numbers: torch.mul(numbers, 2),
        lambda numbers: [2 * float(x) for x in numbers],
        lambda numbers: np.array([2 * x for x in numbers.astype(float)]),
    ],
)
def test_a_right_function_is_correct_in_numpy_and_in_torch(answer, capsys):
    assert said(capsys, "99-double", answer) == (
        "99-double: correct. Checked: both signs.\n"
    )


@pytest.mark.parametrize(
    "value",
    [3.14, math.pi, torch.tensor(3.1416), np.float32(3.1416), np.array(3.14)],
)
def test_a_right_value_is_correct_to_its_tolerance(value):
    assert evaluate("99-pi", value).status == "correct"


@pytest.mark.parametrize("value", [3.2, "pi", [3.14, 3.14], math.nan, 3 + 0j])
def test_a_wrong_value_is_wrong_and_the_right_one_stays_hidden(value):
    verdict = evaluate("99-pi", value)
    assert verdict.status == "wrong"
    assert "3.14" not in verdict.text.replace(repr(value), "")


def test_a_known_mistake_is_named_with_the_smallest_input_that_shows_it():
    verdict = evaluate("99-double", lambda numbers: abs(numbers) * 2)
    assert verdict.status == "wrong"
    lines = verdict.text.splitlines()
    assert lines[0] == "99-double: not yet. Mind the sign."
    assert lines[1] == "The smallest input that shows it (a negative number):"
    assert lines[2].split() == ["numbers", "=", "[", "1.,", "-3.]"]
    assert lines[3].split() == ["yours", "=", "[2.,", "6.]"]
    assert lines[4].split() == ["right", "=", "[", "2.,", "-6.]"]
    assert "You square it." in evaluate("99-double", np.square).text
    assert evaluate("99-pi", 6.283).text.endswith("That is the full circle.")


def test_a_mistake_is_known_in_any_type():
    square = evaluate("99-double", lambda numbers: (numbers**2).tolist())
    assert "You square it." in square.text


def test_the_solution_is_never_shown():
    for answer in (lambda numbers: 3 * numbers, lambda numbers: 1 / 0):
        text = evaluate("99-double", answer).text
        assert "2 * numbers" not in text


# --- what can be wrong with a result -----------------------------------------


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda numbers: (2 * numbers)[None], r"shape is (1, 1), not (1,)"),
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
    ],
)
def test_the_verdict_says_what_is_wrong_with_a_result(answer, words):
    verdict = evaluate("99-double", answer)
    assert verdict.status == "wrong"
    assert words in verdict.text


def test_the_number_of_results_counts():
    register(
        Exercise(
            "99-two",
            solution=lambda x: (x, 2 * x),
            cases=[Case(torch.tensor([1.0]))],
        )
    )
    assert evaluate("99-two", lambda x: [x, 2 * x]).status == "correct"
    assert "1 result, not 2" in evaluate("99-two", lambda x: x).text
    assert "in result 2:" in evaluate("99-two", lambda x: (x, x)).text


def test_writing_into_the_input_is_noticed():
    def in_place(numbers):
        numbers *= 2
        return numbers

    verdict = evaluate("99-double", in_place)
    assert verdict.status == "wrong"
    assert "changes its argument numbers" in verdict.text
    assert evaluate("99-double", double).status == "correct"


# --- nothing raises ----------------------------------------------------------


def recursive(numbers):
    return recursive(numbers)


def exiting(numbers):
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda numbers: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda numbers: numbers.nonsense, "AttributeError"),
        (lambda: 3, "TypeError"),
        (recursive, "RecursionError"),
        (exiting, "SystemExit: 3"),
    ],
)
def test_an_error_in_the_answer_becomes_part_of_the_verdict(answer, words):
    verdict = evaluate("99-double", answer)
    assert verdict.status == "wrong"
    assert "Your function stops with" in verdict.text
    assert words in verdict.text


def test_the_line_that_failed_is_quoted():
    def broken(numbers):
        return numbers.nonsense  # here

    text = evaluate("99-double", broken).text
    assert "in the line: return numbers.nonsense  # here" in text


def test_a_result_in_place_of_the_function_is_explained():
    text = evaluate("99-double", torch.tensor([2.0])).text
    assert 'check("99-double", my_function)' in text


@pytest.mark.parametrize(
    "name", ["99-duoble", "02-sofmax", "", "99", "a.b", "77-x", 3, None]
)
def test_an_unknown_name_lists_near_ones(name):
    verdict = evaluate(name, double)
    assert verdict.status == "unknown"
    assert "Did you mean: " in verdict.text
    if name == "99-duoble":
        assert "99-double" in verdict.text
    if name == "02-sofmax":
        assert "02-softmax" in verdict.text


def test_a_stub_is_not_attempted_under_a_judge_either():
    def stub(x):
        raise NotImplementedError

    register(Exercise("99-stub", judge=lambda answer: answer(1)))
    assert _core.evaluate("99-stub", stub).status == "not attempted"


def test_a_judge_may_say_anything_and_may_fail():
    def judge(answer):
        return None if answer[0] > 0 else "It must be positive."

    register(Exercise("99-open", judge=judge, checked="the sign"))
    assert evaluate("99-open", [1]).text == (
        "99-open: correct. Checked: the sign."
    )
    assert "It must be positive." in evaluate("99-open", [-1]).text
    assert "TypeError" in evaluate("99-open", 7).text


# --- leaving the session as it was -------------------------------------------


def test_warnings_of_an_answer_stay_out_of_the_page():
    def warned(numbers):
        warnings.warn("look", stacklevel=1)
        np.log(np.array([-1.0]))
        return 2 * numbers

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert evaluate("99-double", warned).status == "correct"


def test_random_answers_get_the_same_numbers_and_disturb_no_one():
    register(
        Exercise(
            "99-noise", solution=torch.rand_like, cases=[Case(torch.zeros(3))]
        )
    )
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    assert evaluate("99-noise", torch.rand_like).status == "correct"
    drawn = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    assert drawn == (torch.rand(1), np.random.rand())  # noqa: NPY002


def test_classes_can_be_asked_for():
    class Doubler(torch.nn.Module):
        def forward(self, numbers):
            return 2 * numbers

    class Tripler(Doubler):
        def forward(self, numbers):
            return 3 * numbers

    register(
        Exercise(
            "99-class",
            solution=Doubler,
            cases=[Case(torch.ones(2))],
            call=lambda answer, numbers: answer()(numbers),
        )
    )
    assert evaluate("99-class", Doubler).status == "correct"
    assert evaluate("99-class", Tripler).status == "wrong"


def test_large_inputs_are_shown_by_their_shape():
    register(
        Exercise(
            "99-large", solution=double, cases=[Case(torch.zeros(30, 40))]
        )
    )
    text = evaluate("99-large", lambda numbers: numbers + 1).text
    assert "numbers: numbers of shape (30, 40)" in text
    assert len(text) < 400


def test_a_mistake_must_explain_the_earlier_cases_too():
    register(
        Exercise(
            "99-clip",
            solution=lambda x: x.clip(0, 1),
            cases=[Case(torch.tensor([-1.0])), Case(torch.tensor([2.0]))],
            mistakes=[
                Mistake(lambda x: x.abs(), "That is the absolute value."),
                Mistake(lambda x: x.clip(0), "There is an upper end, too."),
            ],
        )
    )
    text = evaluate("99-clip", lambda x: x * (x > 0)).text
    assert "There is an upper end, too." in text
