"""The directive for figures that compute live in the page.

    :::{explorable} temperature
    :name: fig-explore-temperature
    :alt: What the still picture shows.

    The caption.
    :::

Every output gets the still picture. On a web page a script replaces it once
it comes near the view, unless scripts are off.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.directives.patches import Figure
from sphinx.util.fileutil import copy_asset

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "attention_lib" / "course" / "explorables"
SCRIPT = "explorable.js"
WEB = ("html", "dirhtml")


class LivePart(nodes.General, nodes.Element):
    """What a web page shows in place of the still picture."""


class Explorable(Figure):
    """A numbered figure whose content is computed live."""

    option_spec: ClassVar[dict[str, Any]] = {
        "name": directives.unchanged,
        "alt": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        """Make the figure: still picture, live part and caption."""
        name = self.arguments[0]
        path = FOLDER / f"{name}.json"
        if not path.exists():
            known = ", ".join(
                one.stem for one in sorted(FOLDER.glob("*.json"))
            )
            raise self.error(f"no explorable {name!r}; there are: {known}")
        if "alt" not in self.options:
            raise self.error(f"the explorable {name!r} needs an :alt: text")
        self.arguments[0] = f"/{FOLDER.relative_to(ROOT)}/{name}.svg"
        figure, *rest = super().run()
        if not isinstance(figure, nodes.figure):
            return [figure, *rest]
        figure["classes"].append("explorable")
        figure[0]["classes"].append("explorable-still")
        figure.insert(1, LivePart(explorable=name))
        self.state.document.settings.env.note_dependency(str(path))
        return [figure, *rest]


def visit_live_part(translator: Any, node: LivePart) -> None:
    """Write the place for the live figure, where something can move."""
    if translator.builder.name not in WEB:
        raise nodes.SkipNode
    text = (FOLDER / f"{node['explorable']}.json").read_text("utf-8")
    title = escape(json.loads(text)["title"])
    translator.body.append(
        f'<div class="explorable-live" role="group" aria-label="{title}"'
        " hidden>"
        '<div class="explorable-controls"></div>'
        '<div class="explorable-view"></div>'
        '<p class="explorable-readout" aria-live="polite"></p>'
        '<script type="application/json" class="explorable-spec">'
        # "</script>" inside the data would end it.
        + text.strip().replace("</", "<\\/")
        + "</script></div>"
    )
    raise nodes.SkipNode


def add_script(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Load the script only where there is a figure to bring to life."""
    if doctree is not None and any(doctree.findall(LivePart)):
        app.add_js_file(SCRIPT, loading_method="defer")


def copy_scripts(app: Sphinx, failure: Exception | None) -> None:
    """Put the script into the site, and Vega beside it."""
    if failure is None and app.builder.name in WEB:
        target = Path(app.outdir) / "_static"
        copy_asset(str(FOLDER / SCRIPT), str(target))
        copy_asset(str(FOLDER / "vega"), str(target / "vega"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register everything with Sphinx."""
    app.add_node(
        LivePart,
        # An EPUB uses these too; a visitor of its own would hide others.
        html=(visit_live_part, None),
        latex=(visit_live_part, None),
    )
    app.add_directive("explorable", Explorable)
    app.connect("html-page-context", add_script)
    app.connect("build-finished", copy_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
