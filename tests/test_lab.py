"""JupyterLab opens every chapter as a reader of the repository does."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import warnings
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
JUPYTER = str(Path(sys.executable).with_name("jupyter"))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_format_needs_no_repair(path):
    """Nothing is completed, renamed or dropped when a chapter is read."""
    raw = json.loads(path.read_text("utf-8"))
    assert (raw["nbformat"], raw["nbformat_minor"] >= 5) == (4, True)
    ids = [cell["id"] for cell in raw["cells"]]
    assert len(ids) == len(set(ids))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nbformat.validate(raw)
        read = nbformat.reads(path.read_text("utf-8"), as_version=4)
    assert nbformat.writes(read).rstrip() == path.read_text("utf-8").rstrip()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def lab(tmp_path):
    """A JupyterLab over copies of the chapters, set up as by ``make lab``."""
    folder = tmp_path / "chapters"
    folder.mkdir()
    copies = [str(shutil.copy(path, folder)) for path in CHAPTERS]
    environment = {
        **os.environ,
        **{
            name: str(tmp_path / name)
            for name in (
                "HOME",
                "JUPYTER_CONFIG_DIR",
                "JUPYTER_DATA_DIR",
                "JUPYTER_RUNTIME_DIR",
                "JUPYTERLAB_SETTINGS_DIR",
                "JUPYTERLAB_WORKSPACES_DIR",
            )
        },
    }
    # A first start asks whether to fetch news, whatever is opened.
    settings = Path(environment["JUPYTERLAB_SETTINGS_DIR"])
    settings = settings / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(
        '{"fetchNews": "false", "checkForUpdates": false}'
    )
    subprocess.run(
        [JUPYTER, "trust", *copies],
        env=environment,
        check=True,
        capture_output=True,
    )
    port, log = free_port(), tmp_path / "log"
    with log.open("w") as stream:
        server = subprocess.Popen(
            [
                *(JUPYTER, "lab", "--no-browser", "--allow-root"),
                *(f"--ServerApp.port={port}", "--ServerApp.ip=127.0.0.1"),
                *("--IdentityProvider.token=", "--LabApp.news_url=None"),
                f"--ServerApp.root_dir={folder}",
            ],
            env=environment,
            stdout=stream,
            stderr=stream,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{address}/api", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, log.read_text()
                time.sleep(0.25)
        yield address, log
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.site
def test_jupyterlab_opens_each_chapter_without_a_warning(lab, browser):
    address, log = lab
    heard = []
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.on("pageerror", lambda error: heard.append(str(error)))
    for path in CHAPTERS:
        page.goto(f"{address}/lab/tree/{path.name}")
        cells = page.locator(".jp-Notebook:visible .jp-Cell")
        cells.first.wait_for(timeout=60_000)
        title = page.locator(".jp-Notebook:visible h1").first
        title.wait_for(timeout=60_000)
        heard += page.locator(".jp-Dialog").all_inner_texts()
        heard += page.locator(".Toastify__toast").all_inner_texts()
    page.close()
    assert heard == []
    complaints = [
        line
        for line in log.read_text().splitlines()
        if re.match(r"\[[WEC] ", line)
        and re.search(r"\.ipynb|[Nn]otebook|valid|\bids?\b", line)
    ]
    assert complaints == []
