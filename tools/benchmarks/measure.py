"""Measure two calls against each other: time in turns, memory to the byte.

A duration says little about code on a machine that does other things as well.
So nothing here reports one alone. The two calls take turns, each turn gives a
ratio, and a change in the machine's speed meets both. The turns swap their
order, and a call that is short is repeated within its turn.

Memory is what PyTorch's own allocator hands out on the CPU, as its profiler
records it, inside its operators too: the largest sum of what the call has
taken and not yet given back. It does not depend on the machine's load. What
a library below PyTorch takes by itself is not seen.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

# PyTorch's profiler would report each start and stop.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

from torch.profiler import ProfilerActivity, profile

Call = Callable[[], object]

#: A turn lasts at least this long, in seconds.
TURN = 0.005


class Ratio(NamedTuple):
    """Ours against theirs: the median of all turns, and its quartiles."""

    median: float
    low: float
    high: float


def summarize(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the ratio of two lists of durations, taken turn by turn."""
    if len(ours) != len(theirs) or len(ours) < 2:
        raise ValueError(
            "two or more turns of each are needed, got "
            f"{len(ours)} and {len(theirs)}"
        )
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(median, low, high)


def duration(call: Call, repeats: int) -> float:
    """Return how many seconds one of several calls takes."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def take_turns(
    calls: Sequence[Call], *, seconds: float, most: int = 101, least: int = 7
) -> list[list[float]]:
    """Return the durations of each call, one for each turn.

    Args:
        calls: What to measure.
        seconds: How long all turns together should take.
        most: No more turns than this.
        least: No fewer turns than this, however long they take.
    """
    for call in calls:  # the first call may load or compile something
        call()
    once = [duration(call, 1) for call in calls]
    repeats = [max(1, round(TURN / max(each, 1e-9))) for each in once]
    turn = sum(a * b for a, b in zip(once, repeats, strict=True))
    turns = min(most, max(least, int(seconds / turn)))
    times: list[list[float]] = [[] for _ in calls]
    for number in range(turns):
        order = range(len(calls))
        for index in order if number % 2 == 0 else reversed(order):
            times[index].append(duration(calls[index], repeats[index]))
    return times


def compare_times(ours: Call, theirs: Call, *, seconds: float) -> Ratio:
    """Let two calls take turns and return the ratio of their times."""
    return summarize(*take_turns([ours, theirs], seconds=seconds))


def highest(changes: Iterable[int]) -> int:
    """Return the largest sum that these changes reach, one after another."""
    total = top = 0
    for change in changes:
        total += change
        top = max(top, total)
    return top


def peak_memory(call: Call) -> int:
    """Return the most bytes that a call holds at once beyond its inputs."""
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True
    ) as record:
        result = call()
    del result
    events = [
        event
        for event in record.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    events.sort(key=lambda event: event.start_ns())
    return highest(event.nbytes() for event in events)
