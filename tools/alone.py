"""Run each chapter from a copy of its file alone, as Colab does.

Every notebook lies in a folder of its own outside the repository, with a space
in its path, and an environment of its own holds the package from a wheel. So a
chapter that reads a file of the repository, or a module that the wheel lacks,
fails. Each output is compared with the stored one by nbval.

    python tools/alone.py -n 2 --dist loadfile    arguments go to pytest
    python tools/alone.py -k 02_attention         one chapter
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("attention_lib", "pyproject.toml", "README.md", "LICENSE")


def install(folder: Path) -> Path:
    """Install the package from a copy of its sources; return the Python.

    All else that is installed here is found there too, but not what this
    environment finds in the repository.
    """
    source, home = folder / "source", folder / "venv"
    source.mkdir()
    venv.create(home, symlinks=os.name != "nt")
    (site,) = home.glob("[Ll]ib/**/site-packages")
    others = sysconfig.get_path("purelib")
    (site / "others.pth").write_text(f"{others}\n", encoding="utf-8")
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
    return next(home.glob("[bS]*/python*"))


def main() -> int:
    """Copy, install, compare; return pytest's verdict."""
    with tempfile.TemporaryDirectory(prefix="alone and ") as temporary:
        folder = Path(temporary)
        python = install(folder)
        chapters = folder / "chapters"
        for path in sorted((ROOT / "chapters").glob("*.ipynb")):
            (chapters / path.stem).mkdir(parents=True)
            shutil.copy(path, chapters / path.stem)
        sanitize = folder / "nbval_sanitize.cfg"
        shutil.copy(ROOT / "tests" / sanitize.name, sanitize)
        command = [
            *(python, "-P", "-m", "pytest", "--rootdir", str(folder)),
            *("--nbval", "--nbval-sanitize-with", str(sanitize)),
            *("--nbval-cell-timeout", "1500", *sys.argv[1:], str(chapters)),
        ]
        environment = {**os.environ, "TQDM_DISABLE": "1"}
        environment.pop("PYTHONPATH", None)
        return subprocess.run(
            command, cwd=folder, env=environment, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
