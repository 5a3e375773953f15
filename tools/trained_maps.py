"""Train the models of chapters 3 and 6 and keep where they look.

The explorables of these chapters show trained models. A model is trained here
with the settings that stand in its chapter, and the weights of some sentences
that it has not seen are written to ``tools/trained_maps.json``, from which
``tools/charts.py`` makes the figures.

    python tools/trained_maps.py      some minutes on one core
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import attention_lib

ROOT = Path(__file__).resolve().parent.parent

TARGET = ROOT / "tools" / "trained_maps.json"
# Chapter 3's translator with the general score, and what it is shown.
SCORE, SEED = "general", 0
LONGEST = 10  # words of English: what fits on a phone


def settings(chapter: str, wanted_names: str) -> dict[str, Any]:
    """Run those statements of a chapter that define the given names.

    Args:
        chapter: The notebook's name, without its ending.
        wanted_names: What to define, settings, functions and classes, set
            apart by blanks.

    Returns:
        The values by name, and the modules that the chapter imports.

    Raises:
        KeyError: If the chapter does not define one of the names.
    """
    names = wanted_names.split()
    path = ROOT / "chapters" / f"{chapter}.ipynb"
    cells = json.loads(path.read_text("utf-8"))["cells"]
    # A chapter also uses what its own exported cells define.
    found: dict[str, Any] = dict(vars(attention_lib))
    defined: set[str] = set()
    for cell in cells:
        source = "".join(cell["source"])
        tags = cell["metadata"].get("tags", [])
        if (
            cell["cell_type"] != "code"
            or "skip-execution" in tags
            or source.startswith("#| export")
        ):
            continue
        for statement in ast.parse(source).body:
            match statement:
                case ast.Import() | ast.ImportFrom():
                    wanted = True
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    wanted = name in names and name not in defined
                    defined |= {name} if wanted else set()
                case ast.Assign(targets=[target]):
                    named = {
                        node.id
                        for node in ast.walk(target)
                        if isinstance(node, ast.Name)
                    }
                    wanted = named <= set(names) and not named & defined
                    defined |= named if wanted else set()
                case _:
                    wanted = False
            if wanted:
                module = ast.Module([statement], type_ignores=[])
                exec(compile(module, str(path), "exec"), found)
    missing = [name for name in names if name not in defined]
    if missing:
        raise KeyError(f"{chapter} does not define {', '.join(missing)}")
    return found


@torch.no_grad()
def weights_of(model: Any, pair: Any) -> list[Any]:
    """Return where a model looks while it reads the true translation.

    The rows are the Chinese words without the end of the sentence; weights
    are rounded to thousandths.
    """
    from attention_lib.course.corpus import make_batch

    model.eval()
    batch = make_batch([pair])
    memory = model.encoder(batch.source, batch.source_lengths)
    weights = model.decoder.attention_weights(batch.target_input, memory)
    rows = weights[0, ..., : len(pair.target), :]
    return [round(w, 3) for w in rows.double().flatten().tolist()]


def describe(pair: Any) -> dict[str, Any]:
    """Return a sentence, its translation and which words belong together."""
    return {
        "english": [*pair.source, "end"],
        "chinese": list(pair.target),
        "links": sorted(map(list, pair.alignment)),
    }


def different(pairs: Sequence[Any], count: int) -> list[Any]:
    """Choose short sentences, no two of which are built alike.

    Two sentences are built alike if their links are the same.
    """
    chosen: list[Any] = []
    for pair in sorted(pairs, key=lambda pair: len(pair.source)):
        shapes = [(len(one.source), one.alignment) for one in chosen]
        if (
            len(pair.source) <= LONGEST
            and (len(pair.source), pair.alignment) not in shapes
        ):
            chosen.append(pair)
    step = max(1, len(chosen) // count)
    return chosen[::step][:count]


def alignment_settings() -> dict[str, Any]:
    """Return what chapter 3 trains its translators with."""
    return settings(
        "03_scoring",
        "CLAUSES SEEDS WIDTH BUDGET BUILD SHOWN train_pairs test_pairs",
    )


def heads_settings() -> dict[str, Any]:
    """Return what chapter 6 trains its translators with."""
    return settings(
        "06_multihead",
        "MultiHeadDecoder build_translator NUMBERS budget"
        " train_pairs test_pairs pair",
    )


def summary(chapter: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a chapter by which to see that they change."""
    budget = chapter.get("BUDGET") or chapter["budget"]
    return {
        "budget": dict(budget),
        "seed": SEED,
        "train_pairs": len(chapter["train_pairs"]),
        "first_pair": chapter["train_pairs"][0].english,
    }


def alignment() -> dict[str, Any]:
    """Train chapter 3's translator and keep its maps."""
    from attention_lib.course.training import train_run

    chapter = alignment_settings()
    model, _ = train_run(
        chapter["BUILD"][SCORE],
        chapter["train_pairs"],
        seed=SEED,
        **chapter["BUDGET"],
    )
    pairs = chapter["test_pairs"][1]
    shown = [pair for pair in pairs if pair.english in chapter["SHOWN"]]
    others = [pair for pair in pairs if pair not in shown]
    chosen = different(shown, 2) + different(others, 10)
    return {
        "settings": summary(chapter),
        "sentences": [
            describe(pair) | {"weights": weights_of(model, pair)}
            for pair in chosen
        ],
    }


def heads() -> dict[str, Any]:
    """Train chapter 6's translators, one for each number of heads."""
    from functools import partial

    from attention_lib.course.training import train_run

    chapter = heads_settings()
    models = {
        number: train_run(
            partial(chapter["build_translator"], number),
            chapter["train_pairs"],
            seed=SEED,
            **chapter["budget"],
        )[0]
        for number in chapter["NUMBERS"]
    }
    shown = chapter["pair"]
    others = [pair for pair in chapter["test_pairs"][1] if pair != shown]
    pairs = [shown, *different(others, 6)]
    return {
        "settings": summary(chapter),
        "sentences": [
            describe(pair)
            | {
                "weights": {
                    str(number): weights_of(model, pair)
                    for number, model in models.items()
                }
            }
            for pair in pairs
        ],
    }


def main() -> int:
    """Train and write."""
    torch.set_num_threads(1)
    maps = {"alignment": alignment(), "heads": heads()}
    text = json.dumps(maps, ensure_ascii=False, separators=(",", ":"))
    # One sentence a line, so that a change can be read.
    TARGET.write_text(text.replace('{"english"', '\n{"english"') + "\n")
    print(f"trained_maps: {TARGET.stat().st_size:,} bytes in {TARGET.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
