"""The benchmarks' page: its tables, made of ``latest.json`` while building.

As an extension of Sphinx it fills ``{{ benchmarks }}`` in a Markdown page;
``run.py`` prints the same rows and draws the page's picture.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from sphinx.application import Sphinx

from attention_lib.course.figures import COLORS, use_book_style

HERE = Path(__file__).resolve().parent
STORED = HERE / "latest.json"
PICTURE = HERE.parent / "site" / "static" / "growth.svg"
VERDICT = {True: "yes", False: "**no**", None: "—"}

Run = dict[str, Any]


def small(number: float | None) -> str:
    """Show a ratio to two places, or as a fraction of one."""
    if number is None:
        return "—"
    return f"{number:.2f}" if number >= 0.13 else f"1/{1 / number:.0f}"


def time_text(time: dict[str, float]) -> str:
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


def columns(row: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a row by the heads of their columns."""
    return {
        "what": row["name"],
        "time": time_text(row["time"]),
        "bar": small(row["time"]["bar"]),
        "memory": small(row["memory"]["ratio"]),
        "bar ": small(row["memory"]["bar"]),
        "met": VERDICT[met(row)],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows as a table, without columns of dashes."""
    lines = [columns(row) for row in rows]
    heads = [
        head for head in lines[0] if any(line[head] != "—" for line in lines)
    ]
    marks = [":--" if head == "what" else "--:" for head in heads]
    texts = [heads, marks, *([line[head] for head in heads] for line in lines)]
    return "\n".join("| " + " | ".join(text) + " |" for text in texts)


def machine_text(run: Run) -> str:
    """Say where and when the numbers were measured."""
    machine = run["machine"]
    return (
        f"Measured on {run['date']} on one of {machine['cores']} cores "
        f"({machine['processor']}), PyTorch {machine['torch']}, "
        f"Python {machine['python']}, {machine['system']}."
    )


def missed_text(run: Run) -> str:
    """Count the bars, and name those that are missed."""
    barred = [row for row in run["rows"] if met(row) is not None]
    missed = [f"- {r['group']}: {r['name']}" for r in barred if not met(r)]
    count = f"{len(barred) - len(missed)} of {len(barred)}"
    text = f"{count} rows with a bar stay under it."
    return "\n".join(
        [text, *(["The others are:\n", *missed] if missed else [])]
    )


def render(_: str = "") -> str:
    """Return all that the page says of the stored run."""
    run = json.loads(STORED.read_text("utf-8"))
    parts = [f"{machine_text(run)} {missed_text(run)}"]
    for group, setting in run["groups"].items():
        rows = [row for row in run["rows"] if row["group"] == group]
        parts.append(f"## {group}\n\n{setting}\n\n{table(rows)}")
    return "\n\n".join(parts)


def draw(growth: dict[str, Any], path: Path = PICTURE) -> None:
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


def setup(app: Sphinx) -> dict[str, Any]:
    """Let the page ask for its tables."""
    import listings

    listings.FILLS["benchmarks"] = render
    return {"parallel_read_safe": True, "parallel_write_safe": True}
