"""What this book adds to Sphinx: mathematics set at build time, marks on
exported cells, local inventories, and repairs of the theme.
"""

from __future__ import annotations

import ast
import re
import zlib
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from py_mini_racer import MiniRacer
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

ROOT = Path(__file__).resolve().parent.parent.parent
VENDOR = ROOT / "tools" / "vendor"
PRINT = ROOT / "_build" / "print"
DOWNLOADS = {"attention-course.pdf": "PDF", "attention-course.epub": "EPUB"}

# As tools/export.py ends a docstring, to be read in a terminal too.
BUILT = re.compile(r"^Built in section ([\d.]+) \(([\w-]+)\)\.$")
DIRECTIVE = re.compile(r"#\|\s*export\s+(\w+)\s*\n")

# The same symbol has the same colour in figures and in formulas.
MACROS = {
    r"\Q": r"\htmlClass{query}{#1}",
    r"\K": r"\htmlClass{key}{#1}",
    r"\V": r"\htmlClass{value}{#1}",
}
# MathML has no classes, so a book names the colours; they are to be told from
# white paper and from black.
BOOK_MACROS = {
    r"\Q": r"\textcolor{0077b8}{#1}",
    r"\K": r"\textcolor{c85a00}{#1}",
    r"\V": r"\textcolor{00855f}{#1}",
}
# A reader without MathML would show the source beside the formula.
SOURCE = re.compile(
    r"<semantics>(.*)<annotation[^>]*>.*</annotation></semantics>", re.DOTALL
)
WRONG_ROLES = re.compile(
    r' role="doc-biblioentry"| role="list"(?= class="citation-list")'
)
NUMBERED = re.compile(
    r"\\(begin|end)\{(align|equation|gather|multline|alignat)\}"
)


@cache
def katex() -> Any:
    """Return a JavaScript context that holds KaTeX."""
    context = MiniRacer()
    context.eval((VENDOR / "katex" / "katex.min.js").read_text("utf-8"))
    context.eval(
        "function render(source, display, macros, output) {"
        " return katex.renderToString(source, {displayMode: display,"
        " throwOnError: true, trust: true, strict: 'ignore',"
        " macros: macros, output: output}); }"
    )
    return context


def render_math(source: str, *, display: bool, book: bool = False) -> str:
    """Return the HTML and MathML of a formula, in a book the MathML alone."""
    # Sphinx numbers equations itself.
    source = NUMBERED.sub(r"\\\1{\2*}", source)
    if not book:
        return katex().call("render", source, display, MACROS, "htmlAndMathml")
    formula = katex().call("render", source, display, BOOK_MACROS, "mathml")
    spoken = escape(re.sub(r"\\[QKV](?=\{)|\s+", " ", source).strip())
    return SOURCE.sub(r"\1", formula).replace(
        "<math ", f'<math alttext="{spoken}" ', 1
    )


def visit_math(translator: HTML5Translator, node: nodes.math) -> None:
    """Write an inline formula."""
    translator.body.append(
        translator.starttag(node, "span", "", CLASS="math notranslate")
    )
    translator.body.append(checked(translator, node, display=False))
    translator.body.append("</span>")
    raise nodes.SkipNode


def visit_displaymath(
    translator: HTML5Translator, node: nodes.math_block
) -> None:
    """Write a displayed formula and its number."""
    translator.body.append(
        translator.starttag(node, "div", CLASS="math notranslate")
    )
    if node["number"]:
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    translator.body.append(checked(translator, node, display=True))
    translator.body.append("</div>")
    raise nodes.SkipNode


def checked(
    translator: HTML5Translator, node: nodes.Element, *, display: bool
) -> str:
    """Render a node's formula; a fault becomes a build error with its place.

    A formula may scroll sideways on a phone, so it takes the focus.
    """
    from py_mini_racer import JSEvalException
    from sphinx.util import logging

    try:
        html = render_math(
            node.astext(),
            display=display,
            book=translator.builder.name == "epub",
        )
    except JSEvalException as error:
        reason = str(error).strip().splitlines()[0]
        logging.getLogger(__name__).warning(
            "formula %r: %s", node.astext(), reason, location=node
        )
        return ""
    if display:
        return f'<div class="formula" tabindex="0">{html}</div>'
    return html


def mark_exported_cells(app: Sphinx, doctree: nodes.document) -> None:
    """Say above an exported cell where its code can be imported from."""
    for block in list(doctree.findall(nodes.literal_block)):
        match = DIRECTIVE.match(block.astext())
        if match is None:
            continue
        module = f"attention_lib.{match[1]}"
        code = block.astext()[match.end() :]
        clean = nodes.literal_block(code, code, **block.attributes)
        clean.source, clean.line = block.source, block.line
        block.parent.replace(block, clean)
        mark = nodes.paragraph(classes=["exported"])
        mark += nodes.Text("exported to ")
        clean.parent.insert(clean.parent.index(clean), mark)
        if match[1].startswith("_"):  # for the package itself: no API page
            mark += nodes.literal(module, module, classes=["py"])
            continue
        mark += link("mod", module, module, app.env.docname)
        public = [
            node.name
            for node in ast.parse(code).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
        ]
        for position, name in enumerate(public):
            mark += nodes.Text(", " if position else ": ")
            mark += link("obj", f"{module}.{name}", name, app.env.docname)


def link(
    kind: str, target: str, text: str, document: str
) -> addnodes.pending_xref:
    """Return a reference into the API pages."""
    reference = addnodes.pending_xref(
        refdomain="py",
        reftype=kind,
        reftarget=target,
        refdoc=document,
        refwarn=True,
        refexplicit=True,
    )
    reference += nodes.literal(text, text, classes=["py"])
    return reference


def write_inventories(app: Sphinx, config: Any) -> None:
    """Compile the listed objects of other projects for intersphinx.

    ``inventories/NAME.txt`` holds the base address in its first line,
    then a line per object: name, role, address below the base.
    """
    mapping = {}
    target = Path(app.doctreedir) / "inventories"
    target.mkdir(parents=True, exist_ok=True)
    for source in sorted((VENDOR / "inventories").glob("*.txt")):
        base, *rows = source.read_text("utf-8").split("\n")
        body = "".join(
            f"{name} {role} 1 {where} -\n"
            for name, role, where in (row.split() for row in rows if row)
        )
        head = (
            f"# Sphinx inventory version 2\n# Project: {source.stem}\n"
            "# Version: \n"
            "# The remainder of this file is compressed using zlib.\n"
        )
        inventory = target / f"{source.stem}.inv"
        inventory.write_bytes(head.encode() + zlib.compress(body.encode()))
        mapping[source.stem] = (base, (str(inventory),))
    config.intersphinx_mapping = mapping


def find_downloads(app: Sphinx) -> None:
    """Put the forms of the printed book that there are beside the pages."""
    if app.builder.name == "html":
        found = [name for name in DOWNLOADS if (PRINT / name).is_file()]
        app.config.downloads = found
        app.config.html_extra_path += [str(PRINT / name) for name in found]


def finish_page(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Load what a page needs, drop the rest, offer the printed book.

    Thebe's scripts load even when it is off. The bibliography marks its
    entries with roles that ARIA does not allow.
    """
    if doctree is not None and any(
        doctree.findall(
            lambda node: isinstance(node, nodes.math | nodes.math_block)
        )
    ):
        app.add_css_file("katex/katex.min.css")
    if "body" in context:
        context["body"] = WRONG_ROLES.sub("", context["body"])
    for kind in ("script_files", "css_files"):
        files = context[kind]
        context[kind] = [file for file in files if "thebe" not in str(file)]
    if app.config.downloads:
        links = " or ".join(
            f'<a href="{context["pathto"](name, 1)}">{DOWNLOADS[name]}</a>'
            for name in app.config.downloads
        )
        footer = context.get("theme_extra_footer", "")
        footer += f" The whole book as {links}."
        context["theme_extra_footer"] = footer


def link_sections(app: Sphinx, *about: Any) -> None:
    """Make a link of the section that a docstring names in plain text."""
    lines = about[-1]
    lines[:] = [
        BUILT.sub(r"Built in :ref:`section \1 <\2>`.", x) for x in lines
    ]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register everything with Sphinx."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", link_sections)
    app.add_html_math_renderer(
        "katex",
        inline_renderers=(visit_math, None),
        block_renderers=(visit_displaymath, None),
    )
    app.connect("config-inited", write_inventories, priority=100)
    app.add_config_value("downloads", [], "html")
    app.connect("builder-inited", find_downloads)
    app.connect("doctree-read", mark_exported_cells)
    app.connect("html-page-context", finish_page, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
