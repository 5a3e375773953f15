"""What can be asked about a drawn figure."""

from itertools import combinations, pairwise

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle


def boxes(ax):
    """Where the boxes of a flow lie, in its inches."""
    found = []
    for patch in ax.patches:
        if isinstance(patch, FancyBboxPatch):
            found.append(patch.get_bbox())
    return found


def grids(ax):
    """The sheets of all grids of a flow, in the order of drawing."""
    return [patch for patch in ax.patches if isinstance(patch, Rectangle)]


def arrows(ax):
    """The corners of each arrow of a flow, its head last."""
    return [
        patch._path_original.vertices.tolist()
        for patch in ax.patches
        if isinstance(patch, FancyArrowPatch)
    ]


def assert_tidy(ax, room=1.0):
    """Check that all text can be read: none cut off, none on another.

    A text may stand inside a box, but then wholly; arrows and grids keep
    away from all text.

    Args:
        ax: The axes.
        room: How many pixels two things may share, of 100 to the inch.
    """
    figure = ax.get_figure(root=True)
    figure.set_dpi(100)
    figure.canvas.draw()
    # Whatever canvas the last picture was saved with: this one can measure.
    renderer = FigureCanvasAgg(figure).get_renderer()
    canvas = figure.bbox
    texts = [
        (text.get_text(), text.get_window_extent(renderer))
        for text in (*ax.texts, ax.title)
        if text.get_text()
    ]
    for name, box in texts:
        assert canvas.x0 <= box.x0, f"{name!r} is cut off"
        assert box.x1 <= canvas.x1, f"{name!r} is cut off"
        assert canvas.y0 <= box.y0, f"{name!r} is cut off"
        assert box.y1 <= canvas.y1, f"{name!r} is cut off"
    for (name, box), (other, there) in combinations(texts, 2):
        assert not _share(box, there, room), f"{name!r} lies on {other!r}"
    for patch in ax.patches:
        frame = patch.get_window_extent(renderer)
        for name, box in texts:
            if isinstance(patch, FancyArrowPatch):
                line = ax.transData.transform(patch._path_original.vertices)
                crossed = any(
                    box.x0 + room < max(x0, x1)
                    and min(x0, x1) < box.x1 - room
                    and box.y0 + room < max(y0, y1)
                    and min(y0, y1) < box.y1 - room
                    for (x0, y0), (x1, y1) in pairwise(line)
                )
                assert not crossed, f"an arrow crosses {name!r}"
            elif _share(box, frame, room):
                assert isinstance(patch, FancyBboxPatch), f"a grid on {name!r}"
                within = frame.x0 <= box.x0 and box.x1 <= frame.x1
                within &= frame.y0 <= box.y0 and box.y1 <= frame.y1
                assert within, f"{name!r} leaves its box"


def _share(left, right, room):
    """Whether two rectangles share more than a narrow edge."""
    width = min(left.x1, right.x1) - max(left.x0, right.x0)
    height = min(left.y1, right.y1) - max(left.y0, right.y0)
    return width > room and height > room
