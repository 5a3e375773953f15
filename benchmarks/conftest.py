"""Compare two implementations in one run and print the ratios.

The two take turns, and each turn gives a ratio, so that a change in the
machine's speed meets both. The median of these ratios is printed beside its
bar. A bar that is missed is shown, not failed: a busy machine is no fault of
the code.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch


class Ratio(NamedTuple):
    """One line of the table."""

    name: str
    ours: float
    theirs: float
    ratio: float
    bar: float


RATIOS: list[Ratio] = []


@pytest.fixture
def compare(benchmark):
    """Return a function that measures ours against theirs, in turns."""

    def measure(
        name: str,
        ours: Callable[[], object],
        theirs: Callable[[], object],
        *,
        bar: float = 1.0,
        rounds: int = 15,
    ) -> float:
        times = []

        def other_first() -> None:
            start = time.perf_counter()
            theirs()
            times.append(time.perf_counter() - start)

        ours()
        theirs()
        benchmark.group = name.partition(",")[0]
        benchmark.pedantic(ours, setup=other_first, rounds=rounds)
        own = benchmark.stats.stats.data
        ratio = statistics.median(
            mine / other for mine, other in zip(own, times, strict=True)
        )
        medians = statistics.median(own), statistics.median(times)
        RATIOS.append(Ratio(name, *medians, ratio, bar))
        benchmark.extra_info.update(ratio=ratio, bar=bar)
        return ratio

    return measure


def pytest_terminal_summary(terminalreporter):
    """Print all ratios of this run."""
    if not RATIOS:
        return
    write = terminalreporter.write_line
    terminalreporter.section("ours against theirs, in one run")
    write(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    width = max(len(line.name) for line in RATIOS)
    write(f"{'':{width}}  ours/ms  theirs/ms  ratio   bar")
    for line in RATIOS:
        write(
            f"{line.name:{width}}  {line.ours * 1e3:7.1f}  "
            f"{line.theirs * 1e3:9.1f}  {line.ratio:5.2f}  {line.bar:4.2f}"
            + ("" if line.ratio <= line.bar else "  over")
        )
