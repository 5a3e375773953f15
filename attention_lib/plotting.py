"""Tools to look into a trained layer: shapes, pictures, gates."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence, Sized
from functools import lru_cache
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from attention_lib._checks import (
    check_array,
    check_items,
    check_number,
    check_sizes,
    check_type,
)
from attention_lib.course.figures import COLORS

__all__ = [
    "show_attention",
    "show_flow",
    "show_heads",
    "show_links",
    "show_shapes",
]

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

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


def show_shapes(
    shapes: dict[str, tuple[int, ...]], *, ax: Axes | None = None
) -> Axes:
    """Draw multi-head attention as a flow, with the shape at each arrow.

    Args:
        shapes: The shapes of ``query``, ``key``, ``value``, of the same
            after ``split``: ``query heads``, ``key heads``, ``value heads``,
            then ``scores``, ``weights``, ``context``, ``merged`` and
            ``output``.
        ax: Where to draw; by default a new figure.

    Returns:
        The axes that were drawn in.

    Raises:
        ValueError: If a shape is missing or unknown.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> flow, heads = (2, 4, 12), (2, 3, 4, 4)
        >>> names = ("query", "key", "value", "merged", "output")
        >>> shapes = {name: flow for name in names}
        >>> shapes |= {f"{name} heads": heads for name in names[:3]}
        >>> shapes |= {n: heads for n in ("scores", "weights", "context")}
        >>> ax = show_shapes(shapes)
        >>> plt.close(ax.figure)
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
    check_type("shapes", shapes, dict, "a dict")
    if set(shapes) != set(places):
        raise ValueError(
            f"shapes must name {', '.join(places)}; got {', '.join(shapes)}"
        )
    steps = [
        *(
            ([name], f"{name}_proj,\nsplit", f"{name} heads")
            for name in ("query", "key", "value")
        ),
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


def show_heads(
    weights: Float[Tensor, "H Tq Tk"],
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    *,
    columns: int = 2,
    titles: Sequence[str] | None = None,
) -> Figure:
    """Draw the weights of every head of one sample, in a grid.

    Args:
        weights: The weights of one sample, ``(H, Tq, Tk)``.
        query_tokens: One label for each query.
        key_tokens: One label for each key.
        columns: Number of heads side by side.
        titles: What to write above the heads; by default their numbers,
            from 1.

    Returns:
        The figure.

    Raises:
        ValueError: If ``weights`` has not three axes, or if there is not one
            title for each head or one label for each row and column.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> import torch
        >>> weights = torch.full((3, 1, 2), 0.5)
        >>> figure = show_heads(weights, ["猫"], ["a", "cat"])
        >>> [ax.get_title() for ax in figure.axes[:3]]
        ['head 1', 'head 2', 'head 3']
        >>> plt.close(figure)
    """
    import matplotlib.pyplot as plt

    check_type("weights", weights, Tensor, "a torch.Tensor")
    check_sizes(columns=columns)
    check_items("key_tokens", key_tokens, str, "labels")
    check_items("query_tokens", query_tokens, str, "labels")
    if weights.ndim != 3:
        raise ValueError(
            "weights must be those of one sample, (H, Tq, Tk), got shape "
            f"{tuple(weights.shape)}; choose a sample, such as weights[0]"
        )
    heads = weights.shape[0]
    if titles is None:
        titles = [f"head {number}" for number in range(1, heads + 1)]
    if len(titles) != heads:
        raise ValueError(
            f"titles has {len(titles)} entries, weights {heads} heads"
        )
    rows = -(-heads // columns)
    longest = max(map(len, key_tokens), default=1)
    height = 0.75 + 0.075 * longest + 0.2 * len(query_tokens)
    figure, axes = plt.subplots(
        rows, columns, figsize=(5.6, rows * height), squeeze=False
    )
    for ax in axes.flat[heads:]:
        ax.axis("off")
    for number, (ax, title) in enumerate(zip(axes.flat, titles, strict=False)):
        show_attention(
            weights[number],
            query_tokens,
            key_tokens,
            ax=ax,
            annotate=False,
            vmax=1.0,
            xlabel="",
            ylabel="",
        )
        ax.set_title(title)
        mesh = ax.collections[0]
        if mesh.colorbar is not None:  # one for all heads is enough
            mesh.colorbar.remove()
    if heads:
        figure.colorbar(mesh, ax=axes, label="weight", shrink=0.6)
    return figure


_LATIN = "DejaVu Sans"  # comes with matplotlib


_CHINESE = "Course CJK"  # comes with this package


_INSTALLED = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "PingFang SC",
    "Hiragino Sans GB",
    "Heiti SC",
    "Microsoft YaHei",
    "SimHei",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Arial Unicode MS",
)


@lru_cache(maxsize=1)
def _register_font() -> None:
    """Tell matplotlib about the font that comes with this package."""
    from matplotlib import font_manager

    font = files("attention_lib.course.fonts") / "CourseCJK-Regular.otf"
    with as_file(font) as path:
        font_manager.fontManager.addfont(str(path))


@lru_cache(maxsize=len(_INSTALLED) + 2)
def _characters(family: str) -> frozenset[int]:
    """Return the characters of a font family, none if it is missing."""
    from matplotlib import font_manager, ft2font

    for entry in font_manager.fontManager.ttflist:
        if entry.name == family:
            return frozenset(ft2font.FT2Font(entry.fname).get_charmap())
    return frozenset()


def _printable(token: str, longest: int) -> str:
    """Cut a long token and make blanks and line breaks visible."""
    text = "".join(
        repr(c)[1:-1] if unicodedata.category(c) == "Cc" else c for c in token
    )
    if text and not text.strip():
        return "␣" * len(text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _labels(
    tokens: Sequence[str], longest: int = 16
) -> tuple[list[str], list[str]]:
    """Return what to print for each token, and the fonts to print it in.

    A character that no font at hand can draw is written as its number.
    """
    _register_font()
    texts = [_printable(str(token), longest) for token in tokens]
    families = [_LATIN, _CHINESE]
    missing = {ord(c) for text in texts for c in text}
    missing -= _characters(_LATIN) | _characters(_CHINESE)
    for family in _INSTALLED:
        if missing & _characters(family):
            families.append(family)
            missing -= _characters(family)
    escapes = {number: f"U+{number:04X}" for number in missing}
    return [text.translate(escapes) for text in texts], families


def _set_font(text: Text, families: list[str]) -> None:
    """Use the fonts one after the other and take $ for a dollar sign."""
    text.set_fontfamily(families)
    text.set_parse_math(False)


def _width(text: str) -> float:
    """Estimate the width of a label in inches at 9 points."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return 0.08 * (len(text) + wide)


def _every(size: float) -> int:
    """Return which share of labels has room, if a cell has this size."""
    return math.ceil(0.16 / max(size, 0.01))


def _matrix(
    weights: Any, query_tokens: Sequence[str], key_tokens: Sequence[str]
) -> NDArray[np.float64]:
    """Check that there is one label for each row and column."""
    if isinstance(weights, torch.Tensor):
        weights = weights.detach().cpu().double().numpy()
    matrix = check_array("weights", weights)
    if matrix.ndim != 2:
        raise ValueError(
            "weights must be one matrix, (queries, keys), got shape "
            f"{matrix.shape}; choose an example and a head, such as "
            "weights[0, 0]"
        )
    for name, tokens, size, what in (
        ("query_tokens", query_tokens, matrix.shape[0], "rows"),
        ("key_tokens", key_tokens, matrix.shape[1], "columns"),
    ):
        if isinstance(tokens, torch.Tensor) or not isinstance(tokens, Sized):
            raise TypeError(
                f"{name} must be a sequence of labels, got "
                f"{type(tokens).__name__}"
            )
        if len(tokens) != size:
            raise ValueError(
                f"{name} has {len(tokens)} tokens but weights of shape "
                f"{matrix.shape} have {size} {what}"
            )
    return matrix


def show_attention(
    weights: Any,
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    *,
    ax: Axes | None = None,
    annotate: bool | None = None,
    vmax: float | None = None,
    xlabel: str = "key",
    ylabel: str = "query",
) -> Axes:
    """Draw attention weights: queries down, keys across.

    Each row is one query and sums to one. Values are printed where there
    is room. Long tokens are cut, and of very many every second, third, …
    is labelled.

    Args:
        weights: One matrix ``(Tq, Tk)``, torch or NumPy.
        query_tokens: One label for each row.
        key_tokens: One label for each column.
        ax: Where to draw; by default a new figure of fitting size.
        annotate: Whether to print the values; by default if they fit.
        vmax: The weight that is drawn darkest: by default 1 if the values
            are printed, and the largest weight, with a colour bar, if not.
        xlabel: The name of the columns.
        ylabel: The name of the rows.

    Returns:
        The axes that were drawn in.

    Raises:
        ValueError: If ``weights`` is not one matrix or the numbers of
            tokens differ from its rows and columns.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> ax = show_attention([[0.75, 0.25]], ["猫"], ["the", "cat"])
        >>> [label.get_text() for label in ax.get_xticklabels()]
        ['the', 'cat']
        >>> plt.close(ax.figure)
    """
    import matplotlib.pyplot as plt

    matrix = _matrix(weights, query_tokens, key_tokens)
    rows, columns = matrix.shape
    if vmax is not None:
        check_number("vmax", vmax, low=1e-9)
    if ax is None:
        size = (
            min(6.5, max(2.5, 1.2 + 0.55 * columns)),
            min(6.5, max(1.8, 1.0 + 0.42 * rows)),
        )
        ax = plt.subplots(figsize=size)[1]
    figure = ax.get_figure(root=True)
    assert figure is not None
    box = ax.get_position()
    width = box.width * figure.get_figwidth() / max(columns, 1)
    height = box.height * figure.get_figheight() / max(rows, 1)
    if annotate is None:
        annotate = width >= 0.36 and height >= 0.2
    if vmax is None:
        vmax = 1.0 if annotate else float(matrix.max(initial=1e-9))

    few = matrix.size <= 2500
    mesh = ax.pcolormesh(
        np.arange(columns + 1) - 0.5,
        np.arange(rows + 1) - 0.5,
        matrix,
        cmap="Blues",
        vmin=0.0,
        vmax=vmax,
        edgecolors="white" if few else "none",
        linewidth=0.5 if few else 0.0,
        rasterized=not few,
    )
    ax.set_xlim(-0.5, max(columns, 1) - 0.5)
    ax.set_ylim(max(rows, 1) - 0.5, -0.5)
    if annotate:
        for (row, column), weight in np.ndenumerate(matrix):
            ax.text(
                column,
                row,
                f"{weight:.2f}",
                ha="center",
                va="center",
                fontsize=9,
                color="white" if weight > 0.72 * vmax else "black",
            )
    else:
        figure.colorbar(mesh, ax=ax, label="weight")

    texts, families = _labels(key_tokens)
    longest = max(map(_width, texts), default=0.0)
    step = _every(width if annotate else 0.85 * width)
    turned = longest > width * step
    ax.set_xticks(range(0, columns, step), texts[::step])
    ax.tick_params(
        axis="x",
        top=True,
        labeltop=True,
        bottom=False,
        labelbottom=False,
        rotation=90 if turned else 0,
    )
    for label in ax.get_xticklabels():
        _set_font(label, families)
    texts, families = _labels(query_tokens)
    step = _every(height - (longest / max(rows, 1) if turned else 0.0))
    ax.set_yticks(range(0, rows, step), texts[::step])
    for label in ax.get_yticklabels():
        _set_font(label, families)
    ax.tick_params(length=0, labelsize=9)
    ax.spines[:].set_visible(False)
    ax.set_xlabel(xlabel, labelpad=6)
    ax.xaxis.set_label_position("top")
    ax.set_ylabel(ylabel)
    return ax


def show_links(
    weights: Any,
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    *,
    ax: Axes | None = None,
    highlight: int | None = None,
) -> Axes:
    """Draw who listens to whom: the thicker the line, the more weight.

    Args:
        weights: One matrix ``(Tq, Tk)``, torch or NumPy.
        query_tokens: The listeners, drawn in a row at the bottom.
        key_tokens: Those who are listened to, drawn at the top.
        ax: Where to draw; by default a new figure.
        highlight: The query whose lines carry their weights; the lines of
            the others are drawn pale. By default none is singled out.

    Returns:
        The axes that were drawn in.

    Raises:
        ValueError: If ``weights`` is not one matrix or the numbers of
            tokens differ from its rows and columns.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> ax = show_links([[0.75, 0.25]], ["猫"], ["the", "cat"])
        >>> len(ax.lines)
        2
        >>> plt.close(ax.figure)
    """
    import matplotlib.pyplot as plt

    matrix = _matrix(weights, query_tokens, key_tokens)
    if highlight is not None and highlight not in range(len(matrix)):
        raise ValueError(
            f"highlight must be the number of a query, 0 to "
            f"{len(matrix) - 1}, got {highlight!r}"
        )
    if ax is None:
        longest = max(matrix.shape)
        size = (min(6.5, max(3.0, 1.1 * longest)), 2.4)
        ax = plt.subplots(figsize=size)[1]
    places = []
    for tokens, height, align, color in (
        (query_tokens, 0.0, "top", COLORS["query"]),
        (key_tokens, 1.0, "bottom", COLORS["key"]),
    ):
        texts, families = _labels(tokens)
        places.append([(i + 0.5) / len(texts) for i in range(len(texts))])
        for position, text in zip(places[-1], texts, strict=True):
            label = ax.text(
                position,
                height + (0.06 if height else -0.06),
                text,
                ha="center",
                va=align,
                fontsize=11,
                color=color,
            )
            _set_font(label, families)
    for (row, column), weight in np.ndenumerate(matrix):
        if not weight > 0.0:
            continue
        strong = highlight in (None, row)
        ends = (places[0][row], places[1][column])
        ax.plot(
            ends,
            (0.0, 1.0),
            color=COLORS["query"] if strong else COLORS["grey"],
            alpha=0.85 if strong else 0.2,
            linewidth=8.0 * float(weight),
            solid_capstyle="round",
            zorder=3 if strong else 2,
        )
        if highlight == row:
            near = 0.72
            ax.text(
                ends[0] + near * (ends[1] - ends[0]),
                near,
                f"{weight:.2f}",
                ha="center",
                va="center",
                fontsize=9,
                zorder=4,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )
    ax.set_xlim(0.0, 1.0)
    ax.set_ylim(-0.3, 1.3)
    ax.axis("off")
    return ax
