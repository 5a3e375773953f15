"""What the printed book, as PDF and as EPUB, adds to the site's sources.

Hints and solutions move to an appendix, folds are opened, code that the site
folds is left out, and the start page gives way to a cover. Loaded by
tools/print_book.py alone: the site knows nothing of it.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders.epub3 import Epub3Builder
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.transforms.post_transforms.images import ImageConverter
from sphinx.util.docutils import SphinxDirective
from sphinx_book_theme.directives import Margin
from sphinx_design.shared import is_component
from sphinx_exercise.nodes import (
    exercise_enumerable_node,
    is_exercise_node,
    solution_node,
)
from sphinx_proof import nodes as proofs

SOLUTIONS = "chapters/solutions"
SHARED_IDS = {
    *("proof", "proof-content", "exercise-content", "solution-content")
}
DOCTYPE = re.compile(r"<!DOCTYPE[^>]*>\s*")
NEEDS = (
    "The formulas of this book are MathML, and its figures are drawings. A"
    " reading system that does not know MathML writes roots and fractions on"
    " one line; the PDF has them in full."
)
STYLED = re.compile(r' style="([^"]*opacity[^"]*)"')
OPACITY = re.compile(r"([\w-]*opacity): *([\d.]+)")
EPUB_STYLE = {"pygments.css", "epub.css", "book.css"}
EPUB_FILES = EPUB_STYLE | {"cover.png", "file.png"}


class solutions_list(nodes.General, nodes.Element):
    """The place that hints and solutions move to."""


class moved(nodes.General, nodes.Element):
    """What stood in another document; its labels keep the name of that."""


def visit_moved(translator: Any, node: moved) -> None:
    translator.curfilestack.append(node["docname"])


def depart_moved(translator: Any, node: moved) -> None:
    translator.curfilestack.pop()


def pass_by(translator: Any, node: nodes.Element) -> None:
    """Write nothing."""


class ListSolutions(SphinxDirective):
    """``{solutions}``: every hint and solution, by chapter."""

    def run(self) -> list[nodes.Node]:
        return [solutions_list()]


def raw(text: str) -> nodes.raw:
    """Return a piece of LaTeX."""
    return nodes.raw("", text, format="latex")


def strip_start_page(app: Sphinx, doctree: nodes.document) -> None:
    """Keep of the start page its title and its contents.

    Chapters outside the course have no number, in print as on the site.
    """
    if app.env.docname != app.config.root_doc:
        return
    toctrees = list(doctree.findall(addnodes.toctree))
    section = next(doctree.findall(nodes.section))
    title = section[0]
    section.clear()
    section += title
    for toctree in toctrees:
        toctree["hidden"] = False
        numbered = toctree.get("numbered", 0)
        if caption := toctree.get("caption"):
            section += raw(f"\\bookpart{{{caption}}}\n")
        section += raw(f"\\setcounter{{secnumdepth}}{{{numbered - 1}}}\n")
        if not numbered:
            # Figures count from one, not on from the last chapter's.
            section += raw("\\bookunnumbered\n")
        section += toctree


def is_dropdown(node: nodes.Node) -> bool:
    return is_component(node, "dropdown")


def is_hidden_code(node: nodes.Node) -> bool:
    """Say whether a node is a cell whose code the site folds."""
    return (
        isinstance(node, nodes.container)
        and node.get("nb_element") == "cell_code"
        and "input" in node.get("hide_mode", "")
        and node.children[0].get("nb_element") == "cell_code_source"
    )


def is_hint(node: nodes.Node) -> bool:
    return is_dropdown(node) and node[0].astext() == "Hint"


class MoveSolutions(SphinxPostTransform):
    """Take hints and solutions out of chapters, into the appendix."""

    default_priority = 3

    def run(self, **options: Any) -> None:
        for place in list(self.document.findall(solutions_list)):
            place.replace_self(list(self.collect()))
        if self.env.docname != SOLUTIONS:
            for exercise in list(self.document.findall(is_exercise_node)):
                self.point_to_answer(exercise)
            for node in list(self.document.findall(solution_node)):
                if not node.get("moved"):
                    node.parent.remove(node)

    def collect(self) -> Iterator[nodes.Node]:
        """Yield a section for each chapter with exercises."""
        for document in self.env.toctree_includes_in_order:
            tree = self.env.get_doctree(document)
            hints = {
                exercise["label"]: hint
                for exercise in tree.findall(is_exercise_node)
                for hint in exercise.findall(is_hint)
            }
            solutions = list(tree.findall(solution_node))
            if not solutions:
                continue
            section = nodes.section(ids=[f"solutions-{Path(document).name}"])
            section["docname"] = document
            name = self.env.titles[document].deepcopy()
            section += nodes.title("", "", *name.children)
            for solution in solutions:
                solution["moved"] = True
                label = solution["target_label"]
                solution["ids"] = [answer_of(label)]
                if hint := hints.get(label):
                    first = nodes.paragraph()
                    first += nodes.strong("", "Hint. ")
                    body = [each.deepcopy() for each in hint.children[1:]]
                    if body and isinstance(body[0], nodes.paragraph):
                        first += body.pop(0).children
                    solution.insert(1, [first, *body])
                section += solution
            for reference in section.findall(addnodes.pending_xref):
                reference["refdoc"] = SOLUTIONS
            yield moved("", section, docname=document)

    def point_to_answer(self, exercise: nodes.Element) -> None:
        """Put in place of the hint where to find it, and the solution."""
        hints = list(exercise.findall(is_hint))
        for hint in hints:
            hint.parent.remove(hint)
        text = "Hint and solution" if hints else "Solution"
        anchor = answer_of(exercise["label"])
        line = nodes.paragraph(classes=["to-answer"])
        if self.app.builder.format == "latex":
            line += raw(
                f"\\hyperref[{anchor}]{{{text}: page \\pageref*{{{anchor}}}}}"
            )
        else:
            address = self.app.builder.get_relative_uri(
                self.env.docname, SOLUTIONS
            )
            line += nodes.reference(
                "", text, internal=True, refuri=f"{address}#{anchor}"
            )
        exercise += line


def answer_of(label: str) -> str:
    """Return the anchor of an exercise's solution."""
    return f"answer-{label}"


class OpenFolds(SphinxPostTransform):
    """Show what the site folds, and leave out the code that it folds."""

    default_priority = 4

    def run(self, **options: Any) -> None:
        for cell in list(self.document.findall(is_hidden_code)):
            cell.remove(cell.children[0])
        for fold in list(self.document.findall(is_dropdown)):
            block = nodes.admonition(classes=["fold"])
            children = list(fold.children)
            if fold["has_title"]:
                rubric = children.pop(0)
                block["ids"] = rubric.get("ids", [])
                block += nodes.title("", "", *rubric.children)
            block += children
            fold.replace_self(block)
        for note in list(self.document.findall(nodes.sidebar)):
            # A note in the margin stands in the text, without a title.
            aside = nodes.admonition(classes=["aside"])
            aside += [
                child for child in note if not isinstance(child, nodes.title)
            ]
            note.replace_self(aside)
        for theorem in list(self.document.findall(proofs.theorem_node)):
            for section in list(theorem.findall(nodes.section)):
                section["ids"].clear()
                section["classes"].clear()
                section.replace_self(section.children)
        for mark in list(self.document.findall(nodes.raw)):
            if mark["format"] == "html" and mark.astext() == "<br>":
                line_end = nodes.raw("", "<br/>", format="html")
                mark.replace_self([line_end, raw("\\newline{}")])
        for node in self.document.findall(nodes.Element):
            # The extensions give the same name to the body of every block.
            node["ids"] = [
                name for name in node["ids"] if name not in SHARED_IDS
            ]
        if self.app.builder.format == "latex":
            for proof in self.document.findall(proofs.proof_node):
                text = next(proof.findall(nodes.Text))
                text.parent.replace(
                    text, nodes.Text(text.removeprefix("Proof. "))
                )


class PlainForReaders(SphinxPostTransform):
    """Leave out of an EPUB what lesser readers trip over.

    MuPDF, for one, lays the cells of a table over each other if they hold
    paragraphs, and moves a picture that stands outside of one.
    """

    default_priority = 5

    def run(self, **options: Any) -> None:
        if self.app.builder.name != "epub":
            return
        for entry in self.document.findall(nodes.entry):
            if len(entry) == 1 and isinstance(entry[0], nodes.paragraph):
                entry[:] = [nodes.inline("", "", *entry[0].children)]
        for picture in list(self.document.findall(nodes.image)):
            if isinstance(picture.parent, nodes.section | nodes.figure):
                frame = nodes.container(classes=["picture"])
                picture.replace_self(frame)
                frame += picture
        if self.env.docname == self.config.root_doc:
            section = next(self.document.findall(nodes.section))
            section.insert(1, nodes.paragraph("", NEEDS, classes=["needs"]))


class DrawAsPDF(ImageConverter):
    """Turn drawings into PDF, sharp at any size."""

    conversion_rules = [("image/svg+xml", "application/pdf")]  # noqa: RUF012

    def is_available(self) -> bool:
        return True  # tools/tex.py has seen to that

    def convert(self, _from: str, _to: str) -> bool:
        subprocess.run(
            ["rsvg-convert", "--format=pdf", f"--output={_to}", _from],
            check=True,
        )
        return True


def with_opacity(style: re.Match[str]) -> str:
    """Return a style and what it says of opacity, as attributes too."""
    found = "".join(
        f' {name}="{value}"' for name, value in OPACITY.findall(style[1])
    )
    return style[0] + found


class BookEpub(Epub3Builder):
    """An EPUB whose list of files says what the standard asks for."""

    def copy_image_files(self) -> None:
        """Copy figures without the reference to a DTD elsewhere."""
        super().copy_image_files()
        for figure in (Path(self.outdir) / "_images").glob("*.svg"):
            text = DOCTYPE.sub("", figure.read_text("utf-8"))
            # Matplotlib draws a space as a path without points.
            text = re.sub(r"<path (?![^>]*\bd=)", '<path d="M 0 0" ', text)
            # It names equal fields of a heatmap alike; nothing refers to them.
            text = re.sub(r'(<image [^>]*?) id="image\w+"', r"\1", text)
            # Not every reader looks for opacity among the styles.
            text = STYLED.sub(with_opacity, text)
            figure.write_text(text, "utf-8")

    def build_content(self) -> None:
        """Mark the cover, and the pages with formulas or drawings."""
        for file in (Path(self.outdir) / "_static").iterdir():
            if file.name not in EPUB_FILES:
                file.unlink()
        super().build_content()
        content = Path(self.outdir) / "content.opf"
        text = content.read_text("utf-8")
        text = re.sub(
            r'<item id="[^"]*" href="([^"]*)" [^>]*?(?= ?/>)',
            lambda match: match[0] + self.properties(match[1]),
            text,
        )
        # Sphinx puts the cover into the order of reading twice.
        for name in re.findall(r'<itemref idref="([^"]*)" />', text):
            text = text.replace(f'<itemref idref="{name}" linear="no" />', "")
        content.write_text(text, "utf-8")

    def properties(self, name: str) -> str:
        """Return the properties of a file of the book."""
        if name == self.config.epub_cover[0]:
            return ' properties="cover-image"'
        if not name.endswith(".xhtml") or name == "nav.xhtml":
            return ""
        page = (Path(self.outdir) / name).read_text("utf-8")
        found = [
            kind
            for kind, tag in (("mathml", "<math"), ("svg", "<svg"))
            if tag in page
        ]
        return f' properties="{" ".join(found)}"' if found else ""


def keep_style(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Load into an EPUB the style of books alone, and no script."""
    if app.builder.name == "epub":
        context["css_files"] = [
            sheet
            for sheet in context["css_files"]
            if Path(str(sheet.filename)).name in EPUB_STYLE
        ]
        context["script_files"] = []


def open_block(kind: str, *labels: str) -> Any:
    """Return a visitor that begins a block of the preamble."""

    def visit(translator: Any, node: nodes.Element) -> None:
        translator.body.append(
            "\n\\renewcommand{\\booklabels}{\\phantomsection"
        )
        for label in labels:
            anchor = label.format(
                document=translator.curfilestack[-1], **node.attributes
            )
            translator.body.append(f"\\label{{{anchor}}}")
        translator.body.append(f"}}\n\\begin{{book{kind}}}")

    return visit


def visit_solution(translator: Any, node: solution_node) -> None:
    """Begin a solution, whose heading leads back to its exercise."""
    target = f"exercise:{node['target_label']}"
    translator.body.append(f"\n\\renewcommand{{\\booktarget}}{{{target}}}")
    label = "{document}:{label}"
    open_block("solution", "answer-{target_label}", label)(translator, node)


def close_block(kind: str) -> Any:
    """Return a visitor that ends a block of the preamble."""

    def depart(translator: Any, node: nodes.Element) -> None:
        translator.body.append(f"\n\\end{{book{kind}}}\n")

    return depart


def visit_theorem(translator: Any, node: nodes.Element) -> None:
    """Begin a numbered theorem; its title is the block's argument."""
    document = proofs.find_parent(translator.builder.env, node, "section")
    number = proofs.get_node_number(translator, node, node["countertype"])
    translator.body.append(
        f"\n\\phantomsection\\label{{{document}:{node['label']}}}"
        "\n\\begin{booktheorem}"
    )
    kind = node["realtype"].title()
    node[0].insert(0, nodes.Text(f"{kind} {number} "))


def environment_of(node: nodes.Element) -> str:
    """Return the block of the preamble that an admonition is set in."""
    for kind in ("fold", "proof", "aside"):
        if kind in node["classes"]:
            return kind
    return ""


def visit_admonition(translator: Any, node: nodes.Element) -> None:
    """Set folds and proofs as blocks that break, other admonitions boxed."""
    if kind := environment_of(node):
        translator.body.append(f"\n\\begin{{book{kind}}}")
        translator.no_latex_floats += 1
    else:
        type(translator).visit_admonition(translator, node)


def depart_admonition(translator: Any, node: nodes.Element) -> None:
    """End what visit_admonition began."""
    if kind := environment_of(node):
        if kind == "proof":
            # The sign of the end stands in the last line, not below it.
            while not translator.body[-1].strip():
                translator.body.pop()
            translator.body[-1] = translator.body[-1].rstrip()
        translator.body.append(f"\n\\end{{book{kind}}}\n")
        translator.no_latex_floats -= 1
    else:
        type(translator).depart_admonition(translator, node)


def register_visitors(app: Sphinx) -> None:
    """Replace the LaTeX of the extensions that draw everything as a note."""
    app.add_node(
        exercise_enumerable_node,
        override=True,
        latex=(
            open_block("exercise", "exercise:{label}", "{document}:{label}"),
            close_block("exercise"),
        ),
    )
    app.add_node(
        solution_node,
        override=True,
        latex=(
            visit_solution,
            close_block("solution"),
        ),
    )
    app.add_node(
        proofs.theorem_node,
        override=True,
        latex=(visit_theorem, close_block("theorem")),
    )


def order_documents(app: Sphinx, env: Any) -> None:
    """Remember the documents in the order of the contents."""

    def below(document: str) -> Iterator[str]:
        for child in env.toctree_includes.get(document, []):
            yield child
            yield from below(child)

    env.toctree_includes_in_order = list(below(app.config.root_doc))


def mark_exported(app: Sphinx, tree: nodes.document, document: str) -> None:
    """Set the line above an exported cell as part of it."""
    if app.builder.format != "latex":
        return
    for line in list(tree.findall(nodes.paragraph)):
        if "exported" in line["classes"]:
            line.insert(0, raw("\\bookexported{"))
            line += raw("}")
            # Not the last line of a page.
            room = raw("\\needspace{6\\baselineskip}\n")
            line.parent.insert(line.parent.index(line), room)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register everything with Sphinx."""
    app.add_node(solutions_list)
    app.add_node(
        moved,
        latex=(visit_moved, depart_moved),
        html=(pass_by, pass_by),
    )
    app.add_directive("solutions", ListSolutions)
    app.add_directive("margin", Margin)
    app.connect("doctree-read", strip_start_page, priority=100)
    app.connect("env-updated", order_documents)
    app.connect("builder-inited", register_visitors)
    app.connect("doctree-resolved", mark_exported)
    app.connect("html-page-context", keep_style, priority=950)
    app.add_builder(BookEpub, override=True)
    app.add_post_transform(MoveSolutions)
    app.add_post_transform(OpenFolds)
    app.add_post_transform(PlainForReaders)
    app.add_post_transform(DrawAsPDF)
    app.add_node(
        nodes.admonition,
        override=True,
        latex=(visit_admonition, depart_admonition),
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
