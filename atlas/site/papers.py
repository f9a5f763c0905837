"""The bibliography as a page: what rests on each work, and its BibTeX to copy."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from atlas.site.templating import markup, render
from atlas.site.text import front
from atlas.site.tips import anchor
from atlas.taxonomy import Paper, System
from atlas.views.context import Context
from atlas.views.papers import BIB, authors, entries

HERE = "papers.md"
KINDS = ("Techniques", "In production", "Systems", "Surveys", "Words", "Source for")
Rests = dict[str, dict[str, list["Rest"]]]


def source(ctx: Context) -> str:
    """papers.bib itself, for download."""
    return (ctx.root / BIB).read_text(encoding="utf-8")


def page(ctx: Context) -> str:
    """Every paper by year, oldest first."""
    found = sorted(ctx.atlas.papers.values(), key=lambda p: (p.year, p.key))
    rests, text = resting(ctx), entries(source(ctx))
    shown = [_entry(p, rests[p.key], text[p.key]) for p in found]
    years = [(y, list(some)) for y, some in groupby(shown, lambda e: e.paper.year)]
    about = "One bibliography, and what here rests on each work."
    head = front("Papers", description=about, search={"boost": 0.5})
    made = render(
        "papers.md.j2", here=HERE, front=markup(head), count=len(found), years=years
    )
    return made.strip() + "\n"


@dataclass(frozen=True)
class Rest:
    """Something that rests on a paper: where it is, and its name."""

    to: str
    name: str


@dataclass(frozen=True)
class Entry:
    """A paper as the page lists it."""

    paper: Paper
    authors: str
    rests: list[tuple[str, list[Rest]]]
    bibtex: str


def _entry(p: Paper, rests: dict[str, list[Rest]], text: str) -> Entry:
    on = [(kind, rests[kind]) for kind in KINDS if rests.get(kind)]
    return Entry(p, authors(p), on, text)


def resting(ctx: Context) -> Rests:
    """Paper -> kind of thing -> all that rests on it, each name once."""
    out: Rests = defaultdict(lambda: defaultdict(list))
    for key, kind, rest in _citations(ctx):
        if rest.name not in [known.name for known in out[key][kind]]:
            out[key][kind].append(rest)
    return out


Citation = tuple[str, str, Rest]  # key, kind of thing, the thing


def _citations(ctx: Context) -> Iterator[Citation]:
    for t in ctx.atlas.techniques.values():
        for key in (*t.papers, *t.roots):
            yield key, "Techniques", Rest(f"{t.path}.md", t.name)
            for pair in t.production:
                to = Rest(f"{t.path}.md#in-production", pair.name)
                yield key, "In production", to
    for s in ctx.atlas.systems.values():
        yield from _of_system(ctx, s)
    yield from _of_words(ctx)


def _of_system(ctx: Context, s: System) -> Iterator[Citation]:
    link = Rest(f"systems/{s.id}.md", s.name)
    for key in s.papers:
        yield key, "Systems", link
    for said in s.statements:
        cited = said.source or ""
        if cited in ctx.atlas.papers and cited not in s.papers:
            yield cited, "Source for", link


def _of_words(ctx: Context) -> Iterator[Citation]:
    for v in ctx.atlas.surveys.values():
        yield v.paper, "Surveys", Rest(f"surveys/{v.id}.md", v.name)
    for word in ctx.atlas.glossary:
        for key in word.papers:
            yield key, "Words", Rest(f"glossary.md#{anchor(word.term)}", word.term)
    if walk := ctx.atlas.crosswalk:
        cited = [c.source for c in walk.columns]
        cited += [s.source or "" for a in walk.ambiguities for s in a.senses]
        for key in cited:
            if key in ctx.atlas.papers:
                yield key, "Source for", Rest("crosswalk.md", "the crosswalk")
