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
LISTINGS = [name for name in PAGES if name.startswith("_modules")]
# Listings of modules are made alike: a browser visits one of them.
VISITED = [name for name in PAGES if name not in LISTINGS[1:]]
# Pages that people are led to.
READING = [
    name
    for name in VISITED
    if name not in LISTINGS
    and name
    not in ("genindex.html", "prf-prf.html", "py-modindex.html", "search.html")
]
WIDTHS = {"wide": 1280, "phone": 375}


def test_the_book_was_built():
    assert "index.html" in PAGES, "no book in _build/html: run make book"


def weigh(path):
    """Return the bytes of a file as a server such as Pages sends it."""
    data = path.read_bytes()
    if path.suffix in {".html", ".css", ".js", ".svg", ".json"}:
        data = gzip.compress(data)
    return len(data)


READ_PAGE = """() => {
  const content = document.querySelector('main') || document.body;
  const all = (selector) => [...content.querySelectorAll(selector)];
  const shown = (element) => element.checkVisibility();
  return {
    wide: document.documentElement.scrollWidth <= innerWidth ? [] : all('*')
      .filter(
        (e) => e.getBoundingClientRect().right > innerWidth + 1 && shown(e)
      ).slice(0, 3).map((e) => e.outerHTML.slice(0, 120)).concat('page'),
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
    small: all('img[src$=".svg"]').filter(
      (e) => shown(e) && e.width < 0.65 * e.naturalWidth
    ).map((e) => e.src),
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
CUT_CODE = """() =>
  [...document.querySelectorAll('main .highlight pre')]
    .filter((e) => !e.closest('.cell_output') && e.checkVisibility() &&
      [e, e.parentElement].some((box) => box.scrollWidth > box.clientWidth))
    .map((e) => e.textContent.slice(0, 120))
"""


def check_layout(page):
    """Nothing is left as source, cut off, mute, missing or too small."""
    found = page.evaluate(READ_PAGE)
    assert found == {key: [] for key in found}


@contextmanager
def unfolded(page):
    """Open what is folded, and fold it again."""
    fold = page.evaluate_handle(UNFOLD)
    yield
    fold.evaluate("(fold) => fold()")


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
  for (const token of document.querySelectorAll('pre span, dt.sig span')) {
    const block = token.closest('pre, dt').parentElement;
    if (again(token, token.parentElement, block))
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


def list_barriers(page):
    """Return what axe finds, a line each."""
    # The style sheets are there already.
    options = {"preload": False, "resultTypes": ["violations"]}
    answer = Axe().run(page, options=options)
    return [
        f"{rule['id']}: {rule['help']} {node['target']} {node['html'][:120]}"
        for rule in answer.response["violations"]
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("name", VISITED)
def test_page_is_sound(visit, address, name):
    """Its weight, layout, pictures, code, and barriers, in one visit.

    On a wide light page and on a dark phone; nothing comes from elsewhere.
    """
    window = visit(address)
    asked = set()
    window.page.on("request", lambda request: asked.add(request.url))
    page = window.go(name)
    page.wait_for_load_state("networkidle")
    paths = {
        SITE / unquote(url.removeprefix(address).split("?")[0])
        for url in asked
        if url.startswith(address)
    }
    assert SITE / name in paths
    assert sum(map(weigh, paths)) <= 1_500_000
    check_layout(page)
    # In the dark a picture has a margin of its own: sizes are asked by light.
    window.show(width=WIDTHS["phone"], theme="light")
    check_layout(page)
    with unfolded(page):
        assert page.evaluate(CUT_CODE) == []
    page.evaluate(KEEP_ONE_OF_A_KIND)
    for width, theme in (("phone", "dark"), ("wide", "light")):
        window.show(width=WIDTHS[width], theme=theme)
        assert list_barriers(page) == [], f"{width}, {theme}"
    assert window.faults == []


@pytest.mark.parametrize(
    "name", ["index.html", "search.html", "chapters/05_masking.html"]
)
def test_page_reads_from_a_folder(visit, name):
    """Opened as a file, without any server, a page is whole."""
    window = visit(SITE.as_uri() + "/")
    check_layout(window.go(name))
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
        if not link or link == "#" or re.match(r"(\w+:|//)", link):
            continue
        path, anchor = urldefrag(urljoin(f"http://book/{name}", link))
        path = unquote(path.removeprefix("http://book/").split("?")[0])
        target = SITE / (path or name)
        if not target.is_file() or (
            anchor
            and target.suffix == ".html"
            and unquote(anchor) not in anchors(path or name)
        ):
            broken.append(link)
    assert broken == []


def public_address():
    config = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
    return config["sphinx"]["config"]["html_baseurl"]


@pytest.mark.parametrize("name", READING)
def test_a_shared_page_introduces_itself(name):
    """Title, text and picture, and the one address that counts."""
    base = public_address()
    soup = read(name)
    head = {
        tag.get("property") or tag.get("name"): tag["content"]
        for tag in soup.find_all("meta", content=True)
    }
    assert soup.title.get_text().strip()
    assert len(head["description"]) >= 40
    assert head["og:title"]
    assert head["og:description"]
    assert head["og:image:alt"]
    assert head["og:image"].startswith(base)
    assert (SITE / head["og:image"].removeprefix(base)).is_file()
    canonical = soup.find("link", rel="canonical")["href"]
    assert canonical == head["og:url"] == base + name


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
    text = (SITE / "sitemap.xml").read_text("utf-8")
    listed = re.findall("<loc>(.*?)</loc>", text)
    base = public_address()
    assert {base + name for name in READING} <= set(listed)
    assert all((SITE / url.removeprefix(base)).is_file() for url in listed)


@pytest.mark.parametrize("name", READING)
def test_text_is_there_before_500_kilobytes(name):
    """What must arrive before the text shows, compressed as served."""
    soup = read(name)
    links = [tag["href"] for tag in soup.select('link[rel~="stylesheet"]')]
    links += [
        tag["src"]
        for tag in soup.select("script[src]")
        if not (tag.has_attr("defer") or tag.has_attr("async"))
    ]
    folder = (SITE / name).parent
    files = {(folder / link.split("?")[0]).resolve() for link in links}
    assert sum(map(weigh, files | {SITE / name})) <= 500_000


@pytest.mark.parametrize("kind", ["pdf", "epub"])
def test_the_printed_book_is_offered_if_it_was_made(kind):
    product = SITE.parent / "print" / f"attention-course.{kind}"
    for name in READING:
        footer = read(name).find(class_="extra_footer")
        links = {link["href"].split("/")[-1] for link in footer.find_all("a")}
        assert (product.name in links) == product.is_file(), name


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
    page.locator("main a.reference[href*='#term-']").first.hover()
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


def test_the_theme_can_be_switched_and_figures_follow(visit, address):
    window = visit(address)
    page = window.go("chapters/02_attention_by_hand.html")
    figure = page.locator("main .cell_output img").first
    seen = set()
    for _ in range(3):
        page.locator("button.theme-switch-button:visible").first.click()
        theme = page.evaluate("document.documentElement.dataset.theme")
        look = figure.evaluate("(e) => getComputedStyle(e).filter")
        assert ("invert(1)" in look) == (theme == "dark")
        seen.add(theme)
    assert seen == {"light", "dark"}


def list_sources(name):
    """Return what the cells of a notebook hold, as its page shows them."""
    path = (ROOT / name).with_suffix(".ipynb")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return [
        re.sub(r"\A#\|\s*export\s+\w+\s*\n", "", "".join(cell["source"]))
        for cell in cells
        if cell["cell_type"] == "code"
        and not {"remove-input", "remove-cell"}
        & set(cell["metadata"].get("tags", []))
    ]


NOTEBOOKS = [
    name for name in PAGES if (ROOT / name).with_suffix(".ipynb").is_file()
]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_code_is_on_the_page_as_it_is_in_the_notebook(name):
    """And an exported cell says where it can be imported from."""
    soup = read(name)
    shown = [pre.get_text() for pre in soup.select(".cell_input pre")]
    assert shown == [source + "\n" for source in list_sources(name)]
    assert all(mark.a for mark in soup.select("p.exported"))


def test_folded_code_is_copied_as_it_was_written(visit, address):
    """On a phone lines fold; the button copies them whole."""
    name = NOTEBOOKS[0]
    window = visit(address, width=WIDTHS["phone"])
    window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = window.go(name)
    page.evaluate_handle(UNFOLD)
    blocks = page.locator(".cell_input .highlight")
    for number, source in enumerate(list_sources(name)[:8]):
        block = blocks.nth(number)
        block.hover(position={"x": 5, "y": 5})
        block.locator("button.copybtn").click()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == source
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
