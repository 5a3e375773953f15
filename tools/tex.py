"""Find what the printed book is made with, or install it.

python tools/tex.py pdf epub

On Debian and Ubuntu the packages below are installed; elsewhere a TeX Live
with XeTeX, librsvg, Poppler and the three families of fonts have to be there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

# Each command, file of TeX and font that is needed, and Debian's package.
COMMANDS = {
    "xelatex": "texlive-xetex",
    "makeindex": "texlive-binaries",
    "rsvg-convert": "librsvg2-bin",  # figures, SVG to PDF
    "pdftotext": "poppler-utils",  # the tests read what was printed
    "fc-list": "fontconfig",
}
# An EPUB needs its cover drawn, no more.
EPUB_COMMANDS = {"rsvg-convert": "librsvg2-bin"}
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


def output(*command: str) -> str:
    """Return what a command prints, nothing if it fails."""
    if not shutil.which(command[0]):
        return ""
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip()


def missing(kinds: list[str]) -> dict[str, str]:
    """Return what is not there, with the package that brings it."""
    commands = COMMANDS if "pdf" in kinds else EPUB_COMMANDS
    lacking = {
        name: package
        for name, package in commands.items()
        if not shutil.which(name)
    }
    if "pdf" not in kinds:
        return lacking
    lacking |= {
        name: package
        for name, package in STYLES.items()
        if not output("kpsewhich", name)
    }
    lacking |= {
        name: package
        for name, package in FONTS.items()
        if not output("fc-list", name)
    }
    return lacking


def install(packages: list[str]) -> None:
    """Install packages with the system's package manager."""
    root = [] if os.geteuid() == 0 else ["sudo"]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    options = ["--yes", "--quiet=2", "--no-install-recommends"]
    for command in (
        [*root, "apt-get", "update", "--quiet=2"],
        [*root, "apt-get", "install", *options, *packages],
    ):
        subprocess.run(
            command, check=True, env=environment, stdout=subprocess.DEVNULL
        )


def main() -> int:
    """Say that everything is there, installing it where it can be."""
    kinds = sys.argv[1:]
    if not kinds or set(kinds) - {"pdf", "epub"}:
        print(__doc__)
        return 2
    lacking = missing(kinds)
    if lacking and shutil.which("apt-get"):
        packages = sorted(set(lacking.values()))
        print("tex: installing", *packages, "(minutes, once) …", flush=True)
        install(packages)
        lacking = missing(kinds)
    if lacking:
        print("tex: missing:", ", ".join(sorted(lacking)))
        return 1
    print("tex: all there for", *kinds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
