"""An exemplar as a page shows it: `#:` comments become notes beside the code."""

import ast
import re
from dataclasses import dataclass

from atlas.site.text import fence, md

_NOTE = re.compile(r"^(\s*)#: ?(.*)$")


@dataclass(frozen=True, slots=True)
class Annotated:
    """Source without its notes, and the notes by number."""

    code: str
    notes: tuple[str, ...]


def annotate(source: str) -> Annotated:
    """Take the `#:` lines out; the line after each carries its number."""
    lines: list[str] = []
    notes: list[str] = []
    pending: list[str] = []
    for line in source.splitlines():
        if found := _NOTE.match(line):
            pending.append(found[2].strip())
            continue
        if pending and line.strip():
            notes.append(" ".join(pending))
            pending = []
            line = f"{line}  # ({len(notes)})!"
        lines.append(line)
    return Annotated("\n".join(lines) + "\n", tuple(notes))


def without_docstring(source: str) -> str:
    """The program below its docstring, which the page has told already."""
    tree = ast.parse(source)
    if ast.get_docstring(tree) is None:
        return source
    end = tree.body[0].end_lineno or 0
    return "\n".join(source.splitlines()[end:]).lstrip("\n") + "\n"


def code_block(source: str, title: str) -> str:
    """The program with its notes, as Material's annotated code."""
    shown = annotate(without_docstring(source))
    block = fence(shown.code, f'{{ .python .annotate title="{title}" }}')
    notes = "".join(f"{i}. {md(n)}\n" for i, n in enumerate(shown.notes, 1))
    return block + ("\n" + notes if notes else "")


def explanation(source: str) -> str:
    """The docstring as Markdown, without its first line and its torchrun line."""
    told = ast.get_docstring(ast.parse(source)) or ""
    blocks = re.split(r"\n\s*\n", told)[1:]
    out = [_block(b) for b in blocks if "torchrun" not in b]
    return "\n\n".join(b for b in out if b)


def _block(block: str) -> str:
    """A paragraph, or a drawing kept as it is; drawings are indented."""
    lines = block.strip("\n").splitlines()
    parts: list[str] = []
    at = 0
    while at < len(lines):
        drawn = lines[at].startswith(" ")
        end = at
        while end < len(lines) and lines[end].startswith(" ") == drawn:
            end += 1
        piece = lines[at:end]
        if drawn:
            parts.append(fence(_dedent(piece), "{ .text .drawing }"))
        else:
            parts.append(md(" ".join(piece)))
        at = end
    return "\n\n".join(parts)


def _dedent(lines: list[str]) -> str:
    least = min(len(x) - len(x.lstrip()) for x in lines if x.strip())
    return "\n".join(x[least:] for x in lines)


def members(source: str) -> list[str]:
    """Public functions and classes, in the order of the file."""
    kinds = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
    body = ast.parse(source).body
    return [n.name for n in body if isinstance(n, kinds) and not n.name.startswith("_")]
