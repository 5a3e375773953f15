"""Write the page of the book that shows the stored measurements.

python tools/benchmarks/page.py

Everything comes from ``latest.json``, which ``make bench`` writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

from attention_lib.course.figures import COLORS, use_book_style

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
STORED = HERE / "latest.json"
PAGE = ROOT / "chapters" / "benchmarks.md"
PICTURE = ROOT / "tools" / "site" / "static" / "growth.svg"

HEAD = """\
(ch-benchmarks)=
# Benchmarks

% Written by tools/benchmarks/page.py from latest.json; `make bench` measures
% again.

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


def small(number: float | None) -> str:
    """Show a ratio to two places, or as a fraction of one."""
    if number is None:
        return "—"
    return f"{number:.2f}" if number >= 0.13 else f"1/{1 / number:.0f}"


def time_cell(time: dict[str, float]) -> str:
    """Show a ratio of times with the range of its middle half."""
    if time["high"] < 0.13:
        return small(time["median"])
    return f"{time['median']:.2f} ({time['low']:.2f}–{time['high']:.2f})"


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
        "bar": small(row["time"]["bar"]),
        "memory": small(row["memory"]["ratio"]),
        "bar ": small(row["memory"]["bar"]),
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
        "```{figure} ../tools/site/static/growth.svg\n"
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


def draw(growth: dict[str, Any], path: Path) -> None:
    """Draw time and memory over the length, on logarithmic axes."""
    mpl.use("agg")
    use_book_style()
    lengths = growth["lengths"]
    figure, axes = plt.subplots(2, 1, figsize=(4.8, 6.4), sharex=True)
    for ax, kind, unit, label in (
        (axes[0], "time", 1e-3, "time in ms"),
        (axes[1], "memory", 2**20, "peak extra memory in MiB"),
    ):
        for (way, values), color, marker in zip(
            growth[kind].items(), ("orange", "sky", "pink"), "os^", strict=True
        ):
            ax.plot(
                lengths[: len(values)],
                [value / unit for value in values],
                marker=marker,
                color=COLORS[color],
                label=way,
            )
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
        ax.set(xscale="log", yscale="log", ylabel=label)
    axes[1].set_xscale("log", base=2)
    axes[1].set_xlabel("length $n$")
    axes[1].set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes[1].tick_params(axis="x", labelrotation=45)
    axes[0].legend()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def write() -> None:
    """Write the page and its picture."""
    runs = load_runs()
    PAGE.write_text(render(runs), "utf-8")
    draw(runs[0]["growth"], PICTURE)


if __name__ == "__main__":
    write()
