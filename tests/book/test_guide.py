"""What is counted for readers: the exercises, and how long things take."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest
from loading import load

from attention_lib.course.exercises._core import names

ROOT = Path(__file__).resolve().parents[2]


GUIDE = load("guide")
CHAPTERS = GUIDE.chapter_names()
TIMES = json.loads((ROOT / "chapters" / "times.json").read_text("utf-8"))


def cells(name):
    path = ROOT / "chapters" / f"{name}.ipynb"
    return nbformat.read(path, as_version=4).cells


def test_pages_and_cards_say_what_is_counted():
    stale = [
        path.name
        for path, text in GUIDE.fresh().items()
        if path.read_text("utf-8") != text
    ]
    assert stale == [], "run: make export"


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_has_five_exercises_of_all_four_kinds(name):
    found = GUIDE.exercises(name)
    text = "\n".join(cell.source for cell in cells(name))
    assert len(found) == text.count("{exercise}"), "one is not read"
    assert len(found) >= 5
    assert {each.kind for each in found} == set(GUIDE.KINDS)
    assert len({each.difficulty for each in found}) >= 2
    for each in found:
        assert each.difficulty in GUIDE.DIFFICULTIES, each.label
        assert 1 <= each.minutes <= 60, each.label
        assert each.hint, f"{each.label} has no hint"
        assert each.solution.strip(), f"{each.label} has no folded solution"


def parts(name):
    """The code of each exercise, by its label: the task's, the solution's."""
    found = {}
    place = []
    for cell in cells(name):
        if cell.cell_type == "code":
            place.append(cell)
            continue
        for mark, label in re.findall(
            r"(:label:|\{solution-start\}) (ex-\S+)", cell.source
        ):
            found.setdefault(label, ([], []))
            place = found[label][mark != ":label:"]
        if "{solution-end}" in cell.source.split("{exercise}")[-1]:
            place = []
    return found


def checked(some):
    return [
        name
        for cell in some
        for name in re.findall(r"^check\(\s*\"([^\"]+)\"", cell.source, re.M)
    ]


@pytest.mark.parametrize("name", CHAPTERS)
def test_an_answer_is_checked_and_the_solution_passes(name):
    known = {known for known in names() if known[:2] == name[:2]}
    found = parts(name)
    for each in GUIDE.exercises(name):
        task, solution = found[each.label]
        if not checked(task):
            assert each.kind == "Predict", f"{each.label} has no checker"
            continue
        (checker,) = set(checked(task))
        assert checker in known
        assert set(checked(solution)) == {checker}
        printed = "".join(
            output.get("text", "")
            for cell in solution
            for output in cell.outputs
        )
        assert f"{checker}: correct." in printed, each.label
        printed = "".join(
            output.get("text", "") for cell in task for output in cell.outputs
        )
        assert f"{checker}: not" in printed, "the stub has to run"


def test_the_page_of_exercises_lists_each_of_them_in_three_ways():
    page = (ROOT / "chapters" / "exercises.md").read_text("utf-8")
    listed = re.findall(r"\{ref\}`[^`]+ <(ex-[\w-]+)>`", page)
    there = {
        label
        for name in CHAPTERS
        for cell in cells(name)
        for label in re.findall(r"^:label: (ex-\S+)$", cell.source, re.M)
    }
    assert set(listed) == there
    assert all(listed.count(label) == 3 for label in there), (
        "by chapter, by difficulty, by kind"
    )


def test_the_course_path_lists_every_chapter_in_order():
    page = (ROOT / "chapters" / "paths.md").read_text("utf-8")
    rows = re.findall(
        r"^\| (\d+) \| \{ref\}`(ch-[\w-]+)` \| \d+ minutes \|$", page, re.M
    )
    assert rows == [
        (str(int(name[:2])), GUIDE.chapter_title(name)[0]) for name in CHAPTERS
    ]


def test_the_shortest_path_takes_an_hour_and_the_course_a_weekend():
    """What the paths are called is what they take."""
    assert 30 <= sum(map(GUIDE.reading_minutes, GUIDE.IDEA)) <= 65
    course = sum(map(GUIDE.reading_minutes, CHAPTERS)) + sum(
        GUIDE.running_seconds(name) / 60 for name in CHAPTERS
    )
    assert 3 * 60 <= course <= 10 * 60


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("Four words of prose.", (4, 0, 0)),
        ("A {ref}`ch-x` and $a + b$", (5, 0, 0)),
        ("Before\n\n$$\na = b\n$$\n\nafter", (2, 0, 1)),
        ("```python\nx = 1\ny = 2\n```\n", (1, 2, 0)),
        ("| a | b |\n|:--|--:|\n| c | d |", (4, 0, 1)),
    ],
)
def test_words_code_and_pauses_are_counted_apart(text, counts):
    assert GUIDE.count_text(text) == counts


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_time_of_a_chapter_was_measured_and_long_cells_say_it(name):
    """Readers know before they run a cell that it is not stuck."""
    assert name in TIMES, f"run: make execute CHAPTER={name[:2]}"
    every = cells(name)
    ids = [cell.id for cell in every]
    for cell, seconds in TIMES[name]["slow"].items():
        assert cell in ids, f"run: make execute CHAPTER={name[:2]}"
        if seconds >= 10:
            before = every[ids.index(cell) - 1]
            assert before.cell_type == "markdown"
            assert re.search(
                r"\*The next cell takes about .* of one processor core\.\*$",
                before.source,
            ), cell


def markdown(source):
    return {"cell_type": "markdown", "id": "m", "source": [source]}


def code(identity):
    return {"cell_type": "code", "id": identity, "source": ["1"]}


SHORT = "*The next cell takes about 20 seconds of one processor core.*"
LONG = "*The next cell takes about 2 minutes of one processor core.*"


@pytest.mark.parametrize(
    ("before", "seconds", "after"),
    [
        ([markdown("Text."), code("a")], 21, ["Text.\n\n" + SHORT, "1"]),
        ([code("b"), code("a")], 130, ["1", LONG, "1"]),
        ([markdown("Text.\n\n" + LONG), code("a")], 9, ["Text.", "1"]),
        ([markdown(LONG), code("a")], 0, ["1"]),
        ([markdown("Text.\n\n" + LONG), code("a")], 21, None),
        ([code("a")], 9, ["1"]),
    ],
)
def test_the_sentence_before_a_long_cell_follows_its_time(
    before, seconds, after
):
    if after is None:
        after = ["Text.\n\n" + SHORT, "1"]
    for _ in range(2):  # a second time changes nothing
        GUIDE.announce(before, {"a": seconds})
        assert ["".join(cell["source"]) for cell in before] == after


CHECK = re.compile(
    r"^:::\{dropdown\} Check yourself: [^\n]*\?\n(.*?)^:::$", re.M | re.S
)


@pytest.mark.parametrize("name", CHAPTERS)
def test_sections_end_with_questions_whose_answers_are_explained(name):
    text = "\n\n".join(
        cell.source for cell in cells(name) if cell.cell_type == "markdown"
    )
    answers = CHECK.findall(text)
    assert len(answers) == text.count("Check yourself:")
    assert len(answers) >= 4
    assert all(len(answer.split()) >= 10 for answer in answers)


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_ends_with_works_to_read(name):
    text = "\n\n".join(
        cell.source for cell in cells(name) if cell.cell_type == "markdown"
    )
    _, further = text.split("\n## Further reading\n")
    cited = set(re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", further))
    assert len(cited) >= 3
    assert "\n## " not in further, "it is the last section"


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_minutes_on_a_card_are_right_to_five(name):
    card = "".join(cells(name)[0].source)
    said = int(re.search(r"^About (\d+) minutes to read", card, re.M)[1])
    assert abs(said - GUIDE.counted_minutes(name)) <= 5
