"""What every chapter promises, whatever it teaches."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = {
    path.stem: nbformat.read(path, as_version=4)
    for path in sorted((ROOT / "chapters").glob("*.ipynb"))
}
CHAPTERS = [name for name in NOTEBOOKS if re.match(r"\d\d_", name)]
# Tags that change what is checked need a reason in the cell's metadata.
NEED_A_REASON = {"nbval-ignore-output", "nbval-skip", "raises-exception"}
HARMLESS = {
    "hide-input",
    "hide-output",
    "hide-cell",
    "remove-cell",
    "remove-input",
    "remove-output",
    "skip-execution",
}


def cells(name, kind="code"):
    return [cell for cell in NOTEBOOKS[name].cells if cell.cell_type == kind]


def tags(cell):
    return set(cell.metadata.get("tags", []))


def prose(name):
    return "\n\n".join(cell.source for cell in cells(name, "markdown"))


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


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_metadata_holds_no_noise(name):
    metadata = NOTEBOOKS[name].metadata
    assert metadata.kernelspec.name == "python3"
    assert metadata.language_info == {"name": "python"}
    assert set(metadata) == {"kernelspec", "language_info"}
    for cell in NOTEBOOKS[name].cells:
        assert "execution" not in cell.metadata


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_outputs_are_those_of_one_run_from_top_to_bottom(name):
    run = [
        cell.execution_count
        for cell in cells(name)
        if "skip-execution" not in tags(cell)
    ]
    assert run == list(range(1, len(run) + 1))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_no_cell_stores_a_warning_or_an_unexpected_error(name):
    for cell in cells(name):
        for output in cell.outputs:
            assert output.get("name") != "stderr", cell.source
            if output.output_type == "error":
                assert "raises-exception" in tags(cell), cell.source


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_unchecked_cells_have_a_reason_and_assert_their_claim(name):
    for cell in cells(name):
        assert tags(cell) <= NEED_A_REASON | HARMLESS, tags(cell)
        if tags(cell) & NEED_A_REASON:
            assert cell.metadata.get("nbval_reason"), cell.source
        if "nbval-ignore-output" in tags(cell):
            assert re.search(r"^\s*assert ", cell.source, re.MULTILINE), (
                cell.source
            )


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_code_fits_on_a_narrow_page(name):
    for cell in cells(name):
        for line in cell.source.splitlines():
            assert len(line) <= 79, line


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_figures_are_vectors_with_caption_and_alternative_text(name):
    for cell in cells(name):
        pictures = [
            output.data
            for output in cell.outputs
            if any(
                kind.startswith("image/") for kind in output.get("data", {})
            )
        ]
        if not pictures or tags(cell) & {"remove-output", "remove-cell"}:
            continue
        assert len(pictures) == 1, "one figure a cell"
        assert "image/svg+xml" in pictures[0], cell.source
        book = cell.metadata.get("mystnb", {})
        assert len(book.get("image", {}).get("alt", "")) > 20, cell.source
        assert len(book.get("figure", {}).get("caption", "")) > 20
        assert book["figure"]["name"].startswith("fig-")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_labels_are_unique_in_the_book(name):
    pattern = re.compile(r"^\(([\w-]+)\)=\s*$", re.MULTILINE)
    mine = pattern.findall(prose(name))
    others = {
        label
        for other in NOTEBOOKS
        if other != name
        for label in pattern.findall(prose(other))
    }
    assert len(mine) == len(set(mine))
    assert not set(mine) & others


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_colab_cell_is_the_same_everywhere(name):
    setup = cells(name)[0]
    assert tags(setup) == {"skip-execution", "nbval-skip", "remove-cell"}
    assert setup.source == cells(CHAPTERS[0])[0].source


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_has_the_parts_that_readers_look_for(name):
    text = prose(name)
    assert re.search(r"^> \S", text, re.MULTILINE), "a one-sentence promise"
    for title in ("Summary", "Exercises", "Further reading"):
        assert f"\n## {title}" in text, title
    assert re.search(r"^## .*[Gg]oes? wrong", text, re.MULTILINE) or re.search(
        r"^## .*museum", text, re.MULTILINE | re.IGNORECASE
    )
    exercises = re.findall(r"\{exercise(?:-start)?\}", text)
    assert len(exercises) >= 5
    assert len(re.findall(r"\{solution(?:-start)?\}", text)) == len(exercises)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_no_number_in_a_sentence_begins_a_list(name):
    """Markdown takes a line that starts with "1." for one."""
    lines = prose(name).split("\n")
    assert not [
        line
        for before, line in pairwise(["", *lines])
        if line.startswith("1. ") and re.search(r"\w$", before)
    ]


@pytest.mark.parametrize("name", CHAPTERS)
def test_prose_keeps_its_tone(name):
    """No word that makes a reader feel slow, no shouting."""
    text = re.sub(r"`[^`]*`|\$[^$]*\$", "", prose(name))
    for word in ("obviously", "simply", "of course", "trivially"):
        assert not re.search(rf"\b{word}\b", text, re.IGNORECASE), word
    assert not re.search(r"[A-Za-z]!(\s|$)", text)
