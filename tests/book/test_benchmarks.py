"""The benchmark's own parts. Nothing here looks at a real clock."""

import json
from itertools import cycle

import benchmark_page
import cases
import measure
import pytest
import torch

RUN = json.loads(benchmark_page.STORED.read_text("utf-8"))


def test_a_ratio_is_taken_turn_by_turn():
    """A machine that slows down meets both of a turn."""
    slower = [1.0, 2.0, 4.0, 8.0, 16.0]
    half = [second / 2 for second in slower]
    assert measure.summarize(half, slower) == (0.5, 0.5, 0.5)


def test_one_disturbed_turn_moves_neither_median_nor_quartiles():
    ours = [1.0] * 9 + [100.0]
    assert measure.summarize(ours, [2.0] * 10) == (0.5, 0.5, 0.5)


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


def test_a_short_call_is_repeated_within_its_turn(monkeypatch):
    clock = Clock(monkeypatch)
    short = clock.call("ours", [measure.TURN / 8])
    times = measure.take_turns([short], seconds=1e-9, least=2)
    assert clock.log == ["ours"] * (2 + 2 * 8)
    assert times == [[pytest.approx(measure.TURN / 8)] * 2]


def test_the_highest_level_of_memory_is_found():
    assert measure.highest([5, -5, 3, 4, -7]) == 7
    assert measure.highest([-3, -4]) == measure.highest([]) == 0


SIDE = 256
ARRAY = SIDE * SIDE * 4


@pytest.mark.parametrize(
    ("call", "arrays"),
    [
        (lambda x: x + 1, 1),
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


def test_memory_inside_an_operator_and_of_the_backward_pass_is_seen():
    """A reduction of a strided array copies it first."""
    x = torch.randn(SIDE, SIDE, requires_grad=True)
    assert measure.peak_memory(lambda: x.mT.flatten().sum()) >= ARRAY
    forward = measure.peak_memory(lambda: x.exp().sum())
    both = measure.peak_memory(lambda: torch.autograd.grad(x.exp().sum(), x))
    assert both >= forward + ARRAY


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
    assert compared
    one, *others = (first(call()) for call in cases.growing(16).values())
    for other in others:
        torch.testing.assert_close(other, one)


@pytest.mark.parametrize(
    ("time", "memory", "expected"),
    [
        ((0.9, 1.0), (9.0, None), True),
        ((1.0, 1.0), (1.0, None), True),
        ((1.01, 1.0), (1.0, None), False),
        ((0.9, 1.0), (0.5, 0.125), False),
        ((0.9, None), (2.0, None), None),
    ],
)
def test_a_row_is_met_if_it_stays_under_all_its_bars(time, memory, expected):
    row = {
        "time": {"median": time[0], "bar": time[1]},
        "memory": {"ratio": memory[0], "bar": memory[1]},
    }
    assert benchmark_page.met(row) is expected


def test_the_page_shows_what_was_measured():
    row = RUN["rows"][0] | {
        "time": {"median": 0.876, "low": 0.8, "high": 1.2, "bar": 1.05},
        "memory": {"ratio": 0.0271, "bar": 0.125},
    }
    *_, line = benchmark_page.table([row]).splitlines()
    shown = f"| {row['name']} | 0.88 (0.80–1.20) | 1.05 | 1/37 | 1/8 | yes |"
    assert line == shown
    text = benchmark_page.render()
    assert all(f"| {row['name']} |" in text for row in RUN["rows"])


def test_the_stored_rows_are_those_of_the_cases():
    """A case that is added or renamed has to be measured."""
    measured = [(row["group"], row["name"]) for row in RUN["rows"]]
    assert measured == [(case.group, case.name) for case in cases.all_cases()]
    assert RUN["groups"] == cases.SETTINGS
