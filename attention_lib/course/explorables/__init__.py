"""The figures of the book that compute live, for notebooks.

In the book they stand in the pages; :func:`explore` draws one in Jupyter or
Colab. They compute in the browser, so no kernel is needed to move them. The
specifications are written by ``tools/charts.py``.
"""

from __future__ import annotations

import base64
import gzip
import html
import itertools
import json
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["NAMES", "explore"]

#: The explorables, in the order of the chapters that they stand in.
NAMES = (
    "worked-example",
    "temperature",
    "alignment",
    "scaling",
    "masks",
    "heads",
)
_STYLE = (
    ".explorable{max-width:46em;margin:0}"
    ".explorable-controls label{display:flex;gap:.6em;align-items:center}"
    ".explorable-controls input[type=range]{flex:1}"
    ".explorable-still{max-width:100%;background-color:#fff}"
)
_count = itertools.count()


@cache
def _library() -> str:
    """Return Vega, packed to be part of a cell's output."""
    script = files("attention_lib.course.explorables") / "vega" / "vega.min.js"
    packed = gzip.compress(script.read_bytes(), mtime=0)
    return base64.b64encode(packed).decode()


class _Explorable:
    """A live figure that a notebook displays."""

    def __init__(self, name: str) -> None:
        folder = files("attention_lib.course.explorables")
        self._name = name
        self._text = (folder / f"{name}.json").read_text("utf-8").strip()
        still = (folder / f"{name}.svg").read_bytes()
        self._still = base64.b64encode(still).decode()
        self._script = (folder / "explorable.js").read_text("utf-8")

    def __repr__(self) -> str:
        return f"explore({self._name!r})"

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> dict[str, Any]:
        """Return the figure for a notebook, most capable form first."""
        figure = json.loads(self._text)
        anchor = f"explorable-{self._name}-{next(_count)}"
        title = html.escape(figure["title"])
        data = self._text.replace("</", "<\\/")
        page = (
            f"<style>{_STYLE}</style>"
            f'<figure class="explorable" id="{anchor}">'
            # Notebooks that are not trusted show an image, but no SVG.
            f'<img class="explorable-still" alt="{title}" '
            f'src="data:image/svg+xml;base64,{self._still}">'
            f'<div class="explorable-live" role="group" aria-label="{title}"'
            " hidden>"
            '<div class="explorable-controls"></div>'
            '<div class="explorable-view"></div>'
            '<p class="explorable-readout" aria-live="polite"></p>'
            '<script type="application/json" class="explorable-spec">'
            f"{data}</script></div>"
            '<script type="text/plain" class="explorable-library">'
            f"{_library()}</script></figure>"
            f"<script>{self._script}"
            f"attentionExplorables.start("
            f'document.getElementById("{anchor}"));</script>'
        )
        return {"text/plain": repr(self), "text/html": page}


def explore(name: str) -> _Explorable:
    """Return a figure of the book that computes live, to be displayed.

    It asks no server for anything: the library that draws it is a part of
    each output, a quarter of a megabyte. Where scripts are off, a still
    picture is shown.

    Args:
        name: One of :data:`NAMES`.

    Returns:
        What a notebook displays as the figure, if it is a cell's last line.

    Raises:
        ValueError: If there is no such figure.

    Example:
        >>> explore("temperature")
        explore('temperature')
    """
    if name not in NAMES:
        raise ValueError(
            f"name must be one of {', '.join(map(repr, NAMES))}, got {name!r}"
        )
    return _Explorable(name)
