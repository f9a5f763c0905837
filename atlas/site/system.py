"""The page of one system: facts, places, relations and likes, with their sources."""

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from atlas.knowledge import Axis, Paper, Relation, System
from atlas.site import address
from atlas.site.compare import compare_link
from atlas.site.context import Context
from atlas.site.standing import (
    FORWARD,
    REVERSED,
    Like,
    by_age,
    holds,
    likeness,
    reverse,
    verified,
)
from atlas.site.systems import OURS
from atlas.site.technique import cite
from atlas.site.text import attr, front, md, raw, slug

# What the values of two dimensions mean, for those who do not know the surveys.
WHERE = {
    "central": "central: one logical optimizer",
    "per-worker": "per worker: each has its own",
    "either": "either, as the user chooses",
}
WHO = {
    "star": "star: through servers",
    "ring": "ring",
    "tree": "tree",
    "line": "line: stage to stage",
    "all": "whichever collective the library picks",
    "graph": "graph: neighbours only",
    "host": "one device and its host's memory",
}


@dataclass(frozen=True)
class Around:
    """What a system's page needs to know of the other systems, computed once."""

    likes: dict[str, list[Like]]
    named_by: dict[str, list[tuple[System, Relation]]]


def pages(ctx: Context) -> dict[str, str]:
    """The page of every system, by its file."""
    around = Around(likeness(ctx.atlas), reverse(ctx.atlas))
    return {home(s.id): page(ctx, s, around) for s in by_age(ctx.atlas)}


def home(system: str) -> str:
    """The file of a system's page."""
    return f"systems/{system}.md"


def page(ctx: Context, s: System, around: Around) -> str:
    """One system, as Markdown around tables of plain HTML."""
    here = home(s.id)
    head = front(
        s.name,
        description=s.summary,
        hide=["navigation"],
        # the search weighs tags most: other names lead here
        tags=[attr(n) for n in s.also_called],
        search={"boost": 1.5},
    )
    also = ""
    if s.also_called:
        names = ", ".join(md(n) for n in s.also_called)
        also = f'<p class="quiet">Also called {names}.</p>\n'
    parts = [
        head + address.assets(here, "systems.css"),
        f'<p class="crumb"><a href="{address.link(here, "systems/index.md")}">Systems'
        f"</a> › {s.year}</p>",
        f"# {md(s.name)}",
        f'<p class="lede">{md(s.summary)}</p>\n{also}{_facts(ctx, s)}\n'
        f"{_actions(ctx, s, around)}",
        "## On the axes",
        f"{OURS}\n\n{raw(_cells(ctx, s))}",
        "## Relations",
        _relations(ctx, s, around),
        "## Systems most like it",
        _likes(ctx, s, around),
        "## Papers",
        _papers(ctx, s),
        _data(ctx, s),
    ]
    return "\n\n".join(parts) + "\n"


def _link(ctx: Context, s: System, to: str, text: str) -> str:
    return f'<a href="{attr(address.link(home(s.id), to))}">{md(text)}</a>'


def _filtered(ctx: Context, s: System, query: str, text: str) -> str:
    """A value that leads to all systems which share it."""
    return _link(ctx, s, f"systems/index.md?{query}", text)


def _facts(ctx: Context, s: System) -> str:
    year = _filtered(ctx, s, f"from={s.year}&to={s.year}", str(s.year))
    if s.venue_year and s.venue_year != s.year:
        year += f", published {s.venue_year}"
    rows = [
        ("First appeared", year),
        ("Status", _filtered(ctx, s, f"status={s.status}", s.status)),
    ]
    if s.made_by:
        rows.append(("Made by", md(s.made_by)))
    if s.licence:
        rows.append(("Licence", md(s.licence)))
    if s.home:
        shown = s.home.split("://", 1)[1].rstrip("/")
        rows.append(("Home", f'<a href="{attr(s.home)}">{md(shown)}</a>'))
    for title, fact in (("Hardware", s.hardware), ("Largest run", s.largest_run)):
        if fact:
            source = _source(ctx, s, fact.source, fact.verified)
            rows.append((title, f"{md(fact.says)} {source}"))
    if s.surveys:
        rows.append(("Named by", ", ".join(_survey(ctx, s, v) for v in s.surveys)))
    read, of = verified(s)
    if of:
        rows.append(("Checked", f"{read} of {of} statements read in their source"))
    body = "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in rows)
    return f'<dl class="facts">{body}</dl>'


def _survey(ctx: Context, s: System, survey: str) -> str:
    name = ctx.atlas.surveys[survey].name
    whole = f'<span class="sr"> that {md(name)} names</span>'
    others = address.link(home(s.id), f"systems/index.md?survey={survey}")
    return (
        _link(ctx, s, f"surveys/{survey}.md", name)
        + f' <a class="vs" href="{others}">systems{whole}</a>'
    )


def _actions(ctx: Context, s: System, around: Around) -> str:
    links = [f'<a href="{compare_link(ctx, s.id, home(s.id))}">Compare …</a>']
    for like in around.likes[s.id][:2]:
        to = compare_link(ctx, s.id, home(s.id), like.system)
        other = ctx.atlas.systems[like.system].name
        links.append(f'<a href="{to}">Compare with {md(other)}</a>')
    to = address.link(home(s.id), f"timeline.md#y{s.year}")
    links.append(f'<a href="{to}">On the timeline</a>')
    return f'<p class="actions">{"".join(links)}</p>'


def _cells(ctx: Context, s: System) -> str:
    rows = [row for axis in ctx.atlas.axes for row in _axis(ctx, s, axis)]
    if p := s.parallelism:
        here = ", ".join(_filtered(ctx, s, f"par={kind}", kind) for kind in p.value)
        rows.append(("What is split", here, "", _source(ctx, s, p.source, p.verified)))
    if o := s.optimizer_location:
        query = "opt=central,per-worker&all=opt" if o.value == "either" else ""
        here = _filtered(ctx, s, query or f"opt={o.value}", WHERE[o.value])
        source = _source(ctx, s, o.source, o.verified)
        rows.append(("Where the optimizer runs", here, "", source))
    if w := s.topology:
        here = _filtered(ctx, s, f"topo={w.value}", WHO[w.value])
        rows.append(
            ("Who talks to whom", here, "", _source(ctx, s, w.source, w.verified))
        )
    body = "\n".join(
        f'<tr><th scope="row">{a}</th>'
        + "".join(f"<td>{x}</td>" for x in more)
        + "</tr>"
        for a, *more in rows
    )
    return _table(("Dimension", "Here", "Run by this project", "Source"), body)


def _axis(ctx: Context, s: System, axis: Axis) -> Iterator[tuple[str, str, str, str]]:
    name = _link(ctx, s, f"{axis.id}/index.md", axis.name)
    found = False
    for use in s.uses:
        t = ctx.atlas.techniques[use.technique]
        if t.axis != axis.id:
            continue
        found = True
        family = ctx.atlas.families[f"{t.axis}/{t.family}"]
        here = _link(ctx, s, f"{t.path}.md", t.name)
        of = _link(ctx, s, f"{family.path}/index.md", family.name)
        here += f'<span class="of">{of}</span>'
        yield name, here, _run(ctx, t.id), _source(ctx, s, use.source, use.verified)
    for cell in s.cells:
        family = ctx.atlas.families[cell.family]
        if family.axis != axis.id:
            continue
        found = True
        here = _link(ctx, s, f"{cell.family}/index.md", family.name)
        yield name, here, "", _source(ctx, s, cell.source, cell.verified)
    if not found:
        yield name, '<span class="none">not placed yet</span>', "", ""


def _run(ctx: Context, technique: str) -> str:
    t = ctx.atlas.techniques[technique]
    if holds(ctx, technique):
        return '<span class="rung ok">run, and holds</span>'
    if ctx.runs(technique, "gloo"):
        return '<span class="rung bad">a claim does not hold</span>'
    word = "not run yet" if ctx.written(t) else "not written yet"
    return f'<span class="rung none">{word}</span>'


def _table(heads: tuple[str, ...], body: str) -> str:
    top = "".join(f'<th scope="col">{h}</th>' for h in heads)
    return (
        '<div class="cells-box"><table class="cells">'
        f"<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _source(ctx: Context, s: System, source: str | None, read: bool) -> str:
    mark = "read" if read else "not verified"
    kind = "read" if read else "unread"
    mark = f'<span class="{kind}">{mark}</span>'
    if source is None:
        return mark
    if source in ctx.atlas.papers:
        named = brief(ctx.atlas.papers[source])
        return f"{_link(ctx, s, f'papers.md#{slug(source)}', named)} {mark}"
    return f'<a href="{attr(source)}">{md(site(source))}</a> {mark}'


def site(address: str) -> str:
    """A link in a few words: its host, and on a forge its repository."""
    parts = urlsplit(address)
    host = parts.netloc.removeprefix("www.")
    deep = 3 if host in ("github.com", "gitlab.com", "huggingface.co") else 1
    return "/".join([host, *parts.path.strip("/").split("/")][:deep]).rstrip("/")


def brief(p: Paper) -> str:
    """The first author's last name and the year."""
    first = p.authors[0] if p.authors else p.key
    last = first.split(",")[0] if "," in first else first.split()[-1]
    return f"{last} {p.year}"


def _relations(ctx: Context, s: System, around: Around) -> str:
    kinds: dict[str, list[str]] = {}
    for r in s.relations:
        item = _relation(ctx, s, ctx.atlas.systems[r.system], r)
        kinds.setdefault(FORWARD[r.kind], []).append(item)
    for other, r in around.named_by.get(s.id, ()):
        kinds.setdefault(REVERSED[r.kind], []).append(_relation(ctx, s, other, r))
    if not kinds:
        return "No relation to another system is recorded."
    body = "".join(
        f"<div><dt>{words.capitalize()}</dt><dd><ul>{''.join(items)}</ul></dd></div>"
        for words, items in kinds.items()
    )
    return raw(f'<dl class="relations">{body}</dl>')


def _relation(ctx: Context, s: System, other: System, r: Relation) -> str:
    name = _link(ctx, s, home(other.id), other.name)
    source = _source(ctx, s, r.source, r.verified)
    return f"<li>{name}, {other.year} {source} {_versus(ctx, s, other)}</li>"


def _versus(ctx: Context, s: System, other: System) -> str:
    to = compare_link(ctx, s.id, home(s.id), other.id)
    told = f'<span class="sr"> with {md(other.name)}</span>'
    return f'<a class="vs" href="{to}">compare{told}</a>'


def _likes(ctx: Context, s: System, around: Around) -> str:
    lines = []
    for like in around.likes[s.id]:
        other = ctx.atlas.systems[like.system]
        names = ", ".join(md(ctx.atlas.techniques[t].name) for t in like.shared)
        name = _link(ctx, s, home(other.id), other.name)
        versus = _versus(ctx, s, other)
        lines.append(f"<li>{name}, {other.year}: {names} {versus}</li>")
    if not lines:
        return "No other system here uses a technique that it uses."
    return (
        "By what they share of techniques and families; what few systems have weighs "
        "more.\n\n" + raw(f'<ul class="likes">{"".join(lines)}</ul>')
    )


def _papers(ctx: Context, s: System) -> str:
    lines = [
        f"- {cite(ctx.atlas.papers[k])} [What rests on it](../papers.md#{slug(k)})"
        for k in s.papers
    ]
    return "\n".join(lines) or "No paper is recorded."


def _data(ctx: Context, s: System) -> str:
    path = s.yaml.as_posix()
    shown = f"<code>{path}</code>"
    if ctx.edit:
        shown = f'<a href="{attr(ctx.edit.rstrip("/"))}/{path}">edit {path}</a>'
    return f'<p class="quiet files">Data: {shown}</p>'
