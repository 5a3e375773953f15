"""Tests run with the shapes in signatures checked, unless told otherwise.

``ATTENTION_LIB_SHAPES=off`` turns the check off; then, and only then, run the
tests marked ``plain``: those that read error messages, which the check would
forestall, and those that compile. ``ATTENTION_LIB_SHAPES=any`` turns it off
and runs everything: mutation testing asks what the tests find by themselves.
"""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

MODE = os.environ.get("ATTENTION_LIB_SHAPES", "on")
SHAPES = MODE not in ("off", "any")

if SHAPES:
    install_import_hook("attention_lib", "beartype.beartype")

torch.set_num_threads(1)
settings.register_profile("book", deadline=None, derandomize=True)
settings.load_profile("book")


def pytest_report_header():
    return f"shapes in signatures: {'checked' if SHAPES else 'not checked'}"


def pytest_collection_modifyitems(config, items):
    """Leave tests to the run that they are meant for."""
    if MODE == "any":
        return
    kept = [
        item
        for item in items
        if bool(item.get_closest_marker("plain")) != SHAPES
        or item.get_closest_marker("site")
        or item.get_closest_marker("print")
    ]
    left = [item for item in items if item not in kept]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.fixture(autouse=True)
def seed():
    """Start every test from the same random state."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def browser():
    """One for all tests of a process: a second would not start."""
    from browsing import start_browser

    with start_browser() as chromium:
        yield chromium


@pytest.fixture(scope="session")
def address():
    """The book on a server of its own."""
    from browsing import serve_book

    with serve_book() as address:
        yield address


@pytest.fixture
def visit(browser):
    """Return a function that opens windows and closes them afterwards."""
    from browsing import Visit

    visits = []

    def open_window(base, **settings):
        visits.append(Visit(browser, base, **settings))
        return visits[-1]

    yield open_window
    for one in visits:
        one.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """In continuous integration nothing is skipped for want of a tool."""
    report = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
    return report
