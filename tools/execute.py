"""Run chapters in place and store their outputs with little noise.

    python tools/execute.py          every chapter
    python tools/execute.py 02 05    those whose file names start so

A second run changes nothing: cell ids, tags and figure metadata stay, counts
run from 1, times and versions are not recorded. The processor time that a
chapter took is printed, for those who write its card.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
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


def used() -> float:
    """Return the processor seconds of all kernels that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(path: Path) -> float:
    """Execute one notebook in place and return the seconds it cost."""
    notebook = nbformat.read(path, as_version=4)
    kept = [dict(cell.metadata) for cell in notebook.cells]
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        skip_cells_with_tag="skip-execution",
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_execute=show_progress if sys.stdout.isatty() else None,
    )
    start = used()
    client.execute()
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
    return used() - start


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
        print(f"{run(path):.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
