"""What the project promises about itself, whatever it teaches."""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from loading import load
from packaging.requirements import Requirement
from pybtex.database import parse_file

import attention_lib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
FOREIGN = {"__pycache__", "_build", "build", "dist", "mutants", "vendor"}
KINDS = re.compile(
    r"\.(bib|cff|cfg|css|html|in|ipynb|js|md|py|toml|txt|ya?ml)$"
    r"|^(LICENSE.*|Makefile|run)$"
)


def project_files():
    """The project's own text files, by path, without walking .venv."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name not in FOREIGN
            and (name[0] != "." or name in (".ci", ".github"))
            and not name.endswith(".egg-info")
        ]
        for name in names:
            if KINDS.search(name):
                yield Path(folder, name)


FILES = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for path in sorted(project_files())
}
# This file names what it looks for.
OTHERS = {
    name: text
    for name, text in FILES.items()
    if name != "tests/book/test_project.py"
}
PAGES = {name: text for name, text in OTHERS.items() if name.endswith(".md")}
# With the prose of the notebooks.
BOOK_PAGES = PAGES | {
    name: "\n\n".join(
        "".join(cell["source"])
        for cell in json.loads(text)["cells"]
        if cell["cell_type"] == "markdown"
    )
    for name, text in OTHERS.items()
    if name.endswith(".ipynb")
}


def fences(name, language):
    """The contents of a page's code blocks in one language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", FILES[name], re.MULTILINE | re.DOTALL
    )


def pinned():
    """Names and versions in requirements.txt."""
    lines = FILES["requirements.txt"].splitlines()
    return [line for line in lines if line and line[0] not in " #"]


@pytest.mark.parametrize(
    "name",
    [
        *("_config.yml", "_toc.yml", "chapters", "attention_lib", "tests"),
        *("requirements.txt", "README.md", "pyproject.toml", "Makefile"),
        *("tools", "LICENSE", "LICENSE-text", "CHANGELOG.md", "index.md"),
        *("CONTRIBUTING.md", "CITATION.cff", ".ci/run"),
        ".github/workflows",
    ],
)
def test_the_layout_is_the_agreed_one(name):
    assert (ROOT / name).exists()


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_names_no_folder_of_the_machine_it_was_made_on(name):
    found = re.search(
        r"(?<![\w.:/])/(work|root|home|tmp|opt|Users)/[\w.]+|[A-Z]:\\Users",
        OTHERS[name],
    )
    assert not found, found[0]


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_leaves_nothing_to_do(name):
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", OTHERS[name])
    assert not re.search(r"^(<{7}|>{7}) ", OTHERS[name], re.MULTILINE)


@pytest.mark.parametrize("name", OTHERS)
def test_no_page_installs_a_name_that_anyone_could_register(name):
    """The package is not on PyPI, so such a line would run someone's code."""
    found = re.search(r"pip3? install [^\n`]*", OTHERS[name])
    for line in re.findall(r"pip3? install [^\n`]*", OTHERS[name]):
        assert not re.search(r"(^|[\s\"'])attention[-_]lib\b", line), line
    if name in PAGES and found:
        assert "git+https://" in found[0] or found[0].endswith("install .")


def test_every_requirement_is_pinned_to_one_version():
    lines = pinned()
    assert len(lines) > 50
    for line in lines:
        assert re.fullmatch(r"[\w.-]+==[\w.]+( ; .+)?", line), line
    assert "torch==2.13.0" in lines


def test_every_direct_requirement_is_among_the_pinned():
    versions = dict(line.split(" ;")[0].split("==") for line in pinned())
    direct = [
        Requirement(line.split("#")[0].strip())
        for line in FILES["requirements.in"].splitlines()
        if line.split("#")[0].strip()
    ]
    for requirement in direct:
        version = versions[requirement.name]
        assert requirement.specifier.contains(version), requirement


def test_the_pinned_versions_are_within_what_the_package_allows():
    versions = dict(line.split(" ;")[0].split("==") for line in pinned())
    for text in PROJECT["project"]["dependencies"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(versions[requirement.name])
        bounds = {clause.operator for clause in requirement.specifier}
        assert bounds == {">="}, "an upper bound locks importers in"


def imported(tree):
    """Packages that a module cannot do without."""
    optional = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.Try)
        and any("ImportError" in ast.dump(each) for each in block.handlers)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        match node:
            case _ if id(node) in optional:
                continue
            case ast.Import(names=names):
                yield from (alias.name.split(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.split(".")[0]


def test_the_package_imports_only_what_it_declares():
    declared = {
        Requirement(text).name for text in PROJECT["project"]["dependencies"]
    }
    allowed = declared | sys.stdlib_module_names | {"attention_lib"}
    for name, text in FILES.items():
        if re.match(r"attention_lib/.*\.py$", name):
            surplus = set(imported(ast.parse(text))) - allowed
            assert not surplus, f"{name}: {surplus}"


def test_every_place_names_one_version():
    version = attention_lib.__version__
    citation = yaml.safe_load(FILES["CITATION.cff"])
    assert citation["version"] == version
    latest = re.search(
        r"^## (\S+) \((\d{4}-\d{2}-\d{2})\)$", FILES["CHANGELOG.md"], re.M
    )
    assert latest[1] == version
    assert citation["date-released"] == latest[2]
    for name, text in FILES.items():
        if name.startswith("chapters/") and name.endswith(".ipynb"):
            assert f'VERSION = \\"{version}\\"\\n' in text, name


def test_the_citation_is_complete_and_invents_nobody():
    citation = yaml.safe_load(FILES["CITATION.cff"])
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "type"} <= set(citation)
    assert citation["type"] in ("software", "dataset")
    assert citation["authors"] == [{"name": "The attention-course authors"}]
    assert citation["title"] == yaml.safe_load(FILES["_config.yml"])["title"]
    assert f"title  = {{{citation['title']}}}" in FILES["README.md"]
    assert f"# {citation['title']}\n" in FILES["index.md"]


def test_the_licences_are_mit_for_code_and_cc_by_for_text():
    assert FILES["LICENSE"].startswith("MIT License\n")
    assert PROJECT["project"]["license"] == "MIT"
    text = FILES["LICENSE-text"]
    assert "https://creativecommons.org/licenses/by/4.0/legalcode" in text


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
)
def test_links_to_files_lead_somewhere(name):
    links = re.findall(r"\]\(([^)]+)\)", FILES[name])
    for link in links:
        if not link.startswith("http"):
            assert (ROOT / link.split("#")[0]).exists(), link


@pytest.mark.parametrize("name", PAGES)
def test_every_command_of_make_that_a_page_names_exists(name):
    targets = set(
        re.findall(r"^([\w-]+):.*## ", FILES["Makefile"], re.MULTILINE)
    )
    code = re.findall(r"^```bash\n(.*?)^```", PAGES[name], re.M | re.S)
    spans = re.findall(r"`(make [^`]+)`", PAGES[name])
    for command in re.findall(r"^make (\w+)", "\n".join(code + spans), re.M):
        assert command in targets, command


def test_contributing_goes_from_edit_to_green_in_ten_lines():
    (commands,) = fences("CONTRIBUTING.md", "bash")
    assert len(commands.splitlines()) == 10
    for step in ("make export", "make execute", "make test", "git commit"):
        assert step in commands


@pytest.mark.parametrize(
    "name", ["README.md", "index.md", "chapters/preface.md"]
)
def test_the_python_on_a_page_runs(name):
    blocks = fences(name, "python")
    assert blocks
    for block in blocks:
        printed = []
        scope = {"print": lambda value, into=printed: into.append(str(value))}
        exec(compile(block, name, "exec"), scope)  # our own pages
        shown = re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
        assert printed == shown


def test_the_picture_in_the_readme_is_there_and_small():
    picture = ROOT / "docs" / "page.png"
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) < 400_000


@pytest.mark.parametrize(
    "folder", sorted(p.name for p in (ROOT / "vendor").iterdir() if p.is_dir())
)
def test_what_is_vendored_has_a_licence_or_is_ours(folder):
    if folder == "inventories":  # lists of names, made for this book
        return
    for part in (ROOT / "vendor" / folder, *(ROOT / "vendor").glob("site/*")):
        if folder == "site" and part.name == "site":
            continue
        base = part.name
        places = [part, ROOT / "vendor" / base]
        assert any(list(p.glob("LICENSE*")) for p in places), part


@pytest.mark.parametrize("name", sorted(BOOK_PAGES))
def test_a_number_at_the_start_of_a_line_begins_no_list(name):
    """Markdown takes "1." for a list, in the middle of a sentence too."""
    for before, line in itertools.pairwise(BOOK_PAGES[name].splitlines()):
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
        FILES["chapters/glossary.md"],
        re.DOTALL,
    )[1]
    entries = [entry for entry in re.split(r"\n\n+", block.strip()) if entry]
    terms = [entry.splitlines()[0] for entry in entries]
    assert len(terms) >= 40
    assert len({term.lower() for term in terms}) == len(terms)
    for entry in entries:
        term, *definition = entry.splitlines()
        assert not term.startswith(" "), term
        assert re.match(r"  [^—]*[\u4e00-\u9fff][^—]* — \S", definition[0]), (
            f"{term}: the Chinese term, a dash, the definition"
        )
        assert all(line.startswith("  ") for line in definition), term
        text = " ".join(line.strip() for line in definition)
        assert text.endswith((".", "?", "”", ")")), term


def test_terms_that_a_page_links_are_in_the_glossary():
    lines = FILES["chapters/glossary.md"].splitlines()
    terms = {line.lower() for line in lines if line and line[0] != " "}
    for name, text in OTHERS.items():
        if not name.startswith("chapters/"):
            continue
        for found in re.findall(r"\{term\}`([^`]+)`", text):
            target = re.search(r"<(.+)>", found)
            term = target[1] if target else found
            term = " ".join(re.sub(r'\\n",?\s*"?', " ", term).split())
            assert term.lower() in terms, f"{name}: {term}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The package as importers get it, built from a copy."""
    source = tmp_path_factory.mktemp("source")
    target = tmp_path_factory.mktemp("wheel")
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(
        ROOT / "attention_lib", source / "attention_lib", ignore=ignore
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "-w", str(target), str(source)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (built,) = target.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_holds_the_package_and_its_types_and_nothing_else(wheel):
    names = wheel.namelist()
    assert "attention_lib/py.typed" in names
    assert any(
        name.startswith("attention_lib/course/exercises/") for name in names
    )
    fonts = {
        path.name
        for path in (ROOT / "attention_lib" / "course" / "fonts").iterdir()
        if path.suffix in (".otf", ".txt")
    }
    assert len(fonts) >= 2
    assert {f"attention_lib/course/fonts/{name}" for name in fonts} <= set(
        names
    )
    tops = {name.split("/")[0] for name in names}
    version = attention_lib.__version__
    assert tops == {"attention_lib", f"attention_lib-{version}.dist-info"}
    here = {name for name in FILES if re.match(r"attention_lib/.*\.py$", name)}
    assert here == {name for name in names if name.endswith(".py")}


def test_the_wheel_says_what_it_needs(wheel):
    metadata = wheel.read(
        f"attention_lib-{attention_lib.__version__}.dist-info/METADATA"
    ).decode()
    assert "\nRequires-Python: >=3.11\n" in metadata
    assert "\nLicense-Expression: MIT\n" in metadata
    for name in ("numpy", "torch", "matplotlib", "jaxtyping"):
        assert re.search(rf"^Requires-Dist: {name}>=", metadata, re.M)


def test_the_wheel_is_imported_from_anywhere(wheel, tmp_path):
    wheel.extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import attention_lib\n"
        "from attention_lib.course.exercises import check\n"
        "print(attention_lib.__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))


API = {
    name: text
    for name, text in FILES.items()
    if re.match(r"chapters/api(/\w+)?\.md$", name)
}


def test_the_api_reference_is_what_the_docstrings_say():
    fresh = load("api").pages()
    assert {f"chapters/{name}": text for name, text in fresh.items()} == API, (
        "stale; run: python tools/api.py"
    )


def test_the_api_reference_lists_every_public_name_of_the_book():
    """Independent of how the pages are made: from the imported modules."""
    contents = FILES["_toc.yml"]
    listed = set(
        re.findall(
            r"^\.\. auto\w+:: attention_lib\.(\S+)$",
            "\n".join(API.values()),
            re.MULTILINE,
        )
    )
    indexed = set(
        re.findall(
            r"^- \{py:\w+\}`~attention_lib\.([\w.]+)`",
            FILES["chapters/api.md"],
            re.MULTILINE,
        )
    )
    assert indexed == listed
    expected = {"exercises.check"}
    expected |= {"explorables.explore", "explorables.NAMES"}
    for path in sorted((ROOT / "attention_lib").glob("[!_]*.py")):
        origin = re.search(r"(\w+)\.ipynb", path.read_text("utf-8")[:200])
        if origin and f"chapters/{origin[1]}" in contents:
            module = importlib.import_module(f"attention_lib.{path.stem}")
            expected |= {f"{path.stem}.{name}" for name in module.__all__}
    assert listed == expected


def test_names_of_the_package_are_those_of_its_modules():
    for name in getattr(attention_lib, "__all__", ()):
        assert hasattr(attention_lib, name), name


def test_the_api_reference_says_which_names_are_stable():
    section = re.search(
        r"^## What you can rely on\n(.*?)^## ",
        FILES["chapters/api.md"],
        re.MULTILINE | re.DOTALL,
    )[1]
    listed = re.findall(r"\{py:\w+\}`~attention_lib\.\w+\.(\w+)`", section)
    assert sorted(listed) == sorted(attention_lib.__all__)
    assert "DeprecationWarning" in section
    assert re.search(r"`attention_lib\.__version__`", section)


@pytest.mark.parametrize("name", attention_lib.__all__)
def test_a_stable_name_has_an_example_and_leads_back_to_its_section(name):
    text = getattr(attention_lib, name).__doc__
    assert re.search(r"^ *>>> ", text, re.MULTILINE), "a runnable example"
    assert re.search(r":ref:`section \d+(\.\d+)? <[\w-]+>`", text)
