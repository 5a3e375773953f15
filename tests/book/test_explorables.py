"""The figures that compute live: what they show is what the oracle says."""

from __future__ import annotations

import html
import json
import random
import re
from xml.etree import ElementTree

import altair
import charts
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from browsing import ROOT, SITE
from bs4 import BeautifulSoup

from attention_lib import causal_mask, padding_mask, reference
from attention_lib.course.corpus import CHINESE, ENGLISH
from attention_lib.course.explorables import NAMES, explore

# Where each one stands; the first also on the start page.
PAGES = {
    "worked-example": "chapters/02_attention_by_hand.html",
    "temperature": "chapters/02_attention_by_hand.html",
    "alignment": "chapters/03_scoring.html",
    "scaling": "chapters/04_scaling.html",
    "masks": "chapters/05_masking.html",
    "heads": "chapters/06_multihead.html",
}
FOLDER = ROOT / "attention_lib" / "course" / "explorables"
NUMBER = re.compile(r"[−-]?\d+(?:\.\d+)?")


def figure(name):
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def controls(name):
    """What a reader can set, by the label of the control."""
    signals = figure(name)["spec"]["signals"]
    return {one["name"]: one for one in signals if "bind" in one}


def values_of(control):
    """All values of a control, from the first to the last."""
    bind = control["bind"]
    if bind["input"] == "checkbox":
        return [False, True]
    if bind["input"] == "select":
        return bind["options"]
    steps = round((bind["max"] - bind["min"]) / bind["step"])
    return [round(bind["min"] + i * bind["step"], 4) for i in range(steps + 1)]


def entropy(weights):
    positive = weights[weights > 0]
    return -(positive * np.log(positive)).sum()


def oracle_worked_example(q1, q2):
    key = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    value = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    query = np.array([[q1, q2]])
    context, weights = reference.attention(query, key, value)
    scores = query @ key.T / np.sqrt(2)
    return [q1, q2, *scores[0], *weights[0], *context[0]]


def oracle_temperature(power, shift):
    scores = np.array([2.0, 1.0, 0.0, -1.0]) + shift
    weights = reference.softmax(scores / 2.0**power)
    return [2.0**power, *weights, entropy(weights)]


def oracle_scaling(power, draw):
    rng = np.random.default_rng(4)
    query = rng.standard_normal((12, 1, 1024))[draw - 1]
    key = rng.standard_normal((12, 8, 1024))[draw - 1]
    width = 2**power
    query, key = query[:, :width], key[:, :width]
    expected = [width]
    for scale in (1.0, None):
        _, weights = reference.attention(query, key, key, scale=scale)
        scores = query @ key.T / (1 if scale else np.sqrt(width))
        expected += [*scores[0], weights.max(), entropy(weights)]
    return expected


def oracle_masks(pads, side, causal, window, row):
    rng = np.random.default_rng(5)
    scores = rng.standard_normal((6, 6)).round(1)
    mask = padding_mask([6 - pads], 6, side=side)[0].expand(6, 6).numpy()
    if causal:
        mask = mask & causal_mask(6).numpy()
    if window:
        places = np.arange(6)
        mask = mask & (abs(places[:, None] - places) < window)
    weights = reference.softmax(scores, mask)
    dead = (~mask.any(axis=1)).sum()
    return [mask.sum(), 36, dead, row, *weights[row - 1]]


def weights_of(part, sentence, word, heads=None, head=1):
    one = charts.MAPS[part][sentence]
    flat = one["weights"] if heads is None else one["weights"][str(heads)]
    down, across = len(one["chinese"]), len(one["english"])
    table = np.array(flat).reshape(-1, down, across)
    word = min(word, down)
    return word, table[min(head, len(table)) - 1][word - 1]


def oracle_alignment(sentence, word):
    word, weights = weights_of("alignment", sentence, word)
    return [word, *weights]


def oracle_heads(sentence, layer, head, word):
    word, weights = weights_of("heads", sentence, word, layer, head)
    return [layer, min(head, layer), word, *weights]


ORACLES = {
    "worked-example": oracle_worked_example,
    "temperature": oracle_temperature,
    "scaling": oracle_scaling,
    "masks": oracle_masks,
    "alignment": oracle_alignment,
    "heads": oracle_heads,
}


def assert_says(name, text, settings):
    """The numbers in a readout are those of the oracle, as rounded."""
    shown = NUMBER.findall(text)
    expected = ORACLES[name](**settings)
    assert len(shown) == len(expected), text
    for number, exact in zip(shown, expected, strict=True):
        number = number.replace("−", "-")
        digits = len(number.partition(".")[2])
        # A tie may be rounded either way, and samples have four digits.
        slack = 0.51 * 10.0**-digits + (6e-5 if name == "scaling" else 0)
        assert abs(float(number) - exact) <= slack, (number, exact, text)


def test_vega_lite_is_the_one_that_altair_writes_for():
    script = (charts.VENDOR / "vega" / "vega-lite.min.js").read_text("utf-8")
    assert f'"{altair.SCHEMA_VERSION.removeprefix("v")}"' in script


@pytest.mark.parametrize("name", NAMES)
def test_the_figure_says_what_the_oracle_says(name):
    """The start, and settings at random, the ends of each control too."""
    context = charts.javascript()
    context.eval(
        f"view = new vega.View(vega.parse({json.dumps(figure(name)['spec'])}),"
        " {renderer: 'none'});"
        " read = async (settings) => {"
        " for (const [name, value] of Object.entries(settings))"
        " view.signal(name, value);"
        " await view.runAsync(); return view.signal('readout'); };"
    )
    choices = {key: values_of(one) for key, one in controls(name).items()}
    draw = random.Random(0)
    trials = [{key: one["value"] for key, one in controls(name).items()}]
    trials += [{key: each[end] for key, each in choices.items()}
               for end in (0, -1)]  # fmt: skip
    trials += [
        {key: draw.choice(each) for key, each in choices.items()}
        for _ in range(60)
    ]
    said = set()
    for settings in trials:
        text = context.eval(f"read({json.dumps(settings)})").get()
        assert_says(name, text, settings)
        said.add(text)
    assert len(said) > 20, "the controls change little"


@pytest.mark.parametrize("name", NAMES)
def test_the_still_picture_needs_no_font(name):
    tree = ElementTree.parse(FOLDER / f"{name}.svg")
    tags = {element.tag.rpartition("}")[2] for element in tree.iter()}
    assert "text" not in tags
    assert "use" in tags
    defined = {e.get("id") for e in tree.iter() if e.get("id")}
    link = "{http://www.w3.org/1999/xlink}href"
    used = {e.get(link)[1:] for e in tree.iter() if e.get(link)}
    assert used <= defined


def test_the_maps_are_attention_to_the_words_that_are_translated():
    """On most words the largest weight is where the grammar links."""
    for part, layers in (("alignment", [None]), ("heads", [1, 2, 4, 8])):
        hits = total = 0
        for number, one in enumerate(charts.MAPS[part]):
            assert set(one["english"][:-1]) <= set(ENGLISH.words)
            assert set(one["chinese"]) <= set(CHINESE.words)
            for layer in layers:
                for head in range(1, (layer or 1) + 1):
                    for word in range(1, len(one["chinese"]) + 1):
                        _, row = weights_of(part, number, word, layer, head)
                        assert (row >= 0).all()
                        assert abs(row.sum() - 1) < 6e-4 * len(row)
            for i, j in one["links"]:
                _, row = weights_of(part, number, i + 1, layers[0])
                hits += row.argmax() == j
                total += 1
        assert hits > 0.6 * total


def test_a_wrong_name_is_refused():
    with pytest.raises(ValueError, match=r"'temperature'.*got 'temprature'"):
        explore("temprature")


def test_a_notebook_gets_the_still_picture_and_the_script():
    first, second = (
        explore("masks")._repr_mimebundle_()["text/html"] for _ in range(2)
    )
    soup = BeautifulSoup(first, "html.parser")
    assert soup.select_one("img.explorable-still")["alt"]
    assert soup.select_one(".explorable-live").has_attr("hidden")
    spec = json.loads(soup.select_one(".explorable-spec").string)
    assert spec == figure("masks")
    anchors = [
        re.search(r'<figure[^>]*id="([^"]+)"', page)[1]
        for page in (first, second)
    ]
    assert anchors[0] != anchors[1], "two of them in one notebook collide"


# In the browser.


def find(page, name):
    """Return the figure of an explorable, once it is live."""
    found = page.locator(
        "figure.explorable", has=page.locator(f"img[src*='{name}.svg']")
    )
    found.scroll_into_view_if_needed()
    page.wait_for_function(
        "(figure) => figure.dataset.state !== undefined",
        arg=found.element_handle(),
        timeout=20_000,
    )
    assert found.get_attribute("data-state") == "live"
    page.wait_for_function(
        "(figure) => figure.querySelector('.explorable-readout')"
        ".textContent !== ''",
        arg=found.element_handle(),
    )
    return found


def readout(figure_, after=None):
    """What a screen reader is told, once it differs from what it was."""
    place = figure_.locator(".explorable-readout")
    if after is not None:
        figure_.page.wait_for_function(
            "([place, old]) => place.textContent !== old",
            arg=[place.element_handle(), after],
            timeout=10_000,
        )
    assert place.get_attribute("aria-live") == "polite"
    return place.text_content()


def settings_of(name, figure_):
    """The values that the controls on the page stand at."""
    found = {}
    for key, control in controls(name).items():
        field = figure_.get_by_label(control["bind"]["name"], exact=True)
        match control["bind"]["input"]:
            case "checkbox":
                found[key] = field.is_checked()
            case "select":
                place = field.evaluate("(e) => e.selectedIndex")
                found[key] = control["bind"]["options"][place]
            case _:
                found[key] = json.loads(field.input_value())
    return found


@pytest.mark.site
@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("name", NAMES)
def test_a_live_figure_is_sound(visit, address, name, width):
    """Every control moves by keyboard, and the numbers are the oracle's.

    It fits, nothing is cut off, nobody is shut out, by light and dark.
    """
    window = visit(address, width=width)
    page = window.go(PAGES[name])
    here = find(page, name)
    assert_says(name, readout(here), settings_of(name, here))
    for control in controls(name).values():
        before = settings_of(name, here)
        field = here.get_by_label(control["bind"]["name"], exact=True)
        field.focus()
        kind = control["bind"]["input"]
        if kind == "checkbox":
            field.press("Space")
        elif kind == "select":
            field.press("ArrowDown")
        else:
            end = before[control["name"]] >= control["bind"]["max"]
            field.press("ArrowLeft" if end else "ArrowRight")
        after = settings_of(name, here)
        changed = [key for key in after if after[key] != before[key]]
        assert changed == [control["name"]]
        page.wait_for_timeout(250)
        assert_says(name, readout(here), after)
    assert not here.locator("img.explorable-still").is_visible()
    assert here.get_by_role("group").get_attribute("aria-label")
    # The page around it has its own test, and costs axe seconds.
    here.evaluate(
        "(figure) => { for (let e = figure; e !== document.body;"
        " e = e.parentElement) e.parentElement.replaceChildren(e); }"
    )
    for theme in ("light", "dark"):
        window.show(width=width, theme=theme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        cut = here.evaluate(
            "(figure) => {"
            " const view = figure.querySelector('.explorable-view');"
            " const svg = view.querySelector('svg').getBoundingClientRect();"
            " const box = view.getBoundingClientRect();"
            " return Math.max(box.left - svg.left, svg.right - box.right); }"
        )
        assert cut < 1.5
        audit = Axe().run(page, "figure.explorable", {"preload": False})
        assert audit.response["violations"] == [], theme
    assert window.faults == []


@pytest.mark.site
def test_without_scripts_there_is_the_picture(browser):
    name = "masks"
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((SITE / PAGES[name]).as_uri())
    picture = page.locator(f"figure.explorable img[src*='{name}.svg']")
    assert picture.is_visible()
    assert picture.get_attribute("alt")
    assert picture.bounding_box()["height"] > 100
    live = page.locator(".explorable-live")
    assert not any(one.is_visible() for one in live.all())
    context.close()


@pytest.mark.site
def test_it_works_from_a_folder(visit):
    window = visit(SITE.as_uri() + "/")
    page = window.go(PAGES["masks"])
    here = find(page, "masks")
    assert_says("masks", readout(here), settings_of("masks", here))
    assert window.faults == []


@pytest.mark.site
@pytest.mark.parametrize("name", ["index.html", PAGES["heads"]])
def test_the_library_waits_until_a_figure_comes_near(visit, address, name):
    """The text is there first; then one script, once."""
    window = visit(address)
    asked = []
    window.page.on("request", lambda request: asked.append(request.url))
    page = window.go(name)
    page.wait_for_timeout(500)
    figures = page.locator("figure.explorable")
    assert figures.count() > 0
    far = page.evaluate(
        "document.querySelector('figure.explorable')"
        ".getBoundingClientRect().top > innerHeight + 300"
    )
    if far:
        assert not any("vega" in url for url in asked)
    for one in figures.all():
        one.scroll_into_view_if_needed()
    page.wait_for_function(
        "document.querySelector('figure.explorable').dataset.state == 'live'",
        timeout=20_000,
    )
    assert sum("vega" in url for url in asked) == 1
    assert window.faults == []


@pytest.mark.site
def test_no_other_page_loads_the_scripts():
    live = {"index.html", *PAGES.values()}
    for path in SITE.rglob("*.html"):
        name = str(path.relative_to(SITE))
        if "_static" not in path.parts:
            text = path.read_text("utf-8")
            assert ("/explorable.js" in text) == (name in live), name
            assert not re.search(r"<script[^>]*\ssrc=[^>]*vega", text)


@pytest.mark.site
def test_the_figure_follows_the_theme(visit, address):
    window = visit(address, theme="light")
    page = window.go(PAGES["temperature"])
    here = find(page, "temperature")
    look = (
        "(figure) => [...figure.querySelectorAll('.explorable-view text')]"
        ".map((text) => text.getAttribute('fill'))"
    )
    light = here.evaluate(look)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.wait_for_timeout(300)
    dark = here.evaluate(look)
    assert len(dark) == len(light) > 5
    assert set(dark).isdisjoint(light)
    assert window.faults == []


@pytest.mark.site
def test_a_word_can_be_chosen_by_hand(visit, address):
    name = "heads"
    window = visit(address, width=375)
    page = window.go(PAGES[name])
    here = find(page, name)
    old = readout(here)
    # The picture stands below the controls; the fifth word of its left side.
    view = here.locator(".explorable-view svg")
    view.scroll_into_view_if_needed()
    box = view.bounding_box()
    page.mouse.click(box["x"] + 30, box["y"] + 5 + 26 * 4.5)
    text = readout(here, after=old)
    settings = settings_of(name, here)
    assert settings["word"] == 5
    assert_says(name, text, settings)


@pytest.mark.site
def test_the_query_can_be_put_down_by_hand(visit, address):
    window = visit(address)
    page = window.go(PAGES["worked-example"])
    here = find(page, "worked-example")
    old = readout(here)
    plane = here.locator(".explorable-view .plane_group path.background")
    plane = plane.first
    box = plane.bounding_box()
    page.mouse.click(
        box["x"] + 0.25 * box["width"], box["y"] + 0.25 * box["height"]
    )
    text = readout(here, after=old)
    settings = settings_of("worked-example", here)
    assert settings["q1"] == pytest.approx(-1.6, abs=0.11)
    assert settings["q2"] == pytest.approx(1.6, abs=0.11)
    assert_says("worked-example", text, settings)


def assert_a_slider_moves_it(page, name, here):
    """Check the numbers that a live figure says, before and after a step."""
    page.wait_for_timeout(250)
    text = readout(here)
    assert_says(name, text, settings_of(name, here))
    bind = next(
        one["bind"]
        for one in controls(name).values()
        if one["bind"]["input"] == "range"
    )
    here.get_by_label(bind["name"], exact=True).press("ArrowRight")
    page.wait_for_timeout(250)
    moved = readout(here)
    assert moved != text
    assert_says(name, moved, settings_of(name, here))


def cell_in_a_frame(browser, name, sandbox):
    """A cell's output in a frame of its own, as Colab shows it, offline."""
    context = browser.new_context(viewport={"width": 900, "height": 900})
    asked = []
    context.route("**/*", lambda route: (asked.append(route), route.abort()))
    page = context.new_page()
    heard = []
    page.on("pageerror", lambda error: heard.append(str(error)))
    cell = explore(name)._repr_mimebundle_()["text/html"]
    page.set_content(
        "<!doctype html><meta charset=utf-8><title>Cell</title>"
        f'<iframe sandbox="{sandbox}" srcdoc="{html.escape(cell)}" '
        'style="width:100%;height:850px;border:0"></iframe>'
    )
    return page, page.frame_locator("iframe"), asked, heard


@pytest.mark.site
@pytest.mark.parametrize("name", ["worked-example", "heads"])
def test_a_notebook_draws_it_in_a_frame_without_a_network(browser, name):
    page, frame, asked, heard = cell_in_a_frame(browser, name, "allow-scripts")
    here = frame.locator("figure.explorable[data-state=live]")
    here.wait_for(timeout=20_000)
    assert_a_slider_moves_it(page, name, here)
    assert not frame.locator(".explorable-still").is_visible()
    assert (asked, heard) == ([], [])
    page.context.close()


@pytest.mark.site
def test_a_notebook_that_runs_no_scripts_keeps_the_picture(browser):
    page, frame, asked, _ = cell_in_a_frame(browser, "temperature", "")
    picture = frame.locator("img.explorable-still")
    picture.wait_for()
    assert picture.evaluate("(image) => image.naturalWidth") > 100
    assert not frame.locator(".explorable-live").is_visible()
    assert asked == []
    page.context.close()


@pytest.mark.site
def test_a_notebook_keeps_the_library_that_it_has(browser):
    """Another Vega, and a module loader, stay as they were."""
    context = browser.new_context()
    page = context.new_page()
    cell = explore("masks")._repr_mimebundle_()["text/html"]
    page.set_content(
        "<!doctype html><meta charset=utf-8><title>Cell</title><script>"
        "window.vega = {version: 'other'};"
        "window.define = Object.assign(() => {}, {amd: {}});</script>" + cell
    )
    page.locator("figure[data-state=live]").wait_for(timeout=20_000)
    assert page.evaluate("window.vega.version") == "other"
    assert page.evaluate("window.define.amd !== undefined")
    context.close()
