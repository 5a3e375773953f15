"""Find a Chromium for the browser tests, or install one.

Looks at $CHROMIUM, then for an installed Chromium or Chrome; on Debian and
Ubuntu it installs the package, elsewhere Playwright's own build.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")


def find() -> str | None:
    """Return the path of an installed browser, if there is one."""
    if named := os.environ.get("CHROMIUM"):
        return named
    for name in NAMES:
        if path := shutil.which(name):
            return path
    if MAC.exists():
        return str(MAC)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


def install() -> None:
    """Install a browser with the system's packages or with Playwright."""
    if shutil.which("apt-get"):
        root = [] if os.geteuid() == 0 else ["sudo"]
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for command in (
            [*root, "apt-get", "update", "--quiet=2"],
            [*root, "apt-get", "install", "--yes", "--quiet=2", "chromium"],
        ):
            subprocess.run(command, check=True, env=environment)
    else:
        subprocess.run(
            [sys.executable, "-m", "playwright", "install", "chromium"],
            check=True,
        )


def main() -> int:
    """Print the browser's path, installing one where none is."""
    if find() is None:
        print("browser: installing chromium …", flush=True)
        install()
    path = find()
    if path is None:
        print("browser: none found; set CHROMIUM to its path")
        return 1
    print(f"browser: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
