"""What is proven, what is missing, and what changed lately."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from atlas.knowledge import Technique
from atlas.site import address, standing
from atlas.site.context import BACKENDS, Context
from atlas.site.evidence import COUNTED, all_hold, caught
from atlas.site.overview import RUNGS
from atlas.site.text import front, md, raw

HERE, CHANGES = "coverage.md", "changes.md"


def page(ctx: Context) -> str:
    """What is proven and, as plainly, what is missing."""
    techniques = sorted(ctx.atlas.techniques.values(), key=lambda t: t.path)
    parts = [
        front(
            "Coverage",
            description="What is proven where, and what is missing.",
            hide=["navigation"],
        ),
        "# Coverage",
        address.assets(HERE, "views.css"),
        "Counted at build. Nothing that is missing is left out.",
        _counts(ctx, techniques),
        "## Families without an exemplar",
        _list(_bare_families(ctx)),
        "## Techniques without an exemplar",
        _list(_link(ctx, t) for t in techniques if not ctx.written(t)),
        "## Claims that count something without a formula",
        _list(_unformulated(ctx, techniques)),
        "## Systems with cells that were not verified",
        _list(_unverified(ctx)),
        "## Techniques, by the ranks they were run on",
        _table(ctx, techniques),
    ]
    return "\n\n".join(parts) + "\n"


def _link(ctx: Context, t: Technique) -> str:
    return f'<a href="{address.link(HERE, f"{t.path}.md")}">{md(t.name)}</a>'


def _list(items: Iterable[str]) -> str:
    found = list(items)
    if not found:
        return "None."
    return raw(f'<ul class="columns">{"".join(f"<li>{i}</li>" for i in found)}</ul>')


def _bare_families(ctx: Context) -> Iterator[str]:
    for axis in ctx.atlas.axes:
        for f in axis.families:
            if not any(ctx.written(t) for t in ctx.of_family(axis.id, f.id)):
                to = address.link(HERE, f"{f.path}/index.md")
                yield f'<a href="{to}">{md(axis.name)}: {md(f.name)}</a>'


def _unformulated(ctx: Context, techniques: list[Technique]) -> Iterator[str]:
    for t in techniques:
        bare = [c for c in t.claims if c.kind in COUNTED and c.formula is None]
        if bare:
            yield f"{_link(ctx, t)}: {'; '.join(md(c.says) for c in bare)}"


def _unverified(ctx: Context) -> Iterator[str]:
    for s in standing.by_age(ctx.atlas):
        read, of = standing.verified(s)
        if read < of:
            to = address.link(HERE, f"systems/{s.id}.md")
            yield f'<a href="{to}">{md(s.name)}</a>: {of - read} of {of}'


def _counts(ctx: Context, techniques: list[Technique]) -> str:
    written = [t for t in techniques if ctx.written(t)]
    counted = [c for t in techniques for c in t.claims if c.kind in COUNTED]
    families = sum(len(a.families) for a in ctx.atlas.axes)
    cells = [standing.verified(s) for s in ctx.atlas.systems.values()]
    rows = [
        ("families with an exemplar", families - len([*_bare_families(ctx)]), families),
        ("techniques with an exemplar", len(written), len(techniques)),
        (
            "counting claims with a formula",
            sum(bool(c.formula) for c in counted),
            len(counted),
        ),
        ("systems with every cell verified", sum(a == b for a, b in cells), len(cells)),
        (
            "cells of systems verified",
            sum(a for a, _ in cells),
            sum(b for _, b in cells),
        ),
    ]
    for backend in BACKENDS:
        ran = sum(bool(ctx.sizes(t.id, backend)) for t in techniques)
        where = "dry" if backend == "dry" else f"on {RUNGS[backend]}"
        rows.append((f"techniques run {where}", ran, len(techniques)))
    body = "".join(
        f"<tr><td>{what}</td><td>{have}</td><td>{of}</td><td>{of - have}</td></tr>"
        for what, have, of in rows
    )
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="Counts"><table>'
        "<thead><tr><th>what</th><th>there</th><th>of</th><th>missing</th></tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _table(ctx: Context, techniques: list[Technique]) -> str:
    heads = [
        "technique",
        "exemplar",
        "claims",
        *(RUNGS[b] for b in BACKENDS),
        "mutants",
    ]
    rows = []
    for t in techniques:
        hits, of = caught(ctx, t)
        row = [
            _link(ctx, t),
            "written" if ctx.written(t) else "not written yet",
            str(len(t.claims)),
            *(_sizes(ctx, t, b) for b in BACKENDS),
            f"{hits} of {of}" if of else "none yet",
        ]
        rows.append(f"<tr>{''.join(f'<td>{c}</td>' for c in row)}</tr>")
    return raw(
        '<div class="wide" tabindex="0" role="region" aria-label="Techniques" '
        'style="max-height: none"><table><thead><tr>'
        f"{''.join(f'<th>{h}</th>' for h in heads)}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _sizes(ctx: Context, t: Technique, backend: str) -> str:
    sizes = ctx.sizes(t.id, backend)
    if not sizes:
        return "not yet"
    old = ", older source" if ctx.stale(t.id, backend) else ""
    good = "" if all_hold(ctx, t, backend) else "✗ "
    return f"{good}{' '.join(map(str, sizes))}{old}"


def changes(ctx: Context) -> str:
    """The changelog, and when each record was made."""
    log = ctx.root / "CHANGELOG.md"
    text = log.read_text(encoding="utf-8") if log.is_file() else ""
    said = re.sub(r"\A# .*\n+", "", text)
    parts = [
        front("Changes", description="What changed lately.", hide=["navigation"]),
        "# What changed lately",
        said.strip() or "No changes are noted yet.",
        "## Records, newest first",
        _records(ctx),
        f"What is missing is [on the coverage page]({HERE}).",
    ]
    return "\n\n".join(parts) + "\n"


def _records(ctx: Context) -> str:
    by_day: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for t in sorted(ctx.atlas.techniques.values(), key=lambda t: t.name.lower()):
        for backend in BACKENDS:
            if found := ctx.record(t.id, backend):
                to = address.link(CHANGES, f"{t.path}.md")
                name = f'<a href="{to}">{md(t.name)}</a>'
                by_day[str(found["recorded"])][backend].append(name)
    if not by_day:
        return "No run is recorded yet."
    out = []
    for day in sorted(by_day, reverse=True):
        runs = [
            f"<li>{RUNGS[b]}, {len(names)}: {', '.join(names)}</li>"
            for b, names in by_day[day].items()
        ]
        out.append(f"<h3>{md(day)}</h3><ul>{''.join(runs)}</ul>")
    return raw("".join(out))
