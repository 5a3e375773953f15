"""How an answer is checked: cases, known mistakes and a friendly verdict.

A chapter's module (``chapter_02.py``) calls :func:`register` once for each
of its exercises; :func:`check` finds the module by the name's first part.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import textwrap
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

import attention_lib.course.exercises

__all__ = [
    "Case",
    "Exercise",
    "Mistake",
    "Verdict",
    "check",
    "evaluate",
    "names",
    "register",
]

Status = Literal["correct", "wrong", "not attempted", "unknown"]


class Case:
    """One set of arguments, given as one would call the function.

    Args:
        *args: Positional arguments.
        note: What this case shows, in a few words ("a row of large
            scores"); part of the verdict when the case fails.
        **kwargs: Keyword arguments.
    """

    def __init__(self, *args: Any, note: str = "", **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs
        self.note = note


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that learners are known to give.

    Args:
        answer: The wrong function, or the wrong value.
        hint: What went wrong and where to look, without the solution.
    """

    answer: Any
    hint: str


@dataclass(frozen=True)
class Exercise:
    """Everything that is needed to judge an answer.

    Args:
        name: ``"NN-kebab-name"`` with the chapter's number.
        solution: A function, or the value that is asked for.
        cases: Arguments to try a function on, smallest first.
        mistakes: Known wrong answers, the likeliest first.
        checked: What a correct answer has been checked for.
        tolerance: Largest difference that counts as equal, relative to
            numbers above 1 and absolute below.
        call: How a case is applied: ``call(answer, *args, **kwargs)``.
            By default the answer is called; an exercise that asks for a
            class or for gradients can say more here.
        judge: For questions with many right answers: takes the answer and
            returns ``None`` if it is right and a hint otherwise.
    """

    name: str
    solution: Any = None
    cases: tuple[Case, ...] | list[Case] = ()
    mistakes: tuple[Mistake, ...] | list[Mistake] = ()
    checked: str = ""
    tolerance: float = 1e-4
    call: Callable[..., Any] | None = None
    judge: Callable[[Any], str | None] | None = None


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check and the text that is printed."""

    status: Status
    text: str


_exercises: dict[str, Exercise] = {}


def register(exercise: Exercise) -> None:
    """Make an exercise known to :func:`check`."""
    _exercises[exercise.name] = exercise


def names() -> list[str]:
    """Return the names of all exercises of the book, in order."""
    for module in pkgutil.iter_modules(
        attention_lib.course.exercises.__path__
    ):
        if module.name.startswith("chapter_"):
            importlib.import_module(f"{__package__}.{module.name}")
    return sorted(_exercises)


def check(name: object, answer: Any = None) -> None:
    """Print whether ``answer`` solves the exercise ``name``.

    Never raises: whatever goes wrong in the answer becomes part of the
    verdict.

    Args:
        name: The exercise's name, such as ``"02-softmax"``.
        answer: The function or the value that the exercise asks for; NumPy
            and torch are both welcome.

    Example:
        >>> check("02-softmax", lambda scores: None)
        02-softmax: not attempted yet.
    """
    for line in evaluate(name, answer).text.splitlines():
        print(textwrap.fill(line, 79, subsequent_indent="  "))


def evaluate(name: object, answer: Any) -> Verdict:
    """Return what :func:`check` prints, as a :class:`Verdict`."""
    exercise = _find(name)
    if exercise is None:
        return _unknown(name)
    if _is_blank(answer):
        return Verdict("not attempted", f"{name}: not attempted yet.")
    if exercise.judge is not None:
        return _judge_open(exercise, answer)
    if not callable(exercise.solution):
        return _judge_value(exercise, answer)
    if not callable(answer):
        return Verdict(
            "wrong",
            f"{name}: this exercise asks for a function. Pass the function "
            f'itself, check("{name}", my_function), not its result.',
        )
    # The answer may be written for torch or for NumPy, so it gets a try
    # with each; what is not an error message tells the learner more.
    frameworks = [_to_torch, _to_numpy]
    if _speaks_numpy(answer):
        frameworks.reverse()
    verdicts = []
    for convert in frameworks:
        rank, verdict = _judge_function(exercise, answer, convert)
        if verdict.status == "correct":
            return verdict
        verdicts.append((rank, verdict))
    return min(verdicts, key=lambda pair: pair[0])[1]


# --- finding ---------------------------------------------------------------


def _find(name: object) -> Exercise | None:
    """Return the exercise, importing its chapter's module if need be."""
    number = str(name)[:2]
    module = f"{__package__}.chapter_{number}"
    if number.isdigit() and importlib.util.find_spec(module):
        importlib.import_module(module)
    return _exercises.get(str(name))


def _unknown(name: object) -> Verdict:
    """Answer a misspelt name with the names that are near."""
    known = names()
    near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.4)
    near = near or [other for other in known if other[:2] == str(name)[:2]]
    listed = ", ".join(near or known)
    return Verdict(
        "unknown", f"There is no exercise {name!r}. Did you mean: {listed}?"
    )


# --- running ---------------------------------------------------------------


@dataclass(frozen=True)
class _Outcome:
    """What a call gave: a result, or an error put into words."""

    result: Any
    error: str = ""
    changed: str = ""
    stub: bool = False


def _run(exercise: Exercise, answer: Any, case: Case) -> _Outcome:
    """Apply an answer to a case, with fixed seeds and without warnings."""
    args, kwargs = copy.deepcopy((case.args, case.kwargs))
    call = exercise.call or (lambda f, *a, **k: f(*a, **k))
    state = np.random.get_state()  # noqa: NPY002  (learners may use it)
    try:
        with (
            warnings.catch_warnings(),
            np.errstate(all="ignore"),
            torch.random.fork_rng(devices=[]),
        ):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            np.random.seed(0)  # noqa: NPY002
            result = call(answer, *args, **kwargs)
    except NotImplementedError:
        return _Outcome(None, stub=True)
    except (Exception, SystemExit) as error:
        return _Outcome(None, error=_describe_error(error))
    finally:
        np.random.set_state(state)  # noqa: NPY002
    before = [*case.args, *case.kwargs.values()]
    after = [*args, *kwargs.values()]
    for label, old, new in zip(
        _labels(exercise, case), before, after, strict=True
    ):
        if _was_changed(old, new):
            return _Outcome(result, changed=label)
    return _Outcome(result)


def _describe_error(error: BaseException) -> str:
    """Say which error was raised, and in which line of the answer."""
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    lines = [
        frame.line
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.line and frame.filename != __file__
    ]
    own = [line for line in lines if line][:1]
    return text + (f"\n  in the line: {own[0]}" if own else "")


def _is_blank(answer: Any) -> bool:
    """Tell a stub's result from an answer."""
    if answer is None or answer is Ellipsis:
        return True
    if isinstance(answer, tuple | list):
        return len(answer) > 0 and all(_is_blank(part) for part in answer)
    return isinstance(answer, str) and not answer.strip()


def _speaks_numpy(answer: Any) -> bool:
    """Guess from the names a function uses which framework it is for."""
    used = getattr(getattr(answer, "__code__", None), "co_names", ())
    return bool({"np", "numpy"} & set(used)) and "torch" not in used


def _to_torch(value: Any) -> Any:
    """Turn arrays into tensors, inside containers too."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    return _map(_to_torch, value)


def _to_numpy(value: Any) -> Any:
    """Turn tensors into arrays, inside containers too."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        half = value.dtype == torch.bfloat16
        return (value.float() if half else value).numpy().copy()
    return _map(_to_numpy, value)


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    """Apply a change to the members of a tuple, list or dict."""
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return type(value)(change(member) for member in value)
    if type(value) is dict:
        return {name: change(member) for name, member in value.items()}
    return value


# --- comparing -------------------------------------------------------------


def _is_array(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray | np.generic)


def _as_array(value: Any) -> NDArray[Any] | None:
    """Return real numbers as an array, and None for anything else."""
    try:
        array = np.asarray(_to_numpy(value))
    except (ValueError, TypeError, RuntimeError):
        return None
    return array if array.dtype.kind in "biuf" else None


def _kind(array: NDArray[Any]) -> str:
    kinds = {"b": "boolean", "i": "integer", "u": "integer"}
    return kinds.get(array.dtype.kind, "floating point")


def _difference(got: Any, expected: Any, tolerance: float) -> str:
    """Say how two results differ; empty if they do not."""
    if isinstance(expected, tuple | list) and not _all_numbers(expected):
        if not isinstance(got, tuple | list) or len(got) != len(expected):
            count = len(got) if isinstance(got, tuple | list) else 1
            return (
                f"it returns {count} result{'s' * (count != 1)}, not "
                f"{len(expected)}"
            )
        for number, pair in enumerate(zip(got, expected, strict=True), 1):
            told = _difference(*pair, tolerance)
            if told:
                return f"in result {number}: {told}"
        return ""
    if isinstance(expected, dict):
        if not isinstance(got, dict) or set(got) != set(expected):
            return f"it must be a dict with the keys {sorted(expected)}"
        for name in expected:
            told = _difference(got[name], expected[name], tolerance)
            if told:
                return f"at {name!r}: {told}"
        return ""
    if isinstance(expected, str):
        same = isinstance(got, str) and got.strip() == expected
        return "" if same else "the text differs"
    if not (_is_array(expected) or _is_number(expected, lists=True)):
        same = type(got) is type(expected) and bool(got == expected)
        return "" if same else "the value differs"
    return _difference_of_arrays(got, expected, tolerance)


def _all_numbers(values: tuple[Any, ...] | list[Any]) -> bool:
    return len(values) > 0 and all(_is_number(v, lists=True) for v in values)


def _is_number(value: Any, *, lists: bool = False) -> bool:
    if lists and isinstance(value, tuple | list):
        return _all_numbers(value)
    return isinstance(value, bool | int | float | np.generic)


def _difference_of_arrays(got: Any, expected: Any, tolerance: float) -> str:
    """Compare shape, kind and every number."""
    mine, right = _as_array(got), _as_array(expected)
    if mine is None or right is None:
        return f"it is of type {type(got).__name__}, not numbers"
    if mine.shape != right.shape:
        return f"its shape is {mine.shape}, not {right.shape}"
    numbers = _is_array(expected) and _is_array(got)
    if numbers and _kind(mine) != _kind(right):
        return f"its numbers are {_kind(mine)}, not {_kind(right)}"
    both = isinstance(got, torch.Tensor) and isinstance(expected, torch.Tensor)
    if both and got.dtype != expected.dtype:
        return f"its type is {got.dtype}, not {expected.dtype}"
    mine, right = mine.astype(np.float64), right.astype(np.float64)
    bad = ~np.isfinite(mine) & np.isfinite(right)
    if bad.any():
        return f"it contains {mine[bad].flat[0]}"
    with np.errstate(invalid="ignore"):
        slack = tolerance * np.maximum(1.0, np.abs(right))
        close = np.abs(mine - right) <= slack
    close |= (mine == right) | (np.isnan(mine) & np.isnan(right))
    return "" if close.all() else "the numbers differ"


def _was_changed(old: Any, new: Any) -> bool:
    """Tell whether an array, or one in a container, was written to."""
    if _is_array(old):
        return bool(_difference_of_arrays(new, old, 0.0))
    if isinstance(old, tuple | list):
        pairs = zip(old, new, strict=False)
        return len(old) != len(new) or any(_was_changed(*p) for p in pairs)
    if isinstance(old, dict):
        return old.keys() != new.keys() or any(
            _was_changed(old[name], new[name]) for name in old
        )
    return False


# --- judging ---------------------------------------------------------------


def _judge_function(
    exercise: Exercise, answer: Any, convert: Callable[[Any], Any]
) -> tuple[int, Verdict]:
    """Run a function over the cases; the rank sorts verdicts, best first."""
    name = exercise.name
    results = []
    for case in exercise.cases:
        case = _converted(case, convert)
        outcome = _run(exercise, answer, case)
        shown = _show_case(exercise, case)
        if outcome.error:
            return 3, Verdict(
                "wrong",
                f"{name}: not yet. Your function stops with "
                f"{outcome.error}\n{shown}",
            )
        if _is_blank(outcome.result):
            return 1, Verdict("not attempted", f"{name}: not attempted yet.")
        # The solution sees tensors; results are compared as numbers.
        expected = _expected(exercise, case, convert)
        results.append((case, outcome.result))
        told = _difference(outcome.result, expected, exercise.tolerance)
        if not told and not outcome.changed:
            continue
        hint = ""
        if told:
            hint = _known_mistake(exercise, results, expected)
        if not hint and outcome.changed:
            hint = (
                f"Your function changes its argument {outcome.changed}: "
                "whoever called it finds other numbers there afterwards. "
                "Work on a new array."
            )
        lines = [f"{name}: not yet. {hint or f'On this input {told}.'}", shown]
        if _differ_in_numbers(exercise, outcome.result, expected):
            lines.append(_show("yours", outcome.result))
            lines.append(_show("right", expected))
        return 2, Verdict("wrong", "\n".join(lines))
    return 0, _correct(exercise)


def _judge_value(exercise: Exercise, answer: Any) -> Verdict:
    """Compare a value with the right one, without showing that."""
    told = _difference(answer, exercise.solution, exercise.tolerance)
    if not told:
        return _correct(exercise)
    for mistake in exercise.mistakes:
        if not _difference(answer, mistake.answer, exercise.tolerance):
            told = mistake.hint
            break
    else:
        told = told[0].upper() + told[1:] + "."
    return Verdict("wrong", f"{exercise.name}: not yet. {told}")


def _judge_open(exercise: Exercise, answer: Any) -> Verdict:
    """Ask the exercise's own judge."""
    assert exercise.judge is not None
    outcome = _run(Exercise(exercise.name), exercise.judge, Case(answer))
    if outcome.stub:
        return Verdict("not attempted", f"{exercise.name}: not attempted yet.")
    if outcome.error:
        told = f"Trying your answer gives {outcome.error}"
    elif outcome.result is None:
        return _correct(exercise)
    else:
        told = str(outcome.result)
    return Verdict("wrong", f"{exercise.name}: not yet. {told}")


def _correct(exercise: Exercise) -> Verdict:
    checked = f" Checked: {exercise.checked}." if exercise.checked else ""
    return Verdict("correct", f"{exercise.name}: correct.{checked}")


def _converted(case: Case, convert: Callable[[Any], Any]) -> Case:
    kwargs = {name: convert(value) for name, value in case.kwargs.items()}
    return Case(*map(convert, case.args), note=case.note, **kwargs)


def _expected(
    exercise: Exercise, case: Case, convert: Callable[[Any], Any]
) -> Any:
    """Return the solution's result in the framework of the answer."""
    outcome = _run(exercise, exercise.solution, _converted(case, _to_torch))
    if outcome.error:
        raise AssertionError(f"solution of {exercise.name}: {outcome.error}")
    return convert(outcome.result)


def _known_mistake(
    exercise: Exercise, results: list[tuple[Case, Any]], expected: Any
) -> str:
    """Return the hint of the mistake that gives the same results.

    The last result is wrong. A mistake that gives those before it as well
    is preferred to one that agrees on the last alone.
    """
    *earlier, last = results
    if not _differ_in_numbers(exercise, last[1], expected):
        return ""
    likely = [m for m in exercise.mistakes if _gives(exercise, m, *last)]
    for mistake in likely:
        if all(_gives(exercise, mistake, *result) for result in earlier):
            return mistake.hint
    return likely[0].hint if likely else ""


def _gives(
    exercise: Exercise, mistake: Mistake, case: Case, result: Any
) -> bool:
    """Tell whether a mistake leads to this result."""
    outcome = _run(exercise, mistake.answer, _converted(case, _to_torch))
    if outcome.error or _is_blank(outcome.result):
        return False
    return not _differ_in_numbers(exercise, result, outcome.result)


def _differ_in_numbers(exercise: Exercise, got: Any, expected: Any) -> bool:
    """Compare in NumPy, where a tensor equals an array of its numbers."""
    told = _difference(_to_numpy(got), _to_numpy(expected), exercise.tolerance)
    return bool(told)


# --- printing --------------------------------------------------------------


def _labels(exercise: Exercise, case: Case) -> list[str]:
    """Name the arguments as the solution does."""
    positional: list[str] = []
    if callable(exercise.solution):
        try:
            parameters = inspect.signature(exercise.solution).parameters
            positional = list(parameters)
        except (TypeError, ValueError):
            pass
    count = len(case.args)
    numbered = [f"argument {n}" for n in range(1, count + 1)]
    labels = [*positional, *numbered[len(positional) :]]
    return [*labels[:count], *case.kwargs]


def _show_case(exercise: Exercise, case: Case) -> str:
    note = f" ({case.note})" if case.note else ""
    values = [*case.args, *case.kwargs.values()]
    lines = [f"The smallest input that shows it{note}:"]
    lines += [
        _show(label, value)
        for label, value in zip(_labels(exercise, case), values, strict=True)
    ]
    return "\n".join(lines)


def _show(label: str, value: Any) -> str:
    """Print small arrays whole and large ones by their shape."""
    array = _as_array(value)
    if array is not None:
        if array.size > 24:
            return f"  {label}: numbers of shape {array.shape}"
        text = np.array2string(
            array,
            precision=4,
            suppress_small=True,
            separator=", ",
            max_line_width=70,
            prefix=f"  {label} = ",
        )
        return f"  {label} = {text}"
    if isinstance(value, tuple | list):
        parts = [_show(f"{label}[{i}]", part) for i, part in enumerate(value)]
        return "\n".join(parts)
    if isinstance(value, dict):
        return "\n".join(
            _show(f"{label}[{name!r}]", part) for name, part in value.items()
        )
    if callable(value):
        return f"  {label} = {getattr(value, '__name__', 'a function')}"
    return f"  {label} = {value!r}"
