"""Predicted against measured, as a page shows it: cards, a table, curves, badges."""

from collections.abc import Iterator, Sequence
from typing import Any

from atlas.script.source import arguments
from atlas.site.curve import Curve, draw, grid
from atlas.site.templating import macro, markup, render
from atlas.site.text import raw
from atlas.taxonomy import Claim, Technique
from atlas.views import proof
from atlas.views.context import Context, Json, formula_of
from atlas.views.proof import COUNTED, Badge


def badge(text: str, kind: str = "") -> str:
    """One small label; kind is "", "warn" or "bad"."""
    return macro("marks.html.j2", "badge", text, kind)


def tex(source: str) -> str:
    """A formula that the page's script renders."""
    return macro("marks.html.j2", "tex", source)


def badges(found: Sequence[Badge]) -> str:
    """Labels in a row."""
    return render("badges.html.j2", badges=found)


def cards(ctx: Context, t: Technique) -> str:
    """One card a claim: the number, the formula, the verdict."""
    cost = proof.beside(ctx, t)
    return render("cards.html.j2", cards=proof.cards(ctx, t), cost=cost)


def legend(ctx: Context, t: Technique) -> str:
    """What the symbols of its formulas mean, under them."""
    found = proof.legend(ctx, t)
    return raw(render("legend.html.j2", quantities=found)) if found else ""


def table(ctx: Context, t: Technique) -> str:
    """Every rank of every recorded run, folded away."""
    rows = proof.rows(ctx, t)
    return raw(render("ranks.html.j2", rows=rows, claims=t.claims)) if rows else ""


def curves(ctx: Context, t: Technique) -> str:
    """Each counted claim over p, or a sentence where p plays no part."""
    charts, flat = [], []
    for claim in t.claims:
        fn = formula_of(claim)
        if fn is None or claim.kind not in COUNTED:
            continue
        if not {"ranks", "rank"} & set(arguments(fn)) and not _given_moves(ctx, t, fn):
            flat.append(claim.says)
            continue
        curve = _curve(ctx, t, claim, fn)
        if curve is not None:
            drawing = markup(draw(curve))
            charts.append({"says": claim.says, "per": claim.per, "drawing": drawing})
    upto = max((p for b in ("gloo", "dry") for p in ctx.sizes(t.id, b)), default=None)
    return render("curves.html.j2", charts=charts, flat=flat, upto=upto)


def _given_moves(ctx: Context, t: Technique, fn: Any) -> bool:
    """Do the sizes that the formula takes change with p?"""
    seen = [r["given"] for b in ("gloo", "dry") for r in ctx.runs(t.id, b)]
    names = [a for a in arguments(fn) if a not in ("ranks", "rank")]
    return len({tuple(str(g.get(a)) for a in names) for g in seen}) > 1


def _curve(ctx: Context, t: Technique, claim: Claim, fn: Any) -> Curve | None:
    runs = {b: ctx.runs(t.id, b) for b in ("gloo", "dry")}
    by_p: dict[int, Json] = {r["p"]: r["given"] for b in runs for r in runs[b]}
    if not by_p:
        return None
    sizes = sorted(by_p)
    if not _given_moves(ctx, t, fn):
        common = by_p[sizes[0]]
        sizes = sorted({*grid(t.min_ranks, t.max_ranks), *sizes})
        by_p = {p: common for p in sizes}
    line = []
    for p in sizes:
        known = {**by_p[p], "ranks": p, "rank": 0}
        try:
            value = fn(**{a: known[a] for a in arguments(fn)})
        except (ValueError, KeyError, ZeroDivisionError):
            continue
        line.append((p, float(value)))
    if len(line) < 2:
        return None
    marks = [(b, tuple(_points(ctx, t, claim, runs[b]))) for b in runs]
    return Curve(claim.says, tuple(line), tuple(m for m in marks if m[1]))


def _points(
    ctx: Context, t: Technique, claim: Claim, runs: Sequence[Json]
) -> Iterator[tuple[int, float]]:
    for run in runs:
        for v in ctx.verdicts(t, run):
            mine = v.claim == claim.id and v.rank in (None, 0)
            if mine and isinstance(v.measured, int | float):
                yield int(run["p"]), float(v.measured)
