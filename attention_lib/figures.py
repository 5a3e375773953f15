# Written by tools/export.py from 01_seq2seq.ipynb: edit there.
"""Colours, one style and two kinds of picture for the figures of the book.

The colours are those of Okabe and Ito, which readers with any of the common
colour deficiencies can tell apart. matplotlib is imported when a function
needs it, so that importing the package stays cheap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_lib._checks import (
    check_items,
    check_number,
    check_sizes,
    check_type,
)

__all__ = [
    "COLORS",
    "plot_with_spread",
    "show_flow",
    "use_book_style",
]


if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The colours of the book, by role or by name.
COLORS = {
    "query": "#0072B2",  # blue
    "key": "#D55E00",  # vermillion
    "value": "#009E73",  # green
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "pink": "#CC79A7",
    "yellow": "#F0E442",
    "black": "#000000",
    "grey": "#767676",
}


def use_book_style() -> None:
    """Draw every following figure in the style of the book.

    Fixes the random part of SVG files, so that the same figure is the same
    text each time it is drawn. Inside Jupyter it also switches inline figures
    to SVG without a date; elsewhere only matplotlib's settings change.

    Example:
        >>> use_book_style()

    Built in :ref:`section 1 <ch-seq2seq>`.
    """
    import matplotlib as mpl
    from matplotlib.rcsetup import cycler

    free = ("black", "orange", "sky", "pink", "grey")  # no query, key, value
    mpl.rcParams.update(
        {
            "svg.hashsalt": "attention",
            "svg.fonttype": "path",
            "figure.figsize": (6.5, 3.0),
            "figure.facecolor": "none",
            "axes.facecolor": "none",
            "savefig.facecolor": "none",
            "figure.constrained_layout.use": True,
            "font.size": 10,
            "axes.labelsize": 10,
            "axes.titlesize": 10,
            "xtick.labelsize": 9,
            "ytick.labelsize": 9,
            "legend.fontsize": 9,
            "legend.frameon": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": cycler(color=[COLORS[name] for name in free]),
            "lines.linewidth": 1.8,
        }
    )
    try:
        from IPython import get_ipython
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:
        return
    if get_ipython() is not None:
        set_matplotlib_formats(  # type: ignore[no-untyped-call]
            "svg", metadata={"Date": None}
        )


def plot_with_spread(
    ax: Axes,
    x: Any,
    runs: Any,
    *,
    label: str,
    color: str | None = None,
    marker: str = "o",
    linestyle: str = "-",
) -> None:
    """Plot the mean of several runs, each run, and the band they span.

    Args:
        ax: The axes to draw in.
        x: The x positions, one for each column of ``runs``.
        runs: One row per run (seed), one column per position of ``x``.
        label: The name of the line in the legend.
        color: A matplotlib colour; by default the next of the cycle.
        marker: The mark of the mean at each position.
        linestyle: The style of the line through the means.

    Raises:
        ValueError: If ``runs`` is not of shape (runs, positions).

    Example:
        >>> import matplotlib.pyplot as plt
        >>> fig, ax = plt.subplots()
        >>> plot_with_spread(ax, [1, 2], [[0.9, 0.5], [0.8, 0.6]], label="a")
        >>> plt.close(fig)

    Built in :ref:`section 1 <ch-seq2seq>`.
    """
    check_items("x", x, (int, float, np.number), "numbers")
    try:
        values = np.asarray(runs, dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"runs must be a table of numbers: {error}") from None
    if values.ndim != 2 or values.shape[1] != len(x):
        raise ValueError(
            f"runs must have one row per seed and {len(x)} columns, one for "
            f"each x; got shape {values.shape}"
        )
    (line,) = ax.plot(
        x,
        values.mean(axis=0),
        marker=marker,
        markersize=5,
        color=color,
        linestyle=linestyle,
        label=label,
    )
    shade = line.get_color()
    ax.fill_between(
        x,
        values.min(axis=0),
        values.max(axis=0),
        color=shade,
        alpha=0.15,
        linewidth=0,
    )
    for run in values:
        ax.plot(x, run, ".", color=shade, alpha=0.45, markersize=4)


_FONT = 9.5  # the size of all text of a flow, in points
_ROLES = ("query", "key", "value")
_LINE, _CELL, _SHEET = 0.16, 0.11, 0.05  # sizes in a flow, in inches


def _check_flow(
    shapes: Any, places: Any, steps: Any, cells: Any, beside: Any
) -> None:
    """Refuse what show_flow cannot draw."""
    check_type("beside", beside, bool, "True or False")
    check_type("shapes", shapes, Mapping, "a dict")
    if not check_items("shapes", shapes, str, "names"):
        raise ValueError("shapes must name at least one tensor")
    for axes in shapes.values():
        check_items("shapes", axes, (int, str), "sizes or letters of axes")
    check_type("places", places, Mapping, "a dict")
    if set(places) != set(shapes):
        raise ValueError(
            f"places must be those of {', '.join(shapes)}; got those of "
            f"{', '.join(places)}"
        )
    for place in places.values():
        if len(check_items("places", place, (int, float), "numbers")) != 2:
            raise ValueError(f"places must hold pairs (x, y), got {place!r}")
        for number in place:
            check_number("places", number)
    check_type("cells", cells, Mapping, "a dict")
    for name, counts in cells.items():
        items = check_items("cells", counts, int, "whole numbers")
        if not 1 <= len(items) <= 3:
            raise ValueError(
                "cells must hold one to three numbers for a tensor, got "
                f"{counts!r} for {name}"
            )
        for count in items:
            check_sizes(cells=count)
    named: dict[str, set[str]] = {"cells": set(cells), "steps": set()}
    for step in check_items("steps", steps, tuple, "tuples"):
        if len(step) != 3:
            raise ValueError(
                "steps must hold triples (tensors, operation, tensor), got "
                f"{step!r}"
            )
        start, operation, end = step
        check_items("steps", (operation, end), str, "texts")
        named["steps"] |= {*check_items("steps", start, str, "names"), end}
    for argument, names in named.items():
        if unknown := names - set(shapes):
            raise ValueError(
                f"{argument} names {', '.join(sorted(unknown))}, which "
                "shapes lacks"
            )


def _inches(text: str) -> tuple[float, float]:
    """Return how wide and how high a text of a flow is."""
    from matplotlib.textpath import TextPath

    lines = text.split("\n")
    boxes = [TextPath((0, 0), s, size=_FONT).get_extents() for s in lines]
    return max(box.width for box in boxes) / 72, _LINE * len(lines)


def _draw_grid(
    ax: Axes, x: float, y: float, cells: Sequence[int], color: str
) -> tuple[float, float]:
    """Draw a grid below a point and return its width and height.

    Further sheets lie behind the first, each a little up and to the right.
    """
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    row = (1, *cells) if len(cells) == 1 else cells
    rows, columns, sheets = (*row, 1)[:3]
    width, height = columns * _CELL, rows * _CELL
    depth = (sheets - 1) * _SHEET
    left, top = x - (width + depth) / 2, y + depth
    tint = [0.8 + 0.2 * part for part in to_rgb(color)]
    for shift in (sheet * _SHEET for sheet in reversed(range(sheets))):
        corner = left + shift, top - shift
        ax.add_patch(Rectangle(corner, width, height, fc=tint, ec=color))
    inner = [left + column * _CELL for column in range(1, columns)]
    ax.vlines(inner, top, top + height, color=color, lw=0.4)
    inner = [top + row * _CELL for row in range(1, rows)]
    ax.hlines(inner, left, left + width, color=color, lw=0.4)
    return width + depth, height + depth


def show_flow(
    shapes: Mapping[str, Sequence[int | str]],
    places: Mapping[str, tuple[float, float]],
    steps: Sequence[tuple[Sequence[str], str, str]],
    *,
    cells: Mapping[str, Sequence[int]] | None = None,
    beside: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw which tensors, of which shapes, flow through which operations.

    A tensor is its name with its shape and, where ``cells`` has it, a grid
    drawn to scale. The words query, key and value bring their colours. An
    operation stands in a box above the tensor that comes out of it.

    Args:
        shapes: The axes of each tensor, by its name; sizes or letters.
        places: The middle of each tensor's upper edge, in inches to the
            right and downwards.
        steps: The tensors that enter an operation, its text, and the tensor
            that leaves it.
        cells: The columns of a tensor's grid, or its rows and columns, or
            these and its sheets.
        beside: Write names to the right of the grids and not above them.
        ax: Where to draw; by default a new figure of fitting size. Give it
            the room: text has a fixed size, whatever an inch becomes.

    Returns:
        The axes that were drawn in.

    Raises:
        ValueError: If ``places`` has other tensors than ``shapes``, or
            ``steps`` or ``cells`` one that ``shapes`` lacks.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> ax = show_flow(
        ...     {"query": ("Tq", "d"), "scores": ("Tq", "Tk")},
        ...     {"query": (0.0, 0.0), "scores": (0.0, 1.3)},
        ...     [(["query"], "@ key.mT", "scores")],
        ...     cells={"query": (3, 2), "scores": (3, 4)},
        ... )
        >>> [text.get_text() for text in ax.texts]
        ['query\\n(Tq, d)', 'scores\\n(Tq, Tk)', '@ key.mT']
        >>> plt.close(ax.figure)

    Built in :ref:`section 1.5 <sec-decoder>`.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
    from matplotlib.path import Path

    cells = {} if cells is None else cells
    _check_flow(shapes, places, steps, cells, beside)
    figure = None
    if ax is None:
        figure = plt.figure(layout="none")
        ax = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    upper, lower = {}, {}  # where arrows to and from a tensor end
    edges = []  # left, top, right and bottom of what is drawn

    def write(x: float, y: float, text: str, color: str, ha: str) -> None:
        ax.text(x, y, text, fontsize=_FONT, color=color, ha=ha, va="center")

    for name, axes in shapes.items():
        x, y = places[name]
        role = next((r for r in _ROLES if r in name.split()), None)
        color, frame = COLORS[role or "black"], COLORS[role or "grey"]
        comma = "," if len(axes) == 1 else ""
        label = f"{name}\n({', '.join(map(str, axes))}{comma})"
        width, height = _inches(label)
        top = y if beside else y + height + 0.04
        across = down = 0.0
        if name in cells:
            across, down = _draw_grid(ax, x, top, cells[name], frame)
        upper[name], lower[name] = y - 0.03, top + down + 0.03
        if beside:
            left, middle = x + across / 2 + 0.1, y + down / 2
            write(left, middle, label, color, "left")
        else:
            left, middle = x - width / 2, y + height / 2
            write(x, middle, label, color, "center")
        edges += [
            (x - across / 2, y, x + across / 2, top + down),
            (left, middle - height / 2, left + width, middle + height / 2),
        ]

    for start, operation, end in steps:
        x = places[end][0]
        width, height = (side + 0.14 for side in _inches(operation))
        top = upper[end] - 0.2 - height
        box = FancyBboxPatch(
            (x - width / 2, top),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.06",
            fc="white",
            ec=COLORS["grey"],
        )
        ax.add_patch(box).set_zorder(2)
        write(x, top + height / 2, operation, COLORS["black"], "center")
        edges.append((x - width / 2, top, x + width / 2, top + height))
        lines = [[(x, top + height), (x, upper[end])]]
        for name in start:
            at = places[name][0]
            if abs(at - x) < width / 2:
                lines.append([(at, lower[name]), (at, top)])
            else:  # down, then into the side of the box
                level = top + height / 2
                side = x + width / 2 if at > x else x - width / 2
                lines.append([(at, lower[name]), (at, level), (side, level)])
        for line in lines:
            ax.add_patch(
                FancyArrowPatch(
                    path=Path(line),
                    arrowstyle="-|>",
                    mutation_scale=8,
                    color=COLORS["grey"],
                    lw=1.1,
                )
            )

    left, top, *_ = np.min(edges, axis=0)
    *_, right, bottom = np.max(edges, axis=0)
    ax.set_xlim(left - 0.06, right + 0.06)
    ax.set_ylim(bottom + 0.06, top - 0.06)
    ax.set_aspect("equal")
    ax.axis("off")
    if figure is not None:
        figure.set_size_inches(right - left + 0.12, bottom - top + 0.12)
    return ax
