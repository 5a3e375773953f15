"""Make the finished site light.

The theme ships every icon of Font Awesome in one script of 1.5 MB. The pages
use some fifteen, so these are drawn into the pages and the script goes. It
also loads the search index on every page, before the text; here the search
page alone reads it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pydata_sphinx_theme
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

ICON = re.compile(
    r'<i class="(?P<classes>[^"]*\bfa-(?P<name>[a-z][a-z-]+)[^"]*)"'
    r"(?P<rest>[^>]*)></i>"
)
SIZES = re.compile(r"\bfa-(?:lg|solid|brands|regular|fw|xs|sm|2x)\b")
SCRIPT = re.compile(
    r"\s*<(?:script|link)[^>]*fontawesome\.js[^>]*>(</script>)?"
)

SEARCH_SCRIPTS = re.compile(
    r"\s*<script src=\"[^\"]*(?:searchtools|language_data|searchindex)\.js\">"
    r"</script>"
)


def read_icons(script: str) -> dict[str, tuple[str, str, str]]:
    """Return width, height and path of each icon, by each of its names."""
    icons: dict[str, tuple[str, str, str]] = {}
    for name, width, height, others, path in re.findall(
        r'[,{]"?([a-z][a-z0-9-]*)"?:\[(\d+),(\d+),\[([^\]]*)\],"\w+","([^"]+)"\]',
        script,
    ):
        for alias in (name, *re.findall(r'"([a-z][a-z-]*)"', others)):
            # Later sets hold the solid forms.
            icons[alias] = (width, height, path)
    return icons


def draw(match: re.Match[str], icons: dict[str, tuple[str, str, str]]) -> str:
    """Return the drawing that stands for an icon's element."""
    names = [
        name
        for name in re.findall(r"\bfa-([a-z][a-z-]+)", match["classes"])
        if not SIZES.fullmatch(f"fa-{name}")
    ]
    if len(names) != 1 or names[0] not in icons:
        raise ExtensionError(f"no drawing for the icon {match[0]}")
    width, height, path = icons[names[0]]
    title = re.search(r'title="([^"]*)"', match["rest"])
    rest = re.sub(r'\s*title="[^"]*"', "", match["rest"])
    inner = f"<title>{title[1]}</title>" if title else ""
    return (
        f'<svg class="icon {match["classes"]}"{rest} aria-hidden="true"'
        f' viewBox="0 0 {width} {height}">{inner}'
        f'<path d="{path}"/></svg>'
    )


def draw_icons(app: Sphinx, failure: Exception | None) -> None:
    """Draw the icons into every page and remove what is not needed."""
    if failure or app.builder.format != "html":
        return
    site = Path(app.outdir)
    theme = Path(pydata_sphinx_theme.__file__).parent
    script = next(theme.rglob("static/scripts/fontawesome.js"))
    icons = read_icons(script.read_text("utf-8"))
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        slim = ICON.sub(lambda match: draw(match, icons), text)
        slim = SCRIPT.sub("", slim)
        if page != site / "search.html":
            slim = SEARCH_SCRIPTS.sub("", slim)
        if slim != text:
            page.write_text(slim, "utf-8")
    (site / "_static" / "scripts" / script.name).unlink(missing_ok=True)
    for source_map in (site / "_static").rglob("*.map"):
        source_map.unlink()


def setup(app: Sphinx) -> dict[str, Any]:
    """Run after everything else has been written."""
    app.connect("build-finished", draw_icons, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
