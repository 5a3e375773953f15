"""Write the figures that compute live: their specifications and pictures.

Each figure is a Vega-Altair chart whose parameters are bound to sliders and
lists, and whose expressions compute the softmax. It is compiled to Vega here,
so that a page loads one library, and drawn once as a still picture.

    python tools/charts.py          write attention_lib/course/explorables

The maps of trained models come from ``tools/trained_maps.py``.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import yaml
from py_mini_racer import MiniRacer

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "attention_lib" / "course" / "explorables"
VENDOR = ROOT / "tools" / "vendor"
ABOUT = yaml.safe_load((ROOT / "tools" / "charts.yml").read_text("utf-8"))
MAPS = json.loads((ROOT / "tools" / "trained_maps.json").read_text("utf-8"))

# Colours are signals, which the page sets when its theme changes.
COLORS = {
    "ink": "#1a1a1a",
    "paper": "#ffffff",
    "faint": "#949494",
    "query": "#0072B2",
    "key": "#D55E00",
    "value": "#009E73",
    "orange": "#E69F00",
}
INK, PAPER, FAINT, QUERY, KEY, VALUE, ORANGE = map(alt.expr, COLORS)
# So do widths: these numbers stand for signals that follow the page's room.
ROOM = 480
SIZES = {1001: "panel", 1002: "short"}
PANEL, SHORT = SIZES
# Of the pictures, which hold their letters.
DRAWN = "DejaVu Sans, Noto Sans CJK SC"

Chart = Any  # Altair's many chart types have no common one


def control(
    name: str,
    label: str,
    value: Any,
    span: Sequence[float] = (),
    options: dict[str, Any] | None = None,
) -> Any:
    """Return a parameter with a slider, a list to choose from, or a box."""
    bind = alt.binding_checkbox(name=label)
    if span:
        low, high, step = span
        bind = alt.binding_range(min=low, max=high, step=step, name=label)
    elif options:
        bind = alt.binding_select(
            options=list(options.values()), labels=list(options), name=label
        )
    return alt.param(name=name, value=value, bind=bind)


def softmax(chart: Chart, score: str, *, allowed: str = "true", groups=()):
    """Add the fields ``weight``, ``largest`` and ``entropy`` (in nats).

    The largest allowed score is subtracted first, and a group with no
    allowed score gets the weights 0, as in :mod:`attention_lib.reference`.
    """
    by = {"groupby": list(groups)} if groups else {}
    return (
        chart.transform_calculate(score=score)
        .transform_calculate(seen=f"({allowed}) ? datum.score : null")
        .transform_joinaggregate(highest="max(seen)", **by)
        .transform_calculate(
            part="isValid(datum.seen) ? exp(datum.seen - datum.highest) : 0"
        )
        .transform_joinaggregate(total="sum(part)", **by)
        .transform_calculate(
            weight="datum.total > 0 ? datum.part / datum.total : 0"
        )
        .transform_calculate(
            term="datum.weight > 0 ? -datum.weight * log(datum.weight) : 0"
        )
        .transform_joinaggregate(
            entropy="sum(term)", largest="max(weight)", **by
        )
    )


def axis(**options: Any) -> Any:
    """Return an axis in the colours of the page."""
    return alt.Axis(**{"grid": False, "tickCount": 5} | options)


def flat(low: Any, high: Any) -> dict[str, Any]:
    """Return a direction from one number to another, without an axis."""
    return {"scale": alt.Scale(domain=[low, high], nice=False), "axis": None}


def boxed(across: dict, down: dict, **options: Any) -> dict[str, Any]:
    """Return the sides of a rectangle: left, right, top and bottom."""
    return {
        "x": alt.X("left:Q", **across),
        "x2": "right:Q",
        "y": alt.Y("top:Q", **down),
        "y2": "bottom:Q",
    } | options


def bars(rows: Chart, label: str, title: str, name: str, number=".2f"):
    """Draw one bar of weight for each row, with its number."""
    y = alt.Y(label, sort=None, title=None, axis=axis(labelLimit=140))
    x = alt.X(
        "weight:Q",
        scale=alt.Scale(domain=[0, 1.2], nice=False),
        axis=axis(values=[0, 0.5, 1]),
        title=title,
    )
    drawn = rows.mark_bar(color=QUERY).encode(y=y, x=x).properties(name=name)
    text = rows.mark_text(align="left", dx=4, color=INK).encode(
        y=y, x=x, text=alt.Text("weight:Q", format=number)
    )
    return alt.layer(drawn, text)


def worked_example() -> Chart:
    """Return chapter 2's three words and a query that can be moved."""
    words = ("cats", "eat", "fish")
    keys = ((1, 0), (0, 1), (1, 1))
    values = ((1, 0), (0, 2), (1, 1))
    rows = [
        {"i": i, "word": w, "k1": k[0], "k2": k[1], "v1": v[0], "v2": v[1]}
        for i, (w, k, v) in enumerate(zip(words, keys, values, strict=True))
    ]
    chart = alt.Chart()

    def place(field: str, low: float, high: float, title: str) -> dict:
        step = 2 if low < -1 else 1
        values = list(range(2 - 2 * step, 3, step))
        return {
            "shorthand": field,
            "scale": alt.Scale(domain=[low, high], nice=False),
            "axis": axis(values=values, grid=True, format="d"),
            "title": title,
        }

    def plane(x: str, y: str, low: float, high: float, titles) -> dict:
        return {
            "x": alt.X(**place(x, low, high, titles[0])),
            "y": alt.Y(**place(y, low, high, titles[1])),
        }

    titles = ("first number", "second number")
    one = chart.transform_filter("datum.i == 0")
    match = plane("k1:Q", "k2:Q", -3.2, 3.2, titles)
    asked = plane("asked1:Q", "asked2:Q", -3.2, 3.2, titles)
    compare = alt.layer(
        chart.mark_point(
            shape="diamond", filled=True, size=90, color=KEY, opacity=1
        ).encode(**match),
        *(
            chart.transform_filter(where)
            .mark_text(align=align, dx=shift, dy=-8, color=KEY)
            .encode(**match, text="word:N")
            for where, align, shift in (
                ("datum.word == 'eat'", "right", -4),
                ("datum.word != 'eat'", "left", 4),
            )
        ),
        one.mark_rule(color=QUERY, strokeWidth=3)
        .encode(**asked, x2=alt.datum(0), y2=alt.datum(0))
        .properties(name="arrow"),
        one.mark_point(filled=True, size=110, color=QUERY, opacity=1).encode(
            **asked
        ),
    ).properties(
        width=PANEL, height=PANEL, title="query and keys", name="plane"
    )
    shares = bars(chart, "label:N", "weight", "bars").properties(
        width=PANEL, height=SHORT, title="score → weight"
    )
    give = plane("v1:Q", "v2:Q", -0.3, 2.3, titles)
    got = plane("output1:Q", "output2:Q", -0.3, 2.3, titles)
    mix = alt.layer(
        chart.mark_line(
            interpolate="linear-closed",
            color=VALUE,
            fill=VALUE,
            fillOpacity=0.15,
            strokeWidth=1,
        ).encode(**give, order="i:O"),
        chart.mark_point(
            shape="square", filled=True, color=VALUE, opacity=1
        ).encode(
            **give,
            size=alt.Size(
                "weight:Q",
                scale=alt.Scale(domain=[0, 1], range=[20, 500]),
                legend=None,
            ),
        ),
        chart.mark_text(align="left", dx=9, dy=-9, color=VALUE).encode(
            **give, text="word:N"
        ),
        one.mark_point(filled=True, size=110, color=QUERY, opacity=1).encode(
            **got
        ),
    ).properties(width=PANEL, height=PANEL, title="values and output")
    figure = alt.concat(compare, shares, mix, columns=3).properties(
        data=alt.Data(values=rows)
    )
    figure = softmax(figure, "(q1 * datum.k1 + q2 * datum.k2) / sqrt(2)")
    return figure.transform_calculate(
        asked1="q1",
        asked2="q2",
        label="datum.word + '  ' + format(datum.score, '.2f')",
        give1="datum.weight * datum.v1",
        give2="datum.weight * datum.v2",
    ).transform_joinaggregate(output1="sum(give1)", output2="sum(give2)")


def temperature() -> Chart:
    """Return the softmax of four scores at a temperature."""
    scores = (2, 1, 0, -1)
    rows = [{"i": i, "s": s} for i, s in enumerate(scores)]
    now = softmax(
        alt.Chart(alt.Data(values=rows)),
        "(datum.s + shift) / pow(2, power)",
    ).transform_calculate(
        label="'score ' + format(datum.s + shift, '.1f')",
        name="'score ' + datum.s",
    )
    left = bars(now, "label:N", "weight", "bars", ".3f").properties(
        width=PANEL, height=170, title="weights now"
    )
    names = [f"score {s}" for s in scores]
    total = " + ".join(f"exp(({s} - 2) / datum.t)" for s in scores)
    curves = (
        alt.Chart(alt.sequence(-5, 5.01, 0.25, as_="p"))
        .transform_calculate(t="pow(2, datum.p)")
        .transform_calculate(total=total)
        .transform_calculate(
            **{
                f"score {s}": f"exp(({s} - 2) / datum.t) / datum.total"
                for s in scores
            }
        )
        .transform_fold(names, as_=["name", "weight"])
    )
    x = alt.X(
        "t:Q",
        scale=alt.Scale(type="log", base=2, domain=[1 / 32, 32], nice=False),
        axis=axis(
            values=[1 / 16, 1 / 4, 1, 4, 16],
            labelExpr="datum.value < 1 ? '1/' + round(1 / datum.value)"
            " : format(datum.value, 'd')",
        ),
        title="temperature T",
    )
    y = alt.Y(
        "weight:Q",
        scale=alt.Scale(domain=[0, 1]),
        axis=axis(values=[0, 0.5, 1]),
        title="weight",
    )
    lines = curves.mark_line(color=QUERY).encode(
        x=x,
        y=y,
        strokeDash=alt.StrokeDash(
            "name:N",
            sort=names,
            scale=alt.Scale(
                domain=names, range=[[1, 0], [7, 3], [2, 2], [7, 3, 2, 3]]
            ),
            legend=alt.Legend(orient="bottom", columns=2, title=None),
        ),
    )
    marker = (
        now.transform_calculate(t="pow(2, power)")
        .mark_point(filled=True, size=60, color=KEY, opacity=1)
        .encode(x=x, y=y)
    )
    rule = (
        now.transform_calculate(t="pow(2, power)")
        .transform_filter("datum.i == 0")
        .mark_rule(color=KEY)
        .encode(x=x)
    )
    right = alt.layer(lines, rule, marker).properties(
        width=PANEL, height=170, title="weights at every temperature"
    )
    return alt.concat(left, right, columns=2)


def width_draws(draws: int = 12, keys: int = 8, powers: int = 11) -> Any:
    """Return scores ``(powers, draws, keys)`` of standard normal vectors.

    A narrower width takes the first numbers of the same vectors.
    """
    rng = np.random.default_rng(4)
    width = 2 ** (powers - 1)
    query = rng.standard_normal((draws, 1, width))
    key = rng.standard_normal((draws, keys, width))
    sums = np.cumsum(query * key, axis=-1)
    return np.moveaxis(sums[..., 2 ** np.arange(powers) - 1], -1, 0)


def scaling() -> Chart:
    """Return sampled scores at a width, unscaled and scaled."""
    scores = width_draws()
    rows = [
        {"d": int(d), "n": int(n) + 1, "j": int(j) + 1, "s": round(s, 4)}
        for (d, n, j), s in np.ndenumerate(scores)
    ]
    source = alt.Data(name="samples", values=rows)
    panels = []
    for name, score, title in (
        ("plain", "datum.s", "q · k"),
        ("scaled", "datum.s / sqrt(pow(2, power))", "q · k / √d"),
    ):
        sample = softmax(
            alt.Chart(source).transform_filter(
                "datum.d == power && datum.n == draw"
            ),
            score,
        ).transform_calculate(
            label="'key ' + datum.j + '  ' + format(datum.score, '.1f')"
        )
        strip = (
            sample.mark_tick(color=KEY, thickness=2, height=22)
            .encode(
                x=alt.X(
                    "score:Q",
                    scale=alt.Scale(domain=[-100, 100], nice=False),
                    axis=axis(values=[-100, -50, 0, 50, 100]),
                    title="scores",
                )
            )
            .properties(width=PANEL, height=30, title=title)
        )
        panels.append(strip)
        panels.append(
            bars(
                sample, "label:N", f"weights, {title}", name, ".3f"
            ).properties(width=PANEL, height=180)
        )
    return alt.concat(panels[0], panels[2], panels[1], panels[3], columns=2)


LAYERS = [int(number) for number in MAPS["heads"][0]["weights"]]
MASK_WORDS = ("the", "cat", "eats", "the", "big", "fish")


def masks() -> Chart:
    """Return a grid of weights under masks that can be switched."""
    size = len(MASK_WORDS)
    scores = np.random.default_rng(5).standard_normal((size, size)).round(1)
    rows = [
        {"i": int(i), "j": int(j), "s": float(s)}
        for (i, j), s in np.ndenumerate(scores)
    ]
    words = ", ".join(f"'{word}'" for word in MASK_WORDS)
    real = (
        f"(side == 'right' ? {{0}} < {size} - pads : {{0}} >= pads)"
    ).format
    figure = softmax(
        alt.Chart(alt.Data(values=rows)),
        "datum.s",
        allowed=f"{real('datum.j')} && (!causal || datum.j <= datum.i)"
        " && (window == 0 || abs(datum.i - datum.j) < window)",
        groups=["i"],
    ).transform_calculate(
        query_word=f"{real('datum.i')} ? [{words}][datum.i] : 'pad'",
        key_word=f"{real('datum.j')} ? [{words}][datum.j] : 'pad'",
        allowed="isValid(datum.seen)",
        dead="datum.total == 0",
        row="datum.i + 0.5",
        column="datum.j + 0.5",
        chosen="datum.i + 1 == row",
        top="datum.i",
        bottom="datum.i + 1",
        left="datum.j",
        right="datum.j + 1",
    )
    across, down = flat(-1, size + 1), flat(size, -0.6)
    x, y = alt.X("column:Q", **across), alt.Y("row:Q", **down)
    shade = alt.FillOpacity(
        "weight:Q", scale=alt.Scale(domain=[0, 1], range=[0, 1]), legend=None
    )
    cells = figure.mark_rect(stroke=PAPER, strokeWidth=1.5, fill=QUERY).encode(
        **boxed(across, down, fillOpacity=shade)
    )
    hidden = (
        figure.transform_filter("!datum.allowed")
        .mark_rect(stroke=PAPER, strokeWidth=1.5, fill=FAINT, fillOpacity=0.3)
        .encode(**boxed(across, down))
    )
    numbers = (
        figure.transform_filter("datum.allowed")
        .mark_text()
        .encode(
            x=x,
            y=y,
            text=alt.Text("weight:Q", format=".2f"),
            color=alt.condition(
                "datum.weight > 0.55", alt.value(PAPER), alt.value(INK)
            ),
        )
    )
    outline = figure.transform_filter(
        "datum.chosen && datum.j == 0"
    ).mark_rect(fill=None, stroke=ORANGE, strokeWidth=2.5)
    left = alt.XDatum(0, **across)
    outline = outline.encode(**boxed(across, down, x=left, x2=alt.datum(size)))
    first = figure.transform_filter("datum.j == 0")
    queries = first.mark_text(align="right", color=QUERY).encode(
        x=alt.XDatum(-0.12, **across), y=y, text="query_word:N"
    )
    dead = (
        first.transform_filter("datum.dead")
        .mark_text(align="left", color=KEY)
        .encode(
            x=alt.XDatum(size + 0.1, **across), y=y, text=alt.value("dead")
        )
    )
    keys = (
        figure.transform_filter("datum.i == 0")
        .mark_text(color=KEY)
        .encode(x=x, y=alt.YDatum(-0.3, **down), text="key_word:N")
    )
    everything = figure.transform_calculate(nothing="0").mark_point(opacity=0)
    everything = everything.encode(x=x, y=y).properties(name="cells")
    figure = alt.layer(cells, hidden, numbers, queries, dead, keys, outline)
    return (figure + everything).properties(width=PANEL, height=300)


def heights(part: str) -> list[int]:
    """Return how many lines each sentence of the trained models takes."""
    return [
        max(len(one["english"]), len(one["chinese"])) for one in MAPS[part]
    ]


def links_chart(part: str) -> Chart:
    """Return the explorer of a trained model: ``alignment`` or ``heads``."""
    maps = MAPS[part]
    several = part == "heads"
    longest = max(heights(part))
    rows = [
        {
            "n": number,
            "i": place,
            "zh": (one["chinese"] + [""] * longest)[place],
            "en": (one["english"] + [""] * longest)[place],
            "last": len(one["chinese"]),
            "links": [j for i, j in one["links"] if i == place],
        }
        for number, one in enumerate(maps)
        for place in range(max(len(one["english"]), len(one["chinese"])))
    ]
    weights = [
        {
            "n": number,
            "of": int(heads),
            "across": len(one["english"]),
            "down": len(one["chinese"]),
            "w": flat,
            "words": one["english"],
        }
        for number, one in enumerate(maps)
        for heads, flat in (
            one["weights"] if several else {1: one["weights"]}
        ).items()
    ]
    place = "min(word, datum.last) - 1"
    words = (
        alt.Chart(alt.Data(values=rows))
        .transform_filter("datum.n == sentence")
        .transform_calculate(
            y="datum.i + 0.5",
            chosen=f"datum.i == {place}",
            top="datum.i + 0.06",
            bottom="datum.i + 0.94",
        )
    )
    head = "min(head, datum.of) - 1" if several else "0"
    of = "layer" if several else "1"
    looks = (
        alt.Chart(alt.Data(values=weights))
        .transform_filter(f"datum.n == sentence && datum.of == {of}")
        .transform_calculate(
            row=f"({head}) * datum.down + min(word, datum.down) - 1"
        )
        .transform_calculate(
            weight="slice(datum.w, datum.row * datum.across,"
            " (datum.row + 1) * datum.across)"
        )
        .transform_flatten(["weight"])
        .transform_window(place="row_number()")
        .transform_calculate(
            word="datum.words[datum.place - 1]",
            end="datum.place - 0.5",
            start="min(word, datum.down) - 0.5",
            top="datum.place - 0.8",
            bottom="datum.place - 0.2",
            left="0.62",
            right="0.62 + 0.26 * datum.weight",
        )
    )
    across, down = flat(0, 1), flat(alt.expr("rows"), 0)

    def at(x: float) -> Any:
        return alt.XDatum(x, **across)

    y = alt.Y("y:Q", **down)
    boxes = (
        words.transform_filter("datum.i < datum.last")
        .mark_rect(cornerRadius=4, fill=QUERY, cursor="pointer")
        .encode(
            **boxed(across, down, x=at(0.0), x2=alt.datum(0.2)),
            fillOpacity=alt.condition(
                "datum.chosen", alt.value(0.25), alt.value(0.06)
            ),
        )
        .properties(name="words")
    )
    chinese = words.transform_filter("datum.zh")
    chinese = chinese.mark_text(color=QUERY, fontSize=15, cursor="pointer")
    chinese = chinese.encode(x=at(0.1), y=y, text="zh:N").properties(
        name="labels"
    )
    english = words.transform_filter("datum.en")
    english = english.mark_text(color=KEY, align="left", fontSize=13).encode(
        x=at(0.38), y=y, text="en:N"
    )
    lines = looks.mark_rule(color=QUERY, strokeCap="round", opacity=0.8)
    lines = lines.encode(
        x=at(0.2),
        x2=alt.datum(0.365),
        y=alt.Y("start:Q", **down),
        y2="end:Q",
        strokeWidth=alt.StrokeWidth(
            "weight:Q",
            scale=alt.Scale(domain=[0, 1], range=[0, 9]),
            legend=None,
        ),
    )
    shares = looks.mark_rect(fill=QUERY).encode(**boxed(across, down))
    shares = shares.properties(name="looks")
    numbers = looks.mark_text(align="left", dx=4, color=INK).encode(
        x=alt.X("right:Q", **across),
        y=alt.Y("end:Q", **down),
        text=alt.Text("weight:Q", format=".2f"),
    )
    true = (
        words.transform_filter("datum.chosen")
        .transform_flatten(["links"])
        .transform_calculate(y="datum.links + 0.5")
        .mark_point(
            shape="diamond", filled=True, size=60, color=ORANGE, opacity=1
        )
        .encode(x=at(0.6), y=y)
        .properties(name="grammar")
    )
    sentences = {
        " ".join(one["english"][:-1]).capitalize(): number
        for number, one in enumerate(maps)
    }
    controls = [control("sentence", "sentence", 0, options=sentences)]
    if several:
        layers = {f"{n} head{'s' if n > 1 else ''}": n for n in LAYERS}
        controls += [
            control("layer", "layer of", 4, options=layers),
            control("head", "head", 1, (1, max(LAYERS), 1)),
        ]
    controls.append(control("word", "Chinese word", 3, (1, longest, 1)))
    drawn = alt.layer(boxes, lines, chinese, english, shares, numbers, true)
    return drawn.properties(width=PANEL, height=SHORT).add_params(*controls)


FIGURES: dict[str, Callable[[], Chart]] = {
    "worked-example": worked_example,
    "temperature": temperature,
    "scaling": scaling,
    "masks": masks,
    "alignment": lambda: links_chart("alignment"),
    "heads": lambda: links_chart("heads"),
}


@cache
def javascript() -> MiniRacer:
    """Return a JavaScript context that holds Vega and Vega-Lite."""
    context = MiniRacer()
    for script in (
        TARGET / "vega" / "vega.min.js",
        ROOT / "tools" / "charts.js",
        VENDOR / "vega" / "vega-lite.min.js",
    ):
        context.eval(script.read_text("utf-8"))
    return context


def find_mark(spec: Any, name: str) -> dict[str, Any]:
    """Return the compiled mark of a chart that has a name.

    Altair adds a number to the name of a chart within another.
    """
    for mark in walk_marks(spec):
        if re.fullmatch(rf"{name}(_\d+)?_marks", mark.get("name", "")):
            return mark
    raise KeyError(name)


def walk_marks(spec: Any) -> Any:
    """Yield all marks, those in groups too."""
    for mark in spec.get("marks", []):
        yield mark
        yield from walk_marks(mark)


LISTED = re.compile(
    r"\{(?P<mark>\w+)(?:\?(?P<where>[^|}]*))?"
    r"(?:\|(?:(?P<label>\w+) )?(?P<field>\w+)\|(?P<format>[^}]*))?\}"
)


def speak(spec: dict[str, Any], template: str) -> None:
    """Add the signal ``readout``: what the figure shows, as a text.

    In the template, ``{mark?condition}`` stands for the rows that a named
    chart draws, and ``{mark?condition|label field|format}`` for their
    numbers, each after its label, if one is named, set apart by commas.
    """

    def rows(match: re.Match[str]) -> str:
        steps: list[dict[str, Any]] = []
        if match["where"]:
            steps.append({"type": "filter", "expr": match["where"]})
        if match["field"]:
            number = f"format(datum.{match['field']}, '{match['format']}')"
            if match["label"]:
                number = f"datum.{match['label']} + ' ' + {number}"
            steps.append({"type": "formula", "as": "text", "expr": number})
        name = find_mark(spec, match["mark"])["from"]["data"]
        if steps:
            source, name = name, f"readout_{len(spec['data'])}"
            spec["data"].append(
                {"name": name, "source": source, "transform": steps}
            )
        found = f"data('{name}')"
        if match["field"]:
            return f"join(pluck({found}, 'text'), ', ')"
        return found

    update = LISTED.sub(rows, template)
    spec["signals"].append({"name": "readout", "update": update})


def compiled(name: str) -> dict[str, Any]:
    """Return a figure as the page needs it: title and Vega specification."""
    about = ABOUT[name]
    controls = about.get("controls", {}).items()
    params = [control(key, **options) for key, options in controls]
    source = FIGURES[name]().add_params(*params).to_dict()
    source["config"] = ABOUT["config"]
    source.setdefault("params", []).extend(
        {"name": color, "value": value} for color, value in COLORS.items()
    )
    rows = f"{heights(name)}[sentence]" if name in MAPS else "0"
    source["params"] += [
        {"name": "room", "value": ROOM},
        {"name": "columns", "expr": about.get("columns", "1")},
        {"name": "rows", "expr": rows},
        {"name": "panel", "expr": about["panel"]},
        {"name": "short", "expr": about.get("short", "panel")},
    ]
    made, heard = json.loads(javascript().call("compile", json.dumps(source)))
    if heard:
        raise ValueError(f"{name}: Vega-Lite says: {heard}")
    # What Vega-Lite does not know: sizes that follow signals.
    signals = made.setdefault("signals", [])
    for size in ("width", "height"):
        if made.get(size) in SIZES:
            signals.append({"name": size, "update": SIZES[made.pop(size)]})
    for signal in signals:
        if signal.get("value") in SIZES:
            signal["update"] = SIZES[signal.pop("value")]
    if "layout" in made:
        made["layout"]["columns"] = {"signal": "columns"}
    for mark in walk_marks(made):
        if mark["type"] != "group":
            mark["interactive"] = False
        mark["aria"] = False
    by_name = {signal["name"]: signal for signal in signals}
    if "q1" in by_name:
        for signal, scale, along in (("q1", "x", "x"), ("q2", "y", "y")):
            where = f"{along}(group('plane_group'))"
            at = f"invert('plane_{scale}', {where})"
            by_name[signal]["on"] = [
                {
                    "events": "@plane_group:click",
                    "update": f"clamp(round(10 * {at}) / 10, -3, 3)",
                }
            ]
    if "pick" in about:
        boxes = find_mark(made, "words")
        boxes["interactive"] = True
        by_name[about["pick"]]["on"] = [
            {
                "events": f"@{boxes['name']}:pointerover,"
                f" @{boxes['name']}:click",
                "update": "datum.i + 1",
            }
        ]
    speak(made, about["readout"])
    return {"title": about["title"], "spec": made}


def specifications() -> dict[Path, str]:
    """Return what the pages compute with, by the files that hold it."""
    return {
        TARGET / f"{name}.json": json.dumps(
            compiled(name), ensure_ascii=False, separators=(",", ":")
        )
        + "\n"
        for name in FIGURES
    }


def picture(spec: dict[str, Any]) -> bytes:
    """Return the figure as it stands at first, as SVG with drawn letters."""
    view = (
        f"new vega.View(vega.parse({json.dumps(spec)}), {{renderer: 'none'}})"
    )
    svg = javascript().eval(f"{view}.toSVG()").get()
    svg = re.sub('font-family="[^"]*"', f'font-family="{DRAWN}"', svg)
    # Cairo would draw what is seen through as a mask.
    svg = re.sub(
        r'(<\w+ (?![^>]*-opacity)[^>]*?)\bopacity="(.*?)"',
        r'\1fill-opacity="\2" stroke-opacity="\2"',
        svg,
    )
    # No reader needs the fonts: each letter is drawn once, and used again.
    drawn = subprocess.run(
        "rsvg-convert --format=pdf | pdftocairo -svg - -",
        shell=True,
        input=svg.encode(),
        capture_output=True,
        check=True,
    ).stdout
    return re.sub(rb"(\d\.\d{3})\d+", rb"\1", drawn)


def main() -> None:
    """Write the figures."""
    for path, text in specifications().items():
        path.write_text(text, "utf-8")
        still = picture(json.loads(text)["spec"])
        path.with_suffix(".svg").write_bytes(still)
        print(f"charts: {path.name}, {len(still):,} bytes of picture")


if __name__ == "__main__":
    main()
