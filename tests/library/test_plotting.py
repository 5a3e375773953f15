"""Pictures: the right label at the right cell, on every machine."""

import io
import re
import subprocess
import sys
import warnings
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
import torch

matplotlib.use("svg")

import matplotlib.pyplot as plt
from matplotlib import font_manager

from attention_lib import plotting
from attention_lib.course.figures import use_book_style
from attention_lib.plotting import show_attention, show_links


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def drawn(ax):
    """The figure as SVG text; drawing it is where fonts would warn."""
    file = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ax.figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def rows_that_sum_to_one(rows, columns):
    return np.random.default_rng(0).dirichlet(np.ones(columns), rows)


WEIGHTS = rows_that_sum_to_one(2, 3)


# --- where things are --------------------------------------------------------


def test_queries_run_down_and_keys_run_across():
    ax = show_attention(WEIGHTS, ["q0", "q1"], ["k0", "k1", "k2"])
    assert labels(ax.xaxis) == ["k0", "k1", "k2"]
    assert labels(ax.yaxis) == ["q0", "q1"]
    assert list(ax.get_xticks()) == [0, 1, 2]
    assert list(ax.get_yticks()) == [0, 1]
    bottom, top = ax.get_ylim()
    assert bottom > top  # the first query is at the top
    assert ax.get_xlabel() == "key"
    assert ax.get_ylabel() == "query"


def test_each_cell_has_the_colour_and_the_value_of_its_weight():
    ax = show_attention(WEIGHTS, "ab", "cde")
    mesh = ax.collections[0]
    np.testing.assert_allclose(mesh.get_array(), WEIGHTS)
    corners = mesh.get_coordinates()
    assert corners[0, 0].tolist() == [-0.5, -0.5]
    assert corners[-1, -1].tolist() == [2.5, 1.5]
    printed = {text.get_position(): text.get_text() for text in ax.texts}
    assert printed == {
        (column, row): f"{WEIGHTS[row, column]:.2f}"
        for row in range(2)
        for column in range(3)
    }


@pytest.mark.parametrize("weight", np.linspace(0, 1, 21))
def test_a_printed_value_stands_out_from_its_cell(weight):
    ax = show_attention([[weight, 1 - weight]], "a", "bc")
    mesh, text = ax.collections[0], ax.texts[0]
    cell = mesh.cmap(mesh.norm(weight))[:3]
    ink = 1.0 if text.get_color() == "white" else 0.0

    def luminance(color):
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in color
        ]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    light, dark = sorted([luminance(cell), luminance([ink] * 3)], reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_the_same_colour_means_the_same_weight_where_values_are_printed():
    one = show_attention([[0.5, 0.5]], "a", "bc")
    other = show_attention([[0.1, 0.9]], "a", "bc")
    for ax in (one, other):
        assert (ax.collections[0].norm.vmin, ax.collections[0].norm.vmax) == (
            0.0,
            1.0,
        )


def test_a_figure_can_be_given():
    _, (left, right) = plt.subplots(1, 2)
    assert show_attention(WEIGHTS, "ab", "cde", ax=right) is right
    assert not left.collections


@pytest.mark.parametrize(
    "weights",
    [
        torch.tensor(WEIGHTS, requires_grad=True),
        torch.tensor(WEIGHTS).bfloat16(),
        torch.tensor(WEIGHTS).half(),
        WEIGHTS.astype(np.float32),
        WEIGHTS.tolist(),
    ],
    ids=["gradient", "bfloat16", "float16", "numpy", "lists"],
)
def test_torch_and_numpy_are_welcome(weights):
    ax = show_attention(weights, "ab", "cde")
    np.testing.assert_allclose(
        ax.collections[0].get_array(), WEIGHTS, atol=0.005
    )


def test_weights_are_left_as_they_were():
    weights = WEIGHTS.copy()
    show_attention(weights, "ab", "cde")
    np.testing.assert_array_equal(weights, WEIGHTS)


# --- what is refused ---------------------------------------------------------


@pytest.mark.parametrize("show", [show_attention, show_links])
@pytest.mark.parametrize(
    ("queries", "keys", "words"),
    [
        ("a", "cde", r"query_tokens has 1 .*\(2, 3\) have 2 rows"),
        ("abc", "cde", r"query_tokens has 3 .*\(2, 3\) have 2 rows"),
        ("ab", "cdef", r"key_tokens has 4 .*\(2, 3\) have 3 columns"),
        ("cde", "ab", r"query_tokens has 3 .* have 2 rows"),
    ],
)
def test_a_wrong_number_of_tokens_is_refused_with_both_numbers(
    show, queries, keys, words
):
    with pytest.raises(ValueError, match=words):
        show(WEIGHTS, queries, keys)


@pytest.mark.parametrize("shape", [(3,), (1, 2, 3), (16, 4, 2, 3)])
def test_only_one_matrix_can_be_shown(shape):
    with pytest.raises(
        ValueError, match=r"one matrix.*" + re.escape(str(shape))
    ):
        show_attention(np.zeros(shape), "ab", "cde")


# --- labels of any kind ------------------------------------------------------


def test_two_hundred_tokens_stay_readable():
    tokens = ["x" * 50, *(f"token{i}" for i in range(199))]
    ax = show_attention(rows_that_sum_to_one(200, 200), tokens, tokens)
    drawn(ax)
    assert not ax.texts
    for axis in (ax.xaxis, ax.yaxis):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        assert len(boxes) > 10
        assert not any(
            first.overlaps(second) for first, second in pairwise(boxes)
        )
    position = list(ax.get_xticks())
    step = int(position[1] - position[0])
    assert labels(ax.xaxis)[1:] == [f"token{i - 1}" for i in position[1:]]
    assert step > 1
    size = ax.figure.get_size_inches()
    assert size.max() <= 6.5


def test_long_tokens_are_cut():
    ax = show_attention([[1.0]], ["y" * 50], ["z" * 50])
    assert labels(ax.xaxis) == ["z" * 15 + "…"]
    assert labels(ax.yaxis) == ["y" * 15 + "…"]


@pytest.mark.parametrize("count", [2, 5, 9, 14, 30])
@pytest.mark.parametrize("word", ["it", "attention", "注意力机制"])
def test_labels_do_not_run_into_each_other(count, word):
    use_book_style()
    ax = show_attention(rows_that_sum_to_one(3, count), "abc", [word] * count)
    drawn(ax)
    boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
    assert not any(first.overlaps(second) for first, second in pairwise(boxes))


@pytest.mark.parametrize(
    ("token", "label"),
    [
        ("$x$", "$x$"),
        ("$", "$"),
        (" ", "␣"),
        ("a\nb", r"a\nb"),
        ("\t", r"\t"),
        ("", ""),
        ("<pad>", "<pad>"),
    ],
)
def test_odd_tokens_are_shown_as_they_are(token, label):
    ax = show_attention([[1.0]], [token], [token])
    assert labels(ax.xaxis) == labels(ax.yaxis) == [label]
    drawn(ax)
    drawn(show_links([[1.0]], [token], [token]))


def without_installed_fonts(monkeypatch):
    """Leave matplotlib only the fonts that come with it and with us."""
    plotting._register_font()
    own = str(matplotlib.get_data_path())
    kept = [
        entry
        for entry in font_manager.fontManager.ttflist
        if entry.fname.startswith(own) or entry.name == plotting._CHINESE
    ]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", kept)
    font_manager.fontManager._findfont_cached.cache_clear()
    plotting._characters.cache_clear()


@pytest.mark.parametrize("show", [show_attention, show_links])
def test_chinese_looks_the_same_with_and_without_installed_fonts(
    show, monkeypatch
):
    use_book_style()
    arguments = (WEIGHTS, ["猫", "吃鱼"], ["我", "爱", "nǐ，“好”"])
    here = drawn(show(*arguments))
    without_installed_fonts(monkeypatch)
    assert drawn(show(*arguments)) == here
    plotting._characters.cache_clear()


@pytest.mark.parametrize("show", [show_attention, show_links])
def test_a_character_that_no_font_has_is_shown_by_its_number(
    show, monkeypatch
):
    without_installed_fonts(monkeypatch)
    ax = show([[1.0]], ["龘"], ["a𠀀"])
    drawn(ax)
    texts = labels(ax.xaxis) + labels(ax.yaxis)
    texts += [text.get_text() for text in ax.texts]
    assert {"U+9F98", "aU+20000"} <= set(texts)
    plotting._characters.cache_clear()


def test_the_shipped_font_is_small_and_knows_the_corpus():
    from importlib.resources import files

    from attention_lib.course.corpus import CHINESE

    font = files("attention_lib.course.fonts") / "CourseCJK-Regular.otf"
    assert len(font.read_bytes()) < 300_000
    assert "SIL OPEN FONT LICENSE" in (
        files("attention_lib.course.fonts") / "OFL.txt"
    ).read_text("utf-8")
    plotting._register_font()
    known = plotting._characters(plotting._CHINESE)
    known |= plotting._characters(plotting._LATIN)
    assert {ord(c) for word in CHINESE.words for c in word} <= known


# --- the same figure each time, cheap to import ------------------------------


def test_the_same_figure_is_the_same_text():
    use_book_style()
    first = drawn(show_attention(WEIGHTS, "ab", "cde"))
    assert drawn(show_attention(WEIGHTS, "ab", "cde")) == first


def test_the_package_does_not_import_matplotlib():
    code = (
        "import sys, attention_lib.plotting, attention_lib.attention; "
        "sys.exit('matplotlib' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("show", [show_attention, show_links])
def test_empty_and_tiny_matrices_can_be_drawn(show, shape):
    drawn(show(np.ones(shape), "q" * shape[0], "k" * shape[1]))


# --- links -------------------------------------------------------------------


def test_a_link_is_as_thick_as_its_weight():
    ax = show_links([[0.75, 0.25, 0.0]], "q", "abc")
    thick, thin = ax.lines  # a weight of zero has no line
    assert thick.get_linewidth() == 3 * thin.get_linewidth()
    places = {text.get_text(): text.get_position()[0] for text in ax.texts}
    assert list(thick.get_xdata()) == [places["q"], places["a"]]
    assert list(thin.get_xdata()) == [places["q"], places["b"]]


def test_a_highlighted_query_shows_its_weights():
    ax = show_links(WEIGHTS, "ab", "cde", highlight=1)
    values = [t.get_text() for t in ax.texts if "." in t.get_text()]
    assert values == [f"{weight:.2f}" for weight in WEIGHTS[1]]
