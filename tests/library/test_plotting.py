"""Pictures: the right label at the right cell, on every machine."""

import io
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
from attention_lib.course.corpus import CHINESE
from attention_lib.plotting import show_attention, show_heads, show_links

each_show = pytest.mark.parametrize("show", [show_attention, show_links])


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def drawn(figure):
    """The figure as SVG text; drawing it is where fonts would warn."""
    file = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def apart(axis):
    boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
    return not any(first.overlaps(second) for first, second in pairwise(boxes))


def some_weights(*shape):
    return np.random.default_rng(0).dirichlet(np.ones(shape[-1]), shape[:-1])


WEIGHTS = some_weights(2, 3)


# --- a map -------------------------------------------------------------------


def to_bfloat16(weights):
    return torch.tensor(weights, requires_grad=True).bfloat16()


@pytest.mark.parametrize("kind", [to_bfloat16, np.float32, np.ndarray.tolist])
def test_queries_run_down_keys_run_across_and_each_cell_has_its_weight(kind):
    ax = show_attention(kind(WEIGHTS), ["q0", "q1"], ["k0", "k1", "k2"])
    assert labels(ax.xaxis) == ["k0", "k1", "k2"]
    assert labels(ax.yaxis) == ["q0", "q1"]
    bottom, top = ax.get_ylim()
    assert bottom > top  # the first query is at the top
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    mesh = ax.collections[0]
    np.testing.assert_allclose(mesh.get_array(), WEIGHTS, atol=0.005)
    assert mesh.get_coordinates()[0, 0].tolist() == [-0.5, -0.5]
    for text in ax.texts:
        column, row = map(int, text.get_position())
        assert abs(float(text.get_text()) - WEIGHTS[row, column]) < 0.01
    assert len(ax.texts) == 6
    assert mesh.get_clim() == (0.0, 1.0), "the same colour, the same weight"


@pytest.mark.parametrize("weight", np.linspace(0, 1, 11))
def test_a_printed_value_stands_out_from_its_cell(weight):
    ax = show_attention([[weight, 1 - weight]], "a", "bc")
    mesh, text = ax.collections[0], ax.texts[0]
    colors = [mesh.cmap(mesh.norm(weight))[:3], text.get_color()]
    light = np.array([matplotlib.colors.to_rgb(color) for color in colors])
    light = np.where(
        light <= 0.04045, light / 12.92, ((light + 0.055) / 1.055) ** 2.4
    ) @ [0.2126, 0.7152, 0.0722]
    assert (light.max() + 0.05) / (light.min() + 0.05) >= 4.5


@pytest.mark.parametrize("count", [2, 9, 14, 30, 200])
@pytest.mark.parametrize("word", ["it", "attention", "注意力机制"])
def test_labels_do_not_run_into_each_other(count, word):
    ax = show_attention(
        some_weights(count, count), [word] * count, [word] * count
    )
    drawn(ax.figure)
    assert apart(ax.xaxis)
    assert apart(ax.yaxis)
    assert len(labels(ax.xaxis)) > min(count, 10) - 1
    assert ax.figure.get_size_inches().max() <= 6.5


@pytest.mark.parametrize(
    ("token", "label"),
    [
        ("$x$", "$x$"),
        ("$", "$"),
        (" ", "␣"),
        ("a\nb", r"a\nb"),
        ("", ""),
        ("<pad>", "<pad>"),
        ("y" * 50, "y" * 15 + "…"),
    ],
)
def test_odd_tokens_are_shown_as_they_are(token, label):
    ax = show_attention([[1.0]], [token], [token])
    assert labels(ax.xaxis) == labels(ax.yaxis) == [label]
    drawn(ax.figure)
    drawn(show_links([[1.0]], [token], [token]).figure)


@each_show
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (1, 1)])
def test_empty_and_tiny_matrices_can_be_drawn(show, shape):
    drawn(show(np.ones(shape), "q" * shape[0], "k" * shape[1]).figure)


# --- fonts -------------------------------------------------------------------


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


@each_show
def test_chinese_needs_no_installed_font(show, monkeypatch):
    matplotlib.rcParams["svg.hashsalt"] = "same"
    arguments = (WEIGHTS, ["猫", "吃鱼"], ["我", "爱", "nǐ，“好”"])
    here = drawn(show(*arguments).figure)
    without_installed_fonts(monkeypatch)
    assert drawn(show(*arguments).figure) == here
    ax = show([[1.0]], ["龘"], ["a𠀀"])  # what no font has is a number
    drawn(ax.figure)
    texts = labels(ax.xaxis) + labels(ax.yaxis)
    texts += [text.get_text() for text in ax.texts]
    assert {"U+9F98", "aU+20000"} <= set(texts)
    known = plotting._characters(plotting._CHINESE)
    known |= plotting._characters(plotting._LATIN)
    assert {ord(c) for word in CHINESE.words for c in word} <= known
    plotting._characters.cache_clear()


# --- links -------------------------------------------------------------------


def test_a_link_is_as_thick_as_its_weight_and_the_highlighted_show_theirs():
    ax = show_links([[0.75, 0.25, 0.0]], "q", "abc", highlight=0)
    thick, thin = ax.lines  # a weight of zero has no line
    assert thick.get_linewidth() == 3 * thin.get_linewidth()
    places = {text.get_text(): text.get_position()[0] for text in ax.texts}
    assert list(thick.get_xdata()) == [places["q"], places["a"]]
    assert list(thin.get_xdata()) == [places["q"], places["b"]]
    assert {"0.75", "0.25"} < set(places)


# --- heads -------------------------------------------------------------------


@pytest.mark.parametrize("heads", [0, 1, 3, 4])
def test_every_head_has_its_own_map_and_title(heads):
    weights = torch.rand(heads, 3, 5).softmax(-1)
    figure = show_heads(weights, list("abc"), list("vwxyz"))
    drawn(figure)
    titles = [f"head {number}" for number in range(1, heads + 1)]
    assert [ax.get_title() for ax in figure.axes[:heads]] == titles
    for ax, expected in zip(figure.axes, weights, strict=False):
        mesh = ax.collections[0]
        np.testing.assert_allclose(mesh.get_array(), expected)
        assert mesh.get_clim() == (0.0, 1.0)
    bars = [ax for ax in figure.axes if ax.get_label() == "<colorbar>"]
    assert len(bars) == min(heads, 1)


@pytest.mark.parametrize(
    ("heads", "tokens", "columns"),
    [(12, 64, None), (12, 64, 3), (25, 30, None)],
)
def test_many_heads_are_a_sheet_of_small_maps(heads, tokens, columns):
    names = ["token"] * tokens
    titles = [f"h{number}" for number in range(heads)]
    weights = some_weights(heads, tokens, tokens)
    figure = show_heads(weights, names, names, columns=columns, titles=titles)
    drawn(figure)
    assert figure.get_size_inches().max() <= 10
    maps = figure.axes[:heads]
    assert [ax.get_title() for ax in maps] == titles
    assert not labels(maps[0].xaxis) + labels(maps[0].yaxis)
    assert {ax.collections[0].get_clim() for ax in maps} == {
        (0, weights.max())
    }
    grid = maps[0].get_subplotspec().get_gridspec()
    assert grid.ncols == (columns or max(4, round(heads**0.5 + 0.49)))


# --- the caller's own --------------------------------------------------------


def test_no_setting_changes_and_a_readers_grid_does_not_show():
    with matplotlib.rc_context({"axes.grid": True, "font.size": 7}):
        settings, weights = dict(matplotlib.rcParams), WEIGHTS.copy()
        _, axes = plt.subplots(1, 2)
        assert show_attention(weights, "ab", "cde", ax=axes[1]) is axes[1]
        figures = [
            axes[1].figure,
            show_links(weights, "ab", "cde").figure,
            show_heads(weights[None], "ab", "cde"),
        ]
        assert all(map(drawn, figures))
        assert not axes[0].collections
        assert not any(line.get_visible() for line in axes[1].get_xgridlines())
        assert dict(matplotlib.rcParams) == settings
        np.testing.assert_array_equal(weights, WEIGHTS)


def test_matplotlib_is_imported_when_something_is_drawn():
    code = (
        "import sys, attention_lib, attention_lib.plotting, "
        "attention_lib.course.evaluation, attention_lib.course.figures; "
        "sys.exit('matplotlib' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
