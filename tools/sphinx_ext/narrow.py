"""Let the pages fit a phone: code folds, tables and figures scroll.

Every line of code becomes an element of its own that knows its indentation,
so that the style can let it hang: what does not fit goes on below, further
in than the line itself. The text stays as it was, character for character,
because the copy button and a reader's selection take it from the page.

What a cell printed folds in the same way if it is prose, such as the answer
of a checker. A table would lose its columns; it is set smaller instead, and
scrolls in itself where that is not enough.

A figure shrinks with the page as long as its labels can be read; a wider one
keeps a width at which they can, and scrolls in itself.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

BLOCK = re.compile(
    r'(?P<head><div class="(?P<classes>[^"]*)">\s*(?:<div class="highlight">'
    r"\s*)?)<pre>(?P<body>.*?)</pre>",
    re.DOTALL,
)
# What stands between lines in the listings of whole modules.
FRAME = re.compile(
    r"(?P<before>(?:<span></span>|</?div[^>]*>"
    r'|<a class="viewcode-back".*?</a>)*)'
    r'(?P<indent>(?:<span class="gp">[^<]*</span>)?)(?P<mark>(?:<[^>]*>)*)'
    r"(?P<space>\s*)(?P<code>.*?)(?P<after>(?:</div>)*)"
)
BLANK = re.compile(r'<span class="w">(\s*)</span>')
TAG = re.compile(r"<[^>]*>")
TEXT = re.compile(r"(?:^|(?<=>))[^<]+")
CHUNK = re.compile(r"(?:<[^>]*>|[^\s<])+")
JOINT = re.compile(r"(?<=[(\[=])|(?=\.)")

PICTURE = re.compile(
    r'(?:<a class="[^"]*image-reference"[^>]*>)?'
    r'<img\b[^>]*\bsrc="(?P<source>[^"]*\.svg)"[^>]*/>(?:\s*</a>)?'
)
LENGTH = re.compile(r"([\d.]+)(pt|px)?")
# Labels of nine points can be read down to two thirds of their size, so that
# much of a figure fits a phone of 375 pixels.
WIDE = 500

# A long name in the text or a title may break after a dot or an underscore.
NAME = re.compile(r'(?<=<span class="pre">)[^<\s]{20,}(?=</span>)')
HEADING = re.compile(r"(?<=<h[12]>).*?(?=</h[12]>)")
SEAM = re.compile(r"(?<=[a-z][._])(?=\w|$)")

# As many columns fit on the narrowest phone.
FITTING = 40
# The name of an exercise begins what its checker says.
MESSAGE = re.compile(r"\d\d-[a-z-]+: ")
# A row begins with a figure or has gaps or brackets.
ROW = re.compile(r"^\s*\d|\S  |\[")


def count_columns(text: str) -> int:
    """Return how wide a text is, where Chinese takes two columns a sign."""
    return sum(
        2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text
    )


def is_prose(text: str) -> bool:
    """Whether a printed text may fold: none of its long lines is a row.

    A line alone has no columns to keep. A row of a table has gaps, brackets,
    a figure in front or many figures among its words.
    """
    lines = text.strip("\n").split("\n")
    if len(lines) == 1:
        return True
    in_message = False
    for line in lines:
        in_message = bool(MESSAGE.match(line)) or (
            in_message and line.startswith("  ")
        )
        if in_message or count_columns(line) <= FITTING:
            continue
        words = re.findall(r"[^\W\d]{2,}", line)
        figures = re.findall(r"\d[\d.,e-]*", line)
        if ROW.search(line) or len(words) < 2 * len(figures):
            return False
    return True


def split_chunk(match: re.Match[str], room: int) -> str:
    """Return a piece of code without a space, with places to break it.

    Only if it is too long for a row: before a dot, after a bracket or an
    equals sign.
    """
    chunk = match[0]
    if count_columns(unescape(TAG.sub("", chunk))) <= room:
        return chunk
    return TEXT.sub(lambda text: JOINT.sub("<wbr>", text[0]), chunk)


def fold_line(line: str) -> str:
    """Return a line of marked-up code as an element that may fold.

    What it is indented by stays before it: a line must not break there.
    """
    match = FRAME.fullmatch(line)
    if match is None or not match["code"]:
        return line
    code = match["mark"] + match["code"]
    if code.count("<span") != code.count("</span>"):
        raise ExtensionError(f"a mark runs over the end of a line: {line}")
    before = match["indent"] + match["space"]
    indent = len(unescape(TAG.sub("", before)))
    room = FITTING - indent - 2
    code = CHUNK.sub(lambda chunk: split_chunk(chunk, room), code)
    style = f' style="--in:{indent}"' if indent else ""
    return (
        f'{match["before"]}{before}<span class="line"{style}>{code}</span>'
        f"{match['after']}"
    )


def fold(match: re.Match[str]) -> str:
    """Return a block whose lines may fold, or a table that knows its width."""
    body = BLANK.sub(r"\1", match["body"])
    text = unescape(TAG.sub("", body))
    if "highlight-myst-ansi" in match["classes"] and not is_prose(text):
        width = max(map(count_columns, text.split("\n")))
        return (
            f'{match["head"]}<pre class="columns" style="--columns:{width}">'
            f"{match['body']}</pre>"
        )
    lines = "\n".join(map(fold_line, body.split("\n")))
    return f"{match['head']}<pre>{lines}</pre>"


def open_seams(match: re.Match[str]) -> str:
    """Return a name with places to break it."""
    return SEAM.sub("<wbr>", match[0])


@cache
def measure(path: Path) -> tuple[float, float]:
    """Return the width and the height in pixels that a drawing asks for."""
    head = re.search(r"<svg\b[^>]*>", path.read_text("utf-8"))[0]
    sides = []
    for side in ("width", "height"):
        found = re.search(rf'\b{side}="([^"]*)"', head)
        length = found and LENGTH.fullmatch(found[1])
        if not length:
            raise ExtensionError(f"{path} does not say its {side}")
        sides.append(float(length[1]) * (4 / 3 if length[2] == "pt" else 1))
    return sides[0], sides[1]


def frame(match: re.Match[str], paths: dict[str, Path]) -> str:
    """Return a picture that says its size, a wide one in a frame."""
    path = paths.get(unquote(match["source"].rpartition("/")[2]))
    if path is None:
        return match[0]
    width, height = measure(path)
    picture = match[0].replace(
        "<img ", f'<img width="{width:.0f}" height="{height:.0f}" ', 1
    )
    if width <= WIDE or "explorable-still" in picture:
        return picture
    # The theme's scripts give frames of this class the focus if they scroll.
    return (
        '<div class="wide-figure pst-scrollable-table-container"'
        f' style="--natural:{width:.0f}px">{picture}</div>'
    )


def fit_page(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Treat all blocks, long names and pictures of a page."""
    if app.builder.name != "html" or "body" not in context:
        return
    paths = {
        name: Path(app.srcdir, source)
        for source, name in app.builder.images.items()
    }
    body = BLOCK.sub(fold, context["body"])
    body = NAME.sub(open_seams, body)
    body = HEADING.sub(lambda match: TEXT.sub(open_seams, match[0]), body)
    context["body"] = PICTURE.sub(lambda match: frame(match, paths), body)


def setup(app: Sphinx) -> dict[str, Any]:
    """Run once other extensions have read the page."""
    app.connect("html-page-context", fit_page, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
