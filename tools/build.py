"""Build the book with every warning an error.

python tools/build.py            what changed
python tools/build.py --clean    from nothing
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"


def main() -> int:
    """Run jupyter-book; its log is shown when something is wrong."""
    if "--clean" in sys.argv[1:]:
        shutil.rmtree(BUILD, ignore_errors=True)
    start = time.perf_counter()
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("jupyter-book")),
            *("build", str(ROOT), "--path-output", str(ROOT)),
            *("-W", "-n", "--keep-going"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        print(done.stdout)
        print("build: the book has warnings; each is an error here")
        return 1
    pages = len(list((BUILD / "html").rglob("*.html")))
    print(f"build: {pages} pages in {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
