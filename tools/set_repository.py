"""Write the repository's public address into every file that names it.

python tools/set_repository.py https://github.com/OWNER/NAME
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def places(address):
    """Return the ends of the addresses of the repository and of its site."""
    if not re.fullmatch(r"https://github\.com/[\w-]+/[\w.-]+", address):
        sys.exit(__doc__)
    owner, name = address.split("/")[-2:]
    return f"/{owner}/{name}", f"/{owner}.github.io/{name}"


config = (ROOT / "_config.yml").read_text("utf-8")
old = places(re.search(r"url: (\S+)", config)[1])
new = places(sys.argv[-1])
search = ["git", "grep", "-lIzF", "-e", old[0], "-e", old[1], "--", ":!tests"]
for name in subprocess.check_output(search, cwd=ROOT).split(b"\0")[:-1]:
    path = ROOT / name.decode()
    text = path.read_text("utf-8").replace(old[0], new[0])
    path.write_text(text.replace(old[1], new[1]), "utf-8")
