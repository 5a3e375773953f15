"""What a user's type checker makes of the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "typing" / "user_program.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The errors of ``mypy --strict`` in a user's program, by line."""
    empty = tmp_path_factory.mktemp("elsewhere") / "mypy.ini"
    empty.write_text("[mypy]\n", encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict"),
            *("--config-file", str(empty), str(PROGRAM)),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode in (0, 1), done.stderr
    return [
        (Path(file).name, int(line), code)
        for file, line, code in re.findall(
            r"^(\S+?):(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE
        )
        if Path(file).name == PROGRAM.name  # the rest is for our own mypy
    ]


def test_the_checker_finds_each_wrong_line_and_no_other(found):
    wanted = {
        (PROGRAM.name, number, code)
        for number, line in enumerate(
            PROGRAM.read_text("utf-8").splitlines(), start=1
        )
        for _, codes in re.findall(r"(# error: )([\w,-]+)$", line)
        for code in codes.split(",")
    }
    assert len({line for _, line, _ in wanted}) >= 25
    assert set(found) == wanted
