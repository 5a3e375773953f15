"""Compare two implementations in one run and print the ratios.

The two take turns, so that a change in the machine's speed meets both, and
the ratio is that of the medians. A bar that is missed is shown, not failed:
a busy machine is no fault of the code.
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
        median = statistics.median(times)
        ratio = Ratio(name, benchmark.stats.stats.median, median, bar)
        benchmark.extra_info["ratio"] = ratio.ours / ratio.theirs
        benchmark.extra_info["bar"] = bar
        RATIOS.append(ratio)
        return ratio.ours / ratio.theirs

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
        ratio = line.ours / line.theirs
        write(
            f"{line.name:{width}}  {line.ours * 1e3:7.1f}  "
            f"{line.theirs * 1e3:9.1f}  {ratio:5.2f}  {line.bar:4.2f}"
            + ("" if ratio <= line.bar else "  over")
        )
