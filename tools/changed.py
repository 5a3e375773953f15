"""Print the tests of what has changed: since ``main``, and uncommitted.

A module ``attention_lib/X.py`` is tested by ``tests/library/test_X.py``, an
exercise by its chapter's tests. All tests of the library run where that is
not so plain.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EVERYTHING = "tests/library"


def git(*arguments: str) -> list[str]:
    """Return the lines that git prints; none if it fails."""
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def tests_of(path: str) -> str | None:
    """Return the tests of a file, or nothing if it has none."""
    parts = Path(path).parts
    name = Path(path).name
    if parts[0] == "tests" and parts[1] != "book":
        own = name.startswith("test_") and (ROOT / path).exists()
        return path if own else EVERYTHING
    if parts[0] != "attention_lib" or not name.endswith(".py"):
        return None
    kind = "exercises" if "exercises" in parts else "library"
    name = name.removeprefix("_").replace("chapter_", "exercises_")
    test = f"tests/{kind}/test_{name}"
    return test if (ROOT / test).exists() else EVERYTHING


def main() -> None:
    """Print the tests, or their folder if it is among them."""
    base = (git("merge-base", "HEAD", "main") or ["HEAD"])[0]
    changed = git("diff", "--name-only", base)
    changed += git("ls-files", "--others", "--exclude-standard")
    tests = {test for path in changed if (test := tests_of(path))}
    if EVERYTHING in tests:
        tests = {test for test in tests if not test.startswith(EVERYTHING)}
        tests.add(EVERYTHING)
    print("\n".join(sorted(tests)))


if __name__ == "__main__":
    main()
