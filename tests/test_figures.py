"""The style of the figures."""

import io
import re
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest

from attention_lib.figures import COLORS, plot_with_spread, use_book_style

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _own_settings():
    with mpl.rc_context():
        yield
    import matplotlib.pyplot as plt

    plt.close("all")


def figure():
    import matplotlib.pyplot as plt

    use_book_style()
    fig, ax = plt.subplots()
    plot_with_spread(ax, [1, 2, 4], [[1, 2, 3], [3, 2, 1]], label="runs")
    ax.legend()
    return fig, ax


def test_query_key_and_value_have_their_colours():
    assert COLORS["query"] == "#0072B2"
    assert COLORS["key"] == "#D55E00"
    assert COLORS["value"] == "#009E73"


def test_colours_are_distinct_and_well_formed():
    assert len(set(COLORS.values())) == len(COLORS)
    assert all(re.fullmatch("#[0-9A-F]{6}", c) for c in COLORS.values())


def test_no_line_takes_a_reserved_colour_by_itself():
    use_book_style()
    cycle = mpl.rcParams["axes.prop_cycle"].by_key()["color"]
    assert not {COLORS[role] for role in ("query", "key", "value")} & {*cycle}
    assert len(set(cycle)) == len(cycle) >= 5


def test_the_same_figure_is_the_same_file():
    files = []
    for _ in range(2):
        fig, _ = figure()
        file = io.BytesIO()
        fig.savefig(file, format="svg", metadata={"Date": None})
        files.append(file.getvalue())
    assert files[0] == files[1]
    assert b"<dc:date>" not in files[0]


def test_figures_are_transparent_and_no_text_is_below_nine_points():
    fig, ax = figure()
    assert fig.get_facecolor()[3] == ax.get_facecolor()[3] == 0
    texts = [*ax.get_xticklabels(), *ax.get_legend().get_texts()]
    assert min(text.get_fontsize() for text in texts) >= 9


def test_the_line_is_the_mean_and_the_dots_are_the_runs():
    _, ax = figure()
    mean, *runs = ax.get_lines()
    np.testing.assert_allclose(mean.get_ydata(), [2, 2, 2])
    np.testing.assert_allclose(runs[0].get_ydata(), [1, 2, 3])
    np.testing.assert_allclose(runs[1].get_ydata(), [3, 2, 1])
    band = ax.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (1, 3)
    assert {line.get_color() for line in ax.get_lines()} == {mean.get_color()}


def test_only_the_mean_is_in_the_legend():
    _, ax = figure()
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["runs"]


@pytest.mark.parametrize("runs", [[1, 2, 3], [[1, 2], [3, 4]]])
def test_runs_of_a_wrong_shape_are_refused(runs):
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    with pytest.raises(ValueError, match=r"runs must have .* got shape \("):
        plot_with_spread(ax, [1, 2, 3], runs, label="runs")


def test_the_style_can_be_set_outside_jupyter_and_twice():
    code = (
        "from attention_lib.figures import use_book_style as use;"
        "use(); use();"
        "import matplotlib as mpl;"
        "assert mpl.rcParams['svg.hashsalt'] == 'attention'"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
