"""The page of one system: facts, places, relations and likes, with their sources."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from atlas.site import address
from atlas.site.compare import compare_link
from atlas.site.systems import OURS
from atlas.site.technique import citation
from atlas.site.templating import markup, render
from atlas.site.text import attr, front, slug
from atlas.taxonomy import Axis, Family, Paper, Relation, System, Technique
from atlas.views.context import Context
from atlas.views.standing import (
    FORWARD,
    REVERSED,
    Like,
    by_age,
    holds,
    likeness,
    reverse,
    verified,
)

# What the values of two dimensions mean, for those who do not know the surveys.
WHERE = {
    "central": "central: one logical optimizer",
    "per-worker": "per worker: each has its own",
    "either": "either, as the user chooses",
}
UNANSWERED = {
    "not-its-concern": "left to its user",
    "not-found": "not found in its sources",
}
WHO = {
    "star": "star: through servers",
    "ring": "ring",
    "tree": "tree",
    "line": "line: stage to stage",
    "all": "whichever collective the library picks",
    "graph": "graph: neighbors only",
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
    read, statements = verified(s)
    facts = (("Hardware", s.hardware), ("Reported run", s.reported_run))
    made = render(
        "system.md.j2",
        s=s,
        here=here,
        edit=ctx.edit.rstrip("/"),
        front=markup(_front(s)),
        ours=OURS,
        facts=[(title, f.says, _source(ctx, s, f)) for title, f in facts if f],
        surveys=[(ctx.atlas.surveys[v], x.where) for v, x in s.surveys.items()],
        read=read,
        statements=statements,
        cells=list(_cells(ctx, s)),
        unanswered={a: UNANSWERED[why] for a, why in s.unanswered.items()},
        dimensions=list(_dimensions(ctx, s)),
        relations=_relations(ctx, s, around),
        likes=[_near(ctx, like) for like in around.likes[s.id]],
        papers=[citation(ctx.atlas.papers[k]) for k in s.papers],
        compare=lambda *others: markup(compare_link(ctx, s.id, here, *others)),
    )
    return made.strip() + "\n"


def _front(s: System) -> str:
    return front(
        s.name,
        description=s.summary,
        hide=["navigation"],
        # the search weighs tags most: other names lead here
        tags=[attr(n) for n in s.also_called],
        search={"boost": 1.5},
    )


@dataclass(frozen=True)
class Source:
    """Where a statement comes from, and whether it was read there."""

    read: bool
    to: str = ""
    name: str = ""
    where: str | None = None  # the place in the source


def _source(ctx: Context, s: System, said: Any) -> Source:
    if said.source is None:
        return Source(said.verified, where=said.where)
    if said.source in ctx.atlas.papers:
        to = address.link(home(s.id), f"papers.md#{slug(said.source)}")
        return Source(
            said.verified, to, brief(ctx.atlas.papers[said.source]), said.where
        )
    return Source(said.verified, said.source, site(said.source), said.where)


# Places


@dataclass(frozen=True)
class Cell:
    """A family or a technique that the system is placed in; neither: not placed."""

    axis: Axis
    family: Family | None = None
    technique: Technique | None = None
    rung: tuple[str, str] | None = None  # a class, and the words for it
    source: Source | None = None


def _cells(ctx: Context, s: System) -> Iterator[Cell]:
    for axis in ctx.atlas.axes:
        yield from list(_on(ctx, s, axis)) or [Cell(axis)]


def _on(ctx: Context, s: System, axis: Axis) -> Iterator[Cell]:
    families = ctx.atlas.families
    for use in s.uses:
        t = ctx.atlas.techniques[use.technique]
        if t.axis == axis.id:
            family = families[f"{t.axis}/{t.family}"]
            yield Cell(axis, family, t, _rung(ctx, t), _source(ctx, s, use))
    for cell in s.cells:
        if families[cell.family].axis == axis.id:
            source = _source(ctx, s, cell)
            yield Cell(axis, families[cell.family], source=source)


def _rung(ctx: Context, t: Technique) -> tuple[str, str]:
    if holds(ctx, t.id):
        return "ok", "run, and holds"
    if ctx.runs(t.id, "gloo"):
        return "bad", "a claim does not hold"
    return "none", "not run yet" if ctx.written(t) else "not written yet"


Dimension = tuple[str, list[tuple[str, str]], Source]  # title, (query, words), source


def _dimensions(ctx: Context, s: System) -> Iterator[Dimension]:
    """What the surveys ask beside the axes; a value leads to all that share it."""
    values: list[tuple[str, str]]
    if p := s.parallelism:
        values = [(f"par={kind}", kind) for kind in p.value]
        yield "What is split", values, _source(ctx, s, p)
    if o := s.optimizer_location:
        either = "opt=central,per-worker&all=opt"
        query = either if o.value == "either" else f"opt={o.value}"
        named = ", ".join(ctx.atlas.techniques[id].name for id in o.because)
        values = [(query, WHERE[o.value])]
        yield "Where the optimizer runs", values, Source(o.verified, name=named)
    if w := s.topology:
        values = [(f"topo={w.value}", WHO[w.value])]
        yield "Who talks to whom", values, _source(ctx, s, w)


# Other systems


def _relations(
    ctx: Context, s: System, around: Around
) -> dict[str, list[tuple[System, Source]]]:
    """What relates it to others, by the words for it."""
    kinds: dict[str, list[tuple[System, Source]]] = {}
    for r in s.relations:
        other = ctx.atlas.systems[r.system]
        kinds.setdefault(FORWARD[r.kind], []).append((other, _source(ctx, s, r)))
    for other, r in around.named_by.get(s.id, ()):
        kinds.setdefault(REVERSED[r.kind], []).append((other, _source(ctx, s, r)))
    return kinds


@dataclass(frozen=True)
class Near:
    """A system like this one, and the names of the techniques they share."""

    id: str
    name: str
    year: int
    shared: tuple[str, ...]


def _near(ctx: Context, like: Like) -> Near:
    other = ctx.atlas.systems[like.system]
    shared = tuple(ctx.atlas.techniques[t].name for t in like.shared)
    return Near(other.id, other.name, other.year, shared)


# Sources


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
