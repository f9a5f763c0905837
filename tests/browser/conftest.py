"""A real Chromium, the built site, and pages that fail on any error or request out."""

import functools
import http.server
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
AXE = ROOT / "tests" / "vendor" / "axe-core" / "axe.min.js"
#: Pages that load side by side, while another is looked at.
TABS = 4


class Build:
    """The site as a reader gets it, built while something else is done."""

    def __init__(self, out: Path, **variables: str) -> None:
        self.out = out
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mkdocs", "build", "-d", str(out)],
            cwd=ROOT,
            env={**os.environ, "NO_MKDOCS_2_WARNING": "1", **variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    @functools.cached_property
    def ready(self) -> Path:
        _, said = self.process.communicate()
        assert self.process.returncode == 0, said
        return self.out


@pytest.fixture(scope="session")
def builds(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Build]]:
    """The site, and the one that is read from files if a test asks for it."""
    made = {"site": Build(tmp_path_factory.mktemp("site") / "site")}
    if any("offline" in item.fixturenames for item in request.session.items):
        out = tmp_path_factory.mktemp("offline") / "site"
        made["offline"] = Build(out, OFFLINE="1")
    yield made
    for build in made.values():
        with build.process as process:
            process.kill()


@pytest.fixture(scope="session")
def site(builds: dict[str, Build]) -> Path:
    return builds["site"].ready


@pytest.fixture(scope="session")
def offline(builds: dict[str, Build]) -> Path:
    return builds["offline"].ready


class _Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # a connection serves many requests

    def log_message(self, *args: object) -> None:
        """Say nothing: the tests read the browser's own log."""


class _Lean(_Quiet):
    """The site with nothing to search for: half of a page's time is its index."""

    def do_GET(self) -> None:
        if not self.path.endswith("/search/search_index.json"):
            super().do_GET()
            return
        index = json.loads(Path(self.translate_path(self.path)).read_text())
        text = json.dumps({**index, "docs": []}).encode()
        self.send_response(http.HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *args: object) -> None:
        """A page that is left cuts its connections; the browser's log has the rest."""


def served(site: Path, handler: type[_Quiet]) -> Iterator[str]:
    """The address of the site while it is served."""
    server = _Server(("127.0.0.1", 0), functools.partial(handler, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    yield from served(site, _Quiet)


@pytest.fixture(scope="session")
def lean(site: Path) -> Iterator[str]:
    """Another address of the site, where pages load faster and the search is empty."""
    yield from served(site, _Lean)


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
        if not request.url.startswith((self.home, "data:", "blob:", "about:")):
            self.wrong.append(f"left the machine: {request.url}")

    def _failed(self, request: Any) -> None:
        # leaving a page cuts off what it was still loading
        if request.failure != "net::ERR_ABORTED":
            self.wrong.append(f"failed: {request.url}: {request.failure}")

    def _response(self, response: Any) -> None:
        if response.status >= 400:
            self.wrong.append(f"{response.status}: {response.url}")


@pytest.fixture(scope="session")
def contexts(chromium: Any) -> Iterator[Callable[..., Any]]:
    """A context for these options, made once: making one takes half a second."""
    made: dict[str, Any] = {}

    def of(options: dict[str, Any]) -> Any:
        key = json.dumps(options, sort_keys=True)
        if key not in made:
            made[key] = chromium.new_context(**options)
        return made[key]

    yield of
    for context in made.values():
        context.close()


@pytest.fixture
def watched(
    contexts: Callable[..., Any], address: str
) -> Iterator[Callable[..., Watched]]:
    """Make watched pages; what went wrong in any of them fails the test."""
    made: list[Watched] = []

    def open_(path: str = "", *, home: str = address, **options: Any) -> Watched:
        w = Watched(contexts(options).new_page(), home)
        made.append(w)
        w.page.goto(home + path)
        return w

    yield open_
    for w in made:
        forget(w.page)
    assert not [wrong for w in made for wrong in w.wrong]


def forget(page: Any) -> None:
    """Close a page; the next of its context finds nothing that it has kept."""
    page.context.clear_cookies()
    page.evaluate("localStorage.clear()")
    page.close()


Visit = Callable[..., Iterator[tuple[str, Any]]]


@pytest.fixture
def abreast(watched: Callable[..., Watched], lean: str) -> Visit:
    """Visit pages some at a time: each with its path, when it has loaded."""

    def visit(paths: Iterable[str], **options: Any) -> Iterator[tuple[str, Any]]:
        tabs = [watched(home=lean, **options).page for _ in range(TABS)]
        left = iter(paths)
        while some := list(zip(tabs, left_of(left), strict=False)):
            for tab, path in some:
                if "#" in path:  # or it may be the same page, which is not loaded
                    tab.goto("about:blank")
                tab.goto(lean + path, wait_until="commit")
            for tab, _ in some:
                tab.wait_for_load_state()
            yield from ((path, tab) for tab, path in some)

    return visit


def left_of(paths: Iterator[str]) -> list[str]:
    """The next few paths."""
    return list(itertools.islice(paths, TABS))


@pytest.fixture
def inaccessible(abreast: Visit) -> Callable[..., list[str]]:
    """What axe finds on these pages that is serious or critical."""

    def audit(paths: Iterable[str], **options: Any) -> list[str]:
        found = []
        for path, tab in abreast(paths, **options):
            # Scripts name things in a frame, and a tab that is hidden has none.
            tab.bring_to_front()
            tab.evaluate("() => new Promise(requestAnimationFrame)")
            tab.evaluate(AXE.read_text(encoding="utf-8"))
            report = tab.evaluate("axe.run(document, {resultTypes: ['violations']})")
            for v in report["violations"]:
                if v["impact"] in ("serious", "critical"):
                    where = [n["target"] for n in v["nodes"]][:4]
                    found.append(f"/{path} {v['id']}: {where}")
        return found

    return audit


@pytest.fixture
def weights(contexts: Callable[..., Any], lean: str) -> Callable[..., dict[str, int]]:
    """The bytes that each page brings with it, on a first visit."""

    def weigh(paths: Iterable[str]) -> dict[str, int]:
        out: dict[str, int] = {}
        left, context = iter(paths), contexts({})
        while some := left_of(left):
            tabs = []
            for path in some:
                tab, got = context.new_page(), []
                fresh = {"cacheDisabled": True}
                context.new_cdp_session(tab).send("Network.setCacheDisabled", fresh)
                tab.on("response", lambda r, got=got: got.append(r))
                tab.goto(lean + path, wait_until="commit")
                tabs.append((path, tab, got))
            for path, tab, got in tabs:
                tab.wait_for_load_state("networkidle")
                kept = [r for r in got if "/search" not in r.url]
                out[path] = sum(len(r.body()) for r in kept)
                forget(tab)
        return out

    return weigh
