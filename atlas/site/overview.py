"""The pages above the techniques: the map, axes, families, coverage."""

from collections.abc import Iterator

from atlas.knowledge import Axis, Family, Technique
from atlas.site.context import BACKENDS, Context
from atlas.site.evidence import all_hold, caught
from atlas.site.text import front, md

RUNGS = {"gloo": "gloo", "dry": "dry", "emulated": "emulated GPU", "nccl": "NCCL"}


def proven(ctx: Context, t: Technique) -> str:
    """Four small marks: which rungs this technique has climbed."""
    out = []
    for backend in BACKENDS:
        sizes = ctx.sizes(t.id, backend)
        state, word = "none", "not yet run"
        if sizes:
            good = all_hold(ctx, t, backend)
            state, word = ("ok", "holds") if good else ("bad", "a claim does not hold")
        if sizes and ctx.stale(t.id, backend):
            state, word = "old", "recorded from an older source"
        label = f"{RUNGS[backend]}: {word}"
        out.append(
            f'<span class="rung {state}" title="{label}">'
            f'{RUNGS[backend]}<span class="sr"> {word}</span></span>'
        )
    return f'<span class="rungs">{"".join(out)}</span>'


def the_map(ctx: Context) -> str:
    """The three axes with their families and techniques, for the home page."""
    return '<div class="map" markdown>\n\n' + "\n\n".join(
        [_axis_column(ctx, axis) for axis in ctx.atlas.axes] + ["</div>"]
    )


def _axis_column(ctx: Context, axis: Axis) -> str:
    parts = [
        '<section class="axis" markdown>',
        f"### [{md(axis.name)}]({axis.id}/index.md) {{ #map-{axis.id} }}",
        f'<p class="question" markdown>{md(axis.question)}</p>',
        "\n".join(_family_lines(ctx, axis)),
        "</section>",
    ]
    return "\n\n".join(parts)


def _family_lines(ctx: Context, axis: Axis) -> Iterator[str]:
    for family in axis.families:
        found = ctx.of_family(axis.id, family.id)
        count = f' <span class="count">{len(found)}</span>' if found else ""
        name = f"[{md(family.name)}]({axis.id}/{family.id}/index.md)"
        yield f"- {name}{count}" + ("" if found else "{ .empty }")
        for t in found:
            yield f"    - [{md(t.name)}]({t.path}.md) {proven(ctx, t)}"


def stats(ctx: Context) -> str:
    """The size of the atlas today, counted at build."""
    techniques = ctx.atlas.techniques.values()
    run = [t for t in techniques if ctx.runs(t.id, "gloo")]
    hits = [caught(ctx, t) for t in techniques]
    claims = sum(len(t.claims) for t in run)
    figures = [
        (len(run), "techniques run"),
        (claims, "claims checked"),
        (sum(h for h, _ in hits), "mutants caught"),
        (len(ctx.atlas.systems), "systems placed"),
        (len(ctx.atlas.papers), "papers"),
    ]
    cells = "".join(f"<div><b>{n}</b><span>{word}</span></div>" for n, word in figures)
    return f'<div class="stats">{cells}</div>'


def axis_page(ctx: Context, axis: Axis) -> str:
    """An axis: its question and its families."""
    parts = [
        front(axis.name, description=axis.question),
        f"# {md(axis.name)}",
        f'<p class="lede" markdown>{md(axis.question)}</p>',
    ]
    for family in axis.families:
        parts.append(f"## [{md(family.name)}]({family.id}/index.md) {{ #{family.id} }}")
        parts.append(md(family.summary))
        parts.append(_techniques(ctx, family, f"{family.id}/"))
    return "\n\n".join(parts) + "\n"


def family_page(ctx: Context, axis: Axis, family: Family) -> str:
    """A family: what its techniques share, which they are, who is in it."""
    parts = [
        front(family.name, description=family.summary),
        f'<p class="crumb" markdown>[{md(axis.name)}](../index.md)</p>',
        f"# {md(family.name)}",
        f'<p class="lede" markdown>{md(family.summary)}</p>',
        "## Techniques",
        _techniques(ctx, family, ""),
    ]
    parts += _visitors(ctx, axis, family)
    parts += _systems(ctx, f"{axis.id}/{family.id}")
    return "\n\n".join(parts) + "\n"


def _techniques(ctx: Context, family: Family, where: str) -> str:
    found = ctx.of_family(family.axis, family.id)
    if not found:
        return "Exemplar not written yet: this family has no technique in the atlas."
    return "\n".join(
        f"- [{md(t.name)}]({where}{t.id}.md) ({t.since}): {md(t.summary)} "
        + (proven(ctx, t) if ctx.written(t) else "*Exemplar not written yet.*")
        for t in found
    )


def _visitors(ctx: Context, axis: Axis, family: Family) -> Iterator[str]:
    guests = [
        t for t in ctx.atlas.techniques.values() if t.also.get(axis.id) == family.id
    ]
    if guests:
        yield "## At home elsewhere, but also this"
        yield "\n".join(
            f"- [{md(t.name)}](../../{t.path}.md): {md(t.summary)}" for t in guests
        )


def _systems(ctx: Context, path: str) -> Iterator[str]:
    inside = {
        t.id for t in ctx.atlas.techniques.values() if t.path.startswith(path + "/")
    }
    found = [
        s
        for s in ctx.atlas.systems.values()
        if any(c.family == path for c in s.cells)
        or any(u.technique in inside for u in s.uses)
    ]
    if found:
        found.sort(key=lambda s: (s.year, s.id))
        yield "## Systems"
        yield "\n".join(
            f"- [{md(s.name)}](../../systems/{s.id}.md), {s.year}: {md(s.summary)}"
            for s in found
        )


def coverage(ctx: Context) -> str:
    """What is proven and, as plainly, what is missing."""
    head = (
        "| technique | exemplar | claims | gloo | dry | emulated GPU | NCCL | mutants |"
    )
    rows = [head, "|---|---|---|---|---|---|---|---|"]
    for t in sorted(ctx.atlas.techniques.values(), key=lambda t: t.path):
        hits, of = caught(ctx, t)
        cells = [
            f"[{md(t.name)}]({t.path}.md)",
            "written" if ctx.written(t) else "not written yet",
            str(len(t.claims)),
            *(_sizes(ctx, t, b) for b in BACKENDS),
            f"{hits} of {of}" if of else "none yet",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    empty = [
        f"- [{md(a.name)}: {md(f.name)}]({a.id}/{f.id}/index.md)"
        for a in ctx.atlas.axes
        for f in a.families
        if not ctx.of_family(a.id, f.id)
    ]
    parts = [
        front(
            "Coverage",
            description="What is proven where, and what is missing.",
            hide=["navigation"],
        ),
        "# Coverage",
        "The numbers of ranks each technique was run on, by backend. Gaps are shown.",
        "\n".join(rows),
        "## Families without an exemplar",
        "\n".join(empty) or "None.",
    ]
    return "\n\n".join(parts) + "\n"


def _sizes(ctx: Context, t: Technique, backend: str) -> str:
    sizes = ctx.sizes(t.id, backend)
    if not sizes:
        return "not yet"
    old = ", older source" if ctx.stale(t.id, backend) else ""
    good = "" if all_hold(ctx, t, backend) else "✗ "
    return f"{good}{' '.join(map(str, sizes))}{old}"
