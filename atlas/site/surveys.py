"""A page for each survey: its taxonomy, its results, and what became of them here."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from atlas.site import address
from atlas.site.papers import source
from atlas.site.templating import markup, render
from atlas.site.text import front, number
from atlas.taxonomy import Comparison, Survey, System, Technique
from atlas.taxonomy.kinds import Figure
from atlas.taxonomy.relation import parse
from atlas.views.context import Context
from atlas.views.papers import entries
from atlas.views.proof import all_hold

INDEX = "surveys.md"
READ = {
    "paper": "read in the paper",
    "translation": "read in a machine translation of the paper",
    "figure": "read off a figure in the paper",
    "abstract": "read in the abstract",
    "report": "read in the authors' earlier technical report",
    "draft": "read in a draft of the paper",
}
# The pages on the tables of a survey: name and file, by the survey.
TABLES = {
    "langer2020": (
        ("Langer's table, held against ours", "surveys/langer-table.md"),
        ("Langer's least delays", "surveys/langer-delays.md"),
    ),
    "kahira2021": (("ParaDL's tables, executed", "surveys/paradl-tables.md"),),
}
# The words of a badge, and its color.
VERDICTS = {
    "agrees": ("agrees", ""),
    "in-part": ("agrees in part", "warn"),
    "differs": ("differs", "bad"),
}
UNRECORDED = ("not recorded", "warn")
OUTDATED = ("our records no longer say so", "bad")
# Which of the ranks' values a figure is: how it is found, and how it is called.
PICK: dict[str, tuple[Callable[[list[float]], float], str]] = {
    "largest": (max, ""),
    "smallest": (min, ", smallest over the ranks"),
    "sum": (sum, ", summed over the ranks"),
}


def pages(ctx: Context) -> dict[str, str]:
    """A page for each survey, by file."""
    texts = entries(source(ctx))
    surveys = ctx.atlas.surveys.values()
    return {home(v): page(ctx, v, texts[v.paper]) for v in surveys}


def home(v: Survey) -> str:
    """The file of a survey's page."""
    return f"surveys/{v.id}.md"


@dataclass(frozen=True)
class Summary:
    """A survey in the list: what it names, what of it runs, and what agrees."""

    survey: Survey
    techniques: list[Technique]
    systems: list[System]
    running: int
    agreeing: int


def index(ctx: Context) -> str:
    """The surveys side by side."""
    found = [_summary(ctx, v) for v in ctx.atlas.surveys.values()]
    return render("surveys.md.j2", surveys=found).strip()


def _summary(ctx: Context, v: Survey) -> Summary:
    named = techniques(ctx, v)
    agreeing = sum(c.verdict == "agrees" for c in v.comparisons)
    return Summary(v, named, systems(ctx, v), _running(ctx, named), agreeing)


def techniques(ctx: Context, v: Survey) -> list[Technique]:
    """The techniques that the survey names, by their place."""
    found = [t for t in ctx.atlas.techniques.values() if v.id in t.surveys]
    return sorted(found, key=lambda t: t.path)


def systems(ctx: Context, v: Survey) -> list[System]:
    """The systems that the survey names, oldest first."""
    found = [s for s in ctx.atlas.systems.values() if v.id in s.surveys]
    return sorted(found, key=lambda s: (s.year, s.id))


def _running(ctx: Context, named: list[Technique]) -> int:
    return sum(bool(ctx.runs(t.id, "gloo")) for t in named)


def page(ctx: Context, v: Survey, bibtex: str) -> str:
    """One survey, in an order that never changes."""
    atlas = ctx.atlas
    paper, named = atlas.papers[v.paper], techniques(ctx, v)
    head = front(v.name, description=v.about or paper.title, hide=["navigation"])
    made = render(
        "survey.md.j2",
        here=home(v),
        front=markup(head),
        v=v,
        tables=TABLES.get(v.id, ()),
        paper=paper,
        bibtex=bibtex,
        terms=[(x, [atlas.families[f] for f in x.families]) for x in v.terms],
        results=[
            (r, READ[r.read], [atlas.techniques[t] for t in r.techniques])
            for r in v.results
        ],
        named=[_named(ctx, v, t) for t in named],
        running=_running(ctx, named),
        systems=systems(ctx, v),
        compared=[_compared(ctx, c) for c in v.comparisons],
    )
    return made.strip() + "\n"


@dataclass(frozen=True)
class Named:
    """A technique that a survey names, and how it runs here."""

    technique: Technique
    term: str | None
    where: str
    written: bool
    sizes: list[int]
    holds: bool


def _named(ctx: Context, v: Survey, t: Technique) -> Named:
    sizes, holds = ctx.sizes(t.id, "gloo"), all_hold(ctx, t, "gloo")
    said = t.surveys[v.id]
    return Named(t, said.as_, said.where, ctx.written(t), sizes, holds)


@dataclass(frozen=True)
class Seen:
    """A comparison's figures as the records have them; a missing one is left out."""

    values: dict[str, float]
    holds: bool | None  # None: a figure is missing


def seen(ctx: Context, c: Comparison) -> Seen:
    """What the records say about a comparison."""
    values: dict[str, float] = {}
    for f in c.figures:
        t = ctx.atlas.techniques[f.technique]
        runs = ctx.runs(f.technique, "gloo")
        run = next((r for r in runs if int(r["p"]) == f.ranks), None)
        verdicts = ctx.verdicts(t, run) if run else []
        of = [v.measured for v in verdicts if v.claim == f.claim]
        if of and None not in of:
            pick, _ = PICK[f.of]
            values[f.name] = pick(of)
    whole = len(values) == len(c.figures)
    return Seen(values, parse(c.holds).holds(values) if whole else None)


@dataclass(frozen=True)
class Measured:
    """A figure of a comparison: of which claim, and what the records have."""

    name: str
    technique: Technique
    says: str
    error: bool
    which: str
    ranks: int
    value: float | None


def _measured(ctx: Context, f: Figure, found: Seen) -> Measured:
    t = ctx.atlas.techniques[f.technique]
    claim = t.claim(f.claim)
    error = claim.kind in ("equal", "close")
    value = found.values.get(f.name)
    _, which = PICK[f.of]
    return Measured(f.name, t, claim.says, error, which, f.ranks, value)


@dataclass(frozen=True)
class Related:
    """A relation as it is written, and with its numbers where all are recorded."""

    texts: tuple[str, ...]
    signs: tuple[str, ...]
    values: list[str]
    holds: bool


def _related(c: Comparison, found: Seen) -> Iterator[Related]:
    for chain in parse(c.holds).chains:
        if found.holds is None:
            yield Related(chain.texts, chain.marks, [], False)
            continue
        values = [number(value) for value in chain.values(found.values)]
        yield Related(chain.texts, chain.marks, values, chain.holds(found.values))


@dataclass(frozen=True)
class Compared:
    """A statement of the survey, our verdict in a word, and what it rests on."""

    comparison: Comparison
    word: str
    kind: str
    figures: list[Measured]
    chains: list[Related]


def _compared(ctx: Context, c: Comparison) -> Compared:
    found = seen(ctx, c)
    word, kind = VERDICTS[c.verdict]
    if found.holds is None:
        word, kind = UNRECORDED
    elif not found.holds:
        word, kind = OUTDATED
    figures = [_measured(ctx, f, found) for f in c.figures]
    return Compared(c, word, kind, figures, list(_related(c, found)))


# What docs/surveys.md may mark, as `{{ name }}`.
PLACES: Mapping[str, Callable[[Context], object]] = {
    "assets": lambda ctx: address.assets(INDEX, "terms.css"),
    "surveys": index,
}
