"""The built book as its readers meet it: in a browser, without a network."""

from __future__ import annotations

import functools
import gzip
import json
import re
from contextlib import contextmanager
from urllib.parse import unquote, urldefrag, urljoin

import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe
from browsing import ROOT, SITE
from bs4 import BeautifulSoup

pytestmark = pytest.mark.site

PAGES = sorted(
    str(path.relative_to(SITE))
    for path in SITE.rglob("*.html")
    if "_static" not in path.parts
)
WIDTHS = {"wide": 1280, "phone": 375}


def test_the_book_was_built():
    assert "index.html" in PAGES, "no book in _build/html: run make book"


def weigh(path):
    """Return the bytes of a file as a server such as Pages sends it."""
    data = path.read_bytes()
    if path.suffix in {".html", ".css", ".js", ".svg", ".json"}:
        data = gzip.compress(data)
    return len(data)


def check_weight(asked, address):
    """All that a browser asks for, fonts and figures included."""
    paths = {
        SITE / unquote(url.removeprefix(address).split("?")[0])
        for url in asked
        if url.startswith(address)
    }
    assert sum(map(weigh, paths)) <= 1_500_000


READ_PAGE = """() => {
  const content = document.querySelector('main') || document.body;
  const all = (selector) => [...content.querySelectorAll(selector)];
  const shown = (element) => element.checkVisibility();
  return {
    theme: document.documentElement.dataset.theme,
    scroll: document.documentElement.scrollWidth,
    wide: all('*').filter(
      (e) => e.getBoundingClientRect().right > innerWidth + 1 && shown(e)
    ).slice(0, 3).map((e) => e.outerHTML.slice(0, 120)),
    unset: all('.math').filter((e) => !e.querySelector('.katex-html'))
      .map((e) => e.textContent.slice(0, 80)),
    flat: all('.math').filter(
      (e) => shown(e) && e.getBoundingClientRect().height < 4
    ).map((e) => e.textContent.slice(0, 80)),
    mute: all('img').filter(
      (e) => !e.alt.trim() || /[\\\\/]|\\.(svg|png)$/.test(e.alt)
    ).map((e) => e.src),
    missing: all('img').filter((e) => e.complete && !e.naturalWidth)
      .map((e) => e.src),
  };
}"""


UNFOLD = """() => {
  const closed = document.querySelectorAll('details:not([open])');
  const hidden = document.querySelectorAll('.toggle-hidden');
  for (const e of closed) e.open = true;
  for (const e of hidden) e.classList.remove('toggle-hidden');
  return () => {
    for (const e of closed) e.open = false;
    for (const e of hidden) e.classList.add('toggle-hidden');
  };
}"""


@contextmanager
def unfolded(page):
    """Open what is folded, and fold it again."""
    fold = page.evaluate_handle(UNFOLD)
    yield
    fold.evaluate("(fold) => fold()")


READ_CODE = """() => {
  const cut = [...document.querySelectorAll('.highlight pre:not(.columns)')]
    .filter((e) => [e, e.parentElement].some(
      (box) => box.scrollWidth > box.clientWidth
    )).map((e) => e.textContent.slice(0, 120));
  const range = document.createRange();
  const folded = [], astray = [], late = [];
  const lines = [...document.querySelectorAll('.highlight .line')];
  for (const line of lines) {
    range.selectNodeContents(line);
    const [first, ...others] = range.getClientRects();
    const below = others.filter((row) => row.top > first.bottom - 2);
    if (below.length) folded.push(line.textContent);
    if (below.some((row) => row.left < first.left + 10)) {
      astray.push(line.textContent);
    }
    if (first.top > line.getBoundingClientRect().top + 10) {
      late.push(line.textContent);
    }
  }
  const sample = lines[0];
  const display = sample ? getComputedStyle(sample).display : 'inline';
  const mark = sample ? getComputedStyle(sample, '::before').content : 'none';
  return {cut, folded, astray, late, display, mark};
}"""


def check_folded_code(page):
    """On a phone no line is cut, and what goes on below stands further in."""
    with unfolded(page):
        found = page.evaluate(READ_CODE)
    assert found["cut"] == []
    assert found["astray"] == []
    assert found["late"] == [], "lines that break before their first word"


def check_code_as_written(page):
    """Off the phone, lines have no marks; return those that fold anyway."""
    with unfolded(page):
        found = page.evaluate(READ_CODE)
    assert (found["display"], found["mark"]) == ("inline", "none")
    return found["folded"]


READ_PICTURES = """() => {
  const pictures = [...document.querySelectorAll('main img[src$=".svg"]')]
    .filter((e) => e.checkVisibility()).map((e) => {
      const frame = e.closest('.wide-figure');
      return {
        source: e.src,
        scale: e.getBoundingClientRect().width / e.naturalWidth,
        tall: e.getBoundingClientRect().height / e.naturalHeight,
        framed: frame !== null,
        scrolls: frame !== null && frame.scrollWidth > frame.clientWidth,
      };
    });
  const links = [...document.querySelectorAll('.prev-next-area a')]
    .filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.textContent);
  return {pictures, links};
}"""


def check_pictures(page, width):
    """Labels have nine points or more, so no figure is drawn much smaller."""
    found = page.evaluate(READ_PICTURES)
    for picture in found["pictures"]:
        if width == "wide":
            assert not picture["scrolls"]
        else:
            assert picture["scale"] >= (0.78 if picture["framed"] else 0.65)
            assert picture["scale"] == pytest.approx(picture["tall"], rel=0.02)
            assert picture["framed"] == picture["scrolls"]
    if width == "phone":
        assert found["links"] == [], "the way on is cut"


def check_layout(page, width):
    """Nothing is left as source, cut off, mute or missing."""
    found = page.evaluate(READ_PAGE)
    assert found["unset"] == [], "formulas left as source"
    assert found["flat"] == [], "formulas without height"
    assert found["mute"] == [], "figures without alternative text"
    assert found["missing"] == [], "figures that do not load"
    assert found["scroll"] <= WIDTHS[width], found["wide"]


# For axe the cost of a page is in its thousands of tokens and boxes. A line or
# token of code that looks as one before it becomes plain text, and a formula
# where one like it has been becomes a box of its size. Axe looks at the colour
# of words alone, not of single letters, so a formula with words is another.
KEEP_ONE_OF_A_KIND = """() => {
  const seen = new Set();
  const again = (...kind) => {
    const words = kind.map((e) => e && e.tagName + e.className).join(' ');
    if (seen.has(words)) return true;
    seen.add(words);
    return false;
  };
  for (const token of document.querySelectorAll('.highlight pre span')) {
    if (again(token, token.parentElement, token.closest('pre').parentElement))
      token.replaceWith(...token.childNodes);
  }
  const repeated = [...document.querySelectorAll('.katex')].filter((e) => {
    const math = e.closest('.math');
    return again(math, math.parentElement, e.querySelector('.text'));
  });
  for (const formula of repeated) {
    const spoken = formula.querySelector('.katex-mathml');
    spoken.textContent = spoken.textContent;
  }
  const boxes = repeated.flatMap(
    (e) => [...e.querySelectorAll('.katex-html > *')]
  );
  const sizes = boxes.map((e) => e.getBoundingClientRect());
  boxes.forEach((box, place) => {
    box.replaceChildren();
    box.style.display = 'inline-block';
    box.style.width = `${sizes[place].width}px`;
    box.style.height = `${sizes[place].height}px`;
  });
}"""


def list_barriers(page, rules=None):
    """Return what axe finds, by all rules or these, a line each."""
    options = {
        "preload": False,  # the style sheets are there already
        "resultTypes": ["violations"],
        **({"runOnly": rules} if rules else {}),
    }
    answer = Axe().run(page, options=options)
    return [
        f"{rule['id']}: {rule['help']} {node['target']} {node['html'][:120]}"
        for rule in answer.response["violations"]
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("name", PAGES)
def test_page_is_sound(visit, address, name):
    """Its weight, layout, pictures, code, and barriers, in one visit.

    At both widths and in both themes. All of axe's rules run on the dark
    phone and on the wide light page; on the other two only contrast differs.
    """
    window = visit(address)
    asked = set()
    window.page.on("request", lambda request: asked.add(request.url))
    page = window.go(name)
    page.wait_for_load_state("networkidle")
    assert address + name in asked
    check_weight(asked, address)
    check_layout(page, "wide")
    check_pictures(page, "wide")
    assert check_code_as_written(page) == []

    # In the dark a picture has a margin of its own: sizes are asked by light.
    window.show(width=WIDTHS["phone"], theme="light")
    check_layout(page, "phone")
    check_pictures(page, "phone")
    check_folded_code(page)
    page.emulate_media(media="print")
    check_code_as_written(page)
    page.emulate_media(media="screen")

    page.evaluate(KEEP_ONE_OF_A_KIND)
    contrast = ["color-contrast"]
    assert list_barriers(page, contrast) == []
    for width, theme, rules in (
        ("phone", "dark", None),
        ("wide", "light", None),
        ("wide", "dark", contrast),
    ):
        window.show(width=WIDTHS[width], theme=theme)
        check_layout(page, width)
        assert list_barriers(page, rules) == [], f"{width}, {theme}"
    assert window.faults == []


@pytest.mark.parametrize("name", PAGES)
def test_page_reads_from_a_folder(visit, name):
    """Opened as a file, without any server, a page is whole."""
    window = visit(SITE.as_uri() + "/")
    found = window.go(name).evaluate(READ_PAGE)
    assert found["unset"] == []
    assert found["missing"] == []
    assert window.faults == []


@functools.cache
def read(name):
    return BeautifulSoup((SITE / name).read_text("utf-8"), "html.parser")


@functools.cache
def anchors(name):
    soup = read(name)
    return {tag["id"] for tag in soup.find_all(id=True)} | {
        tag["name"] for tag in soup.find_all("a", attrs={"name": True})
    }


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    """Each link inside the book has its page, its file and its anchor."""
    broken = []
    for tag in read(name).find_all(["a", "img", "script", "link"]):
        link = tag.get("href") or tag.get("src")
        if not link or link == "#" or link.startswith(("data:", "mailto:")):
            continue
        absolute = urljoin(f"http://book/{name}", link)
        if link.startswith(("http:", "https:", "//")):
            continue
        path, anchor = urldefrag(absolute)
        path = unquote(path.removeprefix("http://book/").split("?")[0])
        target = SITE / (path or name)
        if not target.is_file() or (
            anchor
            and target.suffix == ".html"
            and unquote(anchor) not in anchors(path or name)
        ):
            broken.append(link)
    assert broken == []


# Pages that people are led to; the others are listings made by machine.
READING = [
    name
    for name in PAGES
    if not name.startswith("_modules")
    and name
    not in ("genindex.html", "prf-prf.html", "py-modindex.html", "search.html")
]


def public_address():
    config = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
    return config["sphinx"]["config"]["html_baseurl"]


@pytest.mark.parametrize("name", READING)
def test_a_shared_page_introduces_itself(name):
    """Title, text and picture, and the one address that counts."""
    base = public_address()
    soup = read(name)

    def tell(key, attribute="property"):
        tag = soup.find("meta", attrs={attribute: key})
        assert tag is not None, f"no {key}"
        return tag["content"]

    assert soup.title.get_text().strip()
    assert len(tell("description", "name")) >= 40
    assert tell("og:title")
    assert tell("og:description")
    assert tell("og:image:alt")
    image = tell("og:image")
    assert image.startswith(base)
    assert (SITE / image.removeprefix(base)).is_file()
    canonical = soup.find("link", rel="canonical")["href"]
    assert canonical == tell("og:url") == base + name


def test_titles_and_descriptions_differ():
    pages = [read(name) for name in READING]
    titles = [soup.title.get_text().strip() for soup in pages]
    assert len(set(titles)) == len(titles)
    texts = [
        soup.find("meta", attrs={"name": "description"})["content"]
        for soup in pages
    ]
    assert len(set(texts)) == len(texts)


def test_the_sitemap_lists_what_people_read():
    listed = re.findall(
        "<loc>(.*?)</loc>", (SITE / "sitemap.xml").read_text("utf-8")
    )
    assert {public_address() + name for name in READING} <= set(listed)
    assert all(
        (SITE / url.removeprefix(public_address())).is_file() for url in listed
    )


def list_files(name, *, blocking):
    """Return the files that a page loads, or those the text waits for."""
    soup = read(name)
    links = [tag["href"] for tag in soup.select('link[rel~="stylesheet"]')]
    links += [
        tag["src"]
        for tag in soup.select("script[src]")
        if not blocking or not (tag.has_attr("defer") or tag.has_attr("async"))
    ]
    if not blocking:
        links += [tag["src"] for tag in soup.select("img[src]")]
    return {
        (SITE / name).parent.joinpath(unquote(link.split("?")[0])).resolve()
        for link in links
        if not link.startswith(("data:", "http"))
    } | {SITE / name}


@pytest.mark.parametrize("name", READING)
def test_text_is_there_before_500_kilobytes(name):
    """What must arrive before the text shows, compressed as served."""
    assert sum(map(weigh, list_files(name, blocking=True))) <= 500_000


@pytest.mark.parametrize("name", PAGES)
def test_the_printed_book_is_offered_if_it_was_made(name):
    footer = read(name).find(class_="extra_footer")
    links = {link["href"].rpartition("/")[2] for link in footer.find_all("a")}
    for kind in ("pdf", "epub"):
        product = SITE.parent / "print" / f"attention-course.{kind}"
        assert (product.name in links) == product.is_file()


def test_search_finds_a_word_offline(visit, address):
    window = visit(address)
    page = window.go("search.html?q=softmax")
    page.wait_for_selector("#search-results li a", timeout=10_000)
    assert page.locator("#search-results li a").count() >= 3
    assert window.faults == []


def test_a_term_shows_its_definition_on_hover(visit, address):
    window = visit(address)
    page = window.go("chapters/02_attention_by_hand.html")
    page.wait_for_timeout(500)
    term = page.locator("main a.reference[href*='#term-']").first
    term.hover()
    tip = page.locator(".tippy-box")
    tip.wait_for(timeout=5_000)
    assert len(tip.first.inner_text()) > 20
    assert window.faults == []


def test_the_menus_of_a_phone_hide_nothing(browser, address):
    """Tips and names of buttons would stay under a finger."""
    context = browser.new_context(
        viewport={"width": WIDTHS["phone"], "height": 812},
        has_touch=True,
        is_mobile=True,
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(address + "chapters/02_attention_by_hand.html")
    page.locator("button.secondary-toggle:visible").first.tap()
    page.wait_for_timeout(500)
    assert page.locator(".tippy-box").count() == 0
    page.keyboard.press("Escape")
    page.locator("button.search-button:visible").first.tap(timeout=5_000)
    assert page.locator("#pst-search-dialog").is_visible()
    context.close()


def test_the_theme_can_be_switched(visit, address):
    window = visit(address)
    page = window.go("index.html")
    seen = set()
    for _ in range(3):
        page.locator("button.theme-switch-button:visible").first.click()
        seen.add(page.evaluate("document.documentElement.dataset.theme"))
    assert seen == {"light", "dark"}


def test_figures_are_dark_in_the_dark(visit, address):
    window = visit(address, theme="dark")
    page = window.go("chapters/02_attention_by_hand.html")
    figure = page.locator("main .cell_output img").first
    style = figure.evaluate(
        "(e) => [getComputedStyle(e).filter,"
        " getComputedStyle(e).backgroundColor]"
    )
    assert "invert(1)" in style[0]
    assert style[1] == "rgba(0, 0, 0, 0)"


def test_exported_cells_say_where_to_import_from():
    soup = read("chapters/02_attention_by_hand.html")
    marks = [mark.get_text() for mark in soup.select("p.exported")]
    assert any("attention_lib.attention" in mark for mark in marks)
    assert all(mark.a for mark in soup.select("p.exported"))
    assert "#| export" not in soup.get_text()


def test_chapter_pages_offer_their_source():
    soup = read("chapters/02_attention_by_hand.html")
    links = " ".join(tag["href"] for tag in soup.find_all("a", href=True))
    assert "colab.research.google.com" in links
    assert "/edit/main/chapters/02_attention_by_hand.ipynb" in links
    assert "/issues/new" in links
    assert "02_attention_by_hand.ipynb" in links


def list_sources(name):
    """Return what the cells of a notebook hold, as its page shows them."""
    path = (ROOT / name).with_suffix(".ipynb")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return [
        re.sub(r"\A#\|\s*export\s+\w+\s*\n", "", "".join(cell["source"]))
        for cell in cells
        if cell["cell_type"] == "code"
        and "remove-input" not in cell["metadata"].get("tags", [])
        and "remove-cell" not in cell["metadata"].get("tags", [])
    ]


NOTEBOOKS = [
    name for name in PAGES if (ROOT / name).with_suffix(".ipynb").is_file()
]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_code_is_on_the_page_as_it_is_in_the_notebook(name):
    shown = [pre.get_text() for pre in read(name).select(".cell_input pre")]
    assert shown == [source + "\n" for source in list_sources(name)]


def test_folded_code_is_copied_as_it_was_written(visit, address):
    """By the button and by hand."""
    name = "chapters/07_transformer.html"
    window = visit(address, width=WIDTHS["phone"])
    window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = window.go(name)
    page.evaluate_handle(UNFOLD)
    assert len(page.evaluate(READ_CODE)["folded"]) > 100
    blocks = page.locator(".cell_input .highlight")
    sources = list_sources(name)
    assert blocks.count() == len(sources)
    for number, source in enumerate(sources):
        block = blocks.nth(number)
        block.hover(position={"x": 5, "y": 5})
        block.locator("button.copybtn").click()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == source
        selected = block.locator("pre").evaluate(
            "(e) => { getSelection().selectAllChildren(e);"
            " return getSelection().toString(); }"
        )
        assert selected.rstrip("\n") == source
    assert window.faults == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_summary_prints_on_one_sheet(visit, address, theme):
    page = visit(address, theme=theme).go("chapters/summary.html")
    printed = page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1
    page.emulate_media(media="print")
    ink, paper = page.evaluate(
        "[getComputedStyle(document.querySelector('.sheet p')).color,"
        " getComputedStyle(document.body).backgroundColor]"
    )
    assert (ink, paper) == ("rgb(0, 0, 0)", "rgb(255, 255, 255)")
