"""Addresses inside raw HTML, which MkDocs leaves as they are."""

import os
import posixpath
import re
from functools import cache

SCRIPTS, STYLES = "assets/js", "assets/css"
_MORE = re.compile(r"[?#]")


def flat() -> bool:
    """Is the site built for file://, where a page is a file and not a folder?"""
    return os.environ.get("OFFLINE", "0").lower() not in ("", "0", "false", "no")


def url(uri: str) -> str:
    """Where a page's file ends up in the site."""
    return _url(uri, flat())


@cache  # a page links to the same few hundred pages as every other
def _url(uri: str, flat: bool) -> str:
    if not uri.endswith(".md"):
        return uri
    bare = uri.removesuffix(".md")
    if flat:
        return f"{bare}.html"
    folder, name = posixpath.split(bare)
    parts = [folder] if name == "index" else [folder, name]
    return "".join(f"{part}/" for part in parts if part)


def link(here: str, there: str) -> str:
    """From one page's file to another's, with what follows ? or # kept."""
    uri = _MORE.split(there, maxsplit=1)[0]
    more = there[len(uri) :]
    target, start = url(uri), posixpath.dirname(url(here))
    folder = target.endswith("/") or not target
    # from the root, so that the working directory is not asked for every time
    path = posixpath.relpath(f"/{target}", f"/{start}")
    return path + ("/" if folder else "") + more


def assets(here: str, *names: str) -> str:
    """The styles and scripts that only this page loads."""
    out = []
    for name in names:
        if name.endswith(".css"):
            at = link(here, f"{STYLES}/{name}")
            out.append(f'<link rel="stylesheet" href="{at}">')
        else:
            at = link(here, f"{SCRIPTS}/{name}")
            out.append(f'<script defer src="{at}"></script>')
    return "\n".join(out)
