"""Build the book with every warning an error.

python tools/build.py            what changed
python tools/build.py --clean    from nothing; the printed book stays
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
# Its script does not start from a folder with a space in its name.
JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"
# Sphinx's own progress: "reading sources... [ 40%] chapters/02"
STEP = re.compile(r"(reading sources|writing output).*?(\[ *\d+%\])")


def main() -> int:
    """Run jupyter-book; its whole log is shown if something is wrong."""
    if "--clean" in sys.argv[1:]:
        for folder in BUILD.glob("*"):
            if folder.name != "print":
                shutil.rmtree(folder, ignore_errors=True)
    start = time.perf_counter()
    building = subprocess.Popen(
        [
            *(sys.executable, "-c", JUPYTER_BOOK),
            *("build", str(ROOT), "--path-output", str(ROOT)),
            *("-W", "-n", "--keep-going"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log = []
    for line in building.stdout:
        log.append(line)
        if sys.stdout.isatty() and (step := STEP.search(line)):
            print(f"\r\x1b[K  {step[1]} {step[2]}", end="", flush=True)
    if sys.stdout.isatty():
        print("\r\x1b[K", end="")
    if building.wait():
        print("".join(log))
        print("build: the book has warnings; each is an error here")
        return 1
    pages = len(list((BUILD / "html").rglob("*.html")))
    print(f"build: {pages} pages in {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
