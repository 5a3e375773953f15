# Written by tools/export.py from 02_attention_by_hand.ipynb: edit there.
"""Pictures of attention: the heatmap of weights and the links between words.

matplotlib is imported when a picture is drawn, not with the package. Chinese
labels come out on every machine: a small font is shipped with the package.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence, Sized
from functools import lru_cache
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention_lib._checks import check_array, check_number
from attention_lib.figures import COLORS

__all__ = [
    "show_attention",
    "show_links",
]


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text


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

    font = files("attention_lib.fonts") / "CourseCJK-Regular.otf"
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

    Built in :ref:`section 2.7 <sec-first-heatmap>`.
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

    Built in :ref:`section 2.7 <sec-first-heatmap>`.
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
