"""The crosswalk of terms: the same cut under its several names."""

from urllib.parse import urlsplit

from atlas.site import address
from atlas.site.text import attr, front, listing, md, slug
from atlas.taxonomy import Ambiguity, Concept, Crosswalk
from atlas.views.context import Context

HERE = "crosswalk.md"
UNREAD = '<span class="unread">not verified</span>'


def page(ctx: Context) -> str:
    """The table, the words with two meanings, and Langer's dimensions."""
    walk = ctx.atlas.crosswalk
    head = front(
        "Crosswalk of terms",
        description="What the surveys and two libraries call the same cut.",
        hide=["navigation"],
    )
    parts = [head + address.assets(HERE, "terms.css"), "# Crosswalk of terms"]
    if walk is None:
        return "\n\n".join([*parts, "No term is walked across yet."]) + "\n"
    parts += [
        "The surveys use conflicting words for the same cut of the work. A row is one "
        "cut, a column one author; which row a word belongs to is our reading. What "
        "was not read in the source itself is marked *not verified*.",
        _table(ctx, walk),
        "## Words with two meanings",
        "\n\n".join(_ambiguity(ctx, a) for a in walk.ambiguities),
        "## Langer's dimensions, and our axes",
        "The atlas has three axes where Langer has four dimensions.",
        _dimensions(ctx, walk),
        "Word by word, survey by survey: [the surveys](surveys.md). Every word "
        "for itself: [the glossary](glossary.md).",
    ]
    return "\n\n".join(parts) + "\n"


def source(ctx: Context, here: str, cited: str, text: str) -> str:
    """A link to the bibliography, or to where the thing is documented."""
    if cited in ctx.atlas.papers:
        to = address.link(here, f"papers.md#{slug(cited)}")
        return f'<a href="{to}">{md(text)}</a>'
    return f'<a href="{attr(cited)}">{md(text)}</a>'


def _table(ctx: Context, walk: Crosswalk) -> str:
    heads = "".join(
        f'<th scope="col">{source(ctx, HERE, c.source, c.name)}</th>'
        for c in walk.columns
    )
    rows = "".join(_row(ctx, walk, concept) for concept in walk.concepts)
    return (
        '<div class="walk" role="region" aria-label="Crosswalk" tabindex="0">'
        f'<table class="walk-table"><thead><tr><th scope="col">the cut</th>{heads}'
        f"</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _row(ctx: Context, walk: Crosswalk, concept: Concept) -> str:
    here = ", ".join(
        f'<a href="{address.link(HERE, f"{f}/index.md")}">'
        f"{md(ctx.atlas.families[f].name)}</a>"
        for f in concept.families
    )
    words = {usage.by: usage for usage in concept.words}
    cells = []
    for column in walk.columns:
        usage = words.get(column.id)
        said = "<i>none found</i>" if usage is None else md(usage.word)
        mark = f" {UNREAD}" if usage is not None and not usage.verified else ""
        cells.append(f'<td data-of="{attr(column.name)}">{said}{mark}</td>')
    return (
        f'<tr id="{attr(concept.id)}"><th scope="row">{md(concept.name)}'
        f"<span>{here}</span></th>{''.join(cells)}</tr>"
    )


def _ambiguity(ctx: Context, a: Ambiguity) -> str:
    rows = []
    for sense in a.senses:
        cited = ""
        if sense.source:
            cited = f" ({source(ctx, HERE, sense.source, _short(ctx, sense.source))})"
        mark = "" if sense.verified else f" {UNREAD}"
        rows.append(f"<dt>{md(sense.who)}</dt><dd>{md(sense.says)}{cited}{mark}</dd>")
    return (
        f"### {md(a.word)} {{ #{slug(a.id)} }}\n\n"
        f'<dl class="senses">{"".join(rows)}</dl>\n\n**Here.** {md(a.here)}'
    )


def _short(ctx: Context, cited: str) -> str:
    if cited in ctx.atlas.papers:
        p = ctx.atlas.papers[cited]
        return f"{p.authors[0].split()[-1]} {p.year}"
    return urlsplit(cited).netloc


def _dimensions(ctx: Context, walk: Crosswalk) -> str:
    names = {axis.id: axis.name for axis in ctx.atlas.axes}
    rows = ["| Langer's dimension | held here on | as |", "|---|---|---|"]
    for d in walk.dimensions:
        axes = listing(f"[{md(names[a])}]({a}/index.md)" for a in d.axes)
        rows.append(f"| {md(d.name)} | {axes} | {md(d.says)} |")
    return "\n".join(rows)
