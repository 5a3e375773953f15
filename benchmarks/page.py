"""Write the page of the book that shows the stored measurements.

    python benchmarks/page.py            write the page and its picture
    python benchmarks/page.py --check    fail if the page does not fit

Everything comes from ``benchmarks/latest.json``, which ``make bench`` writes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "benchmarks" / "latest.json"
PAGE = ROOT / "chapters" / "benchmarks.md"
PICTURE = ROOT / "_static" / "growth.svg"

HEAD = """\
(ch-benchmarks)=
# Benchmarks

% Written by benchmarks/page.py from benchmarks/latest.json; `make bench`
% measures again.

How fast is the code of the chapters, and how much memory does it take, beside
PyTorch's own and beside the form that textbooks print? A duration would say
more about the machine than about the code, so each number here is a *ratio*,
ours divided by theirs, both measured in one run. Below 1 we are faster or
smaller.

The two take turns; each turn gives a ratio of times, and the table shows the
median with the range of the middle half of the turns. Memory is what PyTorch's
allocator hands out on the CPU, at its highest, beyond the inputs; it is exact,
the same in every run, and nearly the same on more threads (the table shows the
first run's). A *bar* is a value that we set before measuring and
want to stay under. Where the range holds the bar, another run may decide
otherwise.
"""

TAIL = """\
To measure on your own machine, run `make bench`. It needs a few minutes and a
machine that does nothing else, prints this table, and writes this page.
`make bench THREADS=1` uses one core and bears some other work beside it: on
several cores each step of a call waits for the last of them. Of each number of
threads the page shows the last run.
"""

Stored = dict[str, Any]


def load_runs(path: Path = STORED) -> list[Stored]:
    """Return the stored runs, that on the fewest threads first."""
    return json.loads(path.read_text("utf-8"))["runs"]


def add_run(runs: list[Stored], new: Stored) -> list[Stored]:
    """Put a run in the place of an older one on as many threads.

    Runs on another machine, or of other cases, are no company for it.
    """

    def company(run: Stored) -> tuple[Any, ...]:
        machine = {**run["machine"], "threads": 0}
        cases = [(row["group"], row["name"]) for row in run["rows"]]
        return machine, cases, run["groups"]

    kept = {
        run["machine"]["threads"]: run
        for run in runs
        if company(run) == company(new)
    }
    kept[new["machine"]["threads"]] = new
    return [kept[threads] for threads in sorted(kept)]


def threads_text(run: Stored) -> str:
    """Name a run by its threads."""
    threads = run["machine"]["threads"]
    return f"{threads} thread" + ("s" if threads > 1 else "")


def time_cell(time: dict[str, float]) -> str:
    """Show a ratio of times with the range of its middle half."""
    if time["high"] < 0.095:
        return small(time["median"])
    return f"{time['median']:.2f} ({time['low']:.2f}–{time['high']:.2f})"


def small(number: float) -> str:
    """Show a ratio to two places, or as a fraction of one."""
    if 0 < number < 0.095:
        return f"1/{1 / number:.0f}"
    return f"{number:.2f}"


def bar_cell(number: float | None) -> str:
    """Show a bar; those far below 1 are set as fractions."""
    if number is None:
        return "—"
    if number < 0.5:
        return f"1/{1 / number:.0f}"
    return f"{number:.2f}"


def met(row: dict[str, Any]) -> bool | None:
    """Tell whether a row stays under its bars; ``None`` without a bar."""
    answers = [
        row[kind][value] <= row[kind]["bar"]
        for kind, value in (("time", "median"), ("memory", "ratio"))
        if row[kind]["bar"] is not None
    ]
    return all(answers) if answers else None


VERDICT = {True: "yes", False: "**no**", None: "—"}


def columns(row: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a row by the heads of their columns."""
    return {
        "what": row["name"],
        "time": time_cell(row["time"]),
        "bar": bar_cell(row["time"]["bar"]),
        "memory": small(row["memory"]["ratio"]),
        "bar ": bar_cell(row["memory"]["bar"]),
        "met": VERDICT[met(row)],
    }


def table(runs: list[Stored], group: str) -> str:
    """Return one group of rows as a table, without columns of dashes."""
    lines = []
    parts = [
        [row for row in run["rows"] if row["group"] == group] for run in runs
    ]
    for rows in zip(*parts, strict=True):
        cells = columns(rows[0])
        answers = [met(row) for row in rows]
        line = {"what": cells["what"]}
        for run, row in zip(runs, rows, strict=True):
            line[f"time, {threads_text(run)}"] = time_cell(row["time"])
        line |= {head: cells[head] for head in ("bar", "memory", "bar ")}
        # One verdict for all runs: the worst.
        worst = None if None in answers else all(answers)
        lines.append(line | {"met": VERDICT[worst]})
    heads = [
        head for head in lines[0] if any(line[head] != "—" for line in lines)
    ]
    marks = [":-:" if head == "met" else "--:" for head in heads]
    texts = [heads, [":--", *marks[1:]]]
    texts += [[line[head] for head in heads] for line in lines]
    return "\n".join("| " + " | ".join(text) + " |" for text in texts)


def machine_text(run: Stored) -> str:
    """Say in one paragraph where and when the numbers were measured."""
    machine = run["machine"]
    return (
        f"Measured on {run['date']} on a machine with {machine['cores']} "
        f"cores ({machine['processor']}), PyTorch {machine['torch']} on "
        f"{threads_text(run)}, "
        f"Python {machine['python']}, {machine['system']}."
    )


def missed_text(run: Stored) -> str:
    """Count the bars, and name those that are missed."""
    answers = [met(row) for row in run["rows"]]
    missed = [
        f"- {row['group']}: {row['name']}"
        for row, answer in zip(run["rows"], answers, strict=True)
        if answer is False
    ]
    count = len([answer for answer in answers if answer is not None])
    if not missed:
        return f"All {count} rows with a bar stay under it.\n"
    return (
        f"{count - len(missed)} of {count} rows with a bar stay under it. "
        "The others are:\n\n" + "\n".join(missed) + "\n"
    )


def render(runs: list[Stored]) -> str:
    """Return the whole page."""
    parts = [HEAD]
    for run in runs:
        parts += [f"{machine_text(run)} {missed_text(run)}"]
    for group, setting in runs[0]["groups"].items():
        parts.append(f"## {group}\n\n{setting}\n\n{table(runs, group)}\n")
    ways = list(runs[0]["growth"]["time"])
    parts.append(
        "## How cost grows with length\n\n"
        "One head of width 64, without gradients, on "
        f"{threads_text(runs[0])}. The *plain* form stores all scores.\n\n"
        "```{figure} ../_static/growth.svg\n"
        ":name: fig-benchmark-growth\n"
        ":alt: Two plots with logarithmic axes: time and peak memory of "
        f"{', '.join(ways)} over the length of the sequence.\n"
        ":width: 100%\n\n"
        "Time and peak extra memory over the length. On logarithmic axes a "
        "power is a straight line and its exponent the slope: the thin "
        "lines show $n$ and $n^2$.\n```\n"
    )
    parts.append(TAIL)
    return "\n".join(parts)


def digest(growth: dict[str, Any]) -> str:
    """Return a mark of the numbers that a picture shows."""
    text = json.dumps(growth, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def draw(growth: dict[str, Any], path: Path) -> None:
    """Draw time and memory over the length, on logarithmic axes."""
    sys.path.insert(0, str(ROOT))
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    from attention_lib.course.figures import COLORS, use_book_style

    use_book_style()
    lengths = growth["lengths"]
    looks = zip(growth["time"], ("orange", "sky", "pink"), "os^", strict=False)
    figure, axes = plt.subplots(2, 1, figsize=(4.8, 6.4), sharex=True)
    for way, color, marker in looks:
        for ax, kind, unit in zip(
            axes, ("time", "memory"), (1e-3, 2**20), strict=True
        ):
            values = growth[kind][way]
            ax.plot(
                lengths[: len(values)],
                [value / unit for value in values],
                marker=marker,
                color=COLORS[color],
                label=way,
            )
    for ax, kind, unit in zip(
        axes, ("time", "memory"), (1e-3, 2**20), strict=True
    ):
        last = growth[kind]["plain"]
        end, top = lengths[len(last) - 1], last[-1] / unit
        for power, style in ((1, ":"), (2, "--")):
            ax.plot(
                lengths,
                [top * (length / end) ** power for length in lengths],
                style,
                color=COLORS["grey"],
                linewidth=0.9,
                label="$n$" if power == 1 else "$n^2$",
                zorder=0,
            )
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
    axes[0].set_ylabel("time in ms")
    axes[1].set_ylabel("peak extra memory in MiB")
    axes[1].set_xlabel("length $n$")
    axes[1].set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes[1].tick_params(axis="x", labelrotation=45)
    axes[0].legend()
    figure.savefig(
        path, metadata={"Date": None, "Description": digest(growth)}
    )
    plt.close(figure)


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    runs = load_runs()
    text, growth = render(runs), runs[0]["growth"]
    if not check:
        PAGE.write_text(text, "utf-8")
        draw(growth, PICTURE)
        return 0
    fits = PAGE.exists() and PAGE.read_text("utf-8") == text
    mark = digest(growth)
    fits = fits and PICTURE.exists() and mark in PICTURE.read_text("utf-8")
    if not fits:
        print("page: chapters/benchmarks.md or its picture is stale; run")
        print("page: python benchmarks/page.py")
    return int(not fits)


if __name__ == "__main__":
    sys.exit(main())
