"""`atlas show NAME`: everything about a technique or a system, on the terminal."""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from atlas import knowledge
from atlas.commands import common
from atlas.commands.common import Json
from atlas.knowledge import Atlas, Claim, Paper, System, Technique
from atlas.oracle import FORMULAS

Name = Annotated[
    str,
    typer.Argument(
        help="A technique or a system.",
        metavar="NAME",
        autocompletion=common.complete_any,
    ),
]
Sections = Iterator[tuple[str, list[str]]]


def show(name: Name, json: Json = False) -> None:
    """Show a technique or a system: claims, formulas, records, commands, papers.

    Examples:

    \b
    atlas show ring-all-reduce
    atlas show horovod
    atlas show zero-3 --json
    """
    atlas = knowledge.load()
    if name in atlas.techniques:
        technique = atlas.techniques[name]
        if json:
            common.print_json(_plain_technique(atlas, technique))
        else:
            _print(technique.name, technique.summary, _technique(atlas, technique))
    elif name in atlas.systems:
        system = atlas.systems[name]
        if json:
            common.print_json({**asdict(system), "kind": "system"})
        else:
            _print(system.name, system.summary, _system(atlas, system))
    else:
        known = [*atlas.techniques, *atlas.systems]
        otherwise = "atlas list shows the techniques"
        raise common.unknown("technique or system", name, known, otherwise)


def _print(title: str, summary: str, sections: Sections) -> None:
    from rich.text import Text

    console = common.out()
    console.print(Text(title, style="bold"))
    console.print(Text(textwrap.fill(summary, console.width)))
    for heading, lines in sections:
        if lines:
            console.print()
            console.print(Text(heading, style="cyan"))
        for line in lines:
            hang = "  " if len(lines) > 1 else ""
            console.print(Text(_indented(line, console.width, hang)), soft_wrap=True)


def _indented(line: str, width: int, hang: str) -> str:
    """Below its heading; commands and addresses are copied, so they stay whole."""
    words = line.lstrip()
    indent = " " * (2 + len(line) - len(words))
    if words.startswith(("atlas ", "torchrun ")) or "://" in words:
        return indent + words
    return textwrap.fill(
        words, width, initial_indent=indent, subsequent_indent=indent + hang
    )


# Techniques


def _technique(atlas: Atlas, t: Technique) -> Sections:
    also = [f"{axis}: {family}" for axis, family in t.also.items()]
    called = [f"also called: {', '.join(t.also_called)}"] if t.also_called else []
    yield "Where it belongs", [f"{t.axis}: {t.family}", *also, *called]
    yield "Use it when", [t.use_when]
    yield "Not when", [t.avoid_when]
    yield "Gives", [t.pros]
    yield "Costs", [t.cons]
    yield "Claims", [line for claim in t.claims for line in _claim(claim)]
    yield "Proven", _proven(atlas, t)
    yield "Not shown by the run", [t.not_shown] if t.not_shown else []
    yield "Run it", list(commands(t)) if common.written(atlas, t) else []
    yield "Mutants, which its claims catch", [_mutant(m) for m in t.mutants]
    yield "In production", [_production(p) for p in t.production]
    users = [f"{s.name} ({s.year}): atlas show {s.id}" for s in atlas.users(t.id)]
    yield "Used by", users
    yield "Papers", _citations(atlas, t.papers)
    yield "In the surveys", [f"{k}: {v}" for k, v in t.surveys.items()]
    yield "See also", [", ".join(t.see_also)] if t.see_also else []
    yield "Files", _files(atlas, t)


def _claim(claim: Claim) -> list[str]:
    where = "on every rank" if claim.per == "rank" else "of the run"
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


def commands(t: Technique) -> Iterator[str]:
    """How to run it, to be copied."""
    p = max(t.min_ranks, min(4, t.max_ranks or 4))
    yield f"torchrun --standalone --nproc-per-node {p} -m {t.module}"
    yield f"atlas run {t.id} --ranks {p}"
    if t.dry:
        yield f"atlas run {t.id} --dry {max(t.dry)}"
    yield f"atlas run {t.id} --ranks {p} --emulate-gpu"
    if t.mutants:
        yield f"atlas run {t.id} --ranks {p} --mutant {t.mutants[0].id}"


def _mutant(m: knowledge.Mutant) -> str:
    caught = "the deadline" if m.deadline else ", ".join(m.fails)
    return f"{m.id}: {m.says} (caught by {caught})"


def _production(p: knowledge.Production) -> str:
    return f"{p.name}: {p.setting} ({p.version})"


def _citations(atlas: Atlas, keys: Iterable[str]) -> list[str]:
    papers = [atlas.papers[key] for key in keys]
    return [line for p in papers for line in (citation(p), f"  {p.link}")]


def citation(paper: Paper) -> str:
    """Authors, year, title, place."""
    authors = paper.authors
    names = " and ".join(authors) if len(authors) < 3 else f"{authors[0]} et al."
    parts = [f"{names} {paper.year}", paper.title, paper.venue]
    return ". ".join(part for part in parts if part)


def _files(atlas: Atlas, t: Technique) -> list[str]:
    return [str(f) for f in (t.yaml, t.exemplar) if (atlas.root / f).is_file()]


def _plain_technique(atlas: Atlas, t: Technique) -> dict[str, Any]:
    from atlas.oracle.emit import latex

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
        "used_by": [s.id for s in atlas.users(t.id)],
        "files": _files(atlas, t),
    }


# Systems


def _system(atlas: Atlas, s: System) -> Sections:
    about = [f"{s.year}, {s.status}", *(x for x in (s.made_by, s.licence, s.home) if x)]
    yield "What it is", about
    uses = [line for u in s.uses for line in (u.technique, _source(atlas, u))]
    yield "Techniques it uses", uses
    cells = [line for c in s.cells for line in (c.family, _source(atlas, c))]
    yield "Families it belongs to", cells
    yield "How it is built", list(_built(atlas, s))
    yield "Papers", _citations(atlas, s.papers)
    yield "Files", [str(s.yaml)]
    yield "This classification", ["is ours, made along the surveys' dimensions."]


def _built(atlas: Atlas, s: System) -> Iterator[str]:
    for what, cell in {
        "splits": s.parallelism,
        "optimizer": s.optimizer_location,
        "topology": s.topology,
    }.items():
        if cell is not None:
            yield f"{what}: {_words(cell.value)}"
            yield _source(atlas, cell)


def _words(value: str | Iterable[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)


def _source(atlas: Atlas, cell: Any) -> str:
    """Where that is written, and whether anybody looked."""
    if cell.source is None:
        return "  no source yet"
    paper = atlas.papers.get(cell.source)
    link = paper.link if paper else cell.source
    return f"  {'read in' if cell.verified else 'not yet verified in'} {link}"
