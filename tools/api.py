"""Write the API reference from the package.

``chapters/api.md`` lists every public name with a line each; each module that
a chapter of the book exports has a page, ``chapters/api/NAME.md``, with
directives that bring in the docstrings.

    python tools/api.py              write the pages
    python tools/api.py --check      fail if writing would change one
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = re.compile(r"# Written by \S+ from (?:chapters/)?(\w+)\.ipynb")
LABEL = re.compile(r"^\((ch-[\w-]+)\)=\s*$", re.MULTILINE)
ROLE = re.compile(r":(?:py:)?(func|class|meth|mod|data|obj):`([^`]+)`")

NOTE = "% Written by tools/api.py. To change a text, change the docstring.\n"
HEAD = f"""\
(ch-api)=
# API reference

Everything public in `attention_lib`, module by module, in the order of the
chapters that build it. Each entry ends with a link to the section that
explains the code line by line. Shapes are written as in {{ref}}`ch-notation`.

The names used most can be imported from the package itself:

```python
from attention_lib import attend, masked_softmax
```

{NOTE}"""
STABLE = """\
(sec-api-stable)=
## What you can rely on

The names in `attention_lib.__all__` are stable:
{names}.

Import them from `attention_lib` itself; from which module they come may
change. {{py:class}}`Memory <attention_lib.seq2seq.Memory>`,
{{py:class}}`Seq2Seq <attention_lib.seq2seq.Seq2Seq>`,
{{py:class}}`Pair <attention_lib.course.corpus.Pair>` and
{{py:class}}`TransformerState <attention_lib.transformer.TransformerState>` are
stable as far as the names above take or return them.

A release may break something if it raises the second number of the version
before 1.0, the first number from 1.0 on. A stable name, one of its arguments,
or what it means goes away in two steps. For one minor release at least, the
old form still works and gives a `DeprecationWarning` that says what to write
instead. The next release that may break removes it. A wrong result is mended
at once. The changelog names each of the three.

All other names, those of training and decoding, the corpus, the figures and
the exercises, belong to the chapters and may change with them, without a
warning, in any release that may break; a name that begins with an underscore,
at any time. `attention_lib.__version__` says which release you have; the
changelog lies beside the package in the repository.
"""
EXERCISES = f"""\
(api-exercises)=
# `attention_lib.course.exercises`

What checks the answers to the exercises.

{NOTE}
```{{eval-rst}}
.. py:module:: attention_lib.course.exercises

.. autofunction:: attention_lib.course.exercises.check
```
"""
EXERCISES_INDEX = """\
## {ref}`attention_lib.course.exercises <api-exercises>`

What checks the answers to the exercises.

- {py:func}`~attention_lib.course.exercises.check`: Print a verdict on an
  answer.
"""
EXPLORABLES = f"""\
(api-explorables)=
# `attention_lib.course.explorables`

The figures of the book that compute live, for notebooks.

{NOTE}
```{{eval-rst}}
.. py:module:: attention_lib.course.explorables

.. autofunction:: attention_lib.course.explorables.explore

.. autodata:: attention_lib.course.explorables.NAMES
   :no-value:
```
"""
EXPLORABLES_INDEX = """\
## {ref}`attention_lib.course.explorables <api-explorables>`

The figures of the book that compute live, for notebooks.

- {py:func}`~attention_lib.course.explorables.explore`: Return a figure of the book that computes live, to be displayed.
- {py:data}`~attention_lib.course.explorables.NAMES`: The explorables, in the order of the chapters that they stand in.
"""  # noqa: E501


class Name(NamedTuple):
    """A public name: what it is, its one-line summary, and its fields.

    Only a NamedTuple has fields: they are in its docstring, and what Python
    says about them by itself ("Alias for field number 0") says nothing.
    """

    name: str
    kind: str
    summary: str
    fields: tuple[str, ...] = ()


class Module(NamedTuple):
    """A module: the chapter that builds it, its summary and its names."""

    name: str
    chapter: str
    summary: str
    names: list[Name]


def summary(docstring: str | None, module: str, own: set[str]) -> str:
    """Return the first paragraph of a docstring as MyST Markdown.

    A role may name one of the module's own objects without the module.
    """
    first = (docstring or "").strip().split("\n\n")[0]
    text = re.sub(r":math:`([^`]+)`", r"$\1$", " ".join(first.split()))

    def reference(match: re.Match[str]) -> str:
        role, target = match.groups()
        if target in own:
            target = f"~attention_lib.{module}.{target}"
        return f"{{py:{role}}}`{target}`"

    return ROLE.sub(reference, text).replace("``", "`")


def comments(source: str) -> dict[str, str]:
    """Return the ``#:`` comments above assignments, by name."""
    found = re.findall(r"((?:^#:.*\n)+)^(\w+)\b[^=\n]*=", source, re.MULTILINE)
    return {
        name: " ".join(line[2:].strip() for line in block.splitlines())
        for block, name in found
    }


def fields(node: ast.ClassDef) -> tuple[str, ...]:
    """Return the fields of a NamedTuple, nothing for other classes."""
    if "NamedTuple" not in {ast.unparse(base) for base in node.bases}:
        return ()
    return tuple(
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
    )


def public_names(module: str, source: str) -> list[Name]:
    """Return the names in ``__all__``, in the order of their definition."""
    listed: list[str] = []
    defined: list[tuple[str, str, str | None, tuple[str, ...]]] = []
    described = comments(source)
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=name):
                defined.append((name, "func", ast.get_docstring(node), ()))
            case ast.ClassDef(name=name):
                text = ast.get_docstring(node)
                defined.append((name, "class", text, fields(node)))
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
            ):
                if name == "__all__":
                    listed = ast.literal_eval(value)
                else:
                    defined.append((name, "data", described.get(name), ()))
    return [
        Name(name, kind, summary(docstring, module, set(listed)), parts)
        for name, kind, docstring, parts in defined
        if name in listed
    ]


def modules() -> list[Module]:
    """Return the modules whose chapter is in the book, in its order."""
    contents = (ROOT / "_toc.yml").read_text("utf-8")
    found = []
    for path in sorted((ROOT / "attention_lib").glob("[!_]*.py")):
        source = path.read_text("utf-8")
        if not source.startswith("# Written by"):
            continue  # written by hand; tools/export.py --check refuses it
        origin = SOURCE.match(source)
        if origin is None:
            raise ValueError(f"{path.name} does not name its chapter")
        chapter = origin[1]
        if not re.search(rf"chapters/{chapter}\s*$", contents, re.M):
            continue
        notebook = json.loads(
            (ROOT / "chapters" / f"{chapter}.ipynb").read_text("utf-8")
        )
        cells = ["".join(cell["source"]) for cell in notebook["cells"]]
        exported = re.compile(rf"#\|\s*export\s+{path.stem}\s*\n")
        place = [bool(exported.match(cell)) for cell in cells].index(True)
        label = LABEL.search("\n".join(cells))
        if label is None:
            raise ValueError(f"{chapter}.ipynb has no label (ch-…)=")
        names = public_names(path.stem, source)
        docstring = ast.get_docstring(ast.parse(source))
        text = summary(docstring, path.stem, {name.name for name in names})
        module = Module(path.stem, label[1], text, names)
        found.append(((chapter, place), module))
    return [module for _, module in sorted(found)]


def stable(found: list[Module]) -> str:
    """Return the section on the names of the package itself."""
    source = (ROOT / "attention_lib" / "__init__.py").read_text("utf-8")
    homes = {
        alias.name: str(node.module)
        for node in ast.parse(source).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    kinds = {
        f"attention_lib.{module.name}.{name.name}": name.kind
        for module in found
        for name in module.names
    }
    links = []
    for name, home in sorted(homes.items(), key=lambda pair: pair[0].lower()):
        full = f"{home}.{name}"
        links.append(f"{{py:{kinds[full]}}}`~{full}`")
    return STABLE.format(names=",\n".join(links))


def index_entry(module: Module) -> str:
    """Return one module's part of the first page."""
    full = f"attention_lib.{module.name}"
    label = f"api-{module.name.replace('_', '-')}"
    lines = [
        f"## {{ref}}`{full} <{label}>`",
        "",
        f"{module.summary} Built in {{ref}}`{module.chapter}`.",
        "",
    ]
    for name, kind, text, _ in module.names:
        entry = f"- {{py:{kind}}}`~{full}.{name}`"
        lines.append(f"{entry}: {text}" if text else entry)
    return "\n".join([*lines, ""])


def module_page(module: Module) -> str:
    """Return the page of one module, with all its docstrings."""
    full = f"attention_lib.{module.name}"
    lines = [
        f"(api-{module.name.replace('_', '-')})=",
        f"# `{full}`",
        "",
        f"{module.summary} Built in {{ref}}`{module.chapter}`.",
        "",
        NOTE,
        "```{eval-rst}",
        f".. py:module:: {full}",
    ]
    directives = {
        "func": [".. autofunction:: {}"],
        "class": [".. autoclass:: {}", "   :members:"],
        "data": [".. autodata:: {}", "   :no-value:"],
    }
    for name, kind, _, parts in module.names:
        lines.append("")
        lines += [line.format(f"{full}.{name}") for line in directives[kind]]
        if parts:
            lines.append(f"   :exclude-members: {', '.join(parts)}")
    return "\n".join([*lines, "```", ""])


def pages() -> dict[str, str]:
    """Return the text of each page, by its path below ``chapters``."""
    found = modules()
    index = [
        HEAD,
        stable(found),
        *map(index_entry, found),
        EXERCISES_INDEX,
        EXPLORABLES_INDEX,
    ]
    return {
        "api.md": "\n".join(index),
        "api/exercises.md": EXERCISES,
        "api/explorables.md": EXPLORABLES,
        **{f"api/{each.name}.md": module_page(each) for each in found},
    }


def main() -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    folder = ROOT / "chapters"
    fresh = pages()
    old = {
        path.relative_to(folder).as_posix(): path.read_text("utf-8")
        for path in [folder / "api.md", *sorted(folder.glob("api/*.md"))]
        if path.exists()
    }
    stale = sorted(
        name for name in fresh | old if fresh.get(name) != old.get(name)
    )
    for name in stale:
        if check:
            print(f"chapters/{name} is stale; run: python tools/api.py")
        elif name in fresh:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(fresh[name], encoding="utf-8")
        else:
            (folder / name).unlink()
    if not check:
        print(f"api: {len(fresh)} pages, {len(stale)} changed")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
