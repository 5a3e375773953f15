"""Change the library in small ways and count the changes that tests notice.

    python tools/mutate.py                   a sample of every module's mutants
    python tools/mutate.py masks fused       of these modules
    python tools/mutate.py --sample 0        all mutants: some hours

mutmut makes the mutants and runs, for each, the tests that reach it. Which
modules, which tests, and what is left alone stands in pyproject.toml. The
sample is drawn from a seed, so that two people who run it talk about the
same mutants.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from pathlib import Path

from mutmut.configuration import config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.stats import status_by_exit_code

ROOT = Path(__file__).resolve().parent.parent
FOUND = ("killed", "timeout", "segfault")


def sampled(module: str, size: int, seed: int) -> list[str]:
    """Return the names of some mutants of a module, or of all."""
    path = f"attention_lib/{module}.py"
    code = (ROOT / path).read_text("utf-8")
    names = [
        f"attention_lib.{module}.{name}"
        for name in mutate_file_contents(path, code).mutant_names
    ]
    if not 0 < size < len(names):
        return names
    return random.Random(f"{module} {seed}").sample(names, size)


def results(module: str) -> dict[str, str]:
    """Return what mutmut noted about each mutant of a module."""
    data = SourceFileMutationData(path=Path(f"attention_lib/{module}.py"))
    data.load()
    return {
        name: status_by_exit_code[code]
        for name, code in data.exit_code_by_key.items()
    }


def main() -> int:
    """Run the mutants and print what became of them."""
    modules = [Path(path).stem for path in config().only_mutate]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", default=modules)
    parser.add_argument("--sample", type=int, default=60, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    unknown = set(options.modules) - set(modules)
    if unknown:
        parser.error(f"no such module: {', '.join(sorted(unknown))}")
    chosen = {
        module: sampled(module, options.sample, options.seed)
        for module in options.modules
    }
    every = [name for names in chosen.values() for name in names]
    # Shapes unchecked: what counts is what the tests find by themselves.
    command = [sys.executable, "-m", "mutmut", "run", *every]
    subprocess.run(
        [*command, "--max-children", str(options.jobs)],
        cwd=ROOT,
        env=os.environ | {"ATTENTION_LIB_SHAPES": "any", "PYTHONPATH": ""},
        check=True,
    )
    survivors = []
    print(f"\n{'module':<14}{'mutants':>9}{'found':>9}")
    for module, names in chosen.items():
        status = results(module)
        missed = [name for name in names if status[name] not in FOUND]
        survivors += missed
        print(f"{module:<14}{len(names):>9}{len(names) - len(missed):>9}")
    print(f"{'all':<14}{len(every):>9}{len(every) - len(survivors):>9}")
    for name in survivors:
        subprocess.run([sys.executable, "-m", "mutmut", "show", name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
