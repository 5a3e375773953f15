"""Export and execution, on small notebooks made for the purpose."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from loading import load
from nbformat.v4 import (
    new_code_cell,
    new_markdown_cell,
    new_notebook,
    new_output,
)

import attention_lib

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path):
    """An empty project with the tools of this one."""
    for name in ("chapters", "attention_lib"):
        (tmp_path / name).mkdir()
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def write(project, name, *sources):
    """Write a notebook; a source that starts with a label is text."""
    notebook = new_notebook(
        cells=[
            new_markdown_cell(source)
            if source.startswith(("(", "#\x20", "##"))
            and "|" not in source[:3]
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


ALPHA = '''#| export alpha
"""First letters."""

import math


def root(x: float) -> float:
    """Return the square root."""
    return math.sqrt(x)
'''
BETA = '''#| export beta
"""Second letters."""


def twice(x: float) -> float:
    """Return two roots."""
    return 2 * root(x)
'''
TITLE = "(ch-a)=\n# A title"
SECTION = "(sec-a)=\n## A section"


def test_exported_code_is_a_formatted_module_with_its_public_names(project):
    write(project, "01_a", TITLE, SECTION, ALPHA)
    assert tool(project, "export").returncode == 0
    text = (project / "attention_lib" / "alpha.py").read_text()
    module = ast.parse(text)
    assert ast.get_docstring(module) == "First letters."
    assert '__all__ = [\n    "root",\n]' in text


def test_a_docstring_ends_with_its_section(project):
    write(project, "07_a", TITLE, "(sec-0)=\n## One", SECTION, ALPHA)
    tool(project, "export")
    text = (project / "attention_lib" / "alpha.py").read_text()
    assert "Built in :ref:`section 7.2 <sec-a>`." in text


def test_names_of_a_sister_module_are_imported(project):
    write(project, "01_a", TITLE, SECTION, ALPHA, BETA)
    tool(project, "export")
    text = (project / "attention_lib" / "beta.py").read_text()
    assert "from attention_lib.alpha import root" in text


def test_a_stale_module_fails_the_check_and_is_not_touched(project):
    write(project, "01_a", TITLE, SECTION, ALPHA)
    tool(project, "export")
    module = project / "attention_lib" / "alpha.py"
    assert tool(project, "export", "--check").returncode == 0
    module.write_text(module.read_text() + "\n")
    stale = module.read_text()
    assert tool(project, "export", "--check").returncode == 1
    assert module.read_text() == stale


def test_a_module_without_a_chapter_fails_the_check(project):
    write(project, "01_a", TITLE, SECTION, ALPHA)
    tool(project, "export")
    (project / "attention_lib" / "orphan.py").write_text("")
    assert tool(project, "export", "--check").returncode == 1


@pytest.mark.parametrize(
    ("chapters", "message"),
    [
        (
            {"01_a": [TITLE, SECTION, ALPHA], "02_b": [TITLE, SECTION, ALPHA]},
            "comes from 01_a.ipynb and from 02_b.ipynb",
        ),
        (
            {
                "01_a": [TITLE, "from attention_lib.alpha import root"],
                "02_b": [TITLE, SECTION, ALPHA],
            },
            "01_a.ipynb imports attention_lib.alpha, which is exported by "
            "02_b.ipynb",
        ),
        (
            {"01_a": [TITLE, "## No label", ALPHA]},
            "has no label",
        ),
        (
            {
                "01_a": [
                    TITLE,
                    SECTION,
                    ALPHA.replace('"""First letters."""', ""),
                ]
            },
            "has no module docstring",
        ),
        (
            {
                "01_a": [
                    TITLE,
                    SECTION,
                    ALPHA.replace('"""Return the square root."""', ""),
                ]
            },
            "exported undocumented",
        ),
    ],
    ids=["two sources", "later import", "no label", "no module", "no doc"],
)
def test_export_refuses(project, chapters, message):
    for name, sources in chapters.items():
        write(project, name, *sources)
    done = tool(project, "export")
    assert done.returncode == 1
    assert message in " ".join(done.stderr.split())


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
    assert tool(project, "execute").returncode == 0
    assert path.read_bytes() == once
    notebook = nbformat.read(path, as_version=4)
    assert [cell.id for cell in notebook.cells] == [
        "cell-0",
        "cell-1",
        "cell-2",
    ]
    assert notebook.cells[2].outputs[0].text == "a\nb\n"


def test_execution_names_a_chapter_that_is_not_there(project):
    done = tool(project, "execute", "99")
    assert done.returncode == 1
    assert "no chapter starts with 99" in done.stdout


MODULES = sorted(
    path.stem
    for path in (ROOT / "attention_lib").glob("*.py")
    if path.stem != "__init__"
)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_documented_and_links_back(name):
    path = ROOT / "attention_lib" / f"{name}.py"
    module = ast.parse(path.read_text("utf-8"))
    assert ast.get_docstring(module)
    for node in module.body:
        if isinstance(
            node, ast.FunctionDef | ast.ClassDef
        ) and not node.name.startswith("_"):
            assert re.search(
                r"Built in :ref:`section [\d.]+ <[\w-]+>`\.$",
                ast.get_docstring(node),
            ), node.name


def test_the_version_is_a_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+", attention_lib.__version__)


def test_mathematics_is_set_while_building():
    extension = load("sphinx_ext/attention_book")
    html = extension.render_math(r"\Q{\mathbf q}^\top", display=True)
    assert 'class="enclosing query"' in html
    assert "<math" in html


def test_printed_tables_keep_their_columns_and_prose_folds():
    is_prose = load("sphinx_ext/narrow").is_prose
    assert is_prose(
        "mat1 and mat2 cannot be multiplied (1x2 and 3x3), [0.5]\n"
    )
    assert is_prose(
        "0.25\n01-shift: correct. Checked: one sentence, two with padding,\n"
        "  and the argument, which must be [unchanged].\n"
    )
    for table in (
        "this is a row of a table    0.25  0.50  0.75\nand another  0.5\n",
        "32 key heads: 512 KiB for a token, 8.00 GiB\n1 key head: 16 KiB\n",
        "tensor([[0.4011, 0.1978],\n"
        "        [0.1978, 0.4011]], dtype=torch.float64)",
    ):
        assert not is_prose(table)


def test_a_folding_line_keeps_its_text_and_its_indentation():
    fold_line = load("sphinx_ext/narrow").fold_line
    line = fold_line('<span class="sd">    a &lt; b</span>')
    assert line == (
        '    <span class="line" style="--in:4">'
        '<span class="sd">a &lt; b</span></span>'
    )
    assert fold_line("") == ""
    prompt = '<span class="gp">&gt;&gt;&gt; </span>'
    assert fold_line(f"{prompt}x") == (
        f'{prompt}<span class="line" style="--in:4">x</span>'
    )
    long = "first(" + 20 * "a" + "." + 20 * "b" + ")"
    assert re.sub("<wbr>", "", fold_line(long)) == (
        f'<span class="line">{long}</span>'
    )
    assert fold_line(long).count("<wbr>") == 2
    with pytest.raises(Exception, match="runs over the end"):
        fold_line('<span class="sd">open')


def test_a_wide_picture_is_framed_with_the_link_around_it(tmp_path):
    """Sphinx puts the end of a link on a line of its own."""
    narrow = load("sphinx_ext/narrow")
    drawing = tmp_path / "wide.svg"
    drawing.write_text('<svg width="600pt" height="90pt"></svg>')
    link = '<a class="reference internal image-reference" href="wide.svg">'
    page = f'<p>{link}<img alt="A" src="_images/wide.svg" />\n</a></p>'
    framed = narrow.PICTURE.sub(
        lambda match: narrow.frame(match, {"wide.svg": drawing}), page
    )
    assert framed.startswith('<p><div class="wide-figure')
    assert framed.endswith("</a></div></p>")
    assert '<img width="800" height="120" alt="A"' in framed


def test_a_chapter_is_compared_alone_outside_the_repository(project):
    """It finds the installed package, and nothing of the repository."""
    write(project, "01_a", TITLE, SECTION, ALPHA)
    tool(project, "export")
    package = project / "attention_lib"
    (package / "__init__.py").write_text('__version__ = "0.0.1"\n')
    (project / "README.md").write_text("A package.\n")
    (project / "LICENSE").write_text("MIT\n")
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
    ):
        path = write(project, name, cell)
        notebook = nbformat.read(path, as_version=4)
        notebook.cells[0].execution_count = 1
        notebook.cells[0].outputs = [
            new_output("stream", name="stdout", text=printed)
        ]
        nbformat.write(notebook, path)
    done = tool(project, "alone", "-q", "-k", "02 or 03")
    assert done.returncode == 1, done.stdout + done.stderr
    failed = set(
        re.findall(r"^FAILED \S*?(\d\d_\w)\.ipynb", done.stdout, re.M)
    )
    assert failed == {"03_c"}, done.stdout
    assert sorted(path.name for path in project.iterdir()) == [
        "LICENSE",
        "README.md",
        "attention_lib",
        "chapters",
        "pyproject.toml",
        "tests",
        "tools",
    ], "it leaves nothing behind"


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
    faults = load("print_book").read_faults(LOG)
    assert len(faults) == 3
    assert "eq-missing" in faults[0]
    assert "猫" in faults[1]
    assert "40.5" in faults[2]
    assert load("print_book").read_faults("This is XeTeX") == []


def test_the_printed_book_has_the_sites_contents_and_the_solutions():
    tool = load("print_book")
    site = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    assert tool.SOLUTIONS not in str(site)
    printed = tool.contents()
    assert printed["parts"][-1]["chapters"].pop(0) == {"file": tool.SOLUTIONS}
    assert printed == site


@pytest.mark.parametrize("name", ["print_book", "tex"])
@pytest.mark.parametrize("kinds", [[], ["docx"], ["pdf", "all"]])
def test_a_kind_of_book_that_there_is_not_is_refused(name, kinds):
    tool = [sys.executable, str(ROOT / "tools" / f"{name}.py")]
    done = subprocess.run([*tool, *kinds], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pdf epub" in done.stdout


def test_an_epub_needs_no_tex(monkeypatch):
    tool = load("tex")
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    assert set(tool.missing(["epub"]).values()) == {"librsvg2-bin"}
    assert "texlive-xetex" in tool.missing(["pdf", "epub"]).values()
