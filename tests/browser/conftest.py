"""What the tests in a real browser share: a Chromium, pages that note trouble, and a JupyterLab.

They need Playwright (pip install -e ".[test,browser]") and a Chromium: the system's, or Playwright's own.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

HERE = Path(__file__).parent
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--no-first-run"]  # fmt: skip
OWN_ADDRESSES = ("file:", "data:", "blob:", "http://127.0.0.1:", "ws://127.0.0.1:")
# Every cell is drawn, not only those in sight; no message and no saving comes between.
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none", "scrollPastEnd": False},
    "apputils-extension/themes": {"theme": "JupyterLab Light", "adaptive-theme": False},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "docmanager-extension/plugin": {"autosave": False},
}


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser():
    reason = "no Playwright: pip install -e '.[test,browser]'"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    with playwright.sync_playwright() as driver:
        installed = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
        chromium = next(filter(None, installed), driver.chromium.executable_path)
        if not Path(chromium).exists():
            pytest.skip("no Chromium: apt install chromium, or python -m playwright install chromium")
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def new_page(browser):
    """Make pages that note errors, and requests to elsewhere; in the end, none may have noted any."""
    pages = []

    def new_page(**options):
        page = browser.new_context(**options).new_page()
        page.trouble = []
        page.on("pageerror", lambda error: page.trouble.append(f"page error: {error}"))
        page.on("console", lambda message: message.type == "error" and page.trouble.append(
            f"console: {message.text} ({message.location['url'].partition('?')[0]})"
        ))  # fmt: skip
        page.on("request", lambda request: request.url.startswith(OWN_ADDRESSES) or page.trouble.append(
            f"request: {request.url}"
        ))  # fmt: skip
        pages.append(page)
        return page

    yield new_page
    for page in pages:
        page.context.close()
    assert [trouble for page in pages for trouble in page.trouble] == []


@pytest.fixture(scope="session")
def lab(browser, tmp_path_factory):
    """JupyterLab on loopback, on a free port, with settings of its own: its `folder`, `address(notebook)`.

    Its kernels find vitlib, train for seconds and leave nothing behind: see conftest.py two folders up.
    """
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("lab")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    for name, values in SETTINGS.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    folders = {
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True", "--LabApp.news_url=",
    ]  # fmt: skip
    log = (home / "server.log").open("wb")
    server = subprocess.Popen(
        command, env=os.environ | folders, cwd=folder, stdout=log, stderr=log, start_new_session=True
    )
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for _ in range(300):
            try:
                opener.open(f"http://127.0.0.1:{port}/api?token={token}", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, (home / "server.log").read_text()
                time.sleep(0.2)
        yield SimpleNamespace(
            folder=folder, address=lambda name: f"http://127.0.0.1:{port}/lab/tree/{name}?reset&token={token}"
        )
    finally:
        os.killpg(server.pid, signal.SIGTERM)  # its kernels, too
        server.wait(30)
        log.close()


@pytest.fixture
def open_notebook(new_page, lab):
    """Open a notebook of the lab's folder, with a kernel that is ready; it ends with the test."""
    pages = []

    def open_notebook(name, **options):
        page = new_page(**options)
        page.set_default_timeout(120_000)
        page.goto(lab.address(name))
        page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.context?.isReady")
        page.wait_for_function(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'"
        )
        pages.append(page)
        return page

    yield open_notebook
    for page in pages:
        page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
