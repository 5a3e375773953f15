"""The repository's address stands everywhere, the same, and can be changed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from loading import load

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "set_repository.py"
NEW = "https://github.com/some-owner/some.name"


tool = load("set_repository")
HERE = tool.current(ROOT)
BOOK = tool.addresses(HERE)["book"]


def run(root, *arguments):
    return subprocess.run(
        [sys.executable, str(TOOL), "--root", str(root), *arguments],
        capture_output=True,
        text=True,
    )


def snapshot(root):
    return {
        path.relative_to(root): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def copy(tmp_path):
    """A copy of every file that may name the address."""
    for path in tool.files(ROOT):
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return tmp_path


def read(name):
    return (ROOT / name).read_text("utf-8")


def test_the_readme_says_where_to_clone_install_and_read():
    text = read("README.md")
    assert f"git clone {HERE} attention-course" in text
    assert f'pip install "git+{HERE}"' in text
    assert f"<{BOOK}>" in text


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "chapters/preface.md"])
def test_pages_say_where_to_clone(name):
    assert f"git clone {HERE} attention-course" in read(name)


def test_the_package_names_its_repository_and_its_book():
    urls = tomllib.loads(read("pyproject.toml"))["project"]["urls"]
    assert urls["Repository"] == HERE
    assert urls["Documentation"] == BOOK
    assert urls["Changelog"].startswith(f"{HERE}/")


def test_the_citation_names_the_repository_and_the_book():
    text = read("CITATION.cff")
    assert f"\nrepository-code: {HERE}\n" in text
    assert f"\nurl: {BOOK}\n" in text


@pytest.mark.parametrize(
    "path", sorted((ROOT / "chapters").glob("*.ipynb")), ids=lambda p: p.stem
)
def test_each_chapter_installs_from_the_repository_in_colab(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    assert f'\nREPOSITORY = "{HERE}"\n' in code[0]


def test_no_file_names_another_address_of_this_project():
    """What looks like an address of the course is the one address."""
    looks = re.compile(
        r"https://github\.com/[\w-]+/attention-course|"
        r"https://[\w-]+\.github\.io/attention-course"
    )
    for path in tool.files(ROOT):
        for found in looks.findall(path.read_text("utf-8")):
            assert found in (HERE, BOOK), f"{path.name}: {found}"


def test_a_new_address_is_written_everywhere_and_back_is_the_identity(copy):
    before = snapshot(copy)
    there = run(copy, NEW)
    assert there.returncode == 0, there.stderr
    assert run(copy).stdout.strip() == NEW
    changed = snapshot(copy)
    named = re.compile(f"{re.escape(HERE)}|{re.escape(BOOK)}")
    for path, content in changed.items():
        text = content.decode("utf-8")
        assert not named.search(text), path
        assert (content != before[path]) == bool(
            named.search(before[path].decode("utf-8"))
        )
    assert (
        b"https://some-owner.github.io/some.name"
        in (changed[Path("README.md")])
    )
    back = run(copy, HERE)
    assert back.returncode == 0, back.stderr
    assert snapshot(copy) == before


def test_the_same_address_changes_nothing(copy):
    before = snapshot(copy)
    again = run(copy, f"{HERE}/")
    assert again.returncode == 0
    assert again.stdout == "nothing to change\n"
    assert snapshot(copy) == before


@pytest.mark.parametrize(
    "wrong",
    [
        "https://gitlab.com/owner/name",
        "http://github.com/owner/name",
        "https://github.com/owner",
        "https://github.com/owner/name/tree/main",
        "https://github.com/under_score/name",
        "git@github.com:owner/name",
        "",
    ],
)
def test_what_is_no_address_is_refused_and_nothing_is_touched(copy, wrong):
    before = snapshot(copy)
    answer = run(copy, wrong)
    assert answer.returncode == 1
    assert "https://github.com/OWNER/NAME" in answer.stderr
    assert snapshot(copy) == before


def test_an_address_that_is_named_for_another_purpose_is_refused(copy):
    """Setting it would make two addresses one, with no way back."""
    other = "https://github.com/rasbt/LLMs-from-scratch"
    assert any(other.encode() in text for text in snapshot(copy).values())
    before = snapshot(copy)
    answer = run(copy, other)
    assert answer.returncode == 1
    assert "already names" in answer.stderr
    assert snapshot(copy) == before


def test_a_longer_address_that_begins_alike_is_left_alone():
    pattern = tool.pattern("https://github.com/a/b")
    for text in ("https://github.com/a/b-c", "https://github.com/a/b.js"):
        assert not pattern.search(text)
    for text in (
        "https://github.com/a/b.",
        "https://github.com/a/b/issues",
        '"https://github.com/a/b"',
        "git+https://github.com/a/b@v1",
    ):
        assert pattern.search(text)


@pytest.mark.parametrize(
    ("repository", "book"),
    [
        ("https://github.com/me/course", "https://me.github.io/course"),
        ("https://github.com/Me/me.github.io", "https://Me.github.io"),
    ],
)
def test_the_book_is_where_github_pages_puts_it(repository, book):
    assert tool.addresses(repository)["book"] == book


def test_the_placeholder_cannot_be_registered():
    owner = tool.PLACEHOLDER.split("/")[3]
    assert "_" in owner, "GitHub's account names have no underscore"
    assert not tool.ADDRESS.fullmatch(tool.PLACEHOLDER)
