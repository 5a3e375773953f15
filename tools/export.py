"""Write the modules of ``attention_lib`` from the chapters' exported cells.

A cell whose first line is ``#| export module`` belongs to the module of that
name. A module's cells may come from several notebooks, in the order of
``_toc.yml``; the first opens with the module's docstring. What a cell uses
from another module of the same notebook is imported by itself; every public
function or class gets a link back to the numbered section that built it.

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
            link = f"Built in section {number} ({label})."
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


def join_module(name: str, chapters: dict[str, list[Cell]]) -> str:
    """Return the text of one module from the exported cells of all chapters.

    Imports at the top of a cell move to the top of the module, less those
    from the module itself.
    """
    own = {
        source: [cell for cell in cells if cell.module == name]
        for source, cells in chapters.items()
    }
    sources = [source for source, cells in own.items() if cells]
    cells = [cell for source in sources for cell in own[source]]
    docstring = ast.get_docstring(cells[0].tree)
    if docstring is None:
        raise ExportError(
            f"{sources[0]}: the first cell of {name} has no module docstring"
        )
    imports, body = [], []
    for cell in cells:
        leading, rest = split_imports(cell.with_back_links())
        imports += [line for line in leading if f"_lib.{name} " not in line]
        body.append(rest)
    missing = set().union(*(cell.used for cell in cells)) - set().union(
        *(cell.defined for cell in cells)
    )
    for source in sources:
        for cell in chapters[source]:
            if cell.module != name and (use := missing & set(cell.public())):
                listed = ", ".join(sorted(use))
                imports.append(
                    f"from attention_lib.{cell.module} import {listed}"
                )
    public = sorted({name for cell in cells for name in cell.public()})
    listing = "".join(f"    {entry!r},\n" for entry in public)
    return (
        f"# Written by tools/export.py from these cells, to be edited there:\n"
        f"# {', '.join(sources)}"
        f'\n"""{docstring}\n"""\n\nfrom __future__ import annotations\n\n'
        + "\n".join(imports)
        + f"\n\n__all__ = [\n{listing}]\n\n"
        + "\n\n\n".join(body)
        + "\n"
    )


def split_imports(code: str) -> tuple[list[str], str]:
    """Split a cell into the imports that lead it and the rest."""
    imports, last = [], 0
    for node in ast.parse(code).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            if getattr(node, "module", None) != "__future__":
                imports.append(ast.unparse(node))
        elif not (last == 0 and isinstance(node, ast.Expr)):
            break
        last = node.end_lineno
    return imports, "\n".join(code.splitlines()[last:]).strip()


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


def chapter_paths() -> list[Path]:
    """Return the chapters in the order of the table of contents."""
    toc = (ROOT / "_toc.yml").read_text("utf-8")
    names = re.findall(r"chapters/(\d\d_\w+)", toc)
    return [CHAPTERS / f"{name}.ipynb" for name in names]


def build_modules() -> dict[str, str]:
    """Return the text of every module, by name."""
    chapters = {path.name: read_cells(path) for path in chapter_paths()}
    check_order(chapters)
    modules: dict[str, str] = {}
    cells = [cell for cells in chapters.values() for cell in cells]
    for name in dict.fromkeys(cell.module for cell in cells):
        text = ruff(
            join_module(name, chapters),
            "check", "--quiet", "--select", "I,F401,RUF022", "--fix",
            "--stdin-filename", f"attention_lib/{name}.py",
        )  # fmt: skip
        modules[name] = ruff(text, "format", "--quiet")
    return modules


def check_order(chapters: dict[str, list[Cell]]) -> None:
    """Refuse a chapter that imports what it or a later one exports."""
    later = {
        (cell.module, name)
        for cells in chapters.values()
        for cell in cells
        for name in cell.public()
    }
    for source, cells in chapters.items():
        for cell in nbformat.read(CHAPTERS / source, as_version=4).cells:
            if cell.cell_type != "code" or cell.source.startswith("%"):
                continue
            for module, names in re.findall(
                r"^\s*from attention_lib\.(\w+) import (\([^)]*\)|.*)",
                cell.source,
                flags=re.MULTILINE,
            ):
                for name in re.findall(r"\w+", names):
                    if (module, name) in later:
                        raise ExportError(
                            f"{source} imports {name} of attention_lib."
                            f"{module}, which it or a later chapter exports"
                        )
        later -= {
            (cell.module, name) for cell in cells for name in cell.public()
        }


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
        path.stem
        for path in PACKAGE.glob("*.py")
        if path.read_text("utf-8").startswith("# Written by")
    } - set(modules)
    for name in sorted(orphans):
        print(f"export: attention_lib/{name}.py has no source chapter")
    for name in stale:
        print(f"export: {name} {'is stale' if check else 'written'}")
    print(f"export: {len(modules)} modules, {len(stale)} changed")
    return int(check and bool(stale or orphans))


if __name__ == "__main__":
    sys.exit(main())
