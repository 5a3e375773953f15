"""What the project promises about itself, whatever it teaches."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from pybtex.database import parse_file

import attention_lib

ROOT = Path(__file__).resolve().parents[2]
TRACKED = subprocess.run(
    ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
).stdout.split("\0")[:-1]
TEXTS = {
    name: (ROOT / name).read_text("utf-8")
    for name in TRACKED
    if (ROOT / name).is_file()
    and not name.startswith("tools/vendor/")
    and re.search(
        r"\.(bib|cff|cfg|css|in|ipynb|js|md|py|tex|toml|txt|ya?ml)$"
        r"|(^|/)(LICENSE|Makefile|run)$",
        name,
    )
}
PROJECT = tomllib.loads(TEXTS["pyproject.toml"])
PAGES = {name: text for name, text in TEXTS.items() if name.endswith(".md")}
NOTEBOOKS = {n: json.loads(t) for n, t in TEXTS.items() if n.endswith("ipynb")}
# With the prose of the notebooks.
PROSE = PAGES | {
    name: "\n\n".join(
        "".join(cell["source"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "markdown"
    )
    for name, notebook in NOTEBOOKS.items()
}


def test_no_file_names_a_folder_of_the_machine_it_was_made_on():
    machine = re.compile(
        r"(?<![\w.:/])/(work|root|home|opt|Users)/[\w.]+|[A-Z]:\\Users"
    )
    named = {name: machine.search(text) for name, text in TEXTS.items()}
    del named["tests/book/test_project.py"]
    assert not {name: found[0] for name, found in named.items() if found}


def test_no_page_installs_a_name_that_anyone_could_register():
    """The package is not on PyPI, so such a line would run someone's code."""
    for name, text in TEXTS.items():
        for line in re.findall(r"pip3? install [^\n`]*", text):
            assert not re.search(r"(^|[\s\"'])attention[-_]lib\b", line), name


def test_requirements_are_pinned_within_what_the_package_allows():
    lines = TEXTS["requirements.txt"].splitlines()
    pins = [line for line in lines if line and line[0] not in " #"]
    versions = dict(line.split(" ;")[0].split("==") for line in pins)
    direct = [
        line.split("#")[0].strip()
        for line in TEXTS["tools/requirements.in"].splitlines()
    ]
    own = PROJECT["project"]["dependencies"]
    for requirement in map(Requirement, [*filter(None, direct), *own]):
        assert requirement.specifier.contains(versions[requirement.name])
    for requirement in map(Requirement, own):
        bounds = {clause.operator for clause in requirement.specifier}
        assert bounds == {">="}, "an upper bound locks importers in"


def test_every_place_names_one_version():
    version = attention_lib.__version__
    citation = yaml.safe_load(TEXTS["CITATION.cff"])
    latest = re.search(
        r"^## (\S+) \((\d{4}-\d{2}-\d{2})\)$", TEXTS["CHANGELOG.md"], re.M
    )
    assert version == citation["version"] == latest[1]
    assert citation["date-released"] == latest[2]
    for name, notebook in NOTEBOOKS.items():
        code = [c for c in notebook["cells"] if c["cell_type"] == "code"]
        assert f'VERSION = "{version}"\n' in code[0]["source"], name


def test_the_title_is_the_same_everywhere():
    title = yaml.safe_load(TEXTS["CITATION.cff"])["title"]
    assert title == yaml.safe_load(TEXTS["_config.yml"])["title"]
    assert f"title  = {{{title}}}" in TEXTS["README.md"]
    assert TEXTS["index.md"].startswith(f"# {title}\n")


@pytest.mark.parametrize(
    "name", [name for name in PAGES if not name.startswith("chapters/")]
)
def test_links_and_commands_of_a_page_lead_somewhere(name):
    for link in re.findall(r"\]\(([^)]+)\)", PAGES[name]):
        if not link.startswith("http"):
            target = (ROOT / name).parent / link.split("#")[0]
            assert target.exists(), link
    targets = re.findall(r"^([\w-]+):.*## ", TEXTS["Makefile"], re.MULTILINE)
    code = re.findall(r"^```bash\n(.*?)^```", PAGES[name], re.M | re.S)
    spans = re.findall(r"`(make [^`]+)`", PAGES[name])
    for command in re.findall(r"^make (\w+)", "\n".join(code + spans), re.M):
        assert command in targets, command


@pytest.mark.parametrize(
    "name", ["README.md", "index.md", "chapters/preface.md"]
)
def test_the_python_on_a_page_runs(name):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGES[name], re.M | re.S)
    assert blocks
    for block in blocks:
        printed = []
        scope = {"print": lambda value, into=printed: into.append(str(value))}
        exec(compile(block, name, "exec"), scope)  # our own pages
        shown = re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
        assert printed == shown


@pytest.mark.parametrize("name", PROSE)
def test_a_number_at_the_start_of_a_line_begins_no_list(name):
    """Markdown takes "1." for a list, in the middle of a sentence too."""
    for before, line in itertools.pairwise(PROSE[name].splitlines()):
        if re.match(r"1[.)] ", line):
            assert not before.strip(), f"{before}\n{line}"


def test_every_work_in_the_bibliography_is_complete_and_in_order():
    entries = parse_file(ROOT / "chapters" / "references.bib").entries
    assert list(entries) == sorted(entries)
    for key, entry in entries.items():
        assert re.fullmatch(r"[a-z]+\d{4}[a-z]*", key), key
        assert entry.persons.get("author"), key
        assert re.fullmatch(r"\d{4}", entry.fields["year"]), key
        assert entry.fields["title"], key
        assert {"doi", "eprint", "url"} & set(entry.fields), key
        where = {
            "article": "journal",
            "inproceedings": "booktitle",
            "incollection": "booktitle",
            "book": "publisher",
        }.get(entry.type)
        assert where is None or where in entry.fields, key


def test_every_term_of_the_glossary_has_a_chinese_one_and_a_definition():
    block = re.search(
        r"```\{glossary\}\n:sorted:\n(.*?)\n```",
        PAGES["chapters/glossary.md"],
        re.DOTALL,
    )[1]
    entries = [entry for entry in re.split(r"\n\n+", block.strip()) if entry]
    terms = [entry.splitlines()[0].lower() for entry in entries]
    assert len(set(terms)) == len(terms)
    for entry in entries:
        term, *definition = entry.splitlines()
        assert re.match(r"  [^—]*[\u4e00-\u9fff][^—]* — \S", definition[0]), (
            f"{term}: the Chinese term, a dash, the definition"
        )
        assert all(line.startswith("  ") for line in definition), term
        assert definition[-1].endswith((".", "?", "”", ")")), term


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The package as importers get it, with its documentation strings."""
    source = tmp_path_factory.mktemp("source")
    target = tmp_path_factory.mktemp("wheel")
    for name in TRACKED:
        if re.match(r"attention_lib/|pyproject|README|LICENSE", name):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [sys.executable, "-m", *command, "-w", str(target), str(source)],
        check=True,
        capture_output=True,
    )
    (built,) = target.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    """Types, fonts, figures and exercises too."""
    names = set(wheel.namelist())
    package = {name for name in TRACKED if name.startswith("attention_lib/")}
    assert package - names == set()
    version = attention_lib.__version__
    about = f"attention_lib-{version}.dist-info"
    assert {name.split("/")[0] for name in names} == {"attention_lib", about}
    metadata = wheel.read(f"{about}/METADATA").decode()
    for text in PROJECT["project"]["dependencies"]:
        assert re.search(rf"^Requires-Dist: {text}$", metadata, re.M)


def test_the_wheel_works_elsewhere(wheel, tmp_path):
    """Every module imports what the package declares; its examples run."""
    wheel.extractall(tmp_path)
    declared = {
        Requirement(text).name for text in PROJECT["project"]["dependencies"]
    }
    code = (
        "import doctest, importlib, pkgutil, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import attention_lib\n"
        "for module in pkgutil.walk_packages(attention_lib.__path__,"
        " 'attention_lib.'):\n"
        "    found = importlib.import_module(module.name)\n"
        "    assert not doctest.testmod(found).failed, module.name\n"
        "print(attention_lib.__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(str(tmp_path))
    allowed = declared | sys.stdlib_module_names | {"attention_lib", "tqdm"}
    for name in wheel.namelist():
        if name.endswith(".py"):
            text = wheel.read(name).decode()
            found = re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)
            assert set(found) <= allowed, name
