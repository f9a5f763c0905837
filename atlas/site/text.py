"""Escape and format what goes into a page: nothing of the data is markup."""

import html
import json
import re

from atlas.views.words import amount, listing, number

__all__ = [
    "RAW",
    "amount",
    "attr",
    "fence",
    "front",
    "indent",
    "listing",
    "md",
    "number",
    "raw",
    "slug",
]

# Every character Markdown, its extensions or HTML might read as markup.
_SPECIAL = re.compile(r"[&<>\"'\\`*_{}\[\]()#+!|~^$=:-]")
_STRESS = re.compile(r"(?<![\w*])\*([^\s*](?:[^*]*[^\s*])?)\*(?![\w*])")
_CODE = re.compile(r"`([^`\n]+)`")


def md(text: object) -> str:
    """Text for the Markdown of a page; `code` and *stress* stay what they are."""
    out: list[str] = []
    at = 0
    flat = " ".join(str(text).split())
    for match in _CODE.finditer(flat):
        out.append(_stressed(flat[at : match.start()]))
        out.append(f"<code>{_entities(match[1])}</code>")
        at = match.end()
    out.append(_stressed(flat[at:]))
    return "".join(out)


def _entities(text: str) -> str:
    return _SPECIAL.sub(lambda m: f"&#{ord(m[0])};", text)


def _stressed(text: str) -> str:
    out: list[str] = []
    at = 0
    for match in _STRESS.finditer(text):
        out += [_entities(text[at : match.start()]), f"<em>{_entities(match[1])}</em>"]
        at = match.end()
    return "".join([*out, _entities(text[at:])])


def attr(text: object) -> str:
    """Text for an HTML attribute or element written by hand."""
    return html.escape(str(text), quote=True)


def fence(code: str, head: str) -> str:
    """A code block whose fence is longer than any run of backticks inside it."""
    runs = re.findall(r"`{3,}", code)
    ticks = "`" * max(3, 1 + max(map(len, runs), default=2))
    return f"{ticks} {head}\n{code.rstrip()}\n{ticks}\n"


def indent(block: str, by: str = "    ") -> str:
    """The block, moved right, for a content tab or a list."""
    return "".join(
        by + line if line.strip() else line for line in block.splitlines(keepends=True)
    )


def front(title: str, **more: object) -> str:
    """A page's front matter; the theme prints it raw, so it is escaped here."""
    lines = []
    for key, value in {"title": title, **more}.items():
        kept = attr(value) if isinstance(value, str) else value
        lines.append(f"{key}: {json.dumps(kept)}")
    return "---\n" + "\n".join(lines) + "\n---\n\n"


RAW = re.compile(r"<!--raw-->\n(.*?)\n<!--/raw-->", re.DOTALL)


def raw(markup: str) -> str:
    """A block of finished HTML: the build sets it aside until the page is whole.

    Markdown would parse it in vain, and the search would index its numbers.
    """
    return f"<!--raw-->\n{markup}\n<!--/raw-->"


def slug(text: str) -> str:
    """An anchor that needs no escaping."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
