"""The benchmark's own parts. Nothing here looks at a real clock."""

import copy
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import cases  # noqa: E402
import measure  # noqa: E402
import page  # noqa: E402

RUNS = page.load_runs()


# --- time --------------------------------------------------------------------


def test_a_ratio_is_taken_turn_by_turn():
    """A machine that slows down meets both of a turn."""
    slower = [1.0, 2.0, 4.0, 8.0, 16.0]
    assert measure.summarize(slower, slower) == (1, 1, 1)
    half = [second / 2 for second in slower]
    assert measure.summarize(half, slower) == (0.5, 0.5, 0.5)


def test_one_disturbed_turn_moves_neither_median_nor_quartiles():
    ours = [1.0] * 9 + [100.0]
    assert measure.summarize(ours, [2.0] * 10) == (0.5, 0.5, 0.5)


def test_the_spread_is_that_of_the_middle_half():
    ours = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert measure.summarize(ours, [1.0] * 5) == (3, 2, 4)


@pytest.mark.parametrize("times", [([1.0], [1.0]), ([1.0, 2.0], [1.0])])
def test_turns_without_a_partner_are_refused(times):
    with pytest.raises(ValueError, match="two or more turns"):
        measure.summarize(*times)


class Clock:
    """A clock that only the calls move."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.log = []
        monkeypatch.setattr(measure.time, "perf_counter", lambda: self.now)

    def call(self, name, seconds):
        durations = cycle(seconds)

        def run():
            self.log.append(name)
            self.now += next(durations)

        return run


def test_calls_take_turns_and_swap_their_order(monkeypatch):
    clock = Clock(monkeypatch)
    calls = [clock.call("ours", [1.0]), clock.call("theirs", [2.0])]
    times = measure.take_turns(calls, seconds=24.0)
    assert times == [[1.0] * 8, [2.0] * 8]
    turns = clock.log[4:]  # before: once to warm up, once to plan
    assert turns[:4] == ["ours", "theirs", "theirs", "ours"]


def test_the_time_allowed_bounds_the_turns(monkeypatch):
    clock = Clock(monkeypatch)
    calls = [clock.call("ours", [1.0]), clock.call("theirs", [1.0])]
    for seconds, turns in ((1.0, 7), (20.0, 10), (1e6, 101)):
        times = measure.take_turns(calls, seconds=seconds)
        assert [len(each) for each in times] == [turns] * 2


def test_a_short_call_is_repeated_within_its_turn(monkeypatch):
    clock = Clock(monkeypatch)
    short = clock.call("ours", [measure.TURN / 8])
    times = measure.take_turns([short], seconds=1e-9, least=2)
    assert clock.log == ["ours"] * (2 + 2 * 8)
    assert times == [[pytest.approx(measure.TURN / 8)] * 2]


# --- memory ------------------------------------------------------------------


def test_the_highest_level_is_found():
    assert measure.highest([5, -5, 3, 4, -7]) == 7
    assert measure.highest([-3, -4]) == 0
    assert measure.highest([]) == 0


SIDE = 256
ARRAY = SIDE * SIDE * 4


@pytest.mark.parametrize(
    ("call", "arrays"),
    [
        (lambda x: x + 1, 1),
        (lambda x: (x + 1) * 2, 2),
        (lambda x: ((x + 1) * 2) + 3, 2),
        (lambda x: [x + 1, x + 2, x + 3], 3),
        (lambda x: x.mT, 0),
    ],
)
def test_memory_is_counted_array_by_array(call, arrays):
    x = torch.randn(SIDE, SIDE)
    peak = measure.peak_memory(lambda: call(x))
    # PyTorch makes a tensor of a few bytes of each number.
    assert 0 <= peak - arrays * ARRAY < 64


def test_memory_inside_an_operator_is_seen():
    """A reduction of a strided array copies it first."""
    x = torch.randn(SIDE, SIDE)
    inside = measure.peak_memory(lambda: x.mT.flatten().sum())
    assert inside >= ARRAY


def test_memory_of_the_backward_pass_is_seen():
    x = torch.randn(SIDE, SIDE, requires_grad=True)

    def run():
        return torch.autograd.grad(x.exp().sum(), x)

    forward = measure.peak_memory(lambda: x.exp().sum())
    assert measure.peak_memory(run) >= forward + ARRAY


# --- what is compared --------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    for name, size in {
        "BATCH": 3,
        "LENGTH": 8,
        "WIDTH": 8,
        "HEADS": 2,
        "KERNEL_LENGTHS": (4, 8),
        "ADDITIVE_SIZE": 5,
        "LONG": 16,
        "TOKENS": 6,
    }.items():
        monkeypatch.setattr(cases, name, size)


def first(result):
    return result[0] if isinstance(result, tuple) else result


def test_both_sides_of_every_case_compute_the_same(small):
    compared = 0
    for case in cases.all_cases():
        ours, theirs = first(case.ours()), first(case.theirs())
        if ours is not None:  # a backward pass returns nothing
            torch.testing.assert_close(ours, theirs, msg=case.name)
            compared += 1
    assert compared > 20


def test_all_ways_that_grow_compute_the_same():
    results = [first(call()) for call in cases.growing(16).values()]
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


def test_no_two_cases_have_one_name_and_every_group_is_described(small):
    names = [(case.group, case.name) for case in cases.all_cases()]
    assert len(set(names)) == len(names)
    assert {group for group, _ in names} == set(cases.SETTINGS)


# --- the page ----------------------------------------------------------------


def row(time=(1.0, None), memory=(1.0, None), name="a row"):
    median, bar = time
    return {
        "group": "a group",
        "name": name,
        "time": {"median": median, "low": 0.8, "high": 1.2, "bar": bar},
        "memory": {"ratio": memory[0], "bar": memory[1]},
    }


@pytest.mark.parametrize(
    ("time", "memory", "expected"),
    [
        ((0.9, 1.0), (9.0, None), True),
        ((1.0, 1.0), (1.0, None), True),
        ((1.01, 1.0), (1.0, None), False),
        ((0.9, 1.0), (0.5, 0.125), False),
        ((0.9, None), (0.1, 0.125), True),
        ((0.9, None), (2.0, None), None),
    ],
)
def test_a_row_is_met_if_it_stays_under_all_its_bars(time, memory, expected):
    assert page.met(row(time, memory)) is expected


def run(*rows, threads=1, **machine):
    return {
        "date": "2000-01-01",
        "machine": {"threads": threads, **machine},
        "groups": {"a group": "What it is."},
        "rows": list(rows),
    }


def table(*rows):
    return page.table([run(*rows)], "a group")


def test_a_row_shows_ratio_spread_and_bars():
    text = table(row((0.876, 1.05), (0.0271, 0.125)))
    assert "| a row | 0.88 (0.80–1.20) | 1.05 | 1/37 | 1/8 | yes |" in text
    text = table(row((1.234, 1.0)))
    assert "| a row | 1.23 (0.80–1.20) | 1.00 | 1.00 | **no** |" in text


def test_every_line_of_a_table_has_as_many_cells():
    text = table(row(), row((1, 1)), row(memory=(1, 1)))
    assert {line.count("|") for line in text.splitlines()} == {7}
    text = table(row(), row())
    assert {line.count("|") for line in text.splitlines()} == {4}


def test_runs_stand_side_by_side_under_one_verdict():
    fast, slow = row((0.5, 1.0)), row((1.5, 1.0))
    head, _, line = page.table(
        [run(fast), run(slow, threads=2)], "a group"
    ).splitlines()
    assert "| time, 1 thread | time, 2 threads |" in head
    assert "0.50 (0.80–1.20) | 1.50 (0.80–1.20) |" in line
    assert line.endswith("| **no** |")


def test_a_run_takes_the_place_of_an_older_one_on_as_many_threads():
    one, two = run(row()), run(row(), threads=2)
    newer = {**run(row(), threads=2), "date": "2000-01-02"}
    assert page.add_run([], two) == [two]
    assert page.add_run([two], one) == [one, two]
    assert page.add_run([one, two], newer) == [one, newer]


def test_a_run_of_something_else_stands_alone():
    new = run(row(), threads=2)
    for other in (run(row(), cores=64), run(row(name="another row"))):
        assert page.add_run([other], new) == [new]


def test_missed_bars_are_counted_and_named():
    rows = [row((0.9, 1.0)), row((1.1, 1.0), name="slow"), row()]
    assert "1 of 2 rows" in page.missed_text(run(*rows))
    assert "- a group: slow" in page.missed_text(run(*rows))
    assert "All 1 rows" in page.missed_text(run(rows[0]))


def test_the_page_shows_what_was_measured():
    assert page.PAGE.read_text("utf-8") == page.render(RUNS)


def test_another_measurement_is_another_page():
    other = copy.deepcopy(RUNS)
    other[-1]["rows"][0]["time"]["median"] = 9.87
    assert "9.87" in page.render(other)
    assert "9.87" not in page.render(RUNS)


def test_the_picture_shows_what_was_measured():
    mark = page.digest(RUNS[0]["growth"])
    assert mark in page.PICTURE.read_text("utf-8")


def test_the_picture_is_the_same_each_time(tmp_path):
    for name in ("one.svg", "two.svg"):
        page.draw(RUNS[0]["growth"], tmp_path / name)
    texts = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    assert texts[0] == texts[1]


def test_small_ratios_are_fractions():
    assert page.small(0.02) == page.bar_cell(0.02) == "1/50"
    assert page.small(0.125) == "0.12"
    assert page.bar_cell(0.125) == "1/8"
    fast = {"median": 0.05, "low": 0.04, "high": 0.06}
    assert page.time_cell(fast) == "1/20"


@pytest.mark.parametrize("stored", RUNS, ids=page.threads_text)
def test_the_stored_rows_are_those_of_the_cases(stored):
    """A case that is added or renamed has to be measured."""
    measured = [(each["group"], each["name"]) for each in stored["rows"]]
    assert measured == [(case.group, case.name) for case in cases.all_cases()]
    assert stored["groups"] == cases.SETTINGS


@pytest.mark.parametrize("stored", RUNS, ids=page.threads_text)
def test_the_stored_numbers_say_where_they_were_measured(stored):
    assert set(stored["machine"]) == {
        "processor",
        "cores",
        "threads",
        "torch",
        "python",
        "system",
    }


def test_a_stale_page_is_found(tmp_path):
    for name in ("benchmarks", "chapters", "_static"):
        (tmp_path / name).mkdir()
    for path in (page.STORED, page.PAGE, page.PICTURE):
        copied = tmp_path / path.relative_to(ROOT)
        copied.write_text(path.read_text("utf-8"), "utf-8")
    tool = tmp_path / "benchmarks" / "page.py"
    tool.write_text(Path(page.__file__).read_text("utf-8"), "utf-8")

    def check():
        return subprocess.run(
            [sys.executable, str(tool), "--check"], capture_output=True
        ).returncode

    assert check() == 0
    stale = tmp_path / "chapters" / "benchmarks.md"
    stale.write_text(stale.read_text("utf-8") + "More.\n", "utf-8")
    assert check() == 1
