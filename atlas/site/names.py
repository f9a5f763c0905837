"""Every name that something here has, for the search: an exact name comes first."""

import json
from collections.abc import Iterator

from atlas.site import address
from atlas.site.tips import anchor, names
from atlas.views.context import Context

FILE = "assets/js/names.js"
# name, what it is, address from the root of the site, all names
Entry = tuple[str, str, str, tuple[str, ...]]


def entries(ctx: Context) -> Iterator[Entry]:
    """Techniques, then systems, then words: the order in which they are offered."""
    for t in ctx.atlas.techniques.values():
        called = (t.name, t.id.replace("-", " "), *t.also_called)
        yield t.name, t.summary, address.url(f"{t.path}.md"), called
    for s in ctx.atlas.systems.values():
        called = (s.name, *s.also_called)
        yield s.name, s.summary, address.url(f"systems/{s.id}.md"), called
    glossary = address.url("glossary.md")
    for word in ctx.atlas.glossary:
        to = f"{glossary}#{anchor(word.term)}"
        yield word.term, word.says, to, names(word)


def script(ctx: Context) -> str:
    """The table as a script, which also a page on file:// can load."""
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in entries(ctx))
    return f"window.atlasNames = [\n{rows}\n]\n"
