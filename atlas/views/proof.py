"""What was run where and what came of it: badges, one card a claim, every rank.

A card is a claim with its prediction, its formula and its verdict; a legend says
what the symbols of the formulas mean.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from atlas.formulas import law
from atlas.record import source_hash
from atlas.script.latex import law_latex
from atlas.taxonomy import Claim, Quantity, Technique
from atlas.verdict import Verdict, arguments
from atlas.views.context import Context, Json, formula_of, latex
from atlas.views.words import listing, number

COUNTED = ("exact", "bound")  # kinds whose value is a number of the formula
LONG = 44  # characters of LaTeX that need a card of double width
NO_FIGURE = "no figure yet"
GREEK = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "epsilon": "ε",
    "eta": "η",
    "kappa": "κ",
    "lambda": "λ",
    "mu": "μ",
    "rho": "ρ",
    "sigma": "σ",
    "tau": "τ",
    "phi": "φ",
    "omega": "ω",
}


@dataclass(frozen=True)
class Badge:
    """A small label; kind is "", "warn" or "bad"."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class Formula:
    """A claim's formula as LaTeX, its law, when that is exact, and the symbols."""

    latex: str
    law: str
    equal_when: str
    symbols: tuple[Quantity, ...]

    @property
    def meaning(self) -> str:
        """What each symbol of the formula means, in one line."""
        return meaning(self.symbols)


@dataclass(frozen=True)
class Card:
    """A claim as a page shows it; state is "ok", "bad" or "unknown"."""

    says: str
    kind: str
    value: str
    why: str
    formula: Formula | None
    state: str
    verdict: str

    @property
    def counted(self) -> bool:
        """Is its value a number of the formula?"""
        return self.formula is not None and self.kind in COUNTED

    @property
    def long(self) -> bool:
        """Does its formula need more than one column?"""
        return self.formula is not None and len(self.formula.latex) > LONG


@dataclass(frozen=True)
class Row:
    """One rank (None: the whole run) of one recorded run, claim by claim."""

    backend: str
    p: int
    rank: int | None
    cells: tuple[Verdict | None, ...]


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


def badges(ctx: Context, t: Technique) -> list[Badge]:
    """What was run where, and what was not."""
    out = [_ran(ctx, t, "gloo", "gloo"), _ran(ctx, t, "dry", "dry run")]
    out.append(_ran(ctx, t, "emulated", "emulated GPU"))
    nccl = ctx.record(t.id, "nccl")
    if nccl is None:
        out.append(Badge("NCCL: not yet run on GPUs", "warn"))
    elif ctx.stale(t.id, "nccl"):
        out.append(Badge(f"NCCL, older source, {nccl['recorded']}", "warn"))
    else:
        out.append(_ran(ctx, t, "nccl", "NCCL"))
    return [*out, _mutants(ctx, t)]


def _ran(ctx: Context, t: Technique, backend: str, name: str) -> Badge:
    sizes = ctx.sizes(t.id, backend)
    if not sizes and backend == "dry" and not t.dry:
        return Badge(f"{name}: does not apply", "note")
    if not sizes:
        return Badge(f"{name}: not yet run", "warn")
    if not all_hold(ctx, t, backend):
        return Badge(f"{name}: a claim does not hold", "bad")
    p = " ".join(map(str, sizes))
    return Badge(f"{name} ✓ {p} rank{'' if sizes == [1] else 's'}")


def _mutants(ctx: Context, t: Technique) -> Badge:
    hits, of = caught(ctx, t)
    if not of:
        return Badge("no mutants yet", "warn")
    return Badge(f"{hits} of {of} mutants caught", "" if hits == of else "warn")


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


# Formulas


def meaning(quantities: Iterable[Quantity]) -> str:
    """What each symbol means, in one line."""
    return "; ".join(f"{plain(q.symbol)}: {q.says}" for q in quantities)


def plain(symbol: str) -> str:
    """A symbol without LaTeX's marks, for where there is only text: α, t_B, s_max."""
    for name, letter in GREEK.items():
        symbol = symbol.replace(f"\\{name}", letter)
    return symbol.translate(str.maketrans("", "", "\\{}"))


def formula(ctx: Context, claim: Claim) -> Formula | None:
    """The claim's formula, if it has one, with what a reader needs beside it."""
    fn = formula_of(claim)
    if fn is None:
        return None
    known = ctx.atlas.symbols
    words = [
        *arguments(claim),
        *(sorted(law.words(claim.law.says)) if claim.law else ()),
        *(sorted(law.words(claim.law.equal_when)) if claim.law else ()),
    ]
    found = tuple(known[word] for word in dict.fromkeys(words) if word in known)
    if claim.law is None:
        return Formula(latex(fn), "", "", found)
    says, exact = law_latex(claim.law.says), law_latex(claim.law.equal_when)
    return Formula(latex(fn), says, exact, found)


def legend(ctx: Context, t: Technique) -> list[Quantity]:
    """Every quantity that the technique's formulas name, each once."""
    shown = [formula(ctx, claim) for claim in t.claims]
    return list(dict.fromkeys(q for f in shown if f for q in f.symbols))


# Cards


def cards(ctx: Context, t: Technique) -> list[Card]:
    """One for each claim: the number, the formula, the verdict."""
    run = ctx.card_run(t.id)
    verdicts = ctx.verdicts(t, run) if run else []
    return [
        _card(ctx, claim, [v for v in verdicts if v.claim == claim.id])
        for claim in t.claims
    ]


def _card(ctx: Context, claim: Claim, mine: Sequence[Verdict]) -> Card:
    ok = [v.ok for v in mine]
    state = "bad" if False in ok else "ok" if True in ok else "unknown"
    return Card(
        claim.says,
        claim.kind,
        _value(claim, mine),
        _why(claim, mine),
        formula(ctx, claim),
        state,
        _verdict(claim, mine, state),
    )


def _spread(values: Iterable[Any]) -> str:
    kept = [v for v in values if isinstance(v, int | float)]
    if not kept:
        return ""
    low, high = min(kept), max(kept)
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def _value(claim: Claim, mine: Sequence[Verdict]) -> str:
    """What was measured; of a claim that nobody has run, what is predicted."""
    if claim.kind == "bound" and (measured := _spread(v.measured for v in mine)):
        return measured
    if claim.kind in COUNTED:
        return _spread(v.predicted for v in mine) or NO_FIGURE
    errors = [v.measured for v in mine]
    if claim.kind == "equal":
        return "same bits" if not any(_positive(e) for e in errors) else "differs"
    if claim.kind == "close":
        worst = max((e for e in errors if isinstance(e, float | int)), default=None)
        return NO_FIGURE if worst is None else f"off by {number(worst)}"
    return _spread(errors) or NO_FIGURE


def _positive(x: object) -> bool:
    return isinstance(x, int | float) and x > 0


def _why(claim: Claim, mine: Sequence[Verdict]) -> str:
    """How the value is held; of a counted claim, what stands before its formula."""
    if claim.formula is not None and claim.kind in COUNTED:
        return "at most " if claim.kind == "bound" else ""
    if claim.kind == "equal":
        return "compared bit for bit"
    if claim.kind == "close":
        notes = dict.fromkeys(v.note for v in mine if v.note)
        return listing(notes, "or") + (", to rounding" if notes else "")
    if claim.band:
        return f"between {number(claim.band[0])} and {number(claim.band[1])}, seeded"
    return ""


def _verdict(claim: Claim, mine: Sequence[Verdict], state: str) -> str:
    if state == "unknown":
        return "not measured yet"
    if state == "bad":
        wrong = [v for v in mine if v.ok is False]
        seen = _spread(v.measured for v in wrong)
        ranks = [v.rank for v in wrong if v.rank is not None]
        several = "s" if len(ranks) > 1 else ""
        on = f" on rank{several} {listing(ranks)}" if ranks else ""
        return f"✗ measured {seen}{on}" if seen else f"✗ does not hold{on}"
    if claim.kind == "exact":
        return "= measured, exactly"
    if claim.kind == "bound":
        return f"✓ the limit is {_spread(v.predicted for v in mine)}"
    return "✓ on every rank" if len(mine) > 1 else "✓ holds"


# Mutations made by rule


@dataclass(frozen=True)
class Mutation:
    """What the study of automatic mutants says of one technique."""

    line: str
    survived: tuple[str, ...]
    stale: bool


def mutation(ctx: Context, t: Technique) -> Mutation | None:
    """How many the claims notice, where that was tried."""
    found = ctx.mutation.get(t.id)
    if found is None or not ctx.written(t):
        return None
    old = found.source != source_hash(ctx.root, t)
    return Mutation(found.line, found.survived, old)


# Every rank


def rows(ctx: Context, t: Technique) -> list[Row]:
    """Every rank of every recorded run; what is of the whole run, on its first."""
    return [
        row
        for backend in ("gloo", "dry", "emulated", "nccl")
        for run in ctx.runs(t.id, backend)
        for row in _of_run(ctx, t, backend, run)
    ]


def _of_run(ctx: Context, t: Technique, backend: str, run: Json) -> Iterator[Row]:
    verdicts = ctx.verdicts(t, run)
    if backend == "emulated" and not verdicts:
        return
    ranks = sorted({v.rank for v in verdicts if v.rank is not None})
    whole = {v.claim: v for v in verdicts if v.rank is None}
    for k, r in enumerate(ranks or [None]):
        mine = {v.claim: v for v in verdicts if v.rank == r and r is not None}
        if k == 0:
            mine = {**whole, **mine}
        yield Row(backend, int(run["p"]), r, tuple(mine.get(c.id) for c in t.claims))


# Beside production


@dataclass(frozen=True)
class Beside:
    """What the same work cost in a production library, in one run with ours."""

    production: str
    p: int
    ratio: float | None
    note: str
    ours_bytes: int | None
    theirs_bytes: int | None
    ours_seconds: float | None
    theirs_seconds: float | None


def beside(ctx: Context, t: Technique) -> Beside | None:
    """The two side by side, where that was measured."""
    cost = ctx.production.get(t.id)
    if not cost:
        return None
    return Beside(
        cost["production"],
        cost["p"],
        cost.get("ratio"),
        cost.get("note") or "",
        cost.get("ours_bytes"),
        cost.get("theirs_bytes"),
        cost.get("ours_seconds"),
        cost.get("theirs_seconds"),
    )
