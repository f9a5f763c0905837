"""Why does it hang? Twelve programs, and the verdict that a run of each ended with."""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from atlas.site.templating import render
from atlas.views.context import Context
from atlas.yours.study import programs, read

HERE = "why-does-it-hang.md"


@dataclass(frozen=True)
class Hang:
    """A program, what it shows, and what was said of it."""

    name: str
    says: str
    source: str
    verdict: Mapping[str, Any]


def hangs(ctx: Context) -> list[Hang]:
    """All, by name; a program without a verdict is an error."""
    kept = read(ctx.root)
    found = []
    for path in programs(ctx.root):
        text = path.read_text(encoding="utf-8")
        doc = ast.get_docstring(ast.parse(text)) or ""
        code = text.split('"""\n', 2)[1].strip() if '"""\n' in text else text
        name = path.stem.replace("-", " ").capitalize()
        found.append(Hang(name, doc.splitlines()[0], code, kept[path.stem]))
    return found


# What docs/why-does-it-hang.md may mark, as `{{ name }}`.
PLACES: Mapping[str, Callable[[Context], object]] = {
    "count": lambda ctx: len(hangs(ctx)),
    "hangs": lambda ctx: render("hangs.md.j2", hangs=hangs(ctx)),
}
