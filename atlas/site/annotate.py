"""An exemplar as a page shows it: `#:` comments become notes beside the code."""

import ast
import re
import textwrap
from dataclasses import dataclass
from functools import lru_cache

from atlas.site.text import fence, indent, md, slug

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


@lru_cache(maxsize=1)  # the parts of a page ask one after the other
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def without_docstring(source: str) -> str:
    """The program below its docstring, which the page has told already."""
    tree = _parsed(source)
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
    told = ast.get_docstring(_parsed(source)) or ""
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


def _public(body: list[ast.stmt]) -> list[ast.FunctionDef | ast.ClassDef]:
    return [
        n
        for n in body
        if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")
    ]


#: What every exemplar has, for its own proof: nobody calls it from elsewhere.
PROOF = ("main", "reference")


def reference(source: str) -> str:
    """Each public function or class: its signature as written, and what it says."""
    lines = source.splitlines()
    parts = []
    for node in _public(_parsed(source).body):
        if node.name in PROOF:
            continue
        shape = _signature(lines, node)
        if isinstance(node, ast.ClassDef):
            inside = [_signature(lines, n) for n in _public(node.body)]
            shape = "\n".join([f"{shape}:", *map(indent, inside)]) if inside else shape
        parts.append(f"### `{node.name}` {{ #api-{slug(node.name)} }}")
        parts.append(fence(shape, "{ .python }"))
        said = ast.get_docstring(node) or ""
        parts += [md(text) for text in said.split("\n\n") if text.strip()]
    return "\n\n".join(parts)


def _signature(lines: list[str], node: ast.FunctionDef | ast.ClassDef) -> str:
    """The lines from def or class to the colon, without notes."""
    last = max(node.lineno, node.body[0].lineno - 1)
    found = [x for x in lines[node.lineno - 1 : last] if not x.lstrip().startswith("#")]
    text = textwrap.dedent("\n".join(found)).rstrip()
    return re.sub(r":\s*(\.\.\.)?\s*(#.*)?$", "", text)
