"""What the matrix of dependency versions installs, and which tests it runs.

    python tools/matrix.py oldest    requirements: the lower bounds
    python tools/matrix.py newest    requirements: no bounds
    python tools/matrix.py tests     test files that need the package alone

The bounds are those that ``pyproject.toml`` promises to importers.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEST_TOOLS = {"beartype", "hypothesis", "pytest"}
# Written for these tests, and need no more than the package does.
SHARED = {"drawing", "layers"}
# Runs mypy, whose verdict hangs on the stubs of each version.
NOT_HERE = {"test_typing"}
# The oldest Matplotlib calls what later releases of this one warn about, and
# the tests turn warnings into errors.
OF_THE_TIME = "pyparsing<3.3"


def dependencies() -> dict[str, str]:
    """Return the package's dependencies and their lower bounds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    found = {}
    for text in project["project"]["dependencies"]:
        match = re.fullmatch(r"([\w-]+)>=([\d.]+)", text)
        if match is None:
            raise ValueError(f"{text!r} is not of the form name>=version")
        found[match[1]] = match[2]
    return found


def requirements(kind: str) -> list[str]:
    """Return the lines of a requirements file, the package first."""
    pins = {
        "oldest": [
            *(f"{name}=={v}.*" for name, v in dependencies().items()),
            OF_THE_TIME,
        ],
        "newest": list(dependencies()),
    }
    return [str(ROOT), *pins[kind]]


def imports(path: Path) -> set[str]:
    """Return the top-level packages that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Import(names=names):
                found |= {alias.name.split(".")[0] for alias in names}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.split(".")[0])
    return found


def library_tests() -> list[str]:
    """Return the test files that import nothing of the book's machinery."""
    allowed = {"attention_lib", *dependencies(), *TEST_TOOLS, *SHARED}
    allowed |= sys.stdlib_module_names
    return [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").glob("test_*.py"))
        if imports(path) <= allowed and path.stem not in NOT_HERE
    ]


def main() -> int:
    """Print what was asked for, one a line."""
    kinds = ("oldest", "newest", "tests")
    if len(sys.argv) != 2 or sys.argv[1] not in kinds:
        print(f"usage: matrix.py {'|'.join(kinds)}", file=sys.stderr)
        return 2
    asked = sys.argv[1]
    lines = library_tests() if asked == "tests" else requirements(asked)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
