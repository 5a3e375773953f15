"""The GitHub workflows are valid, frugal with rights, and hide no failure."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from loading import load

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEXTS = {path.name: path.read_text("utf-8") for path in WORKFLOWS}
PARSED = {name: yaml.safe_load(text) for name, text in TEXTS.items()}


lint_workflows = load("lint_workflows")
matrix = load("matrix")


def steps(name):
    return [
        step
        for job in PARSED[name]["jobs"].values()
        for step in job.get("steps", [])
    ]


def test_the_three_workflows_are_there():
    assert set(TEXTS) == {"publish.yml", "tests.yml", "weekly.yml"}


def test_actionlint_finds_nothing():
    problems = lint_workflows.lint(TEXTS)
    assert not problems, "\n".join(map(str, problems))


def test_actionlint_finds_what_is_wrong():
    """The linter works: a test that cannot fail would prove nothing."""
    broken = TEXTS["tests.yml"].replace("runs-on:", "runs-onn:", 1)
    script = """
on: push
jobs:
  greet:
    runs-on: ubuntu-latest
    steps:
      - run: echo ${{ github.event.head_commit.message }}
      - run: echo ${{ steps.nowhere.outputs.name }}
"""
    problems = lint_workflows.lint({"a.yml": broken, "b.yml": script})
    assert {problem.path for problem in problems} == {"a.yml", "b.yml"}
    text = "\n".join(map(str, problems))
    assert "runs-onn" in text
    assert "untrusted" in text
    assert "nowhere" in text


@pytest.mark.parametrize("name", TEXTS)
def test_no_failure_is_hidden(name):
    assert "continue-on-error" not in TEXTS[name]
    for step in steps(name):
        code = step.get("run", "")
        assert not re.search(r"\|\|", code), code
        assert not re.search(r"\bset \+e", code), code
        assert not re.search(r";\s*true\b|\bexit 0\b", code), code
        # The status of a command in an argument is lost; in an assignment
        # or as the condition of an if it is not.
        for line in code.splitlines():
            bare = re.sub(r'^\s*\w+="\$\(.*$', "", line)
            assert "$(" not in bare or "if !" in line, line


@pytest.mark.parametrize("name", TEXTS)
def test_actions_are_githubs_own_and_pinned_to_a_version(name):
    for step in steps(name):
        if used := step.get("uses"):
            assert re.fullmatch(r"actions/[\w-]+@v\d+(\.\d+\.\d+)?", used)


@pytest.mark.parametrize("name", TEXTS)
def test_rights_are_read_only_unless_a_job_needs_more(name):
    assert PARSED[name]["permissions"] == {"contents": "read"}
    for job_name, job in PARSED[name]["jobs"].items():
        more = {
            right
            for right, level in job.get("permissions", {}).items()
            if level == "write"
        }
        allowed = {
            ("publish.yml", "deploy"): {"pages", "id-token"},
            ("weekly.yml", "report"): {"issues"},
        }
        assert more == allowed.get((name, job_name), set()), job_name


@pytest.mark.parametrize("name", TEXTS)
def test_no_job_runs_forever_or_keeps_a_token(name):
    for job in PARSED[name]["jobs"].values():
        assert "uses" in job or job["timeout-minutes"] <= 90
    for step in steps(name):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_every_supported_python_runs_everything():
    jobs = PARSED["tests.yml"]["jobs"]
    versions = jobs["everything"]["strategy"]["matrix"]["python"]
    assert versions == ["3.11", "3.12", "3.13"]
    assert {"run": ".ci/run"} in jobs["everything"]["steps"]


def test_the_library_meets_the_oldest_and_the_newest_dependencies():
    library = PARSED["tests.yml"]["jobs"]["library"]
    kinds = [
        row["versions"] for row in library["strategy"]["matrix"]["include"]
    ]
    assert kinds == ["oldest", "newest"]
    for name, bound in matrix.dependencies().items():
        assert f"{name}=={bound}.*" in matrix.requirements("oldest")
        assert name in matrix.requirements("newest")


def test_the_library_tests_are_those_that_need_the_package_alone():
    found = matrix.library_tests()
    for module in (ROOT / "attention_lib").glob("[a-z]*.py"):
        assert f"tests/test_{module.name}" in found
    assert "tests/test_typing.py" not in found
    assert "tests/test_workflows.py" not in found
    assert "tests/test_site.py" not in found


def test_a_wrong_use_of_the_matrix_fails():
    tool = [sys.executable, str(ROOT / "tools" / "matrix.py")]
    for arguments in ([], ["latest"], ["oldest", "newest"]):
        done = subprocess.run([*tool, *arguments], capture_output=True)
        assert done.returncode == 2


def test_only_a_tested_main_is_published_with_its_own_address():
    jobs = PARSED["publish.yml"]["jobs"]
    assert jobs["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert jobs["build"]["needs"] == "tests"
    assert jobs["deploy"]["needs"] == "build"
    code = [step.get("run", "") for step in jobs["build"]["steps"]]
    address = code.index('python tools/set_repository.py "$REPOSITORY"')
    # The site links the printed book, with the same address in it.
    assert address < code.index("make pdf epub") < code.index("make book")


def test_the_weekly_run_starts_every_chapter_alone_and_reports():
    jobs = PARSED["weekly.yml"]["jobs"]
    code = "\n".join(s.get("run", "") for s in jobs["chapters"]["steps"])
    assert "requirements.txt" not in code, "Colab has the newest releases"
    assert "for chapter in chapters/*.ipynb" in code
    assert jobs["report"]["if"] == "failure()"
    assert jobs["report"]["needs"] == "chapters"
    assert "gh issue create" in jobs["report"]["steps"][0]["run"]


def test_continuous_integration_is_make_test():
    path = ROOT / ".ci" / "run"
    lines = path.read_text("utf-8").splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert lines[-1] == "exec make test"
    assert path.stat().st_mode & 0o111
