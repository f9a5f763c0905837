"""What the front page shows: every technique by axis and family, and the counts."""

from collections.abc import Iterator

from atlas.knowledge import Axis, Technique
from atlas.site import address
from atlas.site.context import BACKENDS, Context
from atlas.site.evidence import all_hold, caught
from atlas.site.text import md, raw

HERE = "index.md"
RUNGS = {"gloo": "gloo", "dry": "dry", "emulated": "emulated GPU", "nccl": "NCCL"}
LADDER = BACKENDS


def state(ctx: Context, t: Technique, backend: str) -> tuple[str, str]:
    """How a technique stands on a rung: a class, and the words for it."""
    if not ctx.sizes(t.id, backend):
        return "none", "not yet run"
    if ctx.stale(t.id, backend):
        return "old", "recorded from an older source"
    if not all_hold(ctx, t, backend):
        return "bad", "a claim does not hold"
    return "ok", "holds"


def climbed(ctx: Context, t: Technique) -> str:
    """Four digits, one a rung: 1 where it was run and every claim held."""
    return "".join("1" if state(ctx, t, b)[0] == "ok" else "0" for b in LADDER)


def proven(ctx: Context, t: Technique) -> str:
    """Four small marks: which rungs this technique has climbed."""
    if not ctx.written(t):
        return (
            '<span class="rungs"><span class="rung none">not written yet</span></span>'
        )
    out = []
    for backend in LADDER:
        kind, word = state(ctx, t, backend)
        out.append(
            f'<span class="rung {kind}" title="{RUNGS[backend]}: {word}">'
            f'{RUNGS[backend]}<span class="sr"> {word}</span></span>'
        )
    return f'<span class="rungs">{"".join(out)}</span>'


def the_map(ctx: Context) -> str:
    """The three axes with their families and techniques, for the home page."""
    columns = "".join(_axis_column(ctx, axis) for axis in ctx.atlas.axes)
    return raw(f'<div class="map">{columns}</div>')


def _axis_column(ctx: Context, axis: Axis) -> str:
    to = address.link(HERE, f"{axis.id}/index.md")
    return (
        f'<section class="axis"><h3 id="map-{axis.id}"><a '
        f'href="{to}">{md(axis.name)}</a>'
        f'</h3><p class="question">{md(axis.question)}</p>'
        f"<ul>{''.join(_family_lines(ctx, axis))}</ul></section>"
    )


def _family_lines(ctx: Context, axis: Axis) -> Iterator[str]:
    for family in axis.families:
        found = ctx.of_family(axis.id, family.id)
        to = address.link(HERE, f"{family.path}/index.md")
        count = f' <span class="count">{len(found)}</span>' if found else ""
        kind = "" if found else ' class="empty"'
        inside = "".join(
            f'<li><a href="{address.link(HERE, f"{t.path}.md")}">{md(t.name)}</a> '
            f"{proven(ctx, t)}</li>"
            for t in found
        )
        more = f"<ul>{inside}</ul>" if inside else ""
        yield f'<li{kind}><a href="{to}">{md(family.name)}</a>{count}{more}</li>'


def stats(ctx: Context) -> str:
    """The size of the atlas today, counted at build."""
    techniques = ctx.atlas.techniques.values()
    run = [t for t in techniques if ctx.runs(t.id, "gloo")]
    hits = [caught(ctx, t) for t in techniques]
    claims = sum(len(t.claims) for t in run)
    figures = [
        (len(techniques), "techniques"),
        (len(run), "of them run"),
        (claims, "claims checked"),
        (sum(h for h, _ in hits), "mutants caught"),
        (len(ctx.atlas.systems), "systems placed"),
        (len(ctx.atlas.papers), "papers"),
    ]
    cells = "".join(f"<div><b>{n}</b><span>{word}</span></div>" for n, word in figures)
    return f'<div class="stats">{cells}</div>'
