"""Pictures of attention weights: a map, links between words, all heads.

matplotlib is imported when something is drawn. No function changes its
settings; Chinese labels need no font but the one that comes along.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attention_lib.course.figures import COLORS

__all__ = [
    "show_attention",
    "show_heads",
    "show_links",
]

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure
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
_TALLEST = 10.0  # inches; a picture of heads is never higher


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
    """Draw weights (Tq, Tk), torch or NumPy: queries down, keys across.

    Values are printed if ``annotate`` is True or, by default, where there
    is room; then ``vmax``, the weight drawn darkest, is 1, else the largest
    weight, and a colour bar is drawn. Long tokens are cut; of very many, only
    every second, third, … is labelled. Returns ``ax``, by default that of
    a new figure. Raises ValueError if the tokens do not fit the matrix.

    >>> import matplotlib.pyplot as plt
    >>> ax = show_attention([[0.75, 0.25]], ["猫"], ["the", "cat"])
    >>> [label.get_text() for label in ax.get_xticklabels()]
    ['the', 'cat']
    >>> plt.close(ax.figure)
    """
    import matplotlib.pyplot as plt

    matrix = _as_array(weights, 2, query_tokens, key_tokens)
    rows, columns = matrix.shape
    if ax is None:
        size = (
            min(6.5, max(2.5, 1.2 + 0.55 * columns)),
            min(6.5, max(1.8, 1.0 + 0.42 * rows)),
        )
        ax = plt.subplots(figsize=size, layout="constrained")[1]
    width, height = _cell_size(ax, rows, columns)
    if annotate is None:
        annotate = width >= 0.36 and height >= 0.2
    if vmax is None:
        vmax = 1.0 if annotate else float(matrix.max(initial=1e-9))
    mesh = _draw_map(ax, matrix, vmax)
    if annotate:
        for (row, column), weight in np.ndenumerate(matrix):
            color = "white" if weight > 0.72 * vmax else "black"
            _write(ax, float(column), float(row), f"{weight:.2f}", color)
    else:
        ax.figure.colorbar(mesh, ax=ax, label="weight")
        width *= 0.85
    _label(ax, query_tokens, key_tokens, width, height)
    ax.set_xlabel(xlabel, labelpad=6)
    ax.set_ylabel(ylabel)
    return ax


def show_heads(
    weights: Any,
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    *,
    columns: int | None = None,
    titles: Sequence[str] | None = None,
) -> Figure:
    """Draw the weights (H, Tq, Tk) of every head of one sample, in a grid.

    ``columns`` heads stand side by side, 2 if omitted. What would be higher
    than ten inches becomes a sheet of small maps without labels, at least 4
    side by side, whose darkest colour is the largest weight of all. Returns
    the figure. Raises ValueError for weights that are not those of one
    sample, and if titles or tokens do not fit.

    >>> import matplotlib.pyplot as plt
    >>> weights = np.full((3, 1, 2), 0.5)
    >>> figure = show_heads(weights, ["猫"], ["a", "cat"])
    >>> [ax.get_title() for ax in figure.axes[:3]]
    ['head 1', 'head 2', 'head 3']
    >>> plt.close(figure)
    """
    import matplotlib.pyplot as plt

    array = _as_array(weights, 3, query_tokens, key_tokens)
    heads, queries, keys = array.shape
    if titles is None:
        titles = [f"head {number}" for number in range(1, heads + 1)]
    if len(titles) != heads:
        raise ValueError(f"titles must be {heads}, got {len(titles)}")
    across = columns or 2
    longest = max(map(len, key_tokens), default=1)
    height = 0.75 + 0.075 * min(16, longest) + 0.2 * queries
    small = -(-heads // across) * height > _TALLEST
    if small:
        across = columns or max(4, math.ceil(math.sqrt(heads)))
        height = 0.4 + 5.6 / across * queries / max(keys, 1)
    down = max(1, -(-heads // across))
    size = (5.6, min(_TALLEST, down * height))
    figure, axes = plt.subplots(
        down, across, figsize=size, squeeze=False, layout="constrained"
    )
    vmax = float(array.max(initial=1e-9)) if small else 1.0
    for ax in axes.flat[heads:]:
        ax.axis("off")
    for ax, matrix, title in zip(axes.flat, array, titles, strict=False):
        mesh = _draw_map(ax, matrix, vmax, lines=not small)
        ax.set_title(title, **({"fontsize": 8} if small else {}))
        if small:
            ax.set(xticks=[], yticks=[])
        else:
            wide, high = _cell_size(ax, queries, keys)
            _label(ax, query_tokens, key_tokens, 0.85 * wide, high)
    if small:
        figure.supxlabel("key")
        figure.supylabel("query")
    if heads:
        figure.colorbar(mesh, ax=axes, label="weight", shrink=0.6)
    return figure


def show_links(
    weights: Any,
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    *,
    ax: Axes | None = None,
    highlight: int | None = None,
) -> Axes:
    """Draw who listens to whom: the thicker the line, the more weight.

    The queries of ``weights`` (Tq, Tk) stand below, the keys above. The
    lines of the query ``highlight`` carry their weights and those of the
    others are pale. Returns ``ax``, by default that of a new figure. Raises
    ValueError if the tokens do not fit the matrix.

    >>> import matplotlib.pyplot as plt
    >>> ax = show_links([[0.75, 0.25]], ["猫"], ["the", "cat"])
    >>> len(ax.lines)
    2
    >>> plt.close(ax.figure)
    """
    import matplotlib.pyplot as plt

    matrix = _as_array(weights, 2, query_tokens, key_tokens)
    if ax is None:
        size = (min(6.5, max(3.0, 1.1 * max(matrix.shape))), 2.4)
        ax = plt.subplots(figsize=size)[1]
    queries = _write_row(ax, query_tokens, -0.06, "top", COLORS["query"])
    keys = _write_row(ax, key_tokens, 1.06, "bottom", COLORS["key"])
    for (row, column), weight in np.ndenumerate(matrix):
        if not weight > 0.0:
            continue
        strong = highlight in (None, row)
        start, end = queries[row], keys[column]
        ax.plot(
            (start, end),
            (0.0, 1.0),
            color=COLORS["query"] if strong else COLORS["grey"],
            alpha=0.85 if strong else 0.2,
            linewidth=8.0 * float(weight),
            solid_capstyle="round",
            zorder=3 if strong else 2,
        )
        if highlight == row:
            place = start + 0.72 * (end - start)
            text = _write(ax, place, 0.72, f"{weight:.2f}", "black")
            text.set_zorder(4)
            text.set_bbox(
                {"facecolor": "white", "edgecolor": "none", "pad": 1}
            )
    ax.set_xlim(0.0, 1.0)
    ax.set_ylim(-0.3, 1.3)
    ax.axis("off")
    return ax


def _as_array(
    weights: Any, axes: int, *tokens: Sequence[str]
) -> NDArray[np.float64]:
    """Return weights in NumPy; refuse what the labels do not fit."""
    if isinstance(weights, Tensor):
        weights = weights.detach().cpu().double().numpy()
    array = np.asarray(weights, dtype=np.float64)
    sizes = tuple(map(len, tokens))
    if array.ndim != axes or array.shape[-2:] != sizes:
        wanted = "(H, Tq, Tk) of one sample" if axes == 3 else "(Tq, Tk)"
        raise ValueError(
            f"weights must have shape {wanted} for {sizes[0]} query_tokens "
            f"and {sizes[1]} key_tokens, got {array.shape}"
        )
    return array


def _cell_size(ax: Axes, rows: int, columns: int) -> tuple[float, float]:
    """Return how wide and how high a cell is, in inches."""
    box, figure = ax.get_position(), ax.get_figure(root=True)
    assert figure is not None
    width = box.width * figure.get_figwidth()
    height = box.height * figure.get_figheight()
    return width / max(columns, 1), height / max(rows, 1)


def _draw_map(
    ax: Axes, matrix: NDArray[np.float64], vmax: float, lines: bool = True
) -> QuadMesh:
    """Colour one cell for each weight, the first query at the top."""
    rows, columns = matrix.shape
    lines = lines and matrix.size <= 2500
    mesh = ax.pcolormesh(
        np.arange(columns + 1) - 0.5,
        np.arange(rows + 1) - 0.5,
        matrix,
        cmap="Blues",
        vmin=0.0,
        vmax=vmax,
        edgecolors="white" if lines else "none",
        linewidth=0.5 if lines else 0.0,
        rasterized=matrix.size > 2500,
    )
    ax.set_xlim(-0.5, max(columns, 1) - 0.5)
    ax.set_ylim(max(rows, 1) - 0.5, -0.5)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    return mesh


def _label(
    ax: Axes,
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    width: float,
    height: float,
) -> None:
    """Write tokens above and beside cells of some size, in inches."""
    texts, families = _printable(key_tokens)
    longest = max(map(_width, texts), default=0.0)
    step = math.ceil(0.16 / max(width, 0.01))
    turned = longest > width * step
    ax.set_xticks(range(0, len(texts), step), texts[::step])
    ax.tick_params(
        axis="x",
        top=True,
        labeltop=True,
        bottom=False,
        labelbottom=False,
        rotation=90 if turned else 0,
    )
    ax.xaxis.set_label_position("top")
    _set_font(ax.get_xticklabels(), families)
    if turned:  # the labels take their length from the cells below
        height -= longest / max(len(query_tokens), 1)
    texts, families = _printable(query_tokens)
    step = math.ceil(0.16 / max(height, 0.01))
    ax.set_yticks(range(0, len(texts), step), texts[::step])
    _set_font(ax.get_yticklabels(), families)
    ax.tick_params(length=0, labelsize=9)


def _write(ax: Axes, x: float, y: float, text: str, color: str) -> Text:
    return ax.text(
        x, y, text, ha="center", va="center", fontsize=9, color=color
    )


def _write_row(
    ax: Axes, tokens: Sequence[str], height: float, va: str, color: str
) -> list[float]:
    """Write tokens side by side; return where they stand."""
    texts, families = _printable(tokens)
    places = [(i + 0.5) / len(texts) for i in range(len(texts))]
    for x, text in zip(places, texts, strict=True):
        label = ax.text(
            x, height, text, ha="center", va=va, fontsize=11, color=color
        )
        _set_font([label], families)
    return places


def _set_font(labels: Iterable[Text], families: list[str]) -> None:
    """Use the fonts one after the other and take $ for a dollar sign."""
    for label in labels:
        label.set_fontfamily(families)
        label.set_parse_math(False)


def _width(text: str) -> float:
    """Estimate the width of a label in inches at 9 points."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return 0.08 * (len(text) + wide)


def _printable(tokens: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what to print for each token, and the fonts to print it in.

    A character that no font at hand can draw is written as its number.
    """
    texts = [_shorten(str(token)) for token in tokens]
    families = [_LATIN, _CHINESE]
    _register_font()
    missing = {ord(c) for text in texts for c in text}
    missing -= _characters(_LATIN) | _characters(_CHINESE)
    for family in _INSTALLED:
        if missing & _characters(family):
            families.append(family)
            missing -= _characters(family)
    escapes = {number: f"U+{number:04X}" for number in missing}
    return [text.translate(escapes) for text in texts], families


def _shorten(token: str) -> str:
    """Cut a long token and make blanks and line breaks visible."""
    text = "".join(
        repr(c)[1:-1] if unicodedata.category(c) == "Cc" else c for c in token
    )
    if text and not text.strip():
        return "␣" * len(text)
    return text if len(text) <= 16 else text[:15] + "…"


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
