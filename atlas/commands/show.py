"""`atlas show NAME`: everything the atlas knows about one entry."""

import ast
import inspect
import textwrap
from dataclasses import asdict
from typing import Annotated, Any

import typer

from atlas import taxonomy
from atlas.commands import common, names, sections, system, words
from atlas.commands.common import Json
from atlas.commands.names import KINDS, Kind, Thing
from atlas.commands.sections import Sections, citations, commands
from atlas.determinism import kept
from atlas.formulas import FORMULAS
from atlas.taxonomy import Atlas, Claim, Technique
from atlas.views import determinism as bits

Name = Annotated[
    list[str],
    typer.Argument(
        help="A technique, system, survey, paper or term, by id, name or alias.",
        metavar="NAME",
        autocompletion=names.complete,
    ),
]
KindOption = Annotated[
    str | None,
    typer.Option(
        help=f"Resolve an ambiguous name: {', '.join(KINDS)}.",
        metavar="KIND",
        autocompletion=lambda incomplete: [
            kind for kind in KINDS if kind.startswith(incomplete)
        ],
    ),
]


def show(name: Name, kind: KindOption = None, json: Json = False) -> None:
    """Show a technique, a system, a survey, a paper or a term.

    Aliases work too. An ambiguous name lists all its meanings.

    Examples:

    \b
    atlas show ring-all-reduce
    atlas show horovod
    atlas show zero-3 --json
    atlas show tensor slicing
    atlas show straggler
    atlas show sergeev2018horovod
    """
    atlas = taxonomy.load()
    word = " ".join(name)
    match = names.find(atlas, word, _kinds(kind))
    if not match.best:
        raise names.missing(atlas, word, _kinds(kind))
    if len(match.best) > 1:
        _several(word, [*match.best, *match.others], json)
        return
    (found,) = match.best
    _remark(word, found, match)
    if json:
        common.print_json(_plain(atlas, found))
    else:
        title, summary, parts = _parts(atlas, found)
        sections.show(title, summary, parts)


def _kinds(kind: str | None) -> tuple[Kind, ...]:
    if kind is None:
        return KINDS
    if kind not in KINDS:
        raise common.unknown("kind", kind, KINDS, f"there are {', '.join(KINDS)}")
    return (kind,)


def _remark(word: str, found: Thing, match: names.Match) -> None:
    """How the name led here, and where else it leads, in one line."""
    said = [] if match.exact or found.id == word else [f'"{word}" is {found.id}']
    others = [o for o in match.others if o.kind != "term" or not match.exact]
    said += [f"also: {other.command}" for other in others]
    if said:
        names.note("; ".join(said))


def _several(word: str, found: list[Thing], json: bool) -> None:
    """What the name may mean, each with the command that shows it."""
    if json:
        plain = [one.plain() for one in found]
        common.print_json({"kind": "several", "name": word, "found": plain})
        return
    from rich.table import Table
    from rich.text import Text

    typer.echo(f'"{word}" is ambiguous:')
    table = Table.grid(padding=(0, 2, 0, 0))
    for one in found:
        table.add_row(Text(f"  {one.command}", "cyan"), one.kind, Text(one.name))
    common.out().print(table)


def _parts(atlas: Atlas, found: Thing) -> tuple[str, str, Sections]:
    """Title, summary and sections."""
    match found.kind:
        case "technique":
            parts = _technique(atlas, atlas.techniques[found.id])
        case "system":
            parts = system.sections(atlas, atlas.systems[found.id])
        case "survey":
            parts = words.survey(atlas, atlas.surveys[found.id])
        case "paper":
            p = atlas.papers[found.id]
            return p.title, words.published(p), words.paper(atlas, p)
        case "term":
            parts = words.term(atlas, words.word_named(atlas, found.id))
    return found.name, found.summary, parts


def _plain(atlas: Atlas, found: Thing) -> dict[str, Any]:
    match found.kind:
        case "technique":
            return _plain_technique(atlas, atlas.techniques[found.id])
        case "system":
            return system.plain(atlas, atlas.systems[found.id])
        case "survey":
            return words.plain_survey(atlas, atlas.surveys[found.id])
        case "paper":
            return words.plain_paper(atlas, atlas.papers[found.id])
        case "term":
            return words.plain_term(words.word_named(atlas, found.id))


# Techniques


def _technique(atlas: Atlas, t: Technique) -> Sections:
    also = [f"{axis}: {family}" for axis, family in t.also.items()]
    called = [f"also called: {', '.join(t.also_called)}"] if t.also_called else []
    yield "Classification", [f"{t.axis}: {t.family}", *also, *called]
    yield "Use it when", [t.use_when]
    yield "Avoid it when", [t.avoid_when]
    yield "Gives", [t.pros]
    yield "Costs", [t.cons]
    yield "Claims", [line for claim in t.claims for line in _claim(claim)]
    yield "Proven", _proven(atlas, t)
    yield "Same bits", _same_bits(atlas, t)
    yield "Not shown by the exemplar", [t.not_shown] if t.not_shown else []
    yield "Run it", list(commands(t)) if common.written(atlas, t) else []
    yield "Mutants caught by its claims", [_mutant(m) for m in t.mutants]
    yield "In production", [_production(p) for p in t.production]
    users = [f"{s.name} ({s.year}): atlas show {s.id}" for s in atlas.users(t.id)]
    yield "Used by", users
    yield "Papers", citations(atlas, t.papers)
    yield "Grew from", citations(atlas, t.roots)
    yield "In the surveys", [f"{k}: {v}" for k, v in t.surveys.items()]
    yield "See also", [", ".join(t.see_also)] if t.see_also else []
    yield "Files", _files(atlas, t)


def _claim(claim: Claim) -> list[str]:
    where = "per rank" if claim.per == "rank" else "per run"
    band = f" between {claim.band[0]:g} and {claim.band[1]:g}" if claim.band else ""
    lines = [f"{claim.id}: {claim.says} ({claim.kind}{band}, {where})"]
    if claim.formula is not None:
        lines += [f"    {line}" for line in formula(claim.formula)]
    return lines


def formula(name: str) -> list[str]:
    """A formula as its Python, without the checks of its arguments."""
    fn = FORMULAS[name]
    tree = ast.parse(textwrap.dedent(inspect.getsource(fn))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    body = [node for node in tree.body if not isinstance(node, ast.Expr)]
    head = f"{name}({', '.join(inspect.signature(fn).parameters)})"
    if len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value:
        return [f"{head} = {ast.unparse(body[0].value)}"]
    code = "\n".join(ast.unparse(node) for node in body)
    return [f"{head}:", *(f"    {line}" for line in code.splitlines())]


def _proven(atlas: Atlas, t: Technique) -> list[str]:
    if not common.written(atlas, t):
        return ["exemplar not written yet"]
    proofs = common.proofs(atlas, t)
    lines = [f"{p}: {p.recorded}, torch {p.torch}" for p in proofs]
    if not proofs:
        lines = ["not recorded yet", f"atlas record {t.id}"]
    elif not any(p.backend == "nccl" for p in proofs):
        lines.append("not yet run on GPUs")
    return lines


def _same_bits(atlas: Atlas, t: Technique) -> list[str]:
    found = _answers(atlas, t)
    return [f"{a.question}: {a.answer} ({a.reason})" for a in found]


def _answers(atlas: Atlas, t: Technique) -> list[bits.Answer]:
    found = kept.read(atlas.root).get(t.id)
    return bits.answers(found) if found else []


def _mutant(m: taxonomy.Mutant) -> str:
    caught = "the deadline" if m.deadline else ", ".join(m.fails)
    return f"{m.id}: {m.says} (caught by {caught})"


def _production(p: taxonomy.Production) -> str:
    return f"{p.name}: {p.setting} ({p.version})"


def _files(atlas: Atlas, t: Technique) -> list[str]:
    return [str(f) for f in (t.yaml, t.exemplar) if (atlas.root / f).is_file()]


def _plain_technique(atlas: Atlas, t: Technique) -> dict[str, Any]:
    from atlas.script.latex import latex

    claims = [
        {**asdict(c), "latex": latex(FORMULAS[c.formula]) if c.formula else None}
        for c in t.claims
    ]
    return {
        **asdict(t),
        "kind": "technique",
        "claims": claims,
        "papers": [asdict(atlas.papers[key]) for key in t.papers],
        "proven": {p.backend: p.plain() for p in common.proofs(atlas, t)},
        "commands": list(commands(t)) if common.written(atlas, t) else [],
        "same_bits": [asdict(a) for a in _answers(atlas, t)],
        "used_by": [s.id for s in atlas.users(t.id)],
        "files": _files(atlas, t),
    }
