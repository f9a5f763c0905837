"""A page for each survey: its taxonomy, its results, and what became of them here."""

from collections.abc import Callable
from dataclasses import dataclass

from atlas.site import address
from atlas.site.crosswalk import UNREAD
from atlas.site.papers import copyable, links, source
from atlas.site.text import front, listing, md, number, slug
from atlas.taxonomy import Comparison, Survey
from atlas.taxonomy.relation import Chain, parse
from atlas.views.context import Context
from atlas.views.papers import entries
from atlas.views.proof import all_hold

INDEX = "surveys.md"
READ = {
    "paper": "read in the paper",
    "translation": "read in a machine translation of the paper",
    "figure": "read off a figure of the paper",
    "abstract": "read in the abstract",
    "report": "read in the authors' earlier technical report",
    "draft": "read in a draft of the paper",
}
VERDICTS = {
    "agrees": ("agrees", ""),
    "in-part": ("agrees in part", "warn"),
    "differs": ("differs", "bad"),
}
PICK: dict[str, Callable[[list[float]], float]] = {
    "largest": max,
    "smallest": min,
    "sum": sum,
}


def pages(ctx: Context) -> dict[str, str]:
    """The index and a page a survey, by file."""
    out = {INDEX: index(ctx)}
    texts = entries(source(ctx))
    for v in ctx.atlas.surveys.values():
        out[home(v)] = page(ctx, v, texts[v.paper])
    return out


def home(v: Survey) -> str:
    """The file of a survey's page."""
    return f"surveys/{v.id}.md"


def index(ctx: Context) -> str:
    """The surveys side by side."""
    parts = [
        front("Surveys", description="The five surveys the atlas stands on.")
        + address.assets(INDEX, "terms.css"),
        "# The surveys",
        "The atlas stands on five surveys. Each has a page: its taxonomy in our words, "
        "its results with where they were read, what of it runs here, and whether our "
        "runs agree. Their conflicting words are laid side by side in the "
        "[crosswalk](crosswalk.md).",
    ]
    for v in ctx.atlas.surveys.values():
        named = techniques(ctx, v)
        run = [t for t in named if ctx.runs(t, "gloo")]
        systems = systems_of(ctx, v)
        verdicts = [c.verdict for c in v.comparisons]
        counts = [
            counted(len(v.terms), "term"),
            f"{counted(len(named), 'technique')}, {len(run)} of them run",
            counted(len(systems), "system"),
        ]
        if verdicts:
            agree = sum(x == "agrees" for x in verdicts)
            counts.append(f"{agree} of {len(verdicts)} statements agree with our runs")
        parts.append(f"## [{md(v.name)}]({home(v)}) {{ #{slug(v.id)} }}")
        parts.append(md(v.about) if v.about else f"Read: {md(v.read)}.")
        parts.append(f'<p class="quiet">{md(" · ".join(counts))}</p>')
    if not ctx.atlas.surveys:
        parts.append("No survey is filed yet.")
    return "\n\n".join(parts) + "\n"


def counted(n: int, word: str) -> str:
    """A number of things, in words: no systems, 1 system, 2 systems."""
    return f"{n or 'no'} {word}{'' if n == 1 else 's'}"


def techniques(ctx: Context, v: Survey) -> list[str]:
    """The techniques that the survey names, by their place."""
    found = [t for t in ctx.atlas.techniques.values() if v.id in t.surveys]
    return [t.id for t in sorted(found, key=lambda t: t.path)]


def systems_of(ctx: Context, v: Survey) -> list[str]:
    """The systems that the survey names, oldest first."""
    found = [s for s in ctx.atlas.systems.values() if v.id in s.surveys]
    return [s.id for s in sorted(found, key=lambda s: (s.year, s.id))]


def page(ctx: Context, v: Survey, text: str) -> str:
    """One survey, in an order that never changes."""
    paper = ctx.atlas.papers[v.paper]
    bodies = (
        _identity(ctx, v, text),
        "\n\n".join([*map(md, v.taxonomy), _terms(ctx, v)]),
        _results(ctx, v),
        _here(ctx, v),
        _comparisons(ctx, v),
    )
    titles = (
        "The paper",
        "Its taxonomy, in our words",
        "Headline results",
        "What of it runs here",
        "What our runs say to it",
    )
    parts = [
        front(v.name, description=v.about or paper.title, hide=["navigation"])
        + address.assets(home(v), "terms.css"),
        '<p class="crumb" markdown>[The surveys](../surveys.md)</p>',
        f"# {md(v.name)}",
        f'<p class="lede">{md(v.about or paper.title)}</p>',
    ]
    parts += [f"## {t}\n\n{b}" for t, b in zip(titles, bodies, strict=True)]
    return "\n\n".join(parts) + "\n"


def _identity(ctx: Context, v: Survey, text: str) -> str:
    p = ctx.atlas.papers[v.paper]
    venue = f" {md(p.venue)}." if p.venue else ""
    rows = [
        f"{md(listing(p.authors))} ({p.year}). *{md(p.title)}.*{venue} {links(p)}",
        f"**Read for this page:** {md(v.read)}.",
    ]
    if v.notes:
        rows.append("\n".join(f"- {md(note)}" for note in v.notes))
    rows.append(f'<div class="paper">{copyable(text)}</div>')
    rows.append(f"[What else rests on it](../papers.md#{slug(p.key)})")
    return "\n\n".join(rows)


def _terms(ctx: Context, v: Survey) -> str:
    rows = ["| its word | what it means | here |", "|---|---|---|"]
    for term in v.terms:
        here = ", ".join(
            f"[{md(ctx.atlas.families[f].name)}](../{f}/index.md)"
            for f in term.families
        )
        says = md(term.says) + ("" if term.verified else f" {UNREAD}")
        rows.append(f"| {md(term.term)} | {says} | {here} |")
    return "\n".join(rows)


def _results(ctx: Context, v: Survey) -> str:
    if not v.results:
        return "No result is recorded yet."
    rows = []
    for r in v.results:
        about = listing(_technique(ctx, t) for t in r.techniques)
        see = f" Here: {about}." if about else ""
        rows.append(f'- {md(r.says)} <span class="read">{READ[r.read]}</span>{see}')
    return "\n".join(rows)


def _technique(ctx: Context, ident: str) -> str:
    t = ctx.atlas.techniques[ident]
    return f"[{md(t.name)}](../{t.path}.md)"


def _here(ctx: Context, v: Survey) -> str:
    named = techniques(ctx, v)
    run = [t for t in named if ctx.runs(t, "gloo")]
    systems = systems_of(ctx, v)
    parts = [
        f"It names {counted(len(named), 'technique')} of the atlas, {len(run)} of "
        f"which run here, and {counted(len(systems), 'system')} of the atlas."
    ]
    if named:
        rows = ["| technique | its name there | runs here |", "|---|---|---|"]
        rows += [_named(ctx, v, ident) for ident in named]
        parts.append("\n".join(rows))
    if systems:
        listed = listing(
            f"[{md(ctx.atlas.systems[s].name)}](../systems/{s}.md)" for s in systems
        )
        parts.append(f"**Systems.** {listed}.")
    return "\n\n".join(parts)


def _named(ctx: Context, v: Survey, ident: str) -> str:
    t = ctx.atlas.techniques[ident]
    sizes = ctx.sizes(ident, "gloo")
    runs = "exemplar not written yet"
    if sizes:
        good = "every claim holds" if all_hold(ctx, t, "gloo") else "a claim fails"
        runs = f"on {listing(sizes)} ranks; {good}"
    elif ctx.written(t):
        runs = "not recorded yet"
    return f"| {_technique(ctx, ident)} | {md(t.surveys[v.id])} | {runs} |"


@dataclass(frozen=True)
class Seen:
    """A comparison's figures as the records have them; a missing one is left out."""

    values: dict[str, float]
    holds: bool | None  # None: a figure is missing


def seen(ctx: Context, c: Comparison) -> Seen:
    """What the records say to a comparison."""
    values: dict[str, float] = {}
    for f in c.figures:
        t = ctx.atlas.techniques[f.technique]
        runs = ctx.runs(f.technique, "gloo")
        run = next((r for r in runs if int(r["p"]) == f.ranks), None)
        verdicts = ctx.verdicts(t, run) if run else []
        of = [v.measured for v in verdicts if v.claim == f.claim]
        if of and None not in of:
            values[f.name] = PICK[f.of](of)
    whole = len(values) == len(c.figures)
    return Seen(values, parse(c.holds).holds(values) if whole else None)


def _comparisons(ctx: Context, v: Survey) -> str:
    if not v.comparisons:
        return "Nothing is compared yet."
    intro = (
        "A statement of the survey, then what the recorded runs say. The numbers are "
        "read from the records when the page is built, and the relation between them "
        "is evaluated then."
    )
    return "\n\n".join([intro, *(_comparison(ctx, v, c) for c in v.comparisons)])


def _comparison(ctx: Context, v: Survey, c: Comparison) -> str:
    found = seen(ctx, c)
    word, kind = VERDICTS[c.verdict]
    if found.holds is None:
        word, kind = "not recorded", "warn"
    elif not found.holds:
        word, kind = "our records no longer say so", "bad"
    rows = "".join(_figure(ctx, v, c, found, i) for i in range(len(c.figures)))
    chains = parse(c.holds).chains
    shown = "".join(f"<div>{_chain(chain, found)}</div>" for chain in chains)
    return (
        f"### {md(c.says)} {{ #{slug(c.id)} }}\n\n"
        f'<p class="badges"><span class="badge {kind}">{word}</span></p>\n\n'
        f"{md(c.here)}\n\n"
        f'<div class="held"><table class="held-table"><tbody>{rows}</tbody></table>'
        f'<div class="relation">{shown}</div></div>'
    )


def _figure(ctx: Context, v: Survey, c: Comparison, found: Seen, i: int) -> str:
    f = c.figures[i]
    t = ctx.atlas.techniques[f.technique]
    claim = t.claim(f.claim)
    error = claim.kind in ("equal", "close")
    what = f"error of: {claim.says}" if error else claim.says
    which = {"largest": "", "smallest": ", the smallest", "sum": ", in all"}[f.of]
    value = number(found.values[f.name]) if f.name in found.values else "not recorded"
    to = address.link(home(v), f"{t.path}.md")
    return (
        f'<tr><th scope="row"><code>{md(f.name)}</code></th>'
        f'<td><a href="{to}">{md(t.name)}</a>, {md(what)}{which}, '
        f"{f.ranks} rank{'' if f.ranks == 1 else 's'}</td>"
        f'<td class="number">{value}</td></tr>'
    )


def _chain(chain: Chain, found: Seen) -> str:
    """The comparison as written, and with its numbers."""
    written = _joined([f"<code>{md(t)}</code>" for t in chain.texts], chain)
    if found.holds is None:
        return written
    values = [number(value) for value in chain.values(found.values)]
    mark = "✓" if chain.holds(found.values) else "✗"
    return f"{written}: {_joined(values, chain)} {mark}"


def _joined(sides: list[str], chain: Chain) -> str:
    signs = [md(mark) for mark in chain.marks]
    rest = [f" {s} {side}" for s, side in zip(signs, sides[1:], strict=True)]
    return sides[0] + "".join(rest)
