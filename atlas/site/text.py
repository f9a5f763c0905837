"""Escape and format what goes into a page: nothing of the data is markup."""

import html
import json
import re
from collections.abc import Iterable

# Every character Markdown, its extensions or HTML might read as markup.
_SPECIAL = re.compile(r"[&<>\"'\\`*_{}\[\]()#+!|~^$=:-]")
_STRESS = re.compile(r"(?<![\w*])\*([^\s*](?:[^*]*[^\s*])?)\*(?![\w*])")
_CODE = re.compile(r"`([^`\n]+)`")
_THIN = "\u202f"  # a thin space between thousands that does not break


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


def number(value: object) -> str:
    """A count or a measure as people write it: 1 200 032, 7.1e-15, 0.3333."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}".replace(",", _THIN)
    if abs(value) >= 1e-3:
        return f"{value:.4g}"
    return f"{value:.1e}"


def amount(value: float) -> str:
    """A short figure for an axis: 1.2M, 40k, 6."""
    for scale, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.3g}"


def listing(items: Iterable[object], last: str = "and") -> str:
    """One, two and three."""
    words = [str(i) for i in items]
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


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

    Markdown would parse it for nothing, and the search would index its numbers.
    """
    return f"<!--raw-->\n{markup}\n<!--/raw-->"


def slug(text: str) -> str:
    """An anchor that needs no escaping."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
