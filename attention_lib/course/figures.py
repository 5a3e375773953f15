"""Colours, one style and two kinds of picture for the figures of the book.

The colours are those of Okabe and Ito, which readers with any of the common
colour deficiencies can tell apart. matplotlib is imported when a function
needs it, so that importing the package stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attention_lib._checks import check_items

__all__ = [
    "COLORS",
    "plot_with_spread",
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
