"""Colours, the style and the drawings of shapes that the book's figures share.

The colours are those of Okabe and Ito, which readers with any of the common
colour deficiencies can tell apart. matplotlib is imported when a function
needs it, so that importing the package stays cheap.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

__all__ = [
    "COLORS",
    "plot_with_spread",
    "show_flow",
    "show_shapes",
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


_SILENT = ("agg", "cairo", "pdf", "pgf", "ps", "svg", "template")


def use_book_style() -> None:
    """Draw every following figure in the style of the book.

    A reader's own settings are put aside, so that a figure looks the same
    everywhere; ``with matplotlib.rc_context():`` around this call and the
    figures brings them back. The random part of SVG files is fixed. A
    notebook shows figures inline, as SVG without a date, even where
    ``MPLBACKEND`` names a backend that shows none.

    >>> use_book_style()
    """
    import matplotlib as mpl
    from matplotlib.rcsetup import cycler

    free = ("black", "orange", "sky", "pink", "grey")  # no query, key, value
    mpl.rcdefaults()
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
    _show_inline()


def _show_inline() -> None:
    """In a notebook, show figures below their cell, as SVG."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    if not hasattr(shell, "kernel"):
        return
    import matplotlib as mpl
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    if mpl.get_backend().lower() in _SILENT:
        shell.run_line_magic("matplotlib", "inline")
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
    sentences: int | None = None,
) -> None:
    """Plot the mean of several runs, each run, and the band they span.

    ``runs`` has one row for each run (seed) and one column for each ``x``.
    If they are shares of so many test ``sentences``, the mean also gets a
    bar: two standard errors, sqrt(p (1 - p) / sentences), up and down. More
    runs on the same sentences do not shorten it. Raises ValueError for runs
    of another shape.

    >>> import matplotlib.pyplot as plt
    >>> fig, ax = plt.subplots()
    >>> plot_with_spread(ax, [1, 2], [[0.9, 0.5], [0.8, 0.6]], label="a")
    >>> plt.close(fig)
    """
    values = np.asarray(runs, dtype=float)
    if values.ndim != 2 or values.shape[1] != len(x):
        raise ValueError(
            f"runs must have one row per seed and {len(x)} columns, one for "
            f"each x; got shape {values.shape}"
        )
    mean = values.mean(axis=0)
    (line,) = ax.plot(
        x,
        mean,
        marker=marker,
        markersize=5,
        color=color,
        linestyle=linestyle,
        label=label,
    )
    shade = line.get_color()
    low, high = values.min(axis=0), values.max(axis=0)
    ax.fill_between(x, low, high, color=shade, alpha=0.15, linewidth=0)
    for run in values:
        ax.plot(x, run, ".", color=shade, alpha=0.45, markersize=4)
    if sentences is not None:
        error = 2 * np.sqrt(mean * (1 - mean) / sentences)
        ax.errorbar(
            x, mean, error, fmt="none", ecolor=shade, elinewidth=1, capsize=2
        )


_FONT = 9.5  # the size of all text of a flow, in points
_ROLES = ("query", "key", "value")
_LINE, _CELL, _SHEET = 0.16, 0.11, 0.05  # sizes in a flow, in inches
_Box = tuple[float, float, float, float]  # left, top, right, bottom


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

    ``shapes`` has the axes of each tensor, sizes or letters, by its name;
    ``places`` the middle of its upper edge, in inches to the right and down;
    ``steps`` the tensors that enter an operation, its text, and the tensor
    that leaves it. A tensor in ``cells`` gets a grid: its columns, or rows
    and columns, or these and sheets. ``beside`` writes names to the right of
    the grids. Returns ``ax``, by default that of a new figure of fitting
    size; text has a fixed size, whatever an inch becomes.

    >>> import matplotlib.pyplot as plt
    >>> shapes = {"query": ("Tq", "d"), "scores": ("Tq", "Tk")}
    >>> places = {"query": (0.0, 0.0), "scores": (0.0, 1.3)}
    >>> ax = show_flow(shapes, places, [(["query"], "@ key.mT", "scores")])
    >>> [text.get_text() for text in ax.texts]
    ['query\\n(Tq, d)', 'scores\\n(Tq, Tk)', '@ key.mT']
    >>> plt.close(ax.figure)
    """
    import matplotlib.pyplot as plt

    figure = None
    if ax is None:
        figure = plt.figure(layout="none")
        ax = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    lower, boxes = {}, []  # where arrows leave, and what is taken
    for name, axes in shapes.items():
        grid = (cells or {}).get(name, ())
        lower[name], taken = _draw_tensor(
            ax, name, axes, places[name], grid, beside
        )
        boxes += taken
    for start, operation, end in steps:
        ends = [(places[name][0], lower[name]) for name in start]
        boxes.append(_draw_step(ax, ends, operation, places[end]))
    left, top, *_ = np.min(boxes, axis=0)
    *_, right, bottom = np.max(boxes, axis=0)
    ax.set_xlim(left - 0.06, right + 0.06)
    ax.set_ylim(bottom + 0.06, top - 0.06)
    ax.set_aspect("equal")
    ax.axis("off")
    if figure is not None:
        figure.set_size_inches(right - left + 0.12, bottom - top + 0.12)
    return ax


def _draw_tensor(
    ax: Axes,
    name: str,
    axes: Sequence[int | str],
    place: tuple[float, float],
    cells: Sequence[int],
    beside: bool,
) -> tuple[float, list[_Box]]:
    """Draw a tensor; return where arrows leave it, and what it covers."""
    x, y = place
    role = next((r for r in _ROLES if r in name.split()), None)
    comma = "," if len(axes) == 1 else ""
    label = f"{name}\n({', '.join(map(str, axes))}{comma})"
    width, height = _inches(label)
    top = y if beside else y + height + 0.04
    across = down = 0.0
    if cells:
        across, down = _draw_grid(ax, x, top, cells, COLORS[role or "grey"])
    left, middle, ha = x - width / 2, y + height / 2, "center"
    if beside:
        left, middle, ha = x + across / 2 + 0.1, y + down / 2, "left"
    color = COLORS[role or "black"]
    _write(ax, left if beside else x, middle, label, color, ha)
    return top + down + 0.03, [
        (x - across / 2, y, x + across / 2, top + down),
        (left, middle - height / 2, left + width, middle + height / 2),
    ]


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


def _draw_step(
    ax: Axes,
    starts: Iterable[tuple[float, float]],
    operation: str,
    place: tuple[float, float],
) -> _Box:
    """Draw an operation above the tensor at a place, with its arrows."""
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
    from matplotlib.path import Path

    x, end = place[0], place[1] - 0.03
    width, height = (side + 0.14 for side in _inches(operation))
    top = end - 0.2 - height
    box = FancyBboxPatch(
        (x - width / 2, top),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.06",
        fc="white",
        ec=COLORS["grey"],
    )
    ax.add_patch(box).set_zorder(2)
    _write(ax, x, top + height / 2, operation, COLORS["black"], "center")
    lines = [[(x, top + height), (x, end)]]
    for at, lower in starts:
        if abs(at - x) < width / 2:
            lines.append([(at, lower), (at, top)])
        else:  # down, then into the side of the box
            level = top + height / 2
            side = x + width / 2 if at > x else x - width / 2
            lines.append([(at, lower), (at, level), (side, level)])
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
    return x - width / 2, top, x + width / 2, top + height


def _inches(text: str) -> tuple[float, float]:
    """Return how wide and how high a text of a flow is."""
    from matplotlib.textpath import TextPath

    lines = text.split("\n")
    boxes = [TextPath((0, 0), s, size=_FONT).get_extents() for s in lines]
    return max(box.width for box in boxes) / 72, _LINE * len(lines)


def _write(
    ax: Axes, x: float, y: float, text: str, color: str, ha: str
) -> None:
    ax.text(x, y, text, fontsize=_FONT, color=color, ha=ha, va="center")


def show_shapes(
    shapes: Mapping[str, Sequence[int | str]], *, ax: Axes | None = None
) -> Axes:
    """Draw multi-head attention as a flow, with the shape at each arrow.

    ``shapes`` are those of ``query``, ``key``, ``value``, of the same after
    ``split``: ``query heads``, ``key heads``, ``value heads``, then
    ``scores``, ``weights``, ``context``, ``merged`` and ``output``.

    >>> import matplotlib.pyplot as plt
    >>> flow, heads = (2, 4, 12), (2, 3, 4, 4)
    >>> names = ("query", "key", "value", "merged", "output")
    >>> shapes = {name: flow for name in names}
    >>> shapes |= {f"{name} heads": heads for name in names[:3]}
    >>> shapes |= {n: heads for n in ("scores", "weights", "context")}
    >>> plt.close(show_shapes(shapes).figure)
    """
    places = {
        "query": (0.0, 0.0),
        "key": (1.5, 0.0),
        "value": (3.0, 0.0),
        "query heads": (0.0, 1.24),
        "key heads": (1.5, 1.24),
        "value heads": (3.0, 1.24),
        "scores": (0.75, 2.32),
        "weights": (0.75, 3.4),
        "context": (1.9, 4.48),
        "merged": (1.9, 5.56),
        "output": (1.9, 6.64),
    }
    projected = [
        ([name], f"{name}_proj,\nsplit", f"{name} heads") for name in _ROLES
    ]
    steps = [
        *projected,
        (
            ["query heads", "key heads"],
            "query @ key.mT / sqrt(d_head)",
            "scores",
        ),
        (["scores"], "softmax over keys", "weights"),
        (["weights", "value heads"], "weights @ value", "context"),
        (["context"], "merge", "merged"),
        (["merged"], "output_proj", "output"),
    ]
    return show_flow(shapes, places, steps, ax=ax)
