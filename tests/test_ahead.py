"""Work done ahead on other cores: the same results, order, errors and warnings."""

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from leftovers import alive, wait_until
from scripts import ROOT, line_with, script

from atlas.site import crew


def alone(code: str, *arguments: str) -> str:
    """What a program prints, in a process without pytest's threads, one helper."""
    head = "from atlas.site import crew\ncrew.helpers = lambda: 1\n"
    command = [sys.executable, "-c", head + code, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_a_helper_begins_with_the_last_job_and_the_asker_with_the_first() -> None:
    code = """
import os
began, begin = os.pipe()
end, ended = os.pipe()
def last():
    os.write(ended, b"x")
    os.read(began, 1)  # until the first one was asked for
    return os.getpid()
jobs = {str(i): os.getpid for i in range(9)} | {"9": last}
with crew.Crew(jobs) as helper:
    os.read(end, 1)
    print(helper.take("0"))
    os.write(begin, b"x")
    print(helper.take("9") not in (None, os.getpid()), helper.take("unknown"))
"""
    assert alone(code) == "None\nTrue None\n"


def test_what_fails_or_is_logged_is_left_to_the_one_who_asks() -> None:
    code = """
import concurrent.futures, logging
log = logging.getLogger("mkdocs.anything")
log.addHandler(logging.StreamHandler())
log.propagate = False
jobs = {"fails": lambda: 1 // 0, "stops": exit, "warns": lambda: log.warning("x") or 1}
jobs |= {"nothing": lambda: [], "works": lambda: log.debug("unheard") or 2}
with crew.Crew(jobs) as helper:
    concurrent.futures.wait(helper._begun.values())
    print({name: helper.take(name) for name in jobs})
"""
    expected: dict[str, Any] = {
        "fails": None,
        "stops": None,
        "warns": None,
        "nothing": [],
        "works": 2,
    }
    assert alone(code) == f"{expected}\n"


def test_the_jobs_of_a_killed_helper_are_left_to_the_one_who_asks() -> None:
    code = """
import os, signal
jobs = {"first": lambda: 1, "last": lambda: os.kill(os.getpid(), signal.SIGKILL)}
with crew.Crew(jobs) as helper:
    print([helper.take(name) for name in reversed(jobs)])
"""
    assert alone(code) == "[None, None]\n"


def test_no_helper_outlives_the_one_who_asks(tmp_path: Path) -> None:
    source = """
        import os, threading
        from atlas.site import crew

        def wait():
            os.write(1, f"helper {os.getpid()}\\n".encode())
            threading.Event().wait(60)

        crew.helpers = lambda: 1
        crew.Crew({"wait": wait}).take("wait")
    """
    with script(tmp_path, source) as process:
        helper = psutil.Process(int(line_with(process, "helper").split()[1]))
        assert alive(helper)
        process.kill()
        assert wait_until(lambda: not alive(helper), 2)


def test_nobody_helps_beside_another_thread() -> None:
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    try:
        assert crew.helpers() == 0
    finally:
        end.set()
        other.join()


def test_the_pages_and_their_order_are_those_of_one_process(
    made: dict[str, str | bytes],
) -> None:
    code = """
import hashlib, pathlib
from atlas.site import render
made = render(pathlib.Path())
print(hashlib.sha256(repr(list(made.items())).encode()).hexdigest())
"""
    mine = hashlib.sha256(repr(list(made.items())).encode()).hexdigest()
    assert alone(code).strip() == mine


HOOK = """
import concurrent.futures, os
from atlas.site import ahead, crew
crew.helpers = lambda: int(os.environ["HELPERS"])
mine, work = os.getpid(), []

def on_page_markdown(markdown, page, config, files):
    with open("who", "a") as file:
        print(page.file.src_uri, mine == os.getpid(), file=file)

def begin(new):
    work.append(new)
    concurrent.futures.wait(new._crew._begun.values())  # a helper did everything

def on_nav(nav, config, files):
    begin(ahead.Conversion(files, config))

def on_pre_page(page, config, files):
    work[-1].prepare(page)

def on_env(env, config, files):
    search = config.plugins["material/search"]
    begin(ahead.Index(files, search.config))
    search.search_index = work[-1]

def on_post_build(config):
    for done in work:
        done.close()
"""
PAGES = {
    "index.md": "# Start\n\n[there](a.md#here), ```x```\n",
    "a.md": "---\ntitle: Of the head\n---\n\n# A\n\n## Here\n\n    for x in y: pass\n",
    "b.md": "# B *b*\n\n```python\nfor x in y:\n    a < b\n```\n\n[no page](lost.md)\n",
    "c.md": "no heading\n\n<p id='raw'>[no anchor](a.md#lost), [one](#raw)</p>\n"
    "\n[no anchor](a.md#lost), [one](c.md#raw)\n",
}
SETTINGS = """
site_name: x
theme: {name: material, font: false}
hooks: [hook.py]
plugins: [search]
nav: [index.md, Named: a.md, b.md]
not_in_nav: c.md
markdown_extensions: [pymdownx.superfences, pymdownx.highlight]
validation: {anchors: warn}
"""


def small_site(root: Path, helpers: int) -> tuple[str, list[str], dict[str, bytes]]:
    """A strict build: what it said, who converted what here, and what it wrote."""
    (root / "docs").mkdir(parents=True)
    for name, text in PAGES.items():
        (root / "docs" / name).write_text(text)
    (root / "hook.py").write_text(HOOK)
    (root / "mkdocs.yml").write_text(SETTINGS)
    more = {"HELPERS": str(helpers), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", "site"],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    site = root / "site"
    files = (p for p in site.rglob("*") if p.is_file())
    wrote = {str(p.relative_to(site)): p.read_bytes() for p in files}
    del wrote["sitemap.xml.gz"]  # it has the time of day inside
    said = (done.stderr + done.stdout).replace(str(root), "")
    return said, sorted((root / "who").read_text().splitlines()), wrote


def test_a_strict_build_writes_and_warns_the_same_with_a_helper(tmp_path: Path) -> None:
    pytest.importorskip("material")
    said, here, wrote = small_site(tmp_path / "one", helpers=0)
    assert here == [f"{name} True" for name in sorted(PAGES)]
    assert "'lost.md', but the target is not found" in said
    assert said.count("does not contain an anchor '#lost'") == 1
    assert "Aborted with 2 warnings in strict mode" in said
    too, both, again = small_site(tmp_path / "two", helpers=1)
    assert {f"{name} False" for name in PAGES} <= set(both)
    assert (too, again) == (said, wrote)


def test_the_search_finds_the_same_without_the_colours_of_programs() -> None:
    theme: Any = pytest.importorskip("material.plugins.search.plugin")

    from atlas.site.ahead import Index

    content = (
        '<h1 id="a">A <span class="x"> b</span></h1><p>See\n<code><span>c</span> \n '
        "<span>d</span></code>:</p>\n"
        '<div class="highlight"><pre><span></span><code><span class="k">for</span>'
        '<span class="w"> </span><span class="n">x</span>\n<span class="w">    </span>'
        '<span class="o">&lt;</span>&amp;<span class="s">"&lt;/pre&gt;"</span>\n'
        '</code></pre></div>\n<h2 id="e">E</h2><pre><code></code></pre> end'
    )
    page = SimpleNamespace(content=content, meta={}, toc=[], url="u/", title="T")
    theirs = theme.SearchIndex()
    theirs.add_entry_from_context(page)
    none: Any = SimpleNamespace(documentation_pages=list)
    ours: Any = page
    assert len(theirs.entries) == 2
    assert Index(none, {}).made(ours) == theirs.entries
