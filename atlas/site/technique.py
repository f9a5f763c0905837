"""The page of one technique, in an order that never changes."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from atlas.site import address, annotate, evidence, memory, notebooks, placed, replay
from atlas.site.compare import compare_link
from atlas.site.scene import LIMIT, LIMIT_OF_MUTANT, scene
from atlas.site.still import Shapes
from atlas.site.templating import markup, render
from atlas.site.text import attr, front, listing, md, number, slug
from atlas.taxonomy import Mutant, Paper, Sighting, Technique
from atlas.views import determinism, proof
from atlas.views.context import Context, Json
from atlas.views.papers import first_authors
from atlas.views.proof import Badge

NOT_WRITTEN = "Exemplar not written yet"
# How a run is held to a claim of each kind.
HELD = {
    "equal": "bit for bit",
    "close": "to rounding",
    "exact": "exactly the number predicted",
    "bound": "never above the bound",
    "statistical": "within a stated band",
}


def page(ctx: Context, t: Technique) -> str:
    """The whole page as Markdown."""
    values = common(ctx, t)
    if ctx.written(t):
        made = render("technique.md.j2", t=t, page=values | written(ctx, t))
    else:
        values |= {"held": HELD, "not_written": NOT_WRITTEN}
        made = render("technique_unwritten.md.j2", t=t, page=values)
    return made.strip() + "\n"


# What every technique has


@dataclass(frozen=True)
class Named:
    """Something with a page, as a link needs it."""

    name: str
    path: str
    summary: str = ""
    written: bool = True


def common(ctx: Context, t: Technique) -> dict[str, Any]:
    """What the page has whether the technique runs or not."""
    atlas = ctx.atlas
    runs = ctx.written(t)
    badges = proof.badges(ctx, t) if runs else [Badge(NOT_WRITTEN, "warn")]
    also = {f"{a}/{f}": atlas.families[f"{a}/{f}"].name for a, f in t.also.items()}
    kind = "technique"
    compare = compare_link(ctx, t.id, f"{t.path}.md", *t.see_also[:1], kind=kind)
    return {
        "t": t,
        "written": runs,
        "edit": ctx.edit.rstrip("/"),
        "front": markup(_front(t)),
        "axis": next(a for a in atlas.axes if a.id == t.axis),
        "family": atlas.families[f"{t.axis}/{t.family}"],
        "badges": markup(evidence.badges(badges)),
        "also_called": [markup(md(name)) for name in t.also_called],
        "also": [Named(name, f"{path}/index") for path, name in also.items()],
        "near": [_named(ctx, atlas.techniques[i]) for i in t.see_also],
        "compare": markup(compare),
        "cost": proof.beside(ctx, t),
        "users": atlas.users(t.id),
        "papers": [citation(atlas.papers[key]) for key in t.papers],
        "roots": [citation(atlas.papers[key]) for key in t.roots],
        "surveys": [(k, _survey(ctx, k), said) for k, said in t.surveys.items()],
    }


def _named(ctx: Context, t: Technique) -> Named:
    return Named(t.name, t.path, t.summary, ctx.written(t))


def _survey(ctx: Context, key: str) -> str:
    found = ctx.atlas.surveys.get(key)
    return found.name if found else key


def _front(t: Technique) -> str:
    return front(
        t.name,
        description=t.summary,
        hide=["navigation"],
        # the search weighs tags most: other names lead here
        tags=[attr(n) for n in t.also_called],
        search={"boost": 2},
    )


@dataclass(frozen=True)
class Citation:
    """A paper as a line cites it."""

    key: str
    who: str
    year: int
    title: str
    link: str
    venue: str


def citation(p: Paper) -> Citation:
    """Authors, year, title, venue."""
    return Citation(p.key, first_authors(p), p.year, p.title, p.link, p.venue or "")


# What a technique has that runs


def written(ctx: Context, t: Technique) -> dict[str, Any]:
    """What the page shows of its program and its runs."""
    source = ctx.source(t)
    run = ctx.card_run(t.id)
    shares = t.axis == "parameter-distribution"
    studies = address.assets(f"{t.path}.md", "studies.css")
    seen = {m["id"]: m for m in (ctx.record(t.id, "gloo") or {}).get("mutants", ())}
    shapes = Shapes()
    return {
        "placed": markup(placed.section(ctx, t)),
        "same_bits": determinism.of(ctx, t),
        "recorded": ctx.shown(t.id) is not None,
        "replay": markup(replayed(ctx, t, shapes)),
        "explanation": markup(annotate.explanation(source) or md(t.summary)),
        "card_ranks": run["p"] if run else None,
        "cards": markup(evidence.cards(ctx, t)),
        "legend": markup(evidence.legend(ctx, t)),
        "table": markup(evidence.table(ctx, t)),
        "studies": markup(studies) if shares else "",
        "memory": [markup(part) for part in memory.section(run)] if shares else [],
        "curves": markup(evidence.curves(ctx, t)),
        "code": markup(annotate.code_block(source, t.exemplar.as_posix())),
        "ranks": default_ranks(t),
        "notebooks": list(_notebooks(ctx, t)),
        "mutants": [_mutant(ctx, t, m, seen.get(m.id), shapes) for m in t.mutants],
        "mutation": proof.mutation(ctx, t),
        "api": markup(annotate.reference(source)),
    }


def replayed(
    ctx: Context, t: Technique, shapes: Shapes | None = None, ident: str = "replay"
) -> str:
    """The recorded run, or nothing."""
    found, run = ctx.record(t.id, "gloo"), ctx.shown(t.id)
    if found is None or run is None:
        return ""
    drawn = _scene(ctx, t, run, LIMIT)
    return replay.figure(drawn, ident, _caption(found, run), shapes) if drawn else ""


def _caption(found: Json, run: Json) -> str:
    torch = found.get("versions", {}).get("torch", "")
    given = ", ".join(f"{k} = {number(v)}" for k, v in run["given"].items())
    text = f"A real run: {run['p']} processes over gloo, recorded {found['recorded']}"
    text += f" with torch {torch}" if torch else ""
    return text + (f"; {given}." if given else ".")


def _scene(ctx: Context, t: Technique, run: Json, limit: int) -> Json | None:
    said = proof.predicted_bytes(ctx.verdicts(t, run), int(run["p"]))
    return scene(run, said, limit)


def default_ranks(t: Technique) -> int:
    """Four, where the technique allows it."""
    return max(t.min_ranks, min(4, t.max_ranks or 4))


def _notebooks(ctx: Context, t: Technique) -> Iterator[tuple[str, str]]:
    for stem, text in ctx.notebooks.items():
        if t.id in text or t.module in text:
            yield stem, notebooks.title(ctx.root, stem)


@dataclass(frozen=True)
class Broken:
    """A mutant: what it does, its diff, its run, and the claims that caught it."""

    title: str
    slug: str
    says: str
    diff: str
    ended: str
    error: str
    wanted: str
    failed: tuple[str, ...]
    figure: Markup
    seen_in: Sighting | None


def _mutant(
    ctx: Context, t: Technique, m: Mutant, seen: Json | None, shapes: Shapes
) -> Broken:
    names = {c.id: c.says for c in t.claims}
    wanted = "the deadline" if m.deadline else listing(names[f] for f in m.fails)
    known = seen or {"ended": "unknown", "failed": ()}
    return Broken(
        title=m.id.replace("-", " ").capitalize(),
        slug=slug(m.id),
        says=m.says,
        diff=diff(ctx.source(t), m, t.exemplar.name),
        ended=known["ended"],
        error=str(known.get("error", "")).strip().partition("\n")[0],
        wanted=wanted,
        failed=tuple(names.get(f, f) for f in known["failed"]),
        figure=markup(_of_mutant(ctx, t, m, known, shapes)),
        seen_in=m.seen_in,
    )


def _of_mutant(
    ctx: Context, t: Technique, m: Mutant, seen: Json, shapes: Shapes
) -> str:
    run = seen.get("run")
    drawn = _scene(ctx, t, run, LIMIT_OF_MUTANT) if run else None
    if drawn is None:
        return ""
    caption = f"The run with this mistake, on {seen['p']} ranks."
    return replay.figure(drawn, f"replay-{slug(m.id)}", caption, shapes)


def diff(source: str, m: Mutant, name: str) -> str:
    """The mutant as a unified diff of the exemplar."""
    before = _without_notes(source)
    after = _without_notes(source.replace(m.find, m.replace))
    lines = list(difflib.unified_diff(before, after, name, name, n=2, lineterm=""))
    return "\n".join(lines[2:]) or "The text to replace is not in the exemplar."


def _without_notes(source: str) -> list[str]:
    return [x for x in source.splitlines() if not x.lstrip().startswith("#:")]
