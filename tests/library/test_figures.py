"""The style of the figures."""

import __future__

import ast
import io
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from drawing import arrows, assert_tidy, boxes, grids

from attention_lib.course.figures import (
    COLORS,
    plot_with_spread,
    use_book_style,
)
from attention_lib.plotting import show_flow

mpl.use("Agg")

ROOT = Path(__file__).resolve().parents[2]


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
        "from attention_lib.course.figures import use_book_style as use;"
        "use(); use();"
        "import matplotlib as mpl;"
        "assert mpl.rcParams['svg.hashsalt'] == 'attention'"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


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
def test_a_flow_is_tidy(cells, beside):
    use_book_style()
    places = {name: (1.5 * x, y) for name, (x, y) in PLACES.items()}
    ax = show_flow(SHAPES, places, STEPS, cells=cells, beside=beside)
    assert_tidy(ax)


def test_a_flow_names_tensors_with_their_shapes_and_operations():
    ax = show_flow(SHAPES, PLACES, STEPS)
    assert [text.get_text() for text in ax.texts] == [
        "query\n(B, Tq, d_k)",
        "key\n(B, Tk, d_k)",
        "scores\n(B, Tq, Tk)",
        "total\n(B,)",
        "@",
        "a sum over\nall pairs",
    ]
    assert not grids(ax)
    numbers = show_flow({"scores": (2, 0)}, {"scores": (0.0, 0.0)}, [])
    assert numbers.texts[0].get_text() == "scores\n(2, 0)"


@pytest.mark.parametrize("beside", [False, True])
def test_a_tensor_has_the_colour_of_its_role(beside):
    """As a word of its name, in the text and in the frame of the grid."""
    names = ["mapped query", "key", "value heads", "keyboard"]
    ax = show_flow(
        dict.fromkeys(names, ("T",)),
        {name: (0.0, float(number)) for number, name in enumerate(names)},
        [],
        cells=dict.fromkeys(names, (1,)),
        beside=beside,
    )
    roles = [COLORS["query"], COLORS["key"], COLORS["value"]]
    texts = [text.get_color() for text in ax.texts]
    assert texts == [*roles, COLORS["black"]]
    frames = [mpl.colors.to_hex(p.get_edgecolor()) for p in ax.patches]
    assert frames == [color.lower() for color in (*roles, COLORS["grey"])]


def test_a_grid_is_drawn_to_scale_with_a_sheet_for_the_third_axis():
    """The same cell everywhere: sizes can be compared by eye."""
    ax = show_flow(SHAPES, PLACES, STEPS, cells=CELLS)
    sheets = grids(ax)
    assert len(sheets) == 1 + 1 + 5 + 1
    sizes = [(sheet.get_height(), sheet.get_width()) for sheet in sheets]
    cell = sizes[-1][0]
    expected = [(3, 2), (4, 2), *[(3, 4)] * 5, (1, 6)]
    np.testing.assert_allclose(sizes, cell * np.array(expected))
    for positions in zip(*(s.get_xy() for s in sheets[2:7]), strict=True):
        assert len(set(positions)) == 5, "each sheet is moved both ways"
    lines = [len(group.get_segments()) for group in ax.collections]
    assert lines == [1, 2, 1, 3, 3, 2, 5, 0], "lines between the cells"


def test_one_inch_of_a_flow_is_one_inch_of_the_figure():
    use_book_style()
    ax = show_flow(SHAPES, PLACES, STEPS, cells=CELLS)
    ax.figure.canvas.draw()
    inch = ax.transData.transform([(0, 0), (1, 1)]) / ax.figure.dpi
    np.testing.assert_allclose(abs(inch[1] - inch[0]), 1, rtol=1e-6)
    assert inch[1][1] < inch[0][1], "downwards"


def test_every_tensor_of_a_step_has_an_arrow_to_its_box():
    """And the box one to what comes out of it, which lies below."""
    ax = show_flow(SHAPES, PLACES, STEPS, cells=CELLS)
    first, second = boxes(ax)
    starts = {name: PLACES[name][0] for name in PLACES}
    out, left, right, out_again, down = arrows(ax)
    assert left[0][0] == starts["query"]
    assert right[0][0] == starts["key"]
    assert left[-1][0] == pytest.approx(first.x0), "into the left side"
    assert right[-1][0] == pytest.approx(first.x1), "into the right side"
    for line in (left, right):
        assert first.y0 < line[-1][1] < first.y1
        assert line[1][0] == line[0][0], "down first"
    assert down[0][0] == down[-1][0] == starts["scores"], "straight"
    assert down[-1][1] == pytest.approx(second.y0), "into the upper side"
    for line, box, name in (
        (out, first, "scores"),
        (out_again, second, "total"),
    ):
        assert line[0][1] == pytest.approx(box.y1)
        assert line[-1][0] == starts[name]
        assert box.y1 < line[-1][1] <= PLACES[name][1]


def test_a_flow_is_drawn_where_it_is_asked_to():
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(6, 5))
    assert show_flow(SHAPES, PLACES, STEPS, ax=axes[1]) is axes[1]
    assert not axes[0].texts
    assert tuple(figure.get_size_inches()) == (6, 5)
    figure.canvas.draw()
    (x0, y0), (x1, y1) = axes[1].transData.transform([(0, 0), (1, 1)])
    assert x1 - x0 == pytest.approx(y0 - y1), "cells stay square"
    assert len(plt.get_fignums()) == 1


@pytest.mark.plain
def test_what_is_no_flow_is_refused_by_name():
    with pytest.raises(ValueError, match=r"places .* query, key.* of query$"):
        show_flow(SHAPES, {"query": (0.0, 0.0)}, STEPS)
    with pytest.raises(ValueError, match=r"steps names weights"):
        show_flow(SHAPES, PLACES, [(["query"], "@", "weights")])
    with pytest.raises(ValueError, match=r"cells names weights"):
        show_flow(SHAPES, PLACES, STEPS, cells={"weights": (1, 2)})


# The flows of the chapters


def names_in(tree):
    """The names that some code makes, and others that it reads."""
    made, read = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            made |= {alias.asname or alias.name for alias in node.names}
    return made, read - made


def names_from(tree):
    """The names that other cells can use: none from inside a function."""
    made = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.add(node.name)
        else:
            made |= names_in(node)[0]
    return made


def cells_before(cells, number):
    """The cells that a cell of a chapter needs, in order, itself the last.

    Each name is looked for upwards, in the nearest cell that makes it.
    """
    trees = [ast.parse(cell) for cell in cells]
    needed, open_ = {number}, {number}
    while open_:
        current = open_.pop()
        _, missing = names_in(trees[current])
        for above in range(current - 1, -1, -1):
            made = names_from(trees[above])
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
    import matplotlib.pyplot as plt

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


def test_every_mechanism_has_its_flow():
    chapters = [flow.id.split("_")[0] for flow in flows()]
    assert {"01", "02", "03", "05", "06"} <= set(chapters)
    assert chapters.count("03") == 2
