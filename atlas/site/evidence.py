"""Predicted against measured, as a page shows it: cards, a table, curves, badges."""

from collections.abc import Iterator, Sequence
from typing import Any

from atlas.knowledge import Claim, Technique
from atlas.oracle.emit import arguments
from atlas.site.context import Context, Json, formula_of, latex
from atlas.site.curve import Curve, draw, grid
from atlas.site.text import attr, listing, number, raw
from atlas.verdict import Verdict

COUNTED = ("exact", "bound")  # kinds whose value is a number of the formula


def badge(text: str, kind: str = "") -> str:
    """One small label; kind is "", "warn" or "bad"."""
    return f'<span class="badge {kind}">{attr(text)}</span>'


def badges(ctx: Context, t: Technique) -> str:
    """What was run where, and what was not."""
    out = [_ran(ctx, t, "gloo", "gloo"), _ran(ctx, t, "dry", "dry run")]
    out.append(_ran(ctx, t, "emulated", "emulated GPU"))
    nccl = ctx.record(t.id, "nccl")
    if nccl is None:
        out.append(badge("NCCL: not yet run on GPUs", "warn"))
    elif ctx.stale(t.id, "nccl"):
        out.append(badge(f"NCCL, older source, {nccl['recorded']}", "warn"))
    else:
        out.append(_ran(ctx, t, "nccl", "NCCL"))
    out.append(_mutants_badge(ctx, t))
    return f'<div class="badges">{"".join(out)}</div>'


def _ran(ctx: Context, t: Technique, backend: str, name: str) -> str:
    sizes = ctx.sizes(t.id, backend)
    if not sizes:
        return badge(f"{name}: not yet run", "warn")
    if not all_hold(ctx, t, backend):
        return badge(f"{name}: a claim does not hold", "bad")
    p = " ".join(map(str, sizes))
    return badge(f"{name} ✓ {p} rank{'' if sizes == [1] else 's'}")


def all_hold(ctx: Context, t: Technique, backend: str) -> bool:
    """Did every claim that could be checked hold in every run?"""
    runs = ctx.runs(t.id, backend)
    return all(v.ok is not False for run in runs for v in ctx.verdicts(t, run))


def caught(ctx: Context, t: Technique) -> tuple[int, int]:
    """Mutants that the recorded runs caught, of those the taxonomy lists."""
    found = {m["id"]: m for m in (ctx.record(t.id, "gloo") or {}).get("mutants", ())}
    hits = 0
    for mutant in t.mutants:
        seen = found.get(mutant.id)
        if seen is None:
            continue
        if mutant.deadline:
            hits += seen["ended"] == "deadline"
        else:
            hits += seen["ended"] == "error" or set(mutant.fails) <= set(seen["failed"])
    return hits, len(t.mutants)


def _mutants_badge(ctx: Context, t: Technique) -> str:
    hits, of = caught(ctx, t)
    if not of:
        return badge("no mutants yet", "warn")
    return badge(f"{hits} of {of} mutants caught", "" if hits == of else "warn")


def predicted_bytes(verdicts: Sequence[Verdict], p: int) -> list[float] | None:
    """What each rank must send, for the line in the replay."""
    said = {
        v.rank: v.predicted
        for v in verdicts
        if v.claim == "bytes_sent" and v.rank is not None
    }
    values = [said.get(r) for r in range(p)]
    if any(not isinstance(x, int | float) for x in values):
        return None
    return [x for x in values if isinstance(x, int | float)]


def cards(ctx: Context, t: Technique) -> str:
    """One card a claim: the number, the formula, the verdict."""
    run = ctx.card_run(t.id)
    verdicts = ctx.verdicts(t, run) if run else []
    out = []
    for claim in t.claims:
        mine = [v for v in verdicts if v.claim == claim.id]
        out.append(_card(claim, mine))
    out += _time_card(ctx, t)
    return f'<div class="claims">{"".join(out)}</div>'


def _card(claim: Claim, mine: Sequence[Verdict]) -> str:
    ok = [v.ok for v in mine]
    state = "bad" if False in ok else "ok" if True in ok else "unknown"
    fn = formula_of(claim)
    long = " long" if fn is not None and len(latex(fn)) > 44 else ""
    return (
        f'<div class="claim {state}{long}"><div class="says">{attr(claim.says)}</div>'
        f'<div class="value">{attr(_value(claim, mine))}</div>'
        f'<div class="why">{_why(claim, mine)}</div>'
        f'<div class="verdict">{attr(_verdict(claim, mine, state))}</div></div>'
    )


def _spread(values: Sequence[Any]) -> str:
    kept = [v for v in values if isinstance(v, int | float)]
    if not kept:
        return ""
    low, high = min(kept), max(kept)
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def _value(claim: Claim, mine: Sequence[Verdict]) -> str:
    if claim.kind in COUNTED:
        return _spread([v.predicted for v in mine]) or "no figure yet"
    errors = [v.measured for v in mine]
    if claim.kind == "equal":
        return "same bits" if not any(_positive(e) for e in errors) else "differs"
    if claim.kind == "close":
        worst = max((e for e in errors if isinstance(e, float | int)), default=None)
        return "no figure yet" if worst is None else f"off by {number(worst)}"
    return _spread(errors) or "no figure yet"


def _positive(x: object) -> bool:
    return isinstance(x, int | float) and x > 0


def tex(source: str) -> str:
    """A formula that the page's script renders."""
    return f'<span class="arithmatex">\\({attr(source)}\\)</span>'


def _why(claim: Claim, mine: Sequence[Verdict]) -> str:
    fn = formula_of(claim)
    if fn is not None and claim.kind in COUNTED:
        return ("at most " if claim.kind == "bound" else "") + tex(latex(fn))
    if claim.kind == "equal":
        return "compared bit for bit"
    if claim.kind == "close":
        notes = dict.fromkeys(v.note for v in mine if v.note)
        return attr(listing(notes, "or")) + (", to rounding" if notes else "")
    if claim.band:
        return f"between {number(claim.band[0])} and {number(claim.band[1])}, seeded"
    return ""


def _verdict(claim: Claim, mine: Sequence[Verdict], state: str) -> str:
    if state == "unknown":
        return "not measured yet"
    where = "on every rank" if len(mine) > 1 else ""
    if state == "bad":
        wrong = [v for v in mine if v.ok is False]
        seen = _spread([v.measured for v in wrong])
        ranks = [v.rank for v in wrong if v.rank is not None]
        on = (
            f" on rank{'s' if len(ranks) > 1 else ''} {listing(ranks)}" if ranks else ""
        )
        return f"✗ measured {seen}{on}" if seen else f"✗ does not hold{on}"
    if claim.kind == "exact":
        return "= measured, exactly"
    if claim.kind == "bound":
        return f"✓ measured {_spread([v.measured for v in mine])}"
    return f"✓ {where or 'holds'}"


def _time_card(ctx: Context, t: Technique) -> Iterator[str]:
    cost = ctx.production.get(t.id)
    if not cost or not cost.get("ratio"):
        return
    yield (
        '<div class="claim note"><div class="says">time against '
        f"{attr(cost['production'])}</div>"
        f'<div class="value">{float(cost["ratio"]):.2f}×</div>'
        f'<div class="why">{attr(_seconds(cost))}</div>'
        '<div class="verdict">a statistic, not a claim</div>'
        "</div>"
    )


def _seconds(cost: Json) -> str:
    ours, theirs = cost["ours_seconds"] * 1e3, cost["theirs_seconds"] * 1e3
    return f"{ours:.3g} ms against {theirs:.3g} ms, p = {cost['p']}, in one run"


def table(ctx: Context, t: Technique) -> str:
    """Every rank of every recorded run, folded away."""
    rows = []
    for backend in ("gloo", "dry", "emulated", "nccl"):
        for run in ctx.runs(t.id, backend):
            verdicts = ctx.verdicts(t, run)
            if backend == "emulated" and not verdicts:
                continue
            ranks = sorted({v.rank for v in verdicts if v.rank is not None})
            whole = {v.claim: v for v in verdicts if v.rank is None}
            for k, r in enumerate(ranks or [None]):
                mine = {v.claim: v for v in verdicts if v.rank == r and r is not None}
                if k == 0:
                    mine = {**whole, **mine}
                cells = "".join(f"<td>{_cell(mine.get(c.id))}</td>" for c in t.claims)
                label = "all" if r is None else r
                rows.append(
                    f"<tr><td>{backend}</td><td>{run['p']}</td><td>{label}</td>{cells}"
                    "</tr>"
                )
    if not rows:
        return ""
    heads = "".join(f"<th>{attr(c.id.replace('_', ' '))}</th>" for c in t.claims)
    return raw(
        '<details class="ranks"><summary>Every rank of every recorded run '
        f"({len(rows)} rows)</summary>"
        '<div class="wide" tabindex="0" role="region" aria-label="Every rank">'
        "<table><thead><tr><th>backend</th><th>p</th><th>rank</th>"
        f"{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _cell(v: Verdict | None) -> str:
    if v is None or v.ok is None:
        return '<span class="quiet">–</span>'
    mark = "✓" if v.ok else "✗"
    if v.measured is None:
        return mark
    seen = attr(number(v.measured))
    if v.ok:
        return f"{seen} ✓"
    return (
        f'<strong class="bad">{seen} {mark} (predicted {attr(number(v.predicted))})'
        "</strong>"
    )


def curves(ctx: Context, t: Technique) -> str:
    """Each counted claim over p, or a sentence where p plays no part."""
    charts, flat = [], []
    for claim in t.claims:
        fn = formula_of(claim)
        if fn is None or claim.kind not in COUNTED:
            continue
        if not {"p", "r"} & set(arguments(fn)) and not _given_moves(ctx, t, fn):
            flat.append(claim.says)
            continue
        curve = _curve(ctx, t, claim, fn)
        if curve is not None:
            charts.append(_chart(claim, curve))
    out = ""
    if charts:
        key = (
            '<p class="curve-key"><span class="k line"></span>formula'
            '<span class="k gloo"></span>measured, gloo'
            '<span class="k dry"></span>counted, dry run</p>'
        )
        out = raw(f'<div class="curves">{"".join(charts)}</div>{key}')
    if flat:
        sizes = [p for b in ("gloo", "dry") for p in ctx.sizes(t.id, b)]
        upto = f", measured up to p = {max(sizes)}" if sizes else ""
        items = "".join(f"<li>{attr(says)}</li>" for says in flat)
        out += f"\n\n<p>The same at every p{upto}:</p><ul>{items}</ul>"
    return out


def _given_moves(ctx: Context, t: Technique, fn: Any) -> bool:
    """Do the sizes that the formula takes change with p?"""
    seen = [r["given"] for b in ("gloo", "dry") for r in ctx.runs(t.id, b)]
    names = [a for a in arguments(fn) if a not in ("p", "r")]
    return len({tuple(str(g.get(a)) for a in names) for g in seen}) > 1


def _chart(claim: Claim, curve: Curve) -> str:
    who = ", rank 0" if claim.per == "rank" else ""
    return (
        f'<figure class="chart"><figcaption>{attr(claim.says)}{who}</figcaption>'
        f"{draw(curve)}</figure>"
    )


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
        known = {**by_p[p], "p": p, "r": 0}
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
