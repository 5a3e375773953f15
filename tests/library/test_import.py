"""What an importer gets, in a process of its own."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import attention_lib

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(
        attention_lib.__path__, "attention_lib."
    )
)
# One process tells it all, because each has to load torch.
STORY = f"""
import json, sys

story = []
def note():
    story.append(sorted({{name.split(".")[0] for name in sys.modules}}))

import jaxtyping, numpy, torch
note()
import attention_lib as lib
note()
for name in {MODULES!r}:
    __import__(name)
note()
layer = lib.MultiHeadAttention(8, 2)
inputs = torch.randn(2, 3, 8)
_, weights = layer(inputs, need_weights=True)
lib.future_leak(lambda x: layer(x, is_causal=True)[0], inputs)
note()
import matplotlib
matplotlib.use("agg")
lib.show_attention(weights[0, 0], "abc", "abc")
note()
print(json.dumps(story))
"""


@pytest.fixture(scope="module")
def story():
    """Packages that are loaded after each step; no warning is allowed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", STORY],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return [set(names) for names in json.loads(done.stdout)]


def test_importing_the_package_loads_nothing_else(story):
    before, after, *_ = story
    surplus = after - before - set(sys.stdlib_module_names)
    assert {name for name in surplus if name[0] != "_"} == {"attention_lib"}


def test_matplotlib_waits_until_something_is_drawn(story):
    drawing = {"matplotlib", "IPython", "PIL", "matplotlib_inline"}
    before, _, every_module, computed, drawn = story
    assert not (every_module - before) & drawing
    assert not (computed - before) & drawing
    assert "matplotlib" in drawn


def test_a_star_import_brings_the_public_names_and_no_others():
    scope = {}
    exec("from attention_lib import *", scope)
    del scope["__builtins__"]
    assert sorted(scope) == sorted(set(attention_lib.__all__))


def test_a_public_name_belongs_to_the_module_that_documents_it():
    """``help`` and pickles lead to a module that exists and has the name."""
    for name in attention_lib.__all__:
        thing = getattr(attention_lib, name)
        module = sys.modules[thing.__module__]
        assert name in module.__all__, name
        assert getattr(module, name) is thing, name


def test_the_types_come_with_the_package():
    (folder,) = attention_lib.__path__
    assert (Path(folder) / "py.typed").exists()
