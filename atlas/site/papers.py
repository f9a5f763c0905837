"""The bibliography as a page: what rests on each work, and its BibTeX to copy."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby

from atlas import bibtex
from atlas.knowledge import Paper, System
from atlas.site import address
from atlas.site.context import Context
from atlas.site.text import attr, front, md, slug
from atlas.site.tips import anchor

HERE = "papers.md"
BIB = "taxonomy/papers.bib"
KINDS = ("Techniques", "In production", "Systems", "Surveys", "Words", "Source for")
Rests = dict[str, dict[str, list[str]]]


def source(ctx: Context) -> str:
    """papers.bib itself, for download."""
    return (ctx.root / BIB).read_text(encoding="utf-8")


def entries(text: str) -> dict[str, str]:
    """Key -> the entry's own lines, without comments."""
    lines = [x for x in text.splitlines() if not x.lstrip().startswith("%")]
    bare = "\n".join(lines)
    found, _ = bibtex.parse(bare, BIB)
    starts = [entry.mark.line - 1 for entry in found] + [len(lines)]
    return {
        entry.key: "\n".join(lines[start:end]).strip()
        for entry, start, end in zip(found, starts, starts[1:], strict=False)
    }


def page(ctx: Context) -> str:
    """Every paper by year, oldest first."""
    found = sorted(ctx.atlas.papers.values(), key=lambda p: (p.year, p.key))
    rests, text = resting(ctx), entries(source(ctx))
    years = [(year, list(some)) for year, some in groupby(found, lambda p: p.year)]
    parts = [
        front(
            "Papers",
            description="One bibliography, and what here rests on each work.",
            search={"boost": 0.5},
        )
        + address.assets(HERE, "terms.css"),
        "# Papers",
        f"One bibliography of {len(found)} works, by year. Each entry says what here "
        "rests on it. The whole as one file: [papers.bib](papers.bib).",
        _years(years),
    ]
    for year, some in years:
        parts.append(f"## {year} {{ #y{year} }}")
        parts.append("\n".join(_paper(p, rests[p.key], text[p.key]) for p in some))
    if not found:
        parts.append("No paper is recorded yet.")
    return "\n\n".join(parts) + "\n"


def _years(years: list[tuple[int, list[Paper]]]) -> str:
    links = "".join(
        f'<a href="#y{year}">{year}<span> {len(some)}</span></a>'
        for year, some in years
    )
    return f'<nav class="letters" aria-label="Years">{links}</nav>'


def _paper(p: Paper, rests: dict[str, list[str]], text: str) -> str:
    on = "".join(
        f"<dt>{kind}</dt><dd>{', '.join(rests[kind])}</dd>"
        for kind in KINDS
        if rests.get(kind)
    )
    venue = f". {attr(p.venue)}" if p.venue else ""
    return (
        f'<section class="paper"><h3 id="{slug(p.key)}">{attr(p.title)}</h3>'
        f"<div>{attr(authors(p))} ({p.year}){venue}. {links(p)}</div>"
        f"<dl>{on}</dl>{copyable(text)}</section>"
    )


def copyable(text: str) -> str:
    """An entry's BibTeX, folded."""
    return (
        "<details><summary>BibTeX</summary>"
        f"<pre><code>{attr(text)}</code></pre></details>"
    )


def authors(p: Paper, most: int = 3) -> str:
    """The authors, the first ones if there are many."""
    if len(p.authors) <= most:
        return ", ".join(p.authors)
    return f"{p.authors[0]} and {len(p.authors) - 1} others"


def links(p: Paper) -> str:
    """Where to read it: each place that the entry names."""
    places = [
        ("DOI", f"https://doi.org/{p.doi}" if p.doi else ""),
        ("arXiv", f"https://arxiv.org/abs/{p.eprint}" if p.eprint else ""),
        ("link", p.url or ""),
    ]
    return " ".join(f'<a href="{attr(to)}">{name}</a>' for name, to in places if to)


def resting(ctx: Context) -> Rests:
    """Paper -> kind of thing -> links to all that rests on it."""
    out: Rests = defaultdict(lambda: defaultdict(list))
    said: set[tuple[str, str, str]] = set()
    for key, kind, link in _citations(ctx):
        name = link.split(">", 1)[1]
        if (key, kind, name) not in said:
            out[key][kind].append(link)
        said.add((key, kind, name))
    return out


def _link(to: str, text: str) -> str:
    return f'<a href="{address.link(HERE, to)}">{md(text)}</a>'


Citation = tuple[str, str, str]  # key, kind of thing, link


def _citations(ctx: Context) -> Iterator[Citation]:
    for t in ctx.atlas.techniques.values():
        for key in t.papers:
            yield key, "Techniques", _link(f"{t.path}.md", t.name)
            for pair in t.production:
                to = _link(f"{t.path}.md#in-production", pair.name)
                yield key, "In production", to
    for s in ctx.atlas.systems.values():
        yield from _of_system(ctx, s)
    yield from _of_words(ctx)


def _of_system(ctx: Context, s: System) -> Iterator[Citation]:
    link = _link(f"systems/{s.id}.md", s.name)
    for key in s.papers:
        yield key, "Systems", link
    facts = (s.parallelism, s.optimizer_location, s.topology, s.hardware)
    cells = (*s.uses, *s.cells, *s.relations, *facts, s.largest_run)
    for cell in cells:
        cited = (cell.source if cell else None) or ""
        if cited in ctx.atlas.papers and cited not in s.papers:
            yield cited, "Source for", link


def _of_words(ctx: Context) -> Iterator[Citation]:
    for v in ctx.atlas.surveys.values():
        yield v.paper, "Surveys", _link(f"surveys/{v.id}.md", v.name)
    for word in ctx.atlas.glossary:
        for key in word.papers:
            yield key, "Words", _link(f"glossary.md#{anchor(word.term)}", word.term)
    if walk := ctx.atlas.crosswalk:
        cited = [c.source for c in walk.columns]
        cited += [s.source or "" for a in walk.ambiguities for s in a.senses]
        for key in cited:
            if key in ctx.atlas.papers:
                yield key, "Source for", _link("crosswalk.md", "the crosswalk")
