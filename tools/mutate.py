"""Change the library in small ways and count the changes that tests notice.

    python tools/mutate.py                   a sample of every module's mutants
    python tools/mutate.py masks fused       of these modules
    python tools/mutate.py --sample 0        all mutants: many hours

mutmut makes the mutants of one module at a time and runs, for each, those
tests of the module that reach it. What is left alone, and how tests are run,
stands in pyproject.toml. The sample is drawn from a seed, so that two people
who run it talk about the same mutants. A survivor that only words a message
otherwise is counted by itself: wording is for readers to judge.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import re
import shutil
import sys
from pathlib import Path

from mutmut.__main__ import cli
from mutmut.configuration import config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.stats import status_by_exit_code

ROOT = Path(__file__).resolve().parent.parent
MODULES = [Path(path).stem for path in config().only_mutate]
FOUND = ("killed", "timeout", "segfault")
# Whether a picture is right is seen, not computed.
DRAWS = re.compile(r"x_(show|plot)_")


def tests_of(module: str) -> list[str]:
    """Return the tests of a module: its own, and those of all functions."""
    own = module.removeprefix("_")
    names = dict.fromkeys([own, "golden", "properties", "bad_calls"])
    return [f"tests/test_{name}.py" for name in names]


def sampled(module: str, size: int, seed: int) -> list[str]:
    """Return the names of some mutants of a module, or of all."""
    path = f"attention_lib/{module}.py"
    code = (ROOT / path).read_text("utf-8")
    names = [
        f"attention_lib.{module}.{name}"
        for name in mutate_file_contents(path, code).mutant_names
        if not DRAWS.match(name)
    ]
    if not 0 < size < len(names):
        return names
    return random.Random(f"{module} {seed}").sample(names, size)


def run(module: str, names: list[str], jobs: int) -> None:
    """Let mutmut run these mutants of a module, in a process of its own."""
    settings = config()
    settings.only_mutate = [f"attention_lib/{module}.py"]
    settings.pytest_add_cli_args_test_selection = tests_of(module)
    # mutmut draws a spinner while it works, and pytest all its dots.
    log = (ROOT / "_build" / "mutate.log").open("a")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    cli.main(["run", f"--max-children={jobs}", *names], standalone_mode=False)


def results(module: str) -> dict[str, str]:
    """Return what mutmut noted about each mutant of a module."""
    data = SourceFileMutationData(path=Path(f"attention_lib/{module}.py"))
    data.load()
    return {
        name: status_by_exit_code[code]
        for name, code in data.exit_code_by_key.items()
    }


def rewords(diff: str) -> bool:
    """Tell whether a change is one of letters in a phrase, as mutmut makes."""
    old, new = (
        [line[1:] for line in diff.splitlines() if line[:2] == sign + " "]
        for sign in "-+"
    )
    if len(old) != 1 or len(new) != 1:
        return False
    phrase = re.search('"[^"]* [^"]*"', old[0])
    return (
        phrase is not None
        and old[0].lower() == new[0].replace("XX", "").lower()
    )


def main() -> int:
    """Run the mutants and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--sample", type=int, default=60, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    unknown = set(options.modules) - set(MODULES)
    if unknown:
        parser.error(f"no such module: {', '.join(sorted(unknown))}")
    os.chdir(ROOT)
    Path("_build").mkdir(exist_ok=True)
    # Shapes unchecked: what counts is what the tests find by themselves.
    os.environ.update(ATTENTION_LIB_SHAPES="any", PYTHONPATH="")
    process = multiprocessing.get_context("fork").Process
    found = total = reworded = 0
    for module in options.modules:
        shutil.rmtree("mutants", ignore_errors=True)
        names = sampled(module, options.sample, options.seed)
        worker = process(target=run, args=(module, names, options.jobs))
        worker.start()
        worker.join()
        if worker.exitcode:
            print(f"{module}: mutmut failed, see _build/mutate.log")
            return 1
        status = results(module)
        missed = words = 0
        for name in names:
            if status[name] in FOUND:
                continue
            diff = get_diff_for_mutant(name, path=f"attention_lib/{module}.py")
            if rewords(diff):
                words += 1
                continue
            missed += 1
            print(f"# {name}: {status[name]}\n{diff}")
        count = len(names) - words
        print(
            f"{module}: {count - missed} of {count} found, "
            f"{words} more change words only",
            flush=True,
        )
        found, total = found + count - missed, total + count
        reworded += words
    shutil.rmtree("mutants", ignore_errors=True)
    print(
        f"all: {found} of {total} found, {found / total:.1%}; "
        f"{reworded} more change words only"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
