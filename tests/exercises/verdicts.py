"""One test for all answers of a chapter: each gets its verdict."""

import pytest

from attention_lib.course.exercises import _core

RIGHT, BLANK = "correct", "not attempted"
answered = set()  # the exercises of all tables


def verdicts(answers, exercises=None):
    """Return the test of a table: exercises, each with answers and verdicts.

    A verdict is ``RIGHT``, ``BLANK`` or words of the hint. Each exercise, of
    the book if no others are given, adds a stub, its own solution, and what
    it knows to be wrong, with the hint.
    """
    rows = []
    _core.names()  # registers those of the book
    for name, given in answers.items():
        exercise = (exercises or _core._exercises)[name]
        if RIGHT in [words for _, words in given]:
            answered.add(name)
        given = [*given, (..., BLANK)]
        given += [(known.answer, known.hint) for known in exercise.mistakes]
        if exercise.solution is not None:
            given.append((exercise.solution, RIGHT))
        if callable(exercise.solution) and exercise.call is None:
            given.append((lambda *_: None, BLANK))
        rows += [(name, *row) for row in given]

    @pytest.mark.parametrize(("name", "answer", "words"), rows)
    def test_an_answer_gets_its_verdict(name, answer, words):
        verdict = _core.evaluate(name, answer)
        status = words if words in (RIGHT, BLANK) else "wrong"
        assert verdict.status == status, verdict.text
        assert words in " ".join(verdict.text.split()), verdict.text

    return test_an_answer_gets_its_verdict
