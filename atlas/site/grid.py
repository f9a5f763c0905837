"""Langer's grid: where the optimizer runs, by how its steps are scheduled."""

from atlas.site import address
from atlas.site.matrix import DOWN, coordinates, counted, families
from atlas.site.text import attr, front, md, raw
from atlas.taxonomy import System, Technique
from atlas.views import standing
from atlas.views.context import Context

HERE = "grid.md"
ROWS = {
    "central": (
        "Central optimizer",
        "One logical optimizer: workers hand in gradients, and every parameter has one "
        "value that an update changes, wherever it is stored.",
    ),
    "per-worker": (
        "Optimizer per worker",
        "Every worker owns an optimizer and parameters of its own, explores with them, "
        "and what the workers found is merged.",
    ),
}
COLUMNS = {
    "synchronous": ("Synchronous", "All finish a step, or a round, before the next."),
    "bounded": ("Bounded", "Some may run ahead, by no more than a known distance."),
    "asynchronous": ("Asynchronous", "Nobody waits: updates count when they arrive."),
}
# How each family of the sync axis schedules; the page says why.
SCHEDULE = {
    "synchronous": "synchronous",
    "bounded-staleness": "bounded",
    "asynchronous": "asynchronous",
    "periodic": "synchronous",
    "consensus": "synchronous",
    "pipeline-flush": "synchronous",
    "pipeline-stale": "bounded",
    "layer-local": "asynchronous",
}
# Families whose workers step on copies of their own; the rest have one optimizer.
PER_WORKER = ("periodic", "consensus")
# Techniques of the asynchronous family that merge copies instead of gradients.
MERGING = ("elastic-averaging-asynchronous", "asynchronous-gossip")
WHY = (
    (
        "What central means here",
        "Langer and others ask where the optimizer runs, not what the network looks "
        "like. A parameter server is central, and so is all-reduce: every worker "
        "applies the same update to the same parameters, so there is one optimizer in "
        "effect. That last step is our reading of their definition. Elastic averaging, "
        "SparkNet and D-PSGD are not central, though the first two have a node in the "
        "middle: there every worker optimizes parameters of its own, and the node only "
        "merges.",
    ),
    (
        "Not the other decentralized",
        "Lian and others, and most papers since, call training decentralized when no "
        "node of the network is special. That is a question of topology, which the "
        "atlas keeps apart: it is a column of the table of systems.",
    ),
    (
        "How the columns follow from the sync axis",
        "Periodic and consensus training are synchronous here: workers step alone, but "
        "each waits for its partners at every merge. A pipeline that flushes is "
        "synchronous; one that does not is bounded, since a stage's weights are at "
        "most as many updates old as there are stages after it. Layer-local training "
        "is asynchronous: no block waits for the gradient of a later one.",
    ),
)


def row_of(t: Technique) -> str:
    """Where a technique's optimizer runs."""
    merges = coordinates(t).get(DOWN) in PER_WORKER or t.id in MERGING
    return "per-worker" if merges else "central"


def rows_of(s: System) -> tuple[str, ...]:
    """Where a system's optimizer runs, as its file says; either means both."""
    where = s.optimizer_location
    if where is None:
        return ()
    return tuple(ROWS) if where.value == "either" else (where.value,)


def columns_of(ctx: Context, s: System) -> list[str]:
    """How a system schedules, from its families on the sync axis."""
    found = {SCHEDULE[f] for f in families(ctx, s)[DOWN]}
    return [c for c in COLUMNS if c in found]


def techniques(ctx: Context, row: str, column: str) -> list[Technique]:
    """The techniques of a cell, oldest first."""
    found = [
        t
        for t in ctx.atlas.techniques.values()
        if row_of(t) == row and SCHEDULE.get(coordinates(t).get(DOWN, "")) == column
    ]
    return sorted(found, key=lambda t: (t.since, t.id))


def systems(ctx: Context, row: str, column: str) -> list[System]:
    """The systems of a cell, oldest first."""
    return [
        s
        for s in standing.by_age(ctx.atlas)
        if row in rows_of(s) and column in columns_of(ctx, s)
    ]


def page(ctx: Context) -> str:
    """The whole view."""
    heads = "".join(
        f'<th scope="col">{name}<span class="quiet">{says}</span></th>'
        for name, says in COLUMNS.values()
    )
    body = "".join(_row(ctx, row) for row in ROWS)
    parts = [
        front(
            "Langer's grid",
            description="Where the optimizer runs, by how its steps are scheduled.",
            hide=["navigation", "toc"],
        ),
        "# Langer's grid",
        '<p class="lede">Where does the optimizer run, and who waits for whom? Two '
        "answers to the first and three to the second make six kinds of training.</p>",
        address.assets(HERE, "views.css"),
        raw(
            '<table class="six"><caption class="sr">Rows: where the optimizer runs. '
            "Columns: how steps are "
            f"scheduled.</caption><thead><tr><td></td>{heads}</tr></thead>"
            f"<tbody>{body}</tbody></table>"
        ),
        _unplaced(ctx),
        *(f"## {title}\n\n{text}" for title, text in WHY),
        "The dimensions are those of "
        f"[{md('Langer and others (2020)')}](papers.md#langer2020distributed); which "
        "technique and which system stands where is this project's own classification, "
        "and the systems' pages name the source of every cell.",
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def _row(ctx: Context, row: str) -> str:
    name, says = ROWS[row]
    cells = "".join(_cell(ctx, row, column) for column in COLUMNS)
    return (
        f'<tr><th scope="row">{name}<span class="quiet">{says}</span></th>{cells}</tr>'
    )


def _cell(ctx: Context, row: str, column: str) -> str:
    ours, theirs = techniques(ctx, row, column), systems(ctx, row, column)
    name = f"{ROWS[row][0]}, {COLUMNS[column][0].lower()}"
    ident = f"{row}.{column}"
    parts = [
        f'<td id="{ident}"><h3><a href="#{ident}">'
        f'<span class="narrow">{attr(name)}: </span><span class="broad">'
        f"{counted(len(ours), 'technique')}, "
        f"{counted(len(theirs), 'system')}</span></a></h3>"
    ]
    for title, found in (
        ("Techniques", [_link(f"{t.path}.md", t.name, t.since) for t in ours]),
        ("Systems", [_link(f"systems/{s.id}.md", s.name, s.year) for s in theirs]),
    ):
        none = "no known system" if title == "Systems" else "none described yet"
        inside = (
            f"<ul>{''.join(found)}</ul>" if found else f'<p class="none">{none}</p>'
        )
        parts.append(f"<h4>{title}</h4>{inside}")
    return "".join(parts) + "</td>"


def _link(to: str, name: str, year: int) -> str:
    where = address.link(HERE, to)
    return f'<li><a href="{where}" title="{year}">{md(name)}</a></li>'


def _unplaced(ctx: Context) -> str:
    """Systems whose file does not say where the optimizer runs, or how it waits."""
    left = [
        _link(f"systems/{s.id}.md", s.name, s.year)
        for s in standing.by_age(ctx.atlas)
        if not rows_of(s) or not columns_of(ctx, s)
    ]
    if not left:
        return ""
    return (
        f'<details class="ranks"><summary>{counted(len(left), "system")} without a '
        "place: where the optimizer runs is not recorded</summary>"
        f'<ul class="columns">{"".join(left)}</ul></details>'
    )
