"""Measure the library against PyTorch and against the textbook forms.

    python tools/benchmarks/run.py                    measure, print, store
    python tools/benchmarks/run.py --only softmax     some groups; stores none

Prints one table of ratios; stores them with the machine's description in
``latest.json``, from which the page of the book is made. A bar that is missed
is shown: a busy machine is no fault of the code.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from benchmark_page import STORED, columns, draw, machine_text, missed_text
from cases import SETTINGS, Case, all_cases, growing
from measure import compare_times, peak_memory, take_turns

#: Seconds of turns for each row, unless it is given more.
SECONDS = 3.0
LENGTHS = [2**power for power in range(8, 15)]


def processor() -> str:
    """Return the name of the processor as the system gives it."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe_machine() -> dict[str, Any]:
    """Return what a reader needs to judge the numbers."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "torch": torch.__version__.partition("+")[0],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def measure(case: Case, seconds: float) -> dict[str, Any]:
    """Measure one case."""
    for call in (case.ours, case.theirs):
        call()  # the first backward pass makes room for gradients
    ours, theirs = peak_memory(case.ours), peak_memory(case.theirs)
    ratio = compare_times(case.ours, case.theirs, seconds=seconds)
    return {
        "group": case.group,
        "name": case.name,
        "time": {**ratio._asdict(), "bar": case.time_bar},
        "memory": {
            "ratio": ours / theirs,
            "ours": ours,
            "theirs": theirs,
            "bar": case.memory_bar,
        },
    }


def measure_growth(seconds: float) -> dict[str, Any]:
    """Measure time and memory over the length."""
    growth: dict[str, Any] = {"lengths": LENGTHS, "time": {}, "memory": {}}
    for length in LENGTHS:
        calls = growing(length)
        times = take_turns(list(calls.values()), seconds=seconds, least=3)
        for (name, call), turns in zip(calls.items(), times, strict=True):
            growth["time"].setdefault(name, []).append(
                float(f"{statistics.median(turns):.3g}")
            )
            growth["memory"].setdefault(name, []).append(peak_memory(call))
    return growth


def rounded(value: Any) -> Any:
    """Keep as many digits of each ratio as a measurement has."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> int:
    """Measure everything that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="WORD", help="groups with this word")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    start = time.perf_counter()
    stored: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": describe_machine(),
        "groups": SETTINGS,
        "rows": [],
    }
    print(machine_text(stored))
    print("ours / theirs: median of the turns (middle half), peak memory")
    for case in all_cases():
        if options.only and options.only.lower() not in case.group.lower():
            continue
        row = rounded(measure(case, options.seconds))
        stored["rows"].append(row)
        cells = " | ".join(columns(row).values())
        print(f"{case.group}: {cells}", flush=True)
    print(missed_text(stored))
    if not options.only:
        print("Measuring the growth with length …", flush=True)
        stored["growth"] = measure_growth(options.seconds)
        draw(stored["growth"])
        text = json.dumps(stored, indent=1, ensure_ascii=False)
        STORED.write_text(text + "\n", "utf-8")
        print("Written: latest.json and growth.svg.")
    print(f"{time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
