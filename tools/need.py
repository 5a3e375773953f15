"""Look for what pip does not install: a browser for checks, TeX for print.

    python tools/need.py browser pdf       say how to install what is missing
    python tools/need.py --must pdf epub   and fail if something is

On Debian and Ubuntu, root and continuous integration install it at once.
Elsewhere a TeX Live with XeTeX, librsvg, Poppler, the fonts named below, and
a Chromium have to be there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CI = bool(os.environ.get("CI"))
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
# Commands, files of TeX and fonts, each with Debian's package.
COMMANDS = {
    "xelatex": "texlive-xetex",
    "makeindex": "texlive-binaries",
    "rsvg-convert": "librsvg2-bin",  # figures, SVG to PDF
    "pdftotext": "poppler-utils",  # the tests read what was printed
    "fc-list": "fontconfig",
}
STYLES = {
    "xeCJK.sty": "texlive-lang-chinese",  # sets Chinese
    "ctexhook.sty": "texlive-lang-chinese",
    "titlesec.sty": "texlive-latex-extra",
    "pzdr.tfm": "texlive-fonts-recommended",  # hyperref asks for it
}
FONTS = {
    "TeX Gyre Pagella": "fonts-texgyre",
    "TeX Gyre Pagella Math": "fonts-texgyre-math",
    "DejaVu Sans Mono": "fonts-dejavu-core",
    "Noto Serif CJK SC": "fonts-noto-cjk",
}


def browser() -> str | None:
    """Return the path of a Chromium, that of $CHROMIUM first."""
    if named := os.environ.get("CHROMIUM"):
        return named
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    if MAC.exists():
        return str(MAC)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


def finds(*command: str) -> bool:
    """Return whether a command is there and prints something."""
    if not shutil.which(command[0]):
        return False
    done = subprocess.run(command, capture_output=True, text=True)
    return bool(done.stdout.strip())


def missing(kinds: list[str]) -> dict[str, str]:
    """Return what is not there, each with the package that brings it."""
    lacking = {}
    if "browser" in kinds and browser() is None:
        lacking["chromium"] = "chromium"
    names = ["rsvg-convert"] if "epub" in kinds else []
    if "pdf" in kinds:
        names = list(COMMANDS)
        lacking |= {
            name: package
            for name, package in STYLES.items()
            if not finds("kpsewhich", name)
        }
        lacking |= {
            name: package
            for name, package in FONTS.items()
            if not finds("fc-list", name)
        }
    return lacking | {
        name: COMMANDS[name] for name in names if not shutil.which(name)
    }


def install_line(packages: list[str]) -> str:
    """Return the one line that installs these packages."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    line = f"{sudo}apt-get update && {sudo}apt-get install --yes"
    return f"{line} --no-install-recommends {' '.join(packages)}"


def main() -> int:
    """Say what is missing; install it where that surprises nobody."""
    must = CI or "--must" in sys.argv
    kinds = [word for word in sys.argv[1:] if word != "--must"]
    if not kinds or set(kinds) - {"browser", "pdf", "epub"}:
        print(__doc__)
        return 2
    lacking = missing(kinds)
    line = install_line(sorted(set(lacking.values())))
    if lacking and shutil.which("apt-get") and (CI or os.geteuid() == 0):
        print(f"need: {line}", flush=True)
        subprocess.run(
            f"exec >/dev/null; export DEBIAN_FRONTEND=noninteractive; {line}",
            shell=True,
            check=True,
        )
        lacking = missing(kinds)
    if not lacking:
        return 0
    print(f"need: not here: {', '.join(sorted(lacking))}. This installs it:")
    print(f"  {line}" if shutil.which("apt-get") else __doc__.split("\n\n")[2])
    if not must:
        print("need: until then, the checks that need it are SKIPPED.")
    return int(must)


if __name__ == "__main__":
    sys.exit(main())
