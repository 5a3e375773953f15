"""What every notebook promises, whatever it teaches."""

from __future__ import annotations

import json
import re
import warnings
from itertools import pairwise
from pathlib import Path

import listings
import nbformat
import pytest
import yaml

from attention_lib.course.exercises._core import names as checkers

ROOT = Path(__file__).resolve().parents[2]
PATHS = sorted((ROOT / "chapters").glob("*.ipynb"))
NOTEBOOKS = {path.stem: nbformat.read(path, as_version=4) for path in PATHS}
CHAPTERS = [name for name in NOTEBOOKS if re.match(r"\d\d_", name)]
# Tags that change what is checked need a reason in the cell's metadata.
NEED_A_REASON = {"nbval-ignore-output", "nbval-skip", "raises-exception"}
HARMLESS = {
    *("hide-input", "hide-output", "hide-cell"),
    *("remove-cell", "remove-input", "remove-output", "skip-execution"),
}
each_notebook = pytest.mark.parametrize("name", NOTEBOOKS)
each_chapter = pytest.mark.parametrize("name", CHAPTERS)


def cells(name, kind="code"):
    return [cell for cell in NOTEBOOKS[name].cells if cell.cell_type == kind]


def tags(cell):
    return set(cell.metadata.get("tags", []))


def prose(name):
    return "\n\n".join(cell.source for cell in cells(name, "markdown"))


def printed(some):
    return "".join(
        output.get("text", "") for cell in some for output in cell.outputs
    )


def test_the_contents_list_every_chapter_in_order():
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    numbered = [
        entry["file"].removeprefix("chapters/")
        for part in contents["parts"]
        if part.get("numbered")
        for entry in part["chapters"]
    ]
    assert numbered == CHAPTERS
    assert [int(name[:2]) for name in CHAPTERS] == list(
        range(1, len(CHAPTERS) + 1)
    ), "section numbers in docstrings count from the file's name"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_format_needs_no_repair_and_holds_no_noise(path):
    """Nothing is completed, renamed or dropped when a notebook is read."""
    raw = json.loads(path.read_text("utf-8"))
    ids = [cell["id"] for cell in raw["cells"]]
    assert len(ids) == len(set(ids))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nbformat.validate(raw)
    assert set(raw["metadata"]) == {"kernelspec", "language_info"}
    assert raw["metadata"]["language_info"] == {"name": "python"}
    assert not any("execution" in cell["metadata"] for cell in raw["cells"])


@each_notebook
def test_outputs_are_those_of_one_run_from_top_to_bottom(name):
    run = [
        cell.execution_count
        for cell in cells(name)
        if "skip-execution" not in tags(cell)
    ]
    assert run == list(range(1, len(run) + 1)), "run: make execute"


@each_notebook
def test_no_cell_stores_a_warning_or_an_unexpected_error(name):
    for cell in cells(name):
        for output in cell.outputs:
            assert output.get("name") != "stderr", cell.source
            if output.output_type == "error":
                assert "raises-exception" in tags(cell), cell.source


@each_notebook
def test_unchecked_cells_have_a_reason_and_assert_their_claim(name):
    for cell in cells(name):
        assert tags(cell) <= NEED_A_REASON | HARMLESS, tags(cell)
        if tags(cell) & NEED_A_REASON:
            assert cell.metadata.get("nbval_reason"), cell.source
        if "nbval-ignore-output" in tags(cell):
            assert re.search(r"^\s*assert ", cell.source, re.M), cell.source


@each_notebook
def test_code_fits_on_a_narrow_page(name):
    for cell in cells(name):
        for line in cell.source.splitlines():
            assert len(line) <= 79, line


@each_notebook
def test_figures_are_vectors_with_caption_and_alternative_text(name):
    for cell in cells(name):
        pictures = [
            output.data
            for output in cell.outputs
            if any("image/" in kind for kind in output.get("data", {}))
        ]
        if not pictures or tags(cell) & {"remove-output", "remove-cell"}:
            continue
        assert len(pictures) == 1, "one figure a cell"
        assert "image/svg+xml" in pictures[0], cell.source
        book = cell.metadata.get("mystnb", {})
        assert len(book.get("image", {}).get("alt", "")) > 20, cell.source
        assert len(book.get("figure", {}).get("caption", "")) > 20
        assert book["figure"]["name"].startswith("fig-")


@each_notebook
def test_a_macro_is_defined_before_it_is_used(name):
    """Jupyter and Colab know those of the notebook alone."""
    known = set()
    for cell in cells(name, "markdown"):
        known |= set(re.findall(r"\\newcommand\{\\([QKV])\}", cell.source))
        used = set(re.findall(r"\\([QKV])\{", cell.source))
        assert used <= known, cell.source[:200]


def test_labels_are_unique_in_the_book():
    label = re.compile(r"^\(([\w-]+)\)=\s*$", re.MULTILINE)
    found = [each for name in NOTEBOOKS for each in label.findall(prose(name))]
    assert sorted(found) == sorted(set(found))


@each_notebook
def test_the_colab_cell_is_the_same_everywhere(name):
    setup = cells(name)[0]
    assert tags(setup) == {"skip-execution", "nbval-skip", "remove-cell"}
    assert setup.source == cells(CHAPTERS[0])[0].source


@each_notebook
def test_no_number_in_a_sentence_begins_a_list(name):
    """Markdown takes a line that starts with "1." for one."""
    for before, line in pairwise(["", *prose(name).split("\n")]):
        assert not (line.startswith("1. ") and re.search(r"\w$", before))


@each_chapter
def test_a_chapter_has_the_parts_that_readers_look_for(name):
    text = prose(name)
    assert re.search(r"^> \S", text, re.MULTILINE), "a one-sentence promise"
    for title in ("Summary", "Exercises", "Further reading"):
        assert f"\n## {title}" in text, title
    assert re.search(r"^## .*([Gg]oes? wrong|[Mm]useum)", text, re.M)
    _, further = text.split("\n## Further reading\n")
    assert re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", further)
    answers = re.findall(
        r"^:::\{dropdown\} Check yourself: [^\n]*\?\n(.*?)^:::$",
        text,
        re.MULTILINE | re.DOTALL,
    )
    assert len(answers) == text.count("Check yourself:") > 0
    assert all(len(answer.split()) >= 10 for answer in answers)


@each_chapter
def test_prose_keeps_its_tone(name):
    """No word that makes a reader feel slow, no shouting."""
    text = re.sub(r"`[^`]*`|\$[^$]*\$", "", prose(name))
    for word in ("obviously", "simply", "of course", "trivially"):
        assert not re.search(rf"\b{word}\b", text, re.IGNORECASE), word
    assert not re.search(r"[A-Za-z]!(\s|$)", text)


@each_chapter
def test_exercises_are_of_all_kinds_with_hints_and_solutions(name):
    found = listings.exercises(name)
    text = prose(name)
    assert len(found) == text.count("{exercise}") >= 4, "one is not read"
    kinds = {each.kind for each in found}
    assert kinds == {"predict", "compute", "code", "break"}
    assert {each.difficulty for each in found} <= {"●○○", "●●○", "●●●"}
    for each in found:
        assert 1 <= each.minutes <= 60, each.label
        body = text.split(f":label: {each.label}\n")[1]
        assert "{dropdown} Hint" in body.split("{solution-start}")[0]
        solution = body.split(f"{{solution-start}} {each.label}\n")[1]
        assert solution.startswith(":class: dropdown"), each.label


def parts(name):
    """The code of each exercise, by its label: the task's, the solution's."""
    found, place = {}, []
    for cell in NOTEBOOKS[name].cells:
        if cell.cell_type == "code":
            place.append(cell)
            continue
        for mark, label in re.findall(
            r"(:label:|\{solution-start\}) (ex-\S+)", cell.source
        ):
            place = found.setdefault(label, ([], []))[mark != ":label:"]
        if "{solution-end}" in cell.source.split("{exercise}")[-1]:
            place = []
    return found


def checked(some):
    return {
        name
        for cell in some
        for name in re.findall(r"^check\(\s*\"([^\"]+)\"", cell.source, re.M)
    }


@each_chapter
def test_an_answer_is_checked_and_the_solution_passes(name):
    for each in listings.exercises(name):
        task, solution = parts(name)[each.label]
        if not checked(task):
            assert each.kind == "predict", f"{each.label} has no checker"
            continue
        (checker,) = checked(task)
        assert checker in checkers()
        assert checked(solution) == {checker}
        assert f"{checker}: correct." in printed(solution), each.label
        assert f"{checker}: not" in printed(task), "the stub has to run"


def counted_minutes(name):
    """How long a chapter takes to read without its exercises.

    200 words, 40 lines of unfolded code, or 3 figures, formulas and tables
    are a minute.
    """
    words = lines = pauses = 0
    for cell in NOTEBOOKS[name].cells:
        text = cell.source
        if "\n## Exercises\n" in f"\n{text}":
            break
        if cell.cell_type == "markdown":
            words += len(re.findall(r"[^\W\d_]{2,}", text))
            pauses += text.count("$$") // 2
            pauses += len(re.findall(r"^\|[:| -]+\|$", text, re.MULTILINE))
        elif not tags(cell) & HARMLESS:
            lines += len(text.split("\n"))
        if cell.cell_type == "code":
            pauses += "image/svg+xml" in str(cell.outputs)
    return words / 200 + lines / 40 + pauses / 3


@each_chapter
def test_the_card_says_about_how_long_it_takes(name):
    """Reading is right to a quarter, running is no number of a machine."""
    card = re.search(
        r"^About (\d+) minutes to read, (.+) to run, (\d+) minutes to "
        r"practise\.$",
        cells(name, "markdown")[0].source,
        re.MULTILINE,
    )
    assert card, "About … minutes to read, … to run, … minutes to practise."
    assert card[2] in ("a few seconds", "about a minute", "some minutes")
    assert float(card[1]) == pytest.approx(counted_minutes(name), rel=0.25)
    assert float(card[3]) == pytest.approx(listings.practice(name), rel=0.25)
