"""What pages list and count, filled in while the book is built.

In a Markdown page ``{{ exercises }}`` stands for the tables of all exercises,
``{{ course }}`` for that of the chapters, ``{{ public }}`` for what the
package exports, and ``{{ modules }}`` for the modules that no other page of
the API documents. ``{{ minutes NAME }}`` is how long a page takes to read, as
its card says or its words are counted; ``{{ minutes course }}`` is the sum of
all chapters and ``{{ minutes practice }}`` that of their exercises.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

import attention_lib

ROOT = Path(__file__).resolve().parent.parent.parent
CHAPTERS = ROOT / "chapters"
PLACE = re.compile(r"\{\{ (\w+)(?: (\w+))? \}\}")
CARD = re.compile(r"^About (\d+) minutes to read\b", re.MULTILINE)
TITLE = re.compile(r"^\((ch-[\w-]+)\)=\s*\n# (.+)$", re.MULTILINE)
EXERCISE = re.compile(
    r"^[:`]{3,}\{exercise\} (.+)\n:label: (\S+)\n+"
    r"\*(Predict|Compute|Code|Break), ([●○]{3}), (\d+) minutes\.\*",
    re.MULTILINE,
)
WORDS = 200  # of prose in a minute: an assumption, stated in paths.md


class Exercise(NamedTuple):
    """What the head of an exercise says."""

    title: str
    label: str
    kind: str
    difficulty: str
    minutes: int


def prose(name: str) -> str:
    """Return the text of a page, a notebook's without its code."""
    page = CHAPTERS / f"{name}.md"
    if page.exists():
        return page.read_text("utf-8")
    notebook = json.loads((CHAPTERS / f"{name}.ipynb").read_text("utf-8"))
    return "\n\n".join(
        "".join(cell["source"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "markdown"
    )


def chapters() -> list[str]:
    """Return the names of the numbered chapters, in order."""
    return sorted(path.stem for path in CHAPTERS.glob("[0-9][0-9]_*.ipynb"))


def exercises(name: str) -> list[Exercise]:
    """Return the exercises of a chapter, in order."""
    text = prose(name)
    found = [
        Exercise(title, label, kind.lower(), difficulty, int(minutes))
        for title, label, kind, difficulty, minutes in EXERCISE.findall(text)
    ]
    if len(found) != text.count("{exercise} "):
        raise ExtensionError(
            f"{name}.ipynb: begin each exercise with "
            "*Predict, ●○○, 5 minutes.* (or Compute, Code, Break)"
        )
    return found


def reading(name: str) -> int:
    """Return the minutes that a page takes to read."""
    text = prose(name)
    if card := CARD.search(text):
        return int(card[1])
    return max(1, round(len(text.split()) / WORDS))


def practice(name: str) -> int:
    """Return the minutes that the exercises of a chapter take."""
    return sum(each.minutes for each in exercises(name))


def minutes(name: str) -> str:
    """Say how long a page takes, or the course."""
    if name in ("course", "practice"):
        count = reading if name == "course" else practice
        hours = round(sum(map(count, chapters())) / 60)
        return f"{hours} hours"
    return f"{reading(name)} minutes"


def course(_: str) -> str:
    """Return the table of the chapters."""
    rows = ["| no. | chapter | to read |", "|--:|:--|--:|"]
    for name in chapters():
        label = TITLE.search(prose(name))[1]
        rows.append(
            f"| {int(name[:2])} | {{ref}}`{label}` | {minutes(name)} |"
        )
    return "\n".join(rows)


def all_exercises(_: str) -> str:
    """Return a section with a table for each chapter."""
    lines = []
    for name in chapters():
        label, title = TITLE.search(prose(name)).groups()
        lines += [
            f"## {int(name[:2])}. {title}\n",
            f"{{ref}}`To the chapter <{label}>`; together about "
            f"{practice(name)} minutes.\n",
            "| exercise | kind | how hard | minutes |",
            "|:--|:--|:--|--:|",
            *(
                f"| {{ref}}`{each.title} <{each.label}>` | {each.kind} | "
                f"{each.difficulty} | {each.minutes} |"
                for each in exercises(name)
            ),
            "",
        ]
    return "\n".join(lines)


def public_names() -> dict[str, str]:
    """Return what ``attention_lib`` exports, and where it is defined."""
    return {
        name: f"{value.__module__}.{name}"
        for name, value in sorted(vars(attention_lib).items())
        if name[0] != "_" and hasattr(value, "__module__")
    }


def public(_: str) -> str:
    """Return the table of what ``attention_lib`` exports."""
    rows = "\n".join(f"   ~{full}" for full in public_names().values())
    table = f".. autosummary::\n   :nosignatures:\n\n{rows}"
    return f"```{{eval-rst}}\n{table}\n```"


def other_modules(_: str) -> str:
    """Return all modules with public names that no page documents."""
    pages = "".join(
        path.read_text("utf-8") for path in CHAPTERS.glob("api/*.md")
    )
    documented = re.findall(r"automodule:: (\S+)", pages)
    sections = []
    for module in pkgutil.walk_packages(
        attention_lib.__path__, "attention_lib."
    ):
        if module.name in documented or "._" in module.name:
            continue
        if hasattr(importlib.import_module(module.name), "__all__"):
            short = module.name.removeprefix("attention_lib.")
            sections.append(
                f"## `{short}`\n\n```{{eval-rst}}\n"
                f".. automodule:: {module.name}\n```\n"
            )
    return "\n".join(sections)


FILLS: dict[str, Callable[[str], str]] = {
    "minutes": minutes,
    "course": course,
    "exercises": all_exercises,
    "public": public,
    "modules": other_modules,
}


def fill(app: Sphinx, document: str, source: list[str]) -> None:
    """Replace the places of a page by what belongs there."""
    if not app.env.doc2path(document).endswith(".md"):
        return
    if PLACE.search(source[0]):
        for path in CHAPTERS.glob("*.ipynb"):
            app.env.note_dependency(str(path))
        source[0] = PLACE.sub(
            lambda place: FILLS[place[1]](place[2]), source[0]
        )


def skip_fields(
    app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out the fields of a NamedTuple, which its docstring explains."""
    return type(member).__name__ == "_tuplegetter" or None


def setup(app: Sphinx) -> dict[str, Any]:
    """Fill in pages as they are read."""
    app.connect("source-read", fill)
    app.connect("autodoc-skip-member", skip_fields)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
