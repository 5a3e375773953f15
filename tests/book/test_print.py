"""The printed book: what the PDF and the EPUB hold, against the sources."""

from __future__ import annotations

import functools
import json
import posixpath
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
import zipfile
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
import yaml

pytestmark = pytest.mark.print

ROOT = Path(__file__).resolve().parents[2]
PRINT = ROOT / "_build" / "print"
PDF = PRINT / "attention-course.pdf"
EPUB = PRINT / "attention-course.epub"
PARTS = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))["parts"]
COURSE = next(part for part in PARTS if part.get("numbered"))
CHAPTERS = [entry["file"] for entry in COURSE["chapters"]]
XHTML = "{http://www.w3.org/1999/xhtml}"
MATHML = "{http://www.w3.org/1998/Math/MathML}"
OPF = "{http://www.idpf.org/2007/opf}"
HAN = re.compile(r"[\u4e00-\u9fff]")


@functools.cache
def cells(name):
    notebook = json.loads((ROOT / f"{name}.ipynb").read_text("utf-8"))
    return notebook["cells"]


@functools.cache
def prose(name):
    return "\n".join(
        "".join(cell["source"])
        for cell in cells(name)
        if cell["cell_type"] == "markdown"
    )


def title(name):
    return re.search(r"^# (.+)$", prose(name), re.M)[1]


def equations(name):
    """How many numbered equations a chapter has."""
    text = prose(name)
    return len(
        re.findall(r"^\$\$ *\([\w-]+\)", text, re.M)
        + re.findall(r"^:label: eq-", text, re.M)
    )


def figures(name):
    """How many figures with a number a chapter has."""
    return sum(
        "caption" in cell["metadata"].get("mystnb", {}).get("figure", {})
        for cell in cells(name)
    ) + len(
        re.findall(r"^[:`]{3,}\{(?:figure|explorable)\}", prose(name), re.M)
    )


def exercises(name):
    return re.findall(
        r"^[:`]{3,}\{exercise\}.*\n:label: (\S+)", prose(name), re.M
    )


def is_hidden(cell):
    """Whether a page folds the code of a cell, or leaves it out."""
    return any(
        tag.startswith(("hide-input", "hide-cell", "remove", "skip-exec"))
        for tag in cell["metadata"].get("tags", [])
    )


def poppler(command, *arguments):
    """What one of Poppler's tools prints; its absence is a failure."""
    if not shutil.which(command):
        pytest.skip(f"no {command}: see python tools/need.py pdf")
    done = subprocess.run(
        [command, *arguments], check=True, capture_output=True
    )
    return done.stdout.decode("utf-8")


@functools.cache
def pages():
    assert PDF.exists(), "no PDF: run make pdf"
    return poppler("pdftotext", "-layout", str(PDF), "-").split("\f")


@functools.cache
def chapter_pages():
    """The text of each chapter of the course, by its number."""
    found, number = {}, 0
    for page in pages():
        heading = re.match(r"\s*Chapter (\d+)\s*\n", page)
        if heading and int(heading[1]) == number + 1:
            number += 1
        elif re.match(r"\s*Part II\b", page):
            break
        if number:
            found[number] = found.get(number, "") + page
    return found


def squeeze(text):
    """Text without spaces, typographic signs and marks of line breaks."""
    return re.sub(r"[\W_]+", "", text)


def test_the_pdf_has_every_chapter_of_the_course():
    assert list(chapter_pages()) == list(range(1, len(CHAPTERS) + 1))
    for number, name in enumerate(CHAPTERS, 1):
        head = chapter_pages()[number][:400]
        plain = re.sub(r"\$[^$]*\$", "", title(name))
        assert squeeze(plain) in squeeze(head), name


@pytest.mark.parametrize("number", range(1, len(CHAPTERS) + 1))
def test_the_pdf_numbers_every_equation_once(number):
    """Numbers at the right margin, in order, as many as labels."""
    found = re.findall(
        rf" \({number}\.(\d+)\)$", chapter_pages()[number], re.M
    )
    expected = equations(CHAPTERS[number - 1])
    assert expected, "a chapter of mathematics without an equation"
    shown = sorted({int(one) for one in found})
    assert shown == list(range(1, expected + 1))


@pytest.mark.parametrize("number", range(1, len(CHAPTERS) + 1))
def test_the_pdf_has_every_figure_with_its_caption(number):
    found = re.findall(
        rf"^ *Fig\. {number}\.(\d+):", chapter_pages()[number], re.M
    )
    expected = figures(CHAPTERS[number - 1])
    assert sorted(map(int, found)) == list(range(1, expected + 1))


def test_solutions_are_in_the_appendix_alone():
    count = sum(len(exercises(name)) for name in CHAPTERS)
    assert count >= 5 * len(CHAPTERS)
    course = "".join(chapter_pages().values())
    assert "Solution to Exercise" not in course
    assert len(re.findall(r"^ *Exercise \d+\.\d+ ", course, re.M)) == count
    pointers = re.findall(r"olution: page (\d+)$", course, re.M)
    assert len(pointers) == count
    text = "".join(pages())
    answers = re.findall(
        r"^ *Solution to Exercise \d+\.\d+ .* page (\d+)$", text, re.M
    )
    assert len(answers) == count


@functools.cache
def numbered_pages():
    """The text of each page by the number printed on it."""
    first = next(
        index
        for index, page in enumerate(pages())
        if page.strip().startswith("How to use this book")
    )
    return dict(enumerate(pages()[first:], 1))


def test_exercise_and_solution_lead_to_each_others_page():
    for number, page in numbered_pages().items():
        for line in page.splitlines():
            if found := re.match(
                r" *Solution to (Exercise \S+) .* (\d+)$", line
            ):
                there = numbered_pages()[int(found[2])]
                assert re.search(rf"^ *{found[1]} \(", there, re.M), line
        # The line below an exercise may stand on the next page.
        here = numbered_pages().get(number - 1, "") + page
        for line in re.findall(r".*olution: page \d+$", page, re.M):
            exercise = re.findall(
                r"^ *(Exercise \d+\.\d+) \(", here[: here.rindex(line)], re.M
            )[-1]
            there = numbered_pages()[int(line.split()[-1])]
            assert f"Solution to {exercise} " in there, f"{number}: {line}"


def test_no_figure_has_a_page_to_itself():
    """But where there is nothing left to put below it."""
    for number, page in numbered_pages().items():
        blocks = re.split(r"\n\s*\n", page.strip())
        after = numbered_pages().get(number + 1, "").strip().split("\n")[0]
        if len(blocks) == 2 and after.endswith(f" {number + 1}"):
            alone = re.match(r" *Fig\. [\d.]+:", blocks[1])
            assert not alone, f"page {number}: {blocks[1]}"


def test_no_heading_is_the_last_line_of_a_page():
    announce = (
        r" *(exported to .*|Parameters|Returns|Raises|References|Example)"
    )
    for number, page in numbered_pages().items():
        lines = [line for line in page.splitlines() if line.strip()]
        if lines and lines[-1].strip() == str(number):
            lines.pop()
        if lines:
            assert not re.fullmatch(announce, lines[-1]), f"page {number}"


@pytest.mark.parametrize("number", range(1, len(CHAPTERS) + 1))
def test_the_pdf_holds_every_line_of_code_that_the_page_shows(number):
    """Solutions too, in the appendix. Lines that are too long are broken."""
    text = squeeze("".join(pages()))
    for cell in cells(CHAPTERS[number - 1]):
        if cell["cell_type"] == "code" and not is_hidden(cell):
            for line in "".join(cell["source"]).splitlines():
                if not line.startswith("#| export"):
                    assert squeeze(line) in text, line


def test_no_name_of_the_package_is_hyphenated():
    """A reader would type the hyphen."""
    names = {
        name
        for path in (ROOT / "attention_lib").glob("*.py")
        for name in re.findall(
            r"^ *(?:def|class) (\w+)", path.read_text("utf-8"), re.M
        )
        if "_" in name.strip("_") or re.search(r"[a-z][A-Z]", name)
    }
    text = "".join(pages())
    breaks = re.findall(r"(\w+)-\n *(\w+)", text)
    assert len(breaks) > 100
    assert not [pair for pair in breaks if "".join(pair) in names]


def test_a_proof_ends_in_its_last_line():
    course = "".join(chapter_pages().values())
    assert course.count("□") >= 5
    assert not re.search(r"^\s*□\s*$", course, re.M)


def test_print_asks_for_nothing_that_paper_cannot_do():
    for number, page in numbered_pages().items():
        words = " ".join(page.split())
        found = re.search(
            r"\b(click|hover|unfold\b(?!\()|[Oo]pen them if|rest the pointer)",
            words,
        )
        assert not found, f"page {number}: {found[0]}"


def test_the_bibliography_holds_no_markup():
    text = "".join(pages())
    works = text[text.rindex("The works that the chapters cite") :]
    assert "O(n²)" in works
    assert not re.search(r"[${}]|\\\w", works[: works.index("Index\n")])


def test_every_reference_in_the_pdf_found_its_target():
    for number, page in enumerate(pages(), 1):
        assert "??" not in page, f"page {number}"
        assert not re.search(r"\{(term|ref|numref|eq|cite:\w)\}`", page)


def test_every_chinese_character_of_the_course_is_in_the_pdf():
    sources = (ROOT / "chapters" / "glossary.md").read_text("utf-8")
    sources += "".join(map(prose, CHAPTERS))
    missing = set(HAN.findall(sources)) - set("".join(pages()))
    assert len(set(HAN.findall(sources))) > 100
    assert not missing, "".join(sorted(missing))


def test_every_font_in_the_pdf_is_embedded():
    rows = poppler("pdffonts", str(PDF)).splitlines()[2:]
    assert rows
    assert all(row.split()[-5] == "yes" for row in rows)


def test_the_figures_of_the_pdf_are_drawings_not_pixels():
    """All but the coloured fields that a drawing of ours itself holds."""
    drawings = [
        "".join(drawing)
        for path in sorted((ROOT / "chapters").glob("*.ipynb"))
        for cell in cells(f"chapters/{path.stem}")
        for output in cell.get("outputs", [])
        if (drawing := output.get("data", {}).get("image/svg+xml"))
    ]
    for folder in ("tools/site/static", "attention_lib/course/explorables"):
        for path in (ROOT / folder).glob("*.svg"):
            drawings.append(path.read_text("utf-8"))
    fields = sum(drawing.count("<image") for drawing in drawings)
    rows = poppler("pdfimages", "-list", str(PDF)).splitlines()[2:]
    assert len([row for row in rows if row.split()[2] == "image"]) <= fields
    assert fields < len(drawings) / 3


def test_no_text_of_the_pdf_leaves_its_page():
    text = poppler("pdftotext", "-bbox", str(PDF), "-")
    for number, page in enumerate(text.split("<page ")[1:], 1):
        for *sides, word in re.findall(
            r'<word xMin="(\S+)" yMin="(\S+)" xMax="(\S+)" yMax="(\S+)">'
            r"(.*?)</word>",
            page,
        ):
            x0, y0, x1, y1 = map(float, sides)
            inside = x0 > 20 and x1 < 595 - 20 and y0 > 10 and y1 < 842 - 10
            assert inside, f"page {number}: {unescape(word)}"


def test_the_pdf_says_what_it_is():
    facts = poppler("pdfinfo", str(PDF))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert re.search(rf"^Title: +{citation['title']}$", facts, re.M)
    assert re.search(r"^Author: +The attention-course authors$", facts, re.M)
    text = "".join(pages()[:3])
    assert f"Version {citation['version']}" in text
    assert "Creative Commons Attribution 4.0" in text


@functools.cache
def book():
    assert EPUB.exists(), "no EPUB: run make epub"
    with zipfile.ZipFile(EPUB) as archive:
        first = archive.infolist()[0]
        assert first.filename == "mimetype"
        assert first.compress_type == zipfile.ZIP_STORED
        return {name: archive.read(name) for name in archive.namelist()}


@functools.cache
def xml(name):
    """A file of the EPUB; one that is not well-formed fails here."""
    return ET.fromstring(book()[name])


def documents():
    return [name for name in book() if name.endswith(".xhtml")]


def test_the_epub_begins_as_the_standard_says():
    assert book()["mimetype"] == b"application/epub+zip"
    assert b'full-path="content.opf"' in book()["META-INF/container.xml"]
    root = xml("content.opf")
    assert root.get("version") == "3.0"
    identifier = root.find(f".//*[@id='{root.get('unique-identifier')}']").text
    contents = book()["toc.ncx"].decode("utf-8")
    assert f'content="{identifier}"' in contents


def test_the_epub_lists_every_file_once_and_none_that_is_missing():
    items = list(xml("content.opf").iter(f"{OPF}item"))
    listed = [item.get("href") for item in items]
    assert len(set(listed)) == len(listed)
    parts = {"mimetype", "content.opf", "META-INF/container.xml"}
    assert set(listed) == set(book()) - parts
    properties = " ".join(item.get("properties", "") for item in items)
    assert properties.count("cover-image") == 1
    assert "nav" in properties.split()


def test_the_epub_is_read_in_the_order_of_the_contents():
    root = xml("content.opf")
    names = {
        item.get("id"): item.get("href") for item in root.iter(f"{OPF}item")
    }
    spine = [names[one.get("idref")] for one in root.iter(f"{OPF}itemref")]
    assert len(set(spine)) == len(spine)
    assert set(spine) >= set(documents()) - {"nav.xhtml"}
    order = [spine.index(f"{name}.xhtml") for name in CHAPTERS]
    assert order == sorted(order)
    assert spine.index("chapters/solutions.xhtml") > order[-1]


@pytest.mark.parametrize("name", CHAPTERS)
def test_an_epub_chapter_has_its_equations_and_figures(name):
    page = xml(f"{name}.xhtml")
    numbers = page.findall(f".//{XHTML}span[@class='eqno']")
    assert len(numbers) == equations(name)
    captions = [
        each
        for each in page.iter(f"{XHTML}span")
        if each.get("class") == "caption-number"
        and "Fig." in "".join(each.itertext())
    ]
    assert len(captions) == figures(name)
    answers = [
        each
        for each in page.iter(f"{XHTML}a")
        if "solutions.xhtml#answer-" in each.get("href", "")
    ]
    assert len(answers) == len(exercises(name))


def test_nothing_in_the_epub_needs_a_script_or_a_server():
    for name in documents():
        tags = {element.tag for element in xml(name).iter()}
        assert f"{XHTML}script" not in tags, name
        assert f"{XHTML}iframe" not in tags, name
        for element in xml(name).iter():
            for attribute in ("src", "data"):
                assert "://" not in element.get(attribute, ""), name


def test_every_link_and_picture_in_the_epub_leads_somewhere():
    anchors = {
        name: {each.get("id") for each in xml(name).iter()}
        for name in documents()
    }
    for name in documents():
        ids = [each.get("id") for each in xml(name).iter() if each.get("id")]
        assert len(ids) == len(set(ids)), f"{name}: an id stands twice"
        for element in xml(name).iter():
            link = element.get("href") or element.get("src")
            if not link or re.match(r"[a-z]+:", link):
                continue
            path, anchor = urldefrag(unquote(link))
            target = (
                posixpath.normpath(
                    posixpath.join(posixpath.dirname(name), path)
                )
                if path
                else name
            )
            assert target in book(), f"{name}: {link}"
            if anchor and target in anchors:
                assert anchor in anchors[target], f"{name}: {link}"


def test_pictures_in_the_epub_are_drawings_that_speak():
    for name in documents():
        for picture in xml(name).iter(f"{XHTML}img"):
            assert picture.get("alt"), f"{name}: {picture.get('src')}"
    drawings = [name for name in book() if name.endswith(".svg")]
    assert len(drawings) >= sum(map(figures, CHAPTERS))
    for name in drawings:
        assert b"<!DOCTYPE" not in book()[name]
        assert xml(name).tag == "{http://www.w3.org/2000/svg}svg"


def test_a_formula_says_itself_and_does_not_stand_twice():
    """A reader without MathML shows every text between the tags."""
    count = 0
    for name in documents():
        for formula in xml(name).iter(f"{MATHML}math"):
            count += 1
            assert formula.get("alttext"), name
            assert "\\Q" not in formula.get("alttext")
            assert formula.find(f".//{MATHML}annotation") is None, name
    assert count > 1000


def light(colour):
    """The relative luminance of a colour, by WCAG's formula."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in parts
    ]
    return sum(
        share * part
        for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    )


def test_the_epub_is_read_by_day_and_by_night():
    """At night a reader sets light text on black, where we set no colour."""
    style = re.sub(
        r"/\*.*?\*/", "", book()["_static/book.css"].decode(), flags=re.DOTALL
    )
    free = set()
    for names, rule in re.findall(r"([^{}]+)\{([^{}]*)\}", style):
        coloured = re.search(r"^ *color: (#\w{6});", rule, re.M)
        if "background: #" in rule:
            assert coloured or names.strip() == "img", names
        elif coloured:
            free.add(coloured[1])
    for name in documents():
        for element in xml(name).iter(f"{MATHML}mstyle"):
            if element.get("mathcolor"):
                free.add(element.get("mathcolor"))
    assert len(free) >= 4
    for colour in free:
        assert 1.05 / (light(colour) + 0.05) > 4, f"{colour} on white"
        assert (light(colour) + 0.05) / 0.05 > 4, f"{colour} on black"
