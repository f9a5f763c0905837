"""The crosswalk of terms: the same cut under its several names."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from atlas.site import address
from atlas.site.templating import macro
from atlas.site.text import slug
from atlas.taxonomy import Concept, Crosswalk, Family
from atlas.taxonomy.kinds import Sense, Usage
from atlas.views.context import Context

HERE = "crosswalk.md"
PARTS = "crosswalk.html.j2"


@dataclass(frozen=True)
class Row:
    """One cut: where it stands here, and a word or none for every column."""

    concept: Concept
    families: list[Family]
    words: list[Usage | None]


def table(ctx: Context) -> str:
    """A row for each cut, a column for each author."""
    walk = ctx.atlas.crosswalk
    if walk is None:
        return macro(PARTS, "empty")
    heads = [(c, _source(ctx, c.source)) for c in walk.columns]
    return macro(PARTS, "table", HERE, heads, list(_rows(ctx, walk)))


def _rows(ctx: Context, walk: Crosswalk) -> Iterator[Row]:
    for concept in walk.concepts:
        families = [ctx.atlas.families[f] for f in concept.families]
        said = {usage.by: usage for usage in concept.words}
        yield Row(concept, families, [said.get(c.id) for c in walk.columns])


def _source(ctx: Context, cited: str) -> str:
    """The place in the bibliography, or where the thing is documented."""
    if cited in ctx.atlas.papers:
        return address.link(HERE, f"papers.md#{slug(cited)}")
    return cited


def ambiguities(ctx: Context) -> str:
    """Words with two meanings: who means what by them, and what we mean."""
    walk = ctx.atlas.crosswalk
    words = walk.ambiguities if walk else ()
    found = [(a, [_cited(ctx, sense) for sense in a.senses]) for a in words]
    return macro(PARTS, "ambiguities", found)


def _cited(ctx: Context, sense: Sense) -> tuple[Sense, str, str]:
    """A sense, with the address and the short name of its source, if any."""
    cited = sense.source
    if not cited:
        return sense, "", ""
    return sense, _source(ctx, cited), _short(ctx, cited)


def _short(ctx: Context, cited: str) -> str:
    if cited in ctx.atlas.papers:
        p = ctx.atlas.papers[cited]
        return f"{p.authors[0].split()[-1]} {p.year}"
    return urlsplit(cited).netloc


def dimensions(ctx: Context) -> str:
    """Langer's four, on our three."""
    walk = ctx.atlas.crosswalk
    axes = {a.id: a for a in ctx.atlas.axes}
    theirs = walk.dimensions if walk else ()
    return macro(PARTS, "dimensions", [(d, [axes[a] for a in d.axes]) for d in theirs])


# What docs/crosswalk.md may mark, as `{{ name }}`.
PLACES: Mapping[str, Callable[[Context], object]] = {
    "assets": lambda ctx: address.assets(HERE, "terms.css"),
    "table": table,
    "ambiguities": ambiguities,
    "dimensions": dimensions,
}
