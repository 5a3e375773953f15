"""Export, execution and the rest of the tools, on small made-up projects."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import attention_book
import changed
import charts
import listings
import nbformat
import need
import print_book
import pytest
import yaml
from nbformat.v4 import (
    new_code_cell,
    new_markdown_cell,
    new_notebook,
    new_output,
)

import attention_lib

ROOT = Path(__file__).resolve().parents[2]
ALPHA = '''#| export alpha
"""First letters."""

import math


def root(x: float) -> float:
    """Return the square root."""
    return math.sqrt(x)
'''
MORE = '''#| export alpha
def fourth(x: float) -> float:
    """Return the fourth root."""
    return root(root(x))
'''
BETA = '''#| export beta
"""Second letters."""


def twice(x: float) -> float:
    """Return two roots."""
    return 2 * root(x)
'''
TITLE = "(ch-a)=\n# A title"
SECTION = "(sec-a)=\n## A section"
NAMES = ("01_a", "02_b", "03_c", "07_a")


@pytest.fixture
def project(tmp_path):
    """An empty project with the tools of this one, in a path with a space."""
    root = tmp_path / "a project"
    for name in ("chapters", "attention_lib", "tools"):
        (root / name).mkdir(parents=True)
    for name in ("export", "execute", "alone"):
        shutil.copy(ROOT / "tools" / f"{name}.py", root / "tools")
    shutil.copy(ROOT / "pyproject.toml", root)
    (root / "_toc.yml").write_text(
        "".join(f"- file: chapters/{name}\n" for name in NAMES)
    )
    for name in NAMES:
        write(root, name)
    return root


def write(project, name, *sources):
    """Write a notebook; a source that starts like a heading is text."""
    notebook = new_notebook(
        cells=[
            new_markdown_cell(source)
            if source.startswith(("(", "# ", "## "))
            else new_code_cell(source)
            for source in sources
        ]
    )
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    path = project / "chapters" / f"{name}.ipynb"
    nbformat.write(notebook, path)
    return path


def tool(project, name, *arguments):
    return subprocess.run(
        [sys.executable, str(project / "tools" / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
    )


def exported(project, name):
    done = tool(project, "export")
    assert done.returncode == 0, done.stderr
    return (project / "attention_lib" / f"{name}.py").read_text("utf-8")


def test_exported_code_is_a_module_with_its_public_names(project):
    write(project, "07_a", TITLE, "(sec-0)=\n## One", SECTION, ALPHA, BETA)
    text = exported(project, "alpha")
    assert ast.get_docstring(ast.parse(text)) == "First letters."
    assert '__all__ = [\n    "root",\n]' in text
    assert "Built in section 7.2 (sec-a)." in text
    assert "from attention_lib.alpha import root" in exported(project, "beta")


def test_several_notebooks_feed_one_module_in_the_order_of_the_contents(
    project,
):
    write(project, "02_b", TITLE, SECTION, MORE)
    write(project, "01_a", TITLE, SECTION, ALPHA)
    module = ast.parse(exported(project, "alpha"))
    assert ast.get_docstring(module) == "First letters."
    functions = [n.name for n in module.body if isinstance(n, ast.FunctionDef)]
    assert functions == ["root", "fourth"]


def test_a_stale_module_fails_the_check_and_is_not_touched(project):
    write(project, "01_a", TITLE, SECTION, ALPHA)
    exported(project, "alpha")
    module = project / "attention_lib" / "alpha.py"
    assert tool(project, "export", "--check").returncode == 0
    module.write_text(module.read_text() + "\n")
    stale = module.read_text()
    assert tool(project, "export", "--check").returncode == 1
    assert module.read_text() == stale


def test_a_written_module_without_a_chapter_fails_the_check(project):
    write(project, "01_a", TITLE, SECTION, ALPHA)
    exported(project, "alpha")
    write(project, "01_a", TITLE)
    assert tool(project, "export", "--check").returncode == 1


@pytest.mark.parametrize(
    ("chapters", "message"),
    [
        (
            {
                "01_a": [TITLE, "from attention_lib.alpha import root"],
                "02_b": [TITLE, SECTION, ALPHA],
            },
            "which it or a later chapter exports",
        ),
        ({"01_a": [TITLE, "## No label", ALPHA]}, "has no label"),
        ({"01_a": [TITLE, SECTION, MORE]}, "has no module docstring"),
        (
            {"01_a": [TITLE, SECTION, re.sub(r' {4}""".*\n', "", ALPHA)]},
            "exported undocumented",
        ),
    ],
    ids=["later import", "no label", "no module", "no docstring"],
)
def test_export_refuses(project, chapters, message):
    for name, sources in chapters.items():
        write(project, name, *sources)
    done = tool(project, "export")
    assert done.returncode == 1
    assert message in " ".join(done.stderr.split())


def test_what_is_read_is_what_is_imported():
    done = tool(ROOT, "export", "--check")
    assert done.returncode == 0, f"run: make export\n{done.stdout}"


def test_a_second_execution_changes_nothing(project):
    path = write(
        project,
        "01_a",
        TITLE,
        "import random\nrandom.seed(0)\nprint(random.random())",
        "print('a')\nprint('b')\n1 + 1",
    )
    assert tool(project, "execute", "01").returncode == 0
    once = path.read_bytes()
    assert tool(project, "execute", "01").returncode == 0
    assert path.read_bytes() == once
    notebook = nbformat.read(path, as_version=4)
    assert [cell.id for cell in notebook.cells] == [
        f"cell-{number}" for number in range(3)
    ]
    assert notebook.cells[2].outputs[0].text == "a\nb\n"


def test_execution_names_a_chapter_that_is_not_there(project):
    done = tool(project, "execute", "99")
    assert done.returncode == 1
    assert "no chapter starts with 99" in done.stdout


def test_a_chapter_is_compared_alone_outside_the_repository(project):
    """It finds the installed package, and nothing of the repository."""
    write(project, "01_a", TITLE, SECTION, ALPHA)
    exported(project, "alpha")
    package = project / "attention_lib"
    (package / "__init__.py").write_text('__version__ = "0.0.1"\n')
    (project / "README.md").write_text("A package.\n")
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\n'
        'build-backend = "setuptools.build_meta"\n'
        '[project]\nname = "attention-lib"\nversion = "0.0.1"\n'
        '[tool.setuptools]\npackages = ["attention_lib"]\n'
    )
    (project / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "nbval_sanitize.cfg", project / "tests")
    uses = "from attention_lib.alpha import root\n\nprint(root(4.0))"
    reads = "print(open('../README.md').read(), end='')"
    for name, cell, printed in (
        ("02_b", uses, "2.0\n"),
        ("03_c", reads, "A package.\n"),
        ("07_a", uses, "3.0\n"),
    ):
        path = write(project, name, cell)
        notebook = nbformat.read(path, as_version=4)
        notebook.cells[0].execution_count = 1
        notebook.cells[0].outputs = [
            new_output("stream", name="stdout", text=printed)
        ]
        nbformat.write(notebook, path)
    before = sorted(project.iterdir())
    done = tool(project, "alone", "-q", "-k", "02 or 03 or 07")
    assert done.returncode == 1, done.stdout + done.stderr
    failed = re.findall(r"^FAILED \S*?(\d\d_\w)\.ipynb", done.stdout, re.M)
    assert set(failed) == {"03_c", "07_a"}, done.stdout
    assert sorted(project.iterdir()) == before, "it leaves nothing behind"


@pytest.mark.parametrize("name", listings.public_names())
def test_a_stable_name_has_an_example_and_leads_back_to_its_section(name):
    value = getattr(attention_lib, name)
    assert re.search(r"^ *>>> ", value.__doc__, re.MULTILINE)
    path = ROOT / f"{value.__module__.replace('.', '/')}.py"
    if path.read_text("utf-8").startswith("# Written by tools/export.py"):
        assert re.search(r"section \d+(\.\d+)? \([\w-]+\)", value.__doc__)


def test_a_changed_module_is_tested_by_its_own_tests_and_else_by_all():
    everything = changed.EVERYTHING
    assert changed.tests_of("attention_lib/masks.py") == (
        "tests/library/test_masks.py"
    )
    assert changed.tests_of("attention_lib/unheard_of.py") == everything
    assert changed.tests_of("tests/conftest.py") == everything
    assert changed.tests_of("chapters/02_attention_by_hand.ipynb") is None


def test_mathematics_is_set_while_building():
    html = attention_book.render_math(r"\Q{\mathbf q}^\top", display=True)
    assert 'class="enclosing query"' in html
    assert "<math" in html


def test_the_live_figures_are_what_their_source_makes():
    stale = [
        path.name
        for path, text in charts.specifications().items()
        if not path.exists() or path.read_text("utf-8") != text
    ]
    assert stale == [], "run: .venv/bin/python tools/charts.py"


LOG = """
LaTeX Warning: Reference `eq-missing' on page 3 undefined on input line 9.

Missing character: There is no 猫 in font TeX Gyre Pagella!
Overfull \\hbox (3.1pt too wide) in paragraph at lines 1--2
[]\\TU/a/m/n/11 a little
Overfull \\hbox (40.5pt too wide) in paragraph at lines 3--4
[]\\TU/a/m/n/11 far too much
Underfull \\hbox (badness 10000) in paragraph at lines 5--6
"""


def test_what_a_reader_of_the_pdf_would_see_is_a_fault():
    faults = print_book.read_faults(LOG)
    assert len(faults) == 3
    for fault, word in zip(faults, ("eq-missing", "猫", "40.5"), strict=True):
        assert word in fault


def test_the_printed_book_has_the_sites_contents_and_the_solutions():
    site = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    printed = print_book.contents()
    first = printed["parts"][-1]["chapters"].pop(0)
    assert first == {"file": print_book.SOLUTIONS}
    assert printed == site


def test_what_is_missing_is_said_in_one_line(monkeypatch, capsys):
    """Nobody but root and continuous integration is surprised by sudo."""
    calls = []
    monkeypatch.setattr(need, "CI", False)
    monkeypatch.setattr(need.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(need, "missing", lambda kinds: {"xelatex": "tex"})
    monkeypatch.setattr(need.subprocess, "run", calls.append)
    monkeypatch.setattr(need.shutil, "which", lambda name: "/usr/bin/apt-get")
    monkeypatch.setattr(sys, "argv", ["need.py", "pdf"])
    assert need.main() == 0
    assert "sudo apt-get install --yes" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["need.py", "--must", "pdf"])
    assert need.main() == 1
    monkeypatch.setattr(need, "CI", True)
    monkeypatch.setattr(sys, "argv", ["need.py", "pdf"])
    monkeypatch.setattr(
        need.subprocess, "run", lambda *a, **b: calls.append(a)
    )
    assert need.main() == 1, "it was tried, and is still missing"
    assert len(calls) == 1


def test_workflows_are_linted(tmp_path):
    zizmor = [str(Path(sys.executable).with_name("zizmor")), "--offline"]
    done = subprocess.run(
        [*zizmor, "--quiet", str(ROOT / ".github")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    for mistake, right in (
        ("runs-onn:", "runs-on:"),
        ("${{ github.head_ref }}", ".ci/run"),
    ):
        assert right in text
        (tmp_path / "bad.yml").write_text(text.replace(right, mistake))
        done = subprocess.run(
            [*zizmor, str(tmp_path / "bad.yml")], capture_output=True
        )
        assert done.returncode != 0, mistake


def test_the_repositorys_address_is_set_everywhere_by_one_command(tmp_path):
    files = subprocess.run(
        ["git", "ls-files", "-z", "--", ".", ":!tests", ":!tools"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")[:-1]  # fmt: skip
    script = "tools/set_repository.py"
    for name in (*files, script):
        if not (ROOT / name).exists():
            continue
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for command in (["git", "init", "-q"], ["git", "add", "-Af"]):
        subprocess.run(command, cwd=tmp_path, check=True)

    def owners():
        named = r"(?:github\.com/([\w-]+)|//([\w-]+)\.github\.io)/attention-c"
        return {
            "".join(found)
            for name in files
            if (tmp_path / name).is_file()
            for found in re.findall(
                named, (tmp_path / name).read_text("utf-8", "ignore")
            )
        }

    assert len(owners()) == 1, "one address, everywhere the same"
    new = "https://github.com/some-owner/some.name"
    for wrong in ("https://gitlab.com/owner/name", new + "/tree"):
        assert tool(tmp_path, "set_repository", wrong).returncode == 1
    assert tool(tmp_path, "set_repository", new).returncode == 0
    assert owners() == set()
    readme = (tmp_path / "README.md").read_text("utf-8")
    assert f"git clone {new} attention-course" in readme
    assert "<https://some-owner.github.io/some.name>" in readme
