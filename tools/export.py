"""Write the modules of ``attention_lib`` from the chapters' exported cells.

A cell whose first line is ``#| export module`` belongs to the module of that
name. A module comes from one notebook; its first cell opens with the module's
docstring. What a cell uses from another module of the same notebook is
imported by itself; every public function or class gets a link back to the
numbered section that built it.

    python tools/export.py           write the modules
    python tools/export.py --check   fail if writing would change a byte
"""

from __future__ import annotations

import argparse
import ast
import builtins
import re
import subprocess
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = ROOT / "chapters"
PACKAGE = ROOT / "attention_lib"
DIRECTIVE = re.compile(r"#\|\s*export\s+(\w+)\s*\n")
LABEL = re.compile(r"^\(([\w-]+)\)=\s*$")


class ExportError(ValueError):
    """A chapter breaks a rule of the export."""


def imported_names(node: ast.Import | ast.ImportFrom) -> set[str]:
    """Names that an import statement binds."""
    return {(alias.asname or alias.name).split(".")[0] for alias in node.names}


class Cell:
    """One exported cell: its module, its code and the section around it."""

    def __init__(self, module: str, code: str, section: tuple[str, str]):
        self.module = module
        self.code = code
        self.section = section
        self.tree = ast.parse(code)

    @property
    def defined(self) -> set[str]:
        """Names bound at the top level of the cell."""
        names: set[str] = set()
        for node in self.tree.body:
            match node:
                case (
                    ast.FunctionDef(name=name)
                    | ast.AsyncFunctionDef(name=name)
                    | ast.ClassDef(name=name)
                ):
                    names.add(name)
                case ast.Import() | ast.ImportFrom():
                    names |= imported_names(node)
                case _:
                    names |= {
                        part.id
                        for part in ast.walk(node)
                        if isinstance(part, ast.Name)
                        and isinstance(part.ctx, ast.Store)
                    }
                    names -= {  # the variables of comprehensions
                        part.id
                        for loop in ast.walk(node)
                        if isinstance(loop, ast.comprehension)
                        for part in ast.walk(loop.target)
                        if isinstance(part, ast.Name)
                    }
        return names

    @property
    def used(self) -> set[str]:
        """Names read anywhere in the cell, shape strings excepted."""
        return {
            node.id
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        } - set(dir(builtins))

    def public(self) -> list[str]:
        """Public names: functions, classes and assigned constants."""
        imported = set().union(
            *(
                imported_names(node)
                for node in self.tree.body
                if isinstance(node, ast.Import | ast.ImportFrom)
            )
        )
        return sorted(
            name
            for name in self.defined - imported
            if not name.startswith("_")
        )

    def with_back_links(self) -> str:
        """Return the code, each public docstring ending with its section."""
        label, number = self.section
        lines = self.code.splitlines()
        documented = [
            node
            for node in self.tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
        ]
        for node in reversed(documented):
            if ast.get_docstring(node) is None:
                raise ExportError(f"{node.name} is exported undocumented")
            text = node.body[0]
            last = lines[text.end_lineno - 1]
            indent = " " * text.col_offset
            link = f"Built in :ref:`section {number} <{label}>`."
            lines[text.end_lineno - 1 : text.end_lineno] = [
                *([last.rstrip().removesuffix('"""').rstrip()]),
                "",
                f"{indent}{link}",
                f'{indent}"""',
            ]
            if not lines[text.end_lineno - 1].strip():
                del lines[text.end_lineno - 1]
        return "\n".join(lines)


def read_cells(path: Path) -> list[Cell]:
    """Return the exported cells of one chapter, in order."""
    chapter = int(path.name[:2])
    section_count, label, section = 0, None, None
    cells = []
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            for line in cell.source.splitlines():
                if match := LABEL.match(line):
                    label = match[1]
                elif line.startswith("# ") or line.startswith("## "):
                    section_count += line.startswith("## ")
                    number = (
                        f"{chapter}.{section_count}"
                        if section_count
                        else f"{chapter}"
                    )
                    section = (label, number)
                    label = None
        elif match := DIRECTIVE.match(cell.source):
            if section is None or section[0] is None:
                raise ExportError(
                    f"{path.name}: the section around the export of "
                    f"{match[1]} has no label"
                )
            code = cell.source[match.end() :].strip()
            cells.append(Cell(match[1], code, section))
    return cells


def join_module(name: str, cells: list[Cell], source: str) -> str:
    """Return the text of one module from all exported cells of a chapter."""
    own = [cell for cell in cells if cell.module == name]
    docstring = ast.get_docstring(own[0].tree)
    if docstring is None:
        raise ExportError(
            f"{source}: the first cell of {name} has no module docstring"
        )
    first = own[0].tree.body[0]
    body = [cell.with_back_links() for cell in own]
    body[0] = "\n".join(body[0].splitlines()[first.end_lineno :]).strip()
    missing = set().union(*(cell.used for cell in own)) - set().union(
        *(cell.defined for cell in own)
    )
    imports = {}
    for cell in cells:
        if cell.module != name and (names := missing & set(cell.public())):
            imports.setdefault(cell.module, set()).update(names)
    header = "\n".join(
        f"from attention_lib.{module} import {', '.join(sorted(names))}"
        for module, names in sorted(imports.items())
    )
    public = sorted({name for cell in own for name in cell.public()})
    listing = "".join(f"    {entry!r},\n" for entry in public)
    future = "from __future__ import annotations\n"
    imported, rest = split_imports(body[0].replace(future, ""))
    return (
        f"# Written by tools/export.py from {source}: edit there.\n"
        f'"""{docstring}\n"""\n\n{future}\n{header}\n{imported}\n\n'
        f"__all__ = [\n{listing}]\n\n"
        + "\n\n\n".join([rest, *body[1:]])
        + "\n"
    )


def split_imports(code: str) -> tuple[str, str]:
    """Split a cell after its leading imports."""
    last = 0
    for node in ast.parse(code).body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            break
        last = node.end_lineno
    lines = code.splitlines()
    return "\n".join(lines[:last]), "\n".join(lines[last:])


def ruff(text: str, *arguments: str) -> str:
    """Pass a module through ruff with the project's settings."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *arguments, "-"],
        input=text,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    if done.returncode:
        raise ExportError(done.stderr + done.stdout)
    return done.stdout


def build_modules() -> dict[str, str]:
    """Return the text of every module, by name."""
    sources: dict[str, Path] = {}
    modules: dict[str, str] = {}
    for path in sorted(CHAPTERS.glob("[0-9][0-9]_*.ipynb")):
        cells = read_cells(path)
        for name in dict.fromkeys(cell.module for cell in cells):
            if name in sources:
                raise ExportError(
                    f"module {name} comes from {sources[name].name} "
                    f"and from {path.name}"
                )
            sources[name] = path
            text = join_module(name, cells, path.name)
            text = ruff(
                text, "check", "--quiet", "--select", "I,F401,RUF022", "--fix",
                "--stdin-filename", f"attention_lib/{name}.py",
            )  # fmt: skip
            modules[name] = ruff(text, "format", "--quiet")
    check_order(sources)
    return modules


def check_order(sources: dict[str, Path]) -> None:
    """Refuse a chapter that imports what it or a later one exports."""
    for path in sorted(CHAPTERS.glob("[0-9][0-9]_*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type != "code":
                continue
            for name in re.findall(
                r"^\s*(?:from|import)\s+attention_lib\.(\w+)",
                cell.source,
                flags=re.MULTILINE,
            ):
                if name in sources and sources[name].name >= path.name:
                    raise ExportError(
                        f"{path.name} imports attention_lib.{name}, which "
                        f"is exported by {sources[name].name}"
                    )


def main() -> int:
    """Write or check every module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    try:
        modules = build_modules()
    except ExportError as error:
        print(f"export: {error}", file=sys.stderr)
        return 1
    stale = []
    for name, text in modules.items():
        target = PACKAGE / f"{name}.py"
        old = target.read_text("utf-8") if target.exists() else None
        if old != text:
            stale.append(name)
            if not check:
                target.write_text(text, "utf-8")
    orphans = {
        path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__"
    } - set(modules)
    for name in sorted(orphans):
        print(f"export: attention_lib/{name}.py has no source chapter")
    for name in stale:
        print(f"export: {name} {'is stale' if check else 'written'}")
    print(f"export: {len(modules)} modules, {len(stale)} changed")
    return int(check and bool(stale or orphans))


if __name__ == "__main__":
    sys.exit(main())
