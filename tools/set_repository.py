"""Write the repository's public address into every file that names it.

    python tools/set_repository.py                  print the address
    python tools/set_repository.py URL              write a new one

The address stands in ``_config.yml``. Wherever the project's files repeat it
(README, package metadata, citation, the chapters' setup cells), this tool
replaces it, together with the address of the published book, which follows
from it. The tests keep all of them equal.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACEHOLDER = "https://github.com/OWNER_NOT_SET/attention-course"
ADDRESS = re.compile(
    r"https://github\.com/(?P<owner>[A-Za-z0-9][A-Za-z0-9-]*)"
    r"/(?P<name>[A-Za-z0-9._-]+)"
)
SUFFIXES = {".cff", ".ipynb", ".md", ".py", ".toml", ".yaml", ".yml"}
SKIPPED = {
    "__pycache__",
    "_build",
    "build",
    "dist",
    "tests",
    "tools",
    "vendor",
}


def current(root: Path = ROOT) -> str:
    """Return the address that ``_config.yml`` names."""
    config = (root / "_config.yml").read_text(encoding="utf-8")
    found = re.search(
        r"^repository:\n(?:[ \t#].*\n)*?[ \t]+url:[ \t]*(\S+)",
        config,
        re.MULTILINE,
    )
    if found is None:
        raise ValueError("_config.yml has no repository: url:")
    return found[1]


def checked(url: str) -> str:
    """Return the address in its plain form, or raise ValueError."""
    plain = url.strip().removesuffix("/").removesuffix(".git")
    if plain != PLACEHOLDER and not ADDRESS.fullmatch(plain):
        raise ValueError(
            f"{url!r} is not a repository's address; expected "
            "https://github.com/OWNER/NAME"
        )
    return plain


def addresses(repository: str) -> dict[str, str]:
    """Return every address that follows from the repository's.

    Args:
        repository: ``https://github.com/OWNER/NAME``.

    Returns:
        The repository itself, the published book on GitHub Pages, and the
        start of its notebooks' addresses in Colab.
    """
    owner, name = repository.rsplit("/", 2)[1:]
    # A repository named like its owner's site is published at its root.
    is_root = name.lower() == f"{owner.lower()}.github.io"
    return {
        "repository": repository,
        "book": f"https://{owner}.github.io" + ("" if is_root else f"/{name}"),
        "colab": f"https://colab.research.google.com/github/{owner}/{name}",
    }


def pattern(address: str) -> re.Pattern[str]:
    """Match an address, but not a longer one that starts like it."""
    return re.compile(re.escape(address) + r"(?!\.?[\w-])")


def files(root: Path = ROOT) -> Iterator[Path]:
    """Yield the project's text files that may name the address."""
    for path in sorted(root.rglob("*")):
        folders = path.relative_to(root).parts[:-1]
        hidden = any(
            part in SKIPPED or (part.startswith(".") and part != ".github")
            for part in folders
        )
        if path.suffix in SUFFIXES and not hidden and path.is_file():
            yield path


def write(url: str, root: Path = ROOT) -> list[Path]:
    """Replace the address in all files.

    Args:
        url: The new address, ``https://github.com/OWNER/NAME``.
        root: The top of the project.

    Returns:
        The files that changed.

    Raises:
        ValueError: If ``url`` is not such an address, or if a file already
            names it for another purpose, so that it could not be told apart
            afterwards.
    """
    old, new = addresses(current(root)), addresses(checked(url))
    if old == new:
        return []
    texts = {path: path.read_bytes().decode("utf-8") for path in files(root)}
    for path, text in texts.items():
        for address in new.values():
            if pattern(address).search(text):
                raise ValueError(
                    f"{path.relative_to(root)} already names {address}"
                )
    changed = []
    for path, text in texts.items():
        replaced = text
        for kind, address in old.items():
            replaced = pattern(address).sub(new[kind], replaced)
        if replaced != text:
            path.write_bytes(replaced.encode("utf-8"))
            changed.append(path)
    return changed


def main() -> int:
    """Print the address, or write the one given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", nargs="?", metavar="URL")
    parser.add_argument("--root", type=Path, default=ROOT)
    arguments = parser.parse_args()
    try:
        if arguments.url is None:
            print(current(arguments.root))
            return 0
        changed = write(arguments.url, arguments.root)
    except ValueError as error:
        print(f"set_repository: {error}", file=sys.stderr)
        return 1
    for path in changed:
        print(f"changed {path.relative_to(arguments.root)}")
    if not changed:
        print("nothing to change")
    return 0


if __name__ == "__main__":
    sys.exit(main())
