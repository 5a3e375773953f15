"""Let wide figures keep a width at which their labels can be read.

A figure shrinks with the page as long as that is so; a wider one scrolls in
itself. How wide a drawing is by nature, no style sheet can ask.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

PICTURE = re.compile(
    r'(?:<a class="[^"]*image-reference"[^>]*>)?'
    r'<img\b[^>]*\bsrc="(?P<source>[^"]*\.svg)"[^>]*/>(?:\s*</a>)?'
)
SIZE = re.compile(r'<svg\b[^>]*?\bwidth="([\d.]+)(pt|px)?"')
# Labels of nine points can be read down to two thirds of their size, so that
# much of a figure fits a phone of 375 pixels.
WIDE = 500


@cache
def measure(path: Path) -> float:
    """Return the width in pixels that a drawing asks for."""
    found = SIZE.search(path.read_text("utf-8"))
    if found is None:
        raise ExtensionError(f"{path} does not say its width")
    return float(found[1]) * (4 / 3 if found[2] == "pt" else 1)


def fit_page(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, Any],
    doctree: Any,
) -> None:
    """Put each wide picture of a page into a frame."""
    if app.builder.name != "html" or "body" not in context:
        return
    paths = {
        name: Path(app.srcdir, source)
        for source, name in app.builder.images.items()
    }

    def frame(match: re.Match[str]) -> str:
        path = paths.get(unquote(match["source"].rpartition("/")[2]))
        if "explorable-still" in match[0] or not path or measure(path) <= WIDE:
            return match[0]
        # The theme gives frames of this class the focus if they scroll.
        return (
            '<div class="wide-figure pst-scrollable-table-container"'
            f' style="--natural:{measure(path):.0f}px">{match[0]}</div>'
        )

    context["body"] = PICTURE.sub(frame, context["body"])


def setup(app: Sphinx) -> dict[str, Any]:
    """Run once other extensions have read the page."""
    app.connect("html-page-context", fit_page, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
