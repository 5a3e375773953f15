"""Tests run with the shapes in signatures checked, unless told otherwise.

``ATTENTION_LIB_SHAPES=off`` turns the check off; then, and only then, run the
tests marked ``plain``: those that read error messages, which the check would
forestall, and those that compile.
"""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

SHAPES = os.environ.get("ATTENTION_LIB_SHAPES", "on") != "off"

if SHAPES:
    install_import_hook("attention_lib", "beartype.beartype")

torch.set_num_threads(1)
settings.register_profile("book", deadline=None, derandomize=True)
settings.load_profile("book")


def pytest_report_header():
    return f"shapes in signatures: {'checked' if SHAPES else 'not checked'}"


def pytest_collection_modifyitems(config, items):
    """Leave tests to the run that they are meant for."""
    kept = [
        item
        for item in items
        if bool(item.get_closest_marker("plain")) != SHAPES
        or item.get_closest_marker("site")
    ]
    left = [item for item in items if item not in kept]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.fixture(autouse=True)
def seed():
    """Start every test from the same random state."""
    torch.manual_seed(0)
