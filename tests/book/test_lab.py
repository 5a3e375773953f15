"""JupyterLab, as a reader of the repository starts it, without a network."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest
from test_explorables import assert_a_slider_moves_it

from attention_lib.course.explorables import NAMES, explore

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab over copies of the chapters, set up as by ``make lab``."""
    tmp_path = tmp_path_factory.mktemp("lab")
    folder = tmp_path / "chapters"
    folder.mkdir()
    new = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(source)
            for source in (
                "from attention_lib.course.explorables import explore",
                *(f'explore("{name}")' for name in NAMES),
            )
        ],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python"}},
    )
    copies = [str(shutil.copy(path, folder)) for path in CHAPTERS]
    copies.append(str(folder / "explore.ipynb"))
    nbformat.write(new, copies[-1])
    output = nbformat.v4.new_output(
        "execute_result", explore("masks")._repr_mimebundle_()
    )
    cell = nbformat.v4.new_code_cell('explore("masks")', outputs=[output])
    saved = nbformat.v4.new_notebook(cells=[cell])
    nbformat.write(saved, folder / "from_elsewhere.ipynb")
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
        [sys.executable, "-m", "nbformat.sign", *copies],
        env=environment,
        check=True,
        capture_output=True,
    )
    port, log = free_port(), tmp_path / "log"
    with log.open("w") as stream:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab"),
                *("--no-browser", "--allow-root"),
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
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:  # it waits for its kernels
            server.kill()
            server.wait()


@pytest.mark.site
def test_jupyterlab_opens_a_chapter_without_a_warning(lab, browser):
    address, log = lab
    heard = []
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.on("pageerror", lambda error: heard.append(str(error)))
    for path in CHAPTERS[:2]:
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
        and "from_elsewhere" not in line
    ]
    assert complaints == []


@pytest.mark.site
def test_jupyterlab_draws_every_explorable_without_a_network(lab, browser):
    """The figures of a new notebook are live and say what the oracle says."""
    address, _ = lab
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    strangers, heard = [], []

    def guard(route):
        url = route.request.url
        if url.startswith((address, "data:", "blob:")):
            route.continue_()
        else:
            strangers.append(url)
            route.abort()

    context.route("**/*", guard)
    page = context.new_page()
    page.on("pageerror", lambda error: heard.append(str(error)))
    # A workspace of its own: the chapters of the other test stay closed.
    page.goto(f"{address}/lab/workspaces/explore/tree/explore.ipynb")
    cells = page.locator(".jp-Notebook:visible .jp-Cell")
    cells.nth(len(NAMES)).wait_for(timeout=60_000)
    # Cells that run before the kernel is there run into nothing.
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator("[data-command='runmenu:run-all']").click()
    for name in NAMES:
        here = page.locator(f"figure[id^='explorable-{name}-']")
        here.wait_for(state="attached", timeout=60_000)
        here.scroll_into_view_if_needed()
        page.wait_for_function(
            "(figure) => figure.dataset.state !== undefined",
            arg=here.element_handle(),
            timeout=20_000,
        )
        assert here.get_attribute("data-state") == "live"
        assert_a_slider_moves_it(page, name, here)
    context.close()
    assert (strangers, heard) == ([], [])


@pytest.mark.site
def test_a_notebook_that_is_not_trusted_shows_the_picture(lab, browser):
    address, _ = lab
    page = browser.new_page()
    page.goto(f"{address}/lab/workspaces/saved/tree/from_elsewhere.ipynb")
    picture = page.locator(".jp-Notebook:visible img.explorable-still")
    picture.wait_for(timeout=60_000)
    page.wait_for_function(
        "(image) => image.naturalWidth > 100", arg=picture.element_handle()
    )
    assert picture.get_attribute("alt")
    page.close()
