"""What `atlas show` prints of anything: headings, lines, sources and citations."""

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from atlas.commands import common
from atlas.taxonomy import Atlas, Paper, Technique

Sections = Iterator[tuple[str, list[str]]]


def show(title: str, summary: str, sections: Sections) -> None:
    """A title, its sentence, and the sections that have something to say."""
    from rich.text import Text

    console = common.out()
    console.print(Text(title, style="bold"))
    if summary:
        console.print(Text(textwrap.fill(summary, console.width)))
    for heading, lines in sections:
        if lines:
            console.print()
            console.print(Text(heading, style="cyan"))
        for line in lines:
            hang = "  " if len(lines) > 1 else ""
            console.print(Text(_indented(line, console.width, hang)), soft_wrap=True)


def _indented(line: str, width: int, hang: str) -> str:
    """Below its heading; commands and addresses are copied, so they stay whole."""
    words = line.lstrip()
    indent = " " * (2 + len(line) - len(words))
    if words.startswith(("atlas ", "torchrun ")) or "://" in words:
        return indent + words
    return textwrap.fill(
        words, width, initial_indent=indent, subsequent_indent=indent + hang
    )


def commands(t: Technique) -> Iterator[str]:
    """How to run a technique, to be copied."""
    p = max(t.min_ranks, min(4, t.max_ranks or 4))
    yield f"torchrun --standalone --nproc-per-node {p} -m {t.module}"
    yield run(t)
    if t.dry:
        yield f"atlas run {t.id} --dry {max(t.dry)}"
    yield f"atlas run {t.id} --ranks {p} --emulate-gpu"
    if t.mutants:
        yield f"atlas run {t.id} --ranks {p} --mutant {t.mutants[0].id}"


def run(t: Technique) -> str:
    """The command that runs a technique's exemplar."""
    return f"atlas run {t.id} --ranks {max(t.min_ranks, min(4, t.max_ranks or 4))}"


def citations(atlas: Atlas, keys: Iterable[str]) -> list[str]:
    """Each paper, and below it where to read it."""
    papers = [atlas.papers[key] for key in keys]
    return [line for p in papers for line in (citation(p), f"  {p.link}")]


def citation(paper: Paper) -> str:
    """Authors, year, title, place."""
    authors = paper.authors
    names = " and ".join(authors) if len(authors) < 3 else f"{authors[0]} et al."
    parts = [f"{names} {paper.year}", paper.title, paper.venue]
    return ". ".join(part for part in parts if part)


def source(atlas: Atlas, cell: Any) -> str:
    """Where that is written, and whether anybody looked."""
    if cell.source is None:
        return "  not verified: no source yet"
    paper = atlas.papers.get(cell.source)
    link = paper.link if paper else cell.source
    where = f", {cell.where}" if cell.where else ""
    return f"  {'verified in' if cell.verified else 'not verified:'} {link}{where}"
