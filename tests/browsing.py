"""A browser, the built book on a server, and windows that hear every fault."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import need
import pytest
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        """Keep the test's output readable."""


@contextmanager
def serve_book() -> Iterator[str]:
    """Serve the book and yield its address."""
    handler = functools.partial(QuietHandler, directory=str(SITE))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@contextmanager
def start_browser() -> Iterator[Browser]:
    """Start a Chromium, if there is one."""
    path = need.browser()
    if path is None:
        pytest.skip("no browser: see python tools/need.py browser")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=path, args=ARGUMENTS
        )
        yield chromium
        chromium.close()


class Visit:
    """One page in one window, with everything that went wrong there."""

    def __init__(self, browser, base, *, width=1280, theme="light"):
        self.faults = []
        self.base = base
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme
        )
        self.context.route("**/*", self.refuse_strangers)
        self.page = self.context.new_page()
        self.page.on("console", self.hear)
        self.page.on(
            "pageerror", lambda error: self.faults.append(f"throws {error}")
        )
        self.page.on(
            "response",
            lambda answer: (
                answer.status >= 400
                and self.faults.append(f"{answer.status} {answer.url}")
            ),
        )

    def refuse_strangers(self, route):
        url = route.request.url
        if url.startswith((self.base, "data:", "blob:")):
            route.continue_()
        else:
            self.faults.append(f"asks another server: {url}")
            route.abort()

    def hear(self, message):
        if message.type in ("error", "warning"):
            self.faults.append(f"console {message.type}: {message.text}")

    def go(self, name):
        self.page.goto(self.base + name, wait_until="load")
        self.page.wait_for_function(
            "document.documentElement.dataset.theme !== undefined"
        )
        return self.page

    def show(self, *, width, theme):
        """Resize the window, switch the reader's theme, let both settle."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        self.page.add_style_tag(content="* { transition: none !important }")
        self.page.wait_for_function(
            f"document.documentElement.dataset.theme === '{theme}'"
        )
        # The theme asks anew what scrolls once the width has been at rest.
        self.page.wait_for_timeout(600)

    def close(self):
        self.context.close()
