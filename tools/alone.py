"""Run each chapter from a copy of its file alone, as Colab does.

Every notebook lies in a folder of its own outside the repository, and the
package is installed beside them from a wheel. So a chapter that reads a file
of the repository, or a module that the wheel lacks, fails. Each output is
compared with the stored one by nbval.

    python tools/alone.py -n 2 --dist loadfile    arguments go to pytest
    python tools/alone.py -k 02_attention         one chapter
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("attention_lib", "pyproject.toml", "README.md", "LICENSE")


def install(folder: Path) -> Path:
    """Build the package from a copy of its sources; return where it lies."""
    source, site = folder / "source", folder / "site"
    source.mkdir()
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, source / name, ignore=ignored)
        elif path.exists():
            shutil.copy(path, source)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet"),
            *("--disable-pip-version-check", "--no-deps"),
            *("--no-build-isolation", "--target", str(site), str(source)),
        ],
        check=True,
    )
    shutil.rmtree(source)
    return site


def main() -> int:
    """Copy, install, compare; return pytest's verdict."""
    with tempfile.TemporaryDirectory(prefix="alone-") as temporary:
        folder = Path(temporary)
        site = install(folder)
        chapters = folder / "chapters"
        for path in sorted((ROOT / "chapters").glob("*.ipynb")):
            (chapters / path.stem).mkdir(parents=True)
            shutil.copy(path, chapters / path.stem)
        sanitize = folder / "nbval_sanitize.cfg"
        shutil.copy(ROOT / "tests" / sanitize.name, sanitize)
        command = [
            *(sys.executable, "-P", "-m", "pytest", "--rootdir", str(folder)),
            *("--nbval", "--nbval-sanitize-with", str(sanitize)),
            *("--nbval-cell-timeout", "1500", *sys.argv[1:], str(chapters)),
        ]
        environment = {**os.environ, "PYTHONPATH": str(site)}
        environment["TQDM_DISABLE"] = "1"  # a bar is for those who wait
        return subprocess.run(
            command, cwd=folder, env=environment, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
