"""Write what can be counted: times on cards and pages, and the exercises.

Each chapter's card says how long the chapter takes, and a sentence before each
long cell how long that one does; the start page and others hold times in
brackets, ``[an hour]{.time-idea}``; ``chapters/paths.md`` has a table of the
chapters, and ``chapters/exercises.md`` lists all exercises. All are computed
from the chapters and from ``chapters/times.json``, which ``tools/execute.py``
measures.

    python tools/guide.py            write them
    python tools/guide.py --check    fail if writing would change something
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = ROOT / "chapters"

# How fast one reads: assumptions, stated in chapters/paths.md.
WORDS = 200  # of prose in a minute
LINES = 40  # of code in a minute
PAUSES = 3  # figures, displayed formulas or tables in a minute

#: The path of an hour, page by page.
IDEA = ("without_mathematics", "02_attention_by_hand", "errata")

#: From how many seconds on a cell says how long it takes.
LONG = 10

CARD = re.compile(r"About [^\"\n]* to read, [^\"\n]* to run\b[^\"\n]*\.")
WAIT = re.compile(r"\n*\*The next cell takes about [^*\n]+\*\s*\Z")
TIME = re.compile(r"\[[^\]]*\]\{\.time-([\w-]+)\}")
COURSE = re.compile(
    r"(^\| no\. \| chapter \| to read \|\n\|[-:| ]+\|\n)(?:^\|.*\n)*",
    re.MULTILINE,
)
EXERCISE = re.compile(
    r"^(?P<fence>:{3,}|`{3,})\{exercise\} (?P<title>[^\n]+)\n"
    r":label: (?P<label>\S+)\n"
    r"(?P<body>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
KIND = re.compile(
    r"\*(?P<kind>Predict|Compute|Code|Break), (?P<difficulty>[●○]{3}), "
    r"(?P<minutes>\d+) minutes\.\*"
)
SOLUTION = re.compile(
    r"^[:`]{3,}\{solution-start\} (?P<label>\S+)\n:class: dropdown$"
    r"(?P<body>.*?)\{solution-end\}",
    re.MULTILINE | re.DOTALL,
)
DIFFICULTIES = {
    "●○○": "a pencil, or a few lines",
    "●●○": "think first",
    "●●●": "take your time",
}
KINDS = {
    "Predict": "say what will happen before you run it",
    "Compute": "with a pencil; a checker compares the numbers",
    "Code": "write a function; a checker runs it and names the mistake",
    "Break": "find the input that a rule, a test or a claim does not survive",
}
NOTE = "% Written by tools/guide.py from the chapters: change them there.\n"


class Exercise(NamedTuple):
    """What the head of an exercise says, and its parts."""

    title: str
    label: str
    kind: str
    difficulty: str
    minutes: int
    hint: bool
    solution: str


@cache
def notebook(name: str) -> dict[str, Any]:
    """Return a chapter as it lies on the disk."""
    return json.loads((CHAPTERS / f"{name}.ipynb").read_text("utf-8"))


def source(cell: dict[str, Any]) -> str:
    """Return the text of a cell."""
    return "".join(cell["source"])


def chapter_names() -> list[str]:
    """Return the names of the numbered chapters, in order."""
    return sorted(path.stem for path in CHAPTERS.glob("[0-9][0-9]_*.ipynb"))


def exercises(name: str) -> list[Exercise]:
    """Return the exercises of a chapter, in order."""
    text = "\n\n".join(source(cell) for cell in notebook(name)["cells"])
    solutions = {
        match["label"]: match["body"] for match in SOLUTION.finditer(text)
    }
    found = []
    for match in EXERCISE.finditer(text):
        label = match["label"]
        kind = KIND.search(match["body"])
        if kind is None:
            raise ValueError(
                f"{name}.ipynb, exercise {label}: begin with "
                "*Predict, ●○○, 5 minutes.* (or Compute, Code, Break)"
            )
        rest = text[match.start() :].split("{solution-start}")[0]
        found.append(
            Exercise(
                match["title"],
                label,
                kind["kind"],
                kind["difficulty"],
                int(kind["minutes"]),
                "{dropdown} Hint" in rest,
                solutions.get(label, ""),
            )
        )
    return found


def count_text(text: str) -> tuple[int, int, int]:
    """Return the words of prose, the lines of code and the pauses in MyST."""
    pauses = len(re.findall(r"^\$\$\s*$", text, re.MULTILINE)) // 2
    pauses += len(
        re.findall(r"\$\$.+\$\$|\{math\}|\{image\}|\{figure\}", text)
    )
    pauses += len(re.findall(r"^\|[:| -]+\|$", text, re.MULTILINE))
    text = re.sub(r"\$\$.*?\$\$", " ", text, flags=re.DOTALL)
    lines = 0
    for block in re.findall(
        r"^```(?:python|bash)\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    ):
        lines += len(block.splitlines())
        text = text.replace(block, "")
    marks = r"\]\([^)]*\)|<[^>]*>|^:[\w-]+:.*$|\{[\w:. -]+\}"
    text = re.sub(marks, " ", text, flags=re.MULTILINE)
    return len(re.findall(r"[^\W\d_][\w’'-]*", text)), lines, pauses


def reading_minutes(name: str) -> float:
    """Return how long a page takes to read, without its exercises.

    What a card says stays while it is right to four minutes, so that a small
    change of a chapter changes no other page.
    """
    counted = counted_minutes(name)
    path = CHAPTERS / f"{name}.ipynb"
    if path.exists():
        said = re.search(r"About (\d+) minutes", path.read_text("utf-8"))
        if said and abs(int(said[1]) - counted) <= 4:
            return int(said[1])
    return counted


def counted_minutes(name: str) -> float:
    """Count the words, lines and pauses of a page."""
    page = CHAPTERS / f"{name}.md"
    if page.exists():
        words, lines, pauses = count_text(page.read_text("utf-8"))
        return words / WORDS + lines / LINES + pauses / PAUSES
    words = lines = pauses = 0
    reading = True
    for cell in notebook(name)["cells"]:
        text = source(cell)
        if cell["cell_type"] == "markdown":
            before, exercise, _ = text.partition("\n## Exercises\n")
            if reading:
                counts = count_text(before)
            elif "\n## Further reading" in text:
                counts = count_text(text.split("\n## Further reading")[1])
            else:
                counts = (0, 0, 0)
            reading = (reading and not exercise) or (
                "\n## Further reading" in text
            )
            words, lines, pauses = map(
                sum, zip((words, lines, pauses), counts, strict=True)
            )
        elif reading:
            folded = {"hide-input", "hide-cell", "remove-cell", "remove-input"}
            if not folded & set(cell["metadata"].get("tags", [])):
                lines += len([x for x in text.splitlines() if x.strip()])
            pauses += sum(
                "image/svg+xml" in output.get("data", {})
                for output in cell["outputs"]
            )
    return words / WORDS + lines / LINES + pauses / PAUSES


def timed(name: str) -> dict[str, Any]:
    """Return what tools/execute.py has measured of a chapter.

    One that was never executed takes 0 seconds; the tests ask for its time.
    """
    known = json.loads((CHAPTERS / "times.json").read_text("utf-8"))
    return known.get(name, {"seconds": 0, "slow": {}})


def running_seconds(name: str) -> int:
    """Return what a chapter costs on one processor core, as measured."""
    return timed(name)["seconds"]


def practice_minutes(name: str) -> int:
    """Return how long the exercises of a chapter take."""
    return sum(each.minutes for each in exercises(name))


def say_minutes(minutes: float) -> str:
    """Round to five minutes, or to one below ten, and say it."""
    step = 5 if minutes >= 10 else 1
    rounded = max(1, step * round(minutes / step))
    return f"{rounded} minute{'s' * (rounded > 1)}"


def say_hours(minutes: float) -> str:
    """Round to hours and say it."""
    hours = max(1, round(minutes / 60))
    return f"{hours} hour{'s' * (hours > 1)}"


def say_running(seconds: float) -> str:
    """Say how long a chapter runs, in minutes that are kept."""
    if not seconds:
        return "some minutes"  # never timed
    if seconds < 30:
        return "a few seconds"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} minute{'s' * (minutes > 1)}"


def say_waiting(seconds: float) -> str:
    """Say how long a cell takes: tens of seconds, or minutes."""
    if seconds < 55:
        waiting = f"{10 * max(1, round(seconds / 10))} seconds"
    else:
        minutes = max(1, round(seconds / 60))
        waiting = f"{minutes} minute{'s' * (minutes > 1)}"
    return f"*The next cell takes about {waiting} of one processor core.*"


def announce(cells: list[dict[str, Any]], slow: dict[str, int]) -> None:
    """Write before each long cell how long it takes, and nowhere else."""
    place = 0
    while place < len(cells):
        cell = cells[place]
        seconds = slow.get(cell["id"], 0)
        if cell["cell_type"] == "code" and seconds >= LONG:
            if place == 0 or cells[place - 1]["cell_type"] == "code":
                empty = {
                    "cell_type": "markdown",
                    "id": f"wait-{cell['id']}"[:64],
                    "metadata": {},
                    "source": [],
                }
                cells.insert(place, empty)
                place += 1
            before = cells[place - 1]
            text = WAIT.sub("", source(before))
            text += "\n\n" * bool(text) + say_waiting(seconds)
            before["source"] = text.splitlines(keepends=True)
        elif place and cells[place - 1]["cell_type"] == "markdown":
            before = cells[place - 1]
            text = WAIT.sub("", source(before))
            if text != source(before):
                before["source"] = text.splitlines(keepends=True)
                if not text:
                    del cells[place - 1]
                    place -= 1
        place += 1


def card(name: str) -> str:
    """Return the sentence with the times on a chapter's card."""
    text = (
        f"About {say_minutes(reading_minutes(name))} to read, "
        f"{say_running(running_seconds(name))} to run"
    )
    practice = practice_minutes(name) if name in chapter_names() else 0
    if practice:
        text += f", {say_minutes(practice)} to practise"
    return text + "."


def times() -> dict[str, str]:
    """Return the times that a page may hold in brackets, by their names."""
    names = chapter_names()
    said = {
        "idea": say_minutes(sum(reading_minutes(name) for name in IDEA)),
        "course-read": say_hours(sum(map(reading_minutes, names))),
        "course-run": say_running(sum(map(running_seconds, names))),
        "course-practise": say_hours(sum(map(practice_minutes, names))),
        "course": say_hours(
            sum(reading_minutes(name) for name in names)
            + sum(running_seconds(name) for name in names) / 60
            + sum(practice_minutes(name) for name in names)
        ),
    }
    for name in (*names, *IDEA, "summary", "notation", "api"):
        key = name[:2] if name[:2].isdigit() else name.replace("_", "-")
        said[f"read-{key}"] = say_minutes(reading_minutes(name))
    return said


def chapter_title(name: str) -> tuple[str, str]:
    """Return the label and the title of a chapter."""
    first = source(notebook(name)["cells"][0])
    match = re.search(r"^\((ch-[\w-]+)\)=\s*\n# (.+)$", first, re.MULTILINE)
    if match is None:
        raise ValueError(f"{name}.ipynb does not begin with (ch-…)= and # …")
    return match[1], match[2]


def exercise_page() -> str:
    """Return the page of all exercises."""
    found = {name: exercises(name) for name in chapter_names()}
    every = [each for some in found.values() for each in some]
    lines = [
        "(ch-exercises)=",
        "# All exercises",
        "",
        NOTE,
        f"> {len(every)} exercises in {len(found)} chapters, about "
        f"{say_hours(sum(each.minutes for each in every))} of practice; each "
        "with a hint and a solution.",
        "",
        "Open the chapter as a notebook to work on one: the cell below the "
        "exercise calls the checker, which says what is wrong and never shows "
        "the solution. There are four kinds.",
        "",
        *(f"- **{kind}**: {meaning}." for kind, meaning in KINDS.items()),
        "",
        "The dots say how hard: "
        + ", ".join(f"{dots} {text}" for dots, text in DIFFICULTIES.items())
        + ". Minutes are for a reader who has read the chapter.",
        "",
    ]
    for name, some in found.items():
        label, title = chapter_title(name)
        lines += [
            f"## {int(name[:2])}. {title}",
            "",
            f"{{ref}}`To the chapter <{label}>`. "
            f"{len(some)} exercises, "
            f"about {say_minutes(sum(each.minutes for each in some))}.",
            "",
            "| exercise | kind | how hard | minutes |",
            "|:--|:--|:--|--:|",
            *(
                f"| {{ref}}`{each.title} <{each.label}>` | "
                f"{each.kind.lower()} | {each.difficulty} | {each.minutes} |"
                for each in some
            ),
            "",
        ]
    lines += ["## By difficulty", ""]
    for dots, meaning in DIFFICULTIES.items():
        lines += [f"**{dots}, {meaning}:**", *listed(found, dots), ""]
    lines += ["## By kind", ""]
    for kind in KINDS:
        lines += [f"**{kind}:**", *listed(found, kind), ""]
    return "\n".join(lines).rstrip() + "\n"


def listed(found: dict[str, list[Exercise]], mark: str) -> list[str]:
    """Return the exercises with a mark as a sentence, with their chapters."""
    entries = [
        f"{{ref}}`{each.title} <{each.label}>` ({int(name[:2])})"
        for name, some in found.items()
        for each in some
        if mark in (each.difficulty, each.kind)
    ]
    return [";\n".join(entries) + "."]


def course_row(name: str) -> str:
    """Return a chapter's row in the table of the course."""
    label, _ = chapter_title(name)
    minutes = say_minutes(reading_minutes(name))
    return f"| {int(name[:2])} | {{ref}}`{label}` | {minutes} |\n"


def fresh() -> dict[Path, str]:
    """Return the text that each file should have."""
    said = times()
    course = "".join(map(course_row, chapter_names()))

    def bracket(match: re.Match[str]) -> str:
        if match[1] not in said:
            raise ValueError(
                f"no time is called {match[1]}; there are {', '.join(said)}"
            )
        return f"[{said[match[1]]}]{{.time-{match[1]}}}"

    texts = {}
    for path in (ROOT / "index.md", *sorted(CHAPTERS.glob("*.md"))):
        old = path.read_text("utf-8")
        text = TIME.sub(bracket, old)
        text = COURSE.sub(lambda match: match[1] + course, text)
        if TIME.search(old) or COURSE.search(old):
            texts[path] = text
    for name in [*chapter_names(), "errata"]:
        path = CHAPTERS / f"{name}.ipynb"
        old = path.read_text("utf-8")
        if len(CARD.findall(old)) != 1:
            raise ValueError(
                f"{path.name}: one line of the card has to read "
                "About … to read, … to run."
            )
        chapter = json.loads(old)
        announce(chapter["cells"], timed(name)["slow"])
        text = json.dumps(chapter, indent=1, ensure_ascii=False) + "\n"
        texts[path] = CARD.sub(card(name), text)
    texts[CHAPTERS / "exercises.md"] = exercise_page()
    return texts


def main() -> int:
    """Write the texts, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = [
        (path, text)
        for path, text in fresh().items()
        if not path.exists() or path.read_text("utf-8") != text
    ]
    for path, text in stale:
        if check:
            where = path.relative_to(ROOT)
            print(f"{where} is stale; run: python tools/guide.py")
        else:
            path.write_text(text, encoding="utf-8")
    if not check:
        print(f"guide: {len(stale)} files changed")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
