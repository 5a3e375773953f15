"""Run chapters in place and store their outputs with little noise.

    python tools/execute.py          every chapter
    python tools/execute.py 02 05    those whose file names start so

A second run changes nothing: cell ids, tags and figure metadata stay, counts
run from 1, times and versions are not recorded in the chapter. What a chapter
costs, in seconds of one processor core, goes to ``chapters/times.json`` when
its code is not the code that was timed last; ``tools/guide.py`` reads it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import psutil
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
TIMES = ROOT / "chapters" / "times.json"
SLOW = 5  # seconds of a cell that are worth a line of their own
METADATA = {
    "kernelspec": {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}


def show_progress(cell: nbformat.NotebookNode, cell_index: int) -> None:
    """Count the cells of a long chapter on the line they stand on."""
    count = f"cell {cell_index + 1} "
    print(count + "\b" * len(count), end="", flush=True)


def fingerprint(notebook: nbformat.NotebookNode) -> str:
    """Return a short text that changes with the code of a chapter."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()[:12]


class Clock:
    """Processor seconds of a kernel and its finished children, by cell.

    Wall time would depend on what else the machine has to do.
    """

    def __init__(self) -> None:
        self.client: NotebookClient | None = None
        self.seconds: dict[str, float] = {}

    def used(self) -> float:
        """Return the processor seconds that the kernel has taken so far."""
        assert self.client is not None
        kernel = psutil.Process(self.client.km.provisioner.pid)
        return sum(kernel.cpu_times()[:4])

    def start(self, cell: nbformat.NotebookNode, cell_index: int) -> None:
        """Note the time before a cell."""
        self.seconds[cell.id] = -self.used()

    def stop(
        self, cell: nbformat.NotebookNode, cell_index: int, **_: Any
    ) -> None:
        """Note the time after a cell."""
        self.seconds[cell.id] += self.used()


def store_times(
    name: str, notebook: nbformat.NotebookNode, clock: Clock
) -> None:
    """Keep what a chapter costs, unless the same code was timed before."""
    times = json.loads(TIMES.read_text("utf-8")) if TIMES.exists() else {}
    code = fingerprint(notebook)
    if times.get(name, {}).get("code") == code:
        return
    times[name] = {
        "code": code,
        "seconds": round(sum(clock.seconds.values())),
        "slow": {
            cell: round(seconds)
            for cell, seconds in clock.seconds.items()
            if seconds >= SLOW
        },
    }
    text = json.dumps(dict(sorted(times.items())), indent=1)
    TIMES.write_text(text + "\n", encoding="utf-8")


def run(path: Path) -> float:
    """Execute one notebook in place and return the seconds it took."""
    notebook = nbformat.read(path, as_version=4)
    clock = Clock()

    def before(cell: nbformat.NotebookNode, cell_index: int) -> None:
        clock.start(cell, cell_index)
        if sys.stdout.isatty():
            show_progress(cell, cell_index)

    kept = [dict(cell.metadata) for cell in notebook.cells]
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        skip_cells_with_tag="skip-execution",
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_execute=before,
        on_cell_executed=clock.stop,
    )
    clock.client = client
    start = time.perf_counter()
    client.execute()
    seconds = time.perf_counter() - start
    count = 0
    for cell, metadata in zip(notebook.cells, kept, strict=True):
        cell.metadata = nbformat.from_dict(metadata)
        if cell.cell_type != "code":
            continue
        if "skip-execution" in metadata.get("tags", []):
            cell.execution_count, cell.outputs = None, []
            continue
        count += bool(cell.source.strip())
        cell.execution_count = count if cell.source.strip() else None
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
    notebook.metadata = nbformat.from_dict(METADATA)
    nbformat.validate(notebook)
    nbformat.write(notebook, path)
    store_times(path.stem, notebook, clock)
    return seconds


def main() -> int:
    """Execute the chapters that the arguments name, or all."""
    os.environ.setdefault("PYTHONHASHSEED", "0")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["TQDM_DISABLE"] = "1"  # a bar is for those who wait
    prefixes = tuple(sys.argv[1:]) or ("",)
    paths = [
        path
        for path in sorted((ROOT / "chapters").glob("*.ipynb"))
        if path.name.startswith(prefixes)
    ]
    if not paths:
        print(f"execute: no chapter starts with {' or '.join(prefixes)}")
        return 1
    for number, path in enumerate(paths, start=1):
        print(f"[{number}/{len(paths)}] {path.name} … ", end="", flush=True)
        print(f"{run(path):.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
