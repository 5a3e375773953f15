"""The style of the book's figures, bands of runs, drawings of shapes."""

import __future__

import io
import json
import re
import symtable
import sys
import types
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
from drawing import assert_tidy
from nbclient import NotebookClient

from attention_lib.course.figures import (
    COLORS,
    plot_with_spread,
    show_flow,
    show_shapes,
    use_book_style,
)

mpl.use("Agg")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _own_settings():
    with mpl.rc_context():
        yield
    plt.close("all")


def figure():
    use_book_style()
    fig, ax = plt.subplots()
    plot_with_spread(
        ax, [1, 2, 4], [[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]], label="a"
    )
    ax.legend()
    return fig, ax


# The style


def test_no_line_takes_the_colour_of_query_key_or_value_by_itself():
    use_book_style()
    cycle = mpl.rcParams["axes.prop_cycle"].by_key()["color"]
    assert not {COLORS[role] for role in ("query", "key", "value")} & {*cycle}
    assert len(set(cycle)) == len(cycle) >= 5
    assert len(set(COLORS.values())) == len(COLORS)


def test_the_same_figure_is_the_same_file_whatever_a_reader_has_set():
    files = []
    for settings in ({}, {"axes.grid": True, "lines.linewidth": 9}):
        mpl.rcParams.update(settings)
        fig, _ = figure()
        files.append(io.BytesIO())
        fig.savefig(files[-1], format="svg", metadata={"Date": None})
    assert files[0].getvalue() == files[1].getvalue()
    assert b"<dc:date>" not in files[0].getvalue()


def test_a_readers_settings_come_back_and_the_backend_stays():
    mpl.rcParams["axes.grid"] = True
    backend = mpl.get_backend()
    with mpl.rc_context():
        use_book_style()
        assert not mpl.rcParams["axes.grid"]
    assert mpl.rcParams["axes.grid"]
    assert mpl.get_backend() == backend


def test_a_notebook_shows_its_figures_whatever_the_backend(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    code = (
        "import matplotlib.pyplot as plt\n"
        "from attention_lib.course.figures import use_book_style\n"
        "use_book_style(); plt.plot([1, 2]); plt.show()"
    )
    cell = nbformat.v4.new_code_cell(code)
    notebook = nbformat.v4.new_notebook(cells=[cell])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (shown,) = cell.outputs
    assert "image/svg+xml" in shown.data


def test_figures_are_transparent_and_no_text_is_below_nine_points():
    fig, ax = figure()
    assert fig.get_facecolor()[3] == ax.get_facecolor()[3] == 0
    texts = [*ax.get_xticklabels(), *ax.get_legend().get_texts()]
    assert min(text.get_fontsize() for text in texts) >= 9


# Bands of runs


def test_the_line_is_the_mean_and_the_dots_are_the_runs():
    _, ax = figure()
    mean, *runs = ax.get_lines()
    np.testing.assert_allclose(mean.get_ydata(), [0.2, 0.2, 0.2])
    np.testing.assert_allclose(runs[0].get_ydata(), [0.1, 0.2, 0.3])
    band = ax.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0.1, 0.3)
    assert {line.get_color() for line in ax.get_lines()} == {mean.get_color()}
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["a"]


def test_shares_of_sentences_have_the_error_of_a_binomial():
    """Two standard errors, each way: 95 of 100 draws of the test set."""
    _, ax = plt.subplots()
    runs = np.random.default_rng(0).binomial(200, 0.7, (2000, 1)) / 200
    plot_with_spread(ax, [1], runs, label="a", sentences=200)
    *_, bars = ax.collections
    ((_, low), (_, high)) = bars.get_segments()[0]
    assert np.mean((low <= runs) & (runs <= high)) == pytest.approx(
        0.95, abs=0.02
    )


# Flows

SHAPES = {
    "query": ("B", "Tq", "d_k"),
    "key": ("B", "Tk", "d_k"),
    "scores": ("B", "Tq", "Tk"),
    "total": ("B",),
}
PLACES = {
    "query": (0.0, 0.0),
    "key": (1.8, 0.0),
    "scores": (0.9, 1.8),
    "total": (0.9, 3.6),
}
STEPS = [
    (["query", "key"], "@", "scores"),
    (["scores"], "a sum over\nall pairs", "total"),
]
CELLS = {"query": (3, 2), "key": (4, 2), "scores": (3, 4, 5), "total": (6,)}


@pytest.mark.parametrize("cells", [None, CELLS])
@pytest.mark.parametrize("beside", [False, True])
def test_a_flow_is_tidy_and_names_everything(cells, beside):
    use_book_style()
    places = {name: (1.5 * x, y) for name, (x, y) in PLACES.items()}
    ax = show_flow(SHAPES, places, STEPS, cells=cells, beside=beside)
    assert_tidy(ax)
    assert [text.get_text() for text in ax.texts] == [
        "query\n(B, Tq, d_k)",
        "key\n(B, Tk, d_k)",
        "scores\n(B, Tq, Tk)",
        "total\n(B,)",
        "@",
        "a sum over\nall pairs",
    ]
    colors = [COLORS[name] for name in ("query", "key", "black", "black")]
    assert [text.get_color() for text in ax.texts[:4]] == colors
    inch = ax.transData.transform([(0, 0), (1, 1)]) / ax.figure.dpi
    np.testing.assert_allclose(inch[1] - inch[0], (1, -1), rtol=1e-6)


def test_the_flow_of_heads_has_room_for_the_shapes_of_a_large_layer():
    roles, large = ("query", "key", "value"), (64, 16, 4096, 128)
    wide = dict.fromkeys((*roles, "merged", "output"), (64, 4096, 2048))
    wide |= dict.fromkeys(("scores", "weights", "context"), large)
    wide |= {f"{name} heads": large for name in roles}
    _, axes = plt.subplots(1, 2, figsize=(9, 8))
    ax = show_shapes(wide, ax=axes[1])
    assert ax is axes[1]
    assert not axes[0].texts
    texts = [text.get_text() for text in ax.texts]
    assert "scores\n(64, 16, 4096, 128)" in texts
    assert_tidy(show_shapes(wide))


# The flows of the chapters


def names(cell):
    """The names that a cell makes, and others that it reads."""
    top = symtable.symtable(cell, "cell", "exec")
    made = {s.get_name() for s in top.get_symbols() if s.is_local()}
    read, tables = set(), [top]
    for table in tables:
        tables += table.get_children()
        read |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and symbol.is_global()
        }
    return made, read - made


def cells_before(cells, number):
    """The cells that a cell of a chapter needs, in order, itself the last.

    Each name is looked for upwards, in the nearest cell that makes it.
    """
    needed, open_ = {number}, {number}
    while open_:
        current = open_.pop()
        _, missing = names(cells[current])
        for above in range(current - 1, -1, -1):
            made, _ = names(cells[above])
            if missing & made:
                open_ |= {above} - needed
                needed.add(above)
            missing -= made
    return [cells[each] for each in sorted(needed)]


def flows():
    """Every cell of a chapter that draws a flow, with its chapter."""
    for path in sorted((ROOT / "chapters").glob("*.ipynb")):
        cells = [
            "".join(cell["source"])
            for cell in json.loads(path.read_text("utf-8"))["cells"]
            if cell["cell_type"] == "code"
            and "skip-execution" not in cell["metadata"].get("tags", [])
        ]
        for number, cell in enumerate(cells):
            calls = re.search(r"\bshow_(flow|shapes)\(", cell)
            if calls and "def show_" not in cell:
                yield pytest.param(cells, number, id=f"{path.stem}-{number}")


@pytest.mark.parametrize(("cells", "number"), [*flows()])
def test_the_flows_of_the_chapters_are_tidy(cells, number, monkeypatch):
    """As they stand there, each with the cells that it needs."""
    monkeypatch.setattr(plt, "show", lambda: None)
    use_book_style()
    module = types.ModuleType("chapter")
    flag = __future__.annotations.compiler_flag  # as a notebook keeps it
    monkeypatch.setitem(sys.modules, "chapter", module)
    for cell in cells_before(cells, number):
        plt.close("all")
        exec(compile(cell, "chapter", "exec", flag), module.__dict__)
    figure = plt.gcf()
    assert figure.get_figwidth() <= 5, "too wide for a phone"
    for ax in figure.axes:
        assert_tidy(ax)
