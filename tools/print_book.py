"""Build the printed book from the site's sources: PDF, EPUB or both.

python tools/print_book.py pdf epub

Writes _build/print/attention-course.pdf and .epub. Every warning of Sphinx and
every fault of TeX that a reader would see is an error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from jupyter_book.config import get_final_config
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "tools"
PRINT = ROOT / "_build" / "print"
NAME = "attention-course"
SOLUTIONS = "chapters/solutions"
# Extensions that serve the site, or another way to LaTeX.
SITE_ONLY = {
    *("slim_site", "sphinx_tippy", "sphinx_thebe", "sphinx_comments"),
    *("sphinx_copybutton", "sphinx_togglebutton", "sphinx_book_theme"),
    *("sphinx_jupyterbook_latex", "sphinx.ext.viewcode"),
}
SITE_SETTINGS = ("comments_", "copybutton_", "tippy_", "togglebutton_")
# Text that leaves the page by more than this is a fault.
OVERFULL_PT = 12.0


def contents() -> dict[str, Any]:
    """Return the site's contents with the appendix of solutions."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    toc["parts"][-1]["chapters"].insert(0, {"file": SOLUTIONS})
    return toc


def facts() -> dict[str, str]:
    """Return what the book says of itself, by the names in settings.yml."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    site = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
    return {
        "TITLE": cited["title"],
        "MAIN": cited["title"].split(", ", 1)[0],
        "SUBTITLE": cited["title"].split(", ", 1)[1],
        "AUTHOR": site["author"],
        "YEAR": site["copyright"],
        "VERSION": cited["version"],
        "DATE": str(cited["date-released"]),
        "ADDRESS": cited["repository-code"],
        "ABSTRACT": cited["abstract"],
    }


def draw_cover(folder: Path) -> None:
    """Draw the cover as PDF and as a picture."""
    hero = (TOOLS / "site" / "static" / "hero.svg").read_text("utf-8")
    # The drawing fills the frame that the cover has for it.
    hero = re.sub(r' (width|height)="[\d.]+pt"', "", hero, count=2)
    known = facts() | {"HERO": hero[hero.index("<svg") :]}
    cover = (TOOLS / "print" / "cover.svg").read_text("utf-8")
    source = folder / "cover.svg"
    source.write_text(filled(cover, known), "utf-8")
    for options in (
        ["--format=pdf", f"--output={folder / 'cover.pdf'}"],
        ["--width=1240", f"--output={folder / 'cover.png'}"],
    ):
        subprocess.run(["rsvg-convert", *options, source], check=True)


def filled(setting: Any, known: dict[str, str]) -> Any:
    """Return a setting with the facts that its texts name."""
    if isinstance(setting, dict):
        return {key: filled(one, known) for key, one in setting.items()}
    if isinstance(setting, list):
        return [filled(one, known) for one in setting]
    if isinstance(setting, str):
        for name, fact in known.items():
            setting = setting.replace(f"{{{name}}}", fact)
    return setting


def settings_of(builder: str) -> dict[str, Any]:
    """Return the site's Sphinx configuration, changed for one builder."""
    config, _ = get_final_config(
        user_yaml=ROOT / "_config.yml",
        cli_config={"latex_individualpages": False},
        sourcedir=ROOT,
    )
    config["extensions"] = [
        name for name in config["extensions"] if name not in SITE_ONLY
    ] + ["printed"]
    for name in list(config):
        if name.startswith(SITE_SETTINGS):
            del config[name]
    toc = PRINT / "_toc.yml"
    toc.write_text(yaml.safe_dump(contents(), sort_keys=False), "utf-8")
    config["external_toc_path"] = str(toc)
    known = {
        name: (TOOLS / "print" / f"{name}.tex").read_text("utf-8")
        for name in ("fonts", "sphinxsetup", "preamble")
    } | facts()
    settings = (TOOLS / "print" / "settings.yml").read_text("utf-8")
    config |= filled(yaml.safe_load(settings), known)
    config["epub_cover"] = tuple(config["epub_cover"])
    if builder == "epub":
        static = PRINT / "static"
        static.mkdir(exist_ok=True)
        shutil.copy(PRINT / "cover.png", static)
        shutil.copy(TOOLS / "print" / "epub.css", static / "book.css")
        config["html_static_path"] = [str(static)]
    return config


def write(kind: str) -> Path:
    """Run Sphinx's builder for this kind; return the folder it filled."""
    builder = "latex" if kind == "pdf" else kind
    target = PRINT / builder
    shutil.rmtree(target, ignore_errors=True)
    log = (PRINT / f"{builder}.log").open("w", encoding="utf-8")
    with log, patch_docutils(str(ROOT)), docutils_namespace():
        app = Sphinx(
            srcdir=str(ROOT),
            confdir=None,
            outdir=str(target),
            doctreedir=str(PRINT / ".doctrees"),
            buildername=builder,
            confoverrides=settings_of(builder),
            status=log,
            warning=sys.stderr,
            warningiserror=True,
            keep_going=True,
        )
        app.build()
    if app.statuscode:
        raise SystemExit(f"print: {builder} has warnings; each is an error")
    return target


def set_pages(folder: Path) -> None:
    """Run TeX until references, contents and index stand still."""
    shutil.copy(PRINT / "cover.pdf", folder)
    environment = os.environ | {"max_print_line": "1000"}

    def run(*command: str) -> None:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode:
            print(done.stdout[-4000:], done.stderr[-1000:])
            raise SystemExit(f"print: {command[0]} failed")

    tex = ["xelatex", "-interaction=nonstopmode", "-halt-on-error"]
    run(*tex, "-no-pdf", f"{NAME}.tex")
    run("makeindex", "-q", "-s", "python.ist", f"{NAME}.idx")
    run(*tex, "-no-pdf", f"{NAME}.tex")
    run(*tex, f"{NAME}.tex")
    log = (folder / f"{NAME}.log").read_text("utf-8", "replace")
    if faults := list(read_faults(log)):
        print(*faults, sep="\n")
        raise SystemExit(f"print: {len(faults)} faults in the PDF")


def read_faults(log: str) -> list[str]:
    """Return what a reader of the PDF would see, from TeX's log."""
    faults = re.findall(
        r"^(?:LaTeX Warning: .*(?:undefined|multiply|Rerun).*"
        r"|Missing character: .*|! .*)$",
        log,
        re.MULTILINE,
    )
    for width, rest in re.findall(
        r"^Overfull \\hbox \((\S+?)pt too wide\) (.*\n.*)$", log, re.MULTILINE
    ):
        if float(width) > OVERFULL_PT:
            faults.append(f"{width} pt too wide {rest}")
    return faults


def finish(kind: str, folder: Path) -> str:
    """Make the book from what Sphinx wrote; say how large it is."""
    product = PRINT / f"{NAME}.{kind}"
    if kind == "pdf":
        set_pages(folder)
    shutil.copy(folder / product.name, product)
    size = product.stat().st_size / 1e6
    return f"print: {product.relative_to(ROOT)}, {size:.1f} MB"


def main() -> int:
    """Build what the command line names."""
    wanted = sys.argv[1:]
    if not wanted or set(wanted) - {"pdf", "epub"}:
        print(__doc__)
        return 2
    # The date of the version, not of the day that the book was built on.
    released = datetime.fromisoformat(facts()["DATE"])
    os.environ["SOURCE_DATE_EPOCH"] = str(
        int(released.replace(tzinfo=UTC).timestamp())
    )
    os.environ["FORCE_SOURCE_DATE"] = "1"
    PRINT.mkdir(parents=True, exist_ok=True)
    draw_cover(PRINT)
    start = time.perf_counter()
    # TeX is another program: the EPUB is written while it works.
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(finish, kind, write(kind)) for kind in wanted]
        for job in jobs:
            print(job.result(), f"after {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
