"""A real Chromium, the built site, and pages that fail on any error or request out."""

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def built(out: Path, **variables: str) -> Path:
    """The site as a reader gets it."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", **variables}
    command = [sys.executable, "-m", "mkdocs", "build", "-d", str(out)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("site") / "site")


@pytest.fixture(scope="session")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("offline") / "site", OFFLINE="1")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Say nothing: the tests read the browser's own log."""


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    asked = os.environ.get("CHROMIUM")
    path = asked or next((p for p in map(shutil.which, NAMES) if p), None)
    if path is None:
        pytest.fail(f"no Chromium on the PATH: install one of {', '.join(NAMES)}")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
    left = [p for p in psutil.Process().children(recursive=True) if "chrom" in name(p)]
    _gone, left = psutil.wait_procs(left, timeout=10)
    assert not left, f"left running: {left}"


def name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


@pytest.fixture(autouse=True)
def _nothing_is_left() -> None:
    """One browser serves all tests here: its own fixture looks when it is closed."""


class Watched:
    """A page, and all that went wrong in it."""

    def __init__(self, page: Any, home: str) -> None:
        self.page, self.home = page, home
        self.wrong: list[str] = []
        page.on("pageerror", lambda e: self.wrong.append(f"script: {e}"))
        page.on("console", self._console)
        page.on("request", self._request)
        page.on("requestfailed", self._failed)
        page.on("response", self._response)

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.wrong.append(f"console: {message.text}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.home, "data:", "blob:")):
            self.wrong.append(f"left the machine: {request.url}")

    def _failed(self, request: Any) -> None:
        # leaving a page cuts off what it was still loading
        if request.failure != "net::ERR_ABORTED":
            self.wrong.append(f"failed: {request.url}: {request.failure}")

    def _response(self, response: Any) -> None:
        if response.status >= 400:
            self.wrong.append(f"{response.status}: {response.url}")


@pytest.fixture
def watched(chromium: Any, address: str) -> Iterator[Callable[..., Watched]]:
    """Make watched pages; what went wrong in any of them fails the test."""
    made: list[Watched] = []
    contexts = []

    def open_(path: str = "", *, home: str = address, **options: Any) -> Watched:
        context = chromium.new_context(**options)
        contexts.append(context)
        w = Watched(context.new_page(), home)
        made.append(w)
        w.page.goto(home + path)
        return w

    yield open_
    for context in contexts:
        context.close()
    assert not [wrong for w in made for wrong in w.wrong]
