"""Papers, surveys and the reference: what the techniques stand among."""

import inspect
from collections import defaultdict

from atlas.oracle import FORMULAS
from atlas.oracle.emit import latex
from atlas.site.context import Context
from atlas.site.technique import cite
from atlas.site.text import front, listing, md, slug

# The public modules of the reference, with what each is for.
MODULES = (
    ("exemplars.runtime", "what every exemplar imports"),
    ("exemplars.workload", "the two tasks the training exemplars share"),
    ("atlas.knowledge", "the taxonomy as types"),
    ("atlas.oracle.formulas", "every formula, once"),
    ("atlas.verdict", "predicted against measured"),
    ("atlas.record", "a measured run, kept"),
    ("atlas.meter", "calls, bytes and memory"),
    ("atlas.timeline", "rounds, waits, bubbles"),
    ("atlas.clock", "virtual time"),
    ("atlas.schedule", "who does what, when"),
    ("atlas.launch", "ranks, supervised"),
)


def papers(ctx: Context) -> str:
    """Every paper, with the techniques, systems and surveys that rest on it."""
    rests: dict[str, list[str]] = defaultdict(list)
    for t in ctx.atlas.techniques.values():
        for key in t.papers:
            rests[key].append(f"[{md(t.name)}]({t.path}.md)")
    for s in ctx.atlas.systems.values():
        for key in s.papers:
            rests[key].append(f"[{md(s.name)}](systems/{s.id}.md)")
    for v in ctx.atlas.surveys.values():
        rests[v.paper].append(f"[the survey {md(v.name)}](surveys.md#{slug(v.id)})")
    parts = [
        front("Papers", search={"boost": 0.5}),
        "# Papers",
        "One bibliography, oldest first.",
    ]
    found = sorted(ctx.atlas.papers.values(), key=lambda p: (p.year, p.key))
    for p in found:
        title = f"### {md(p.title)} {{ #{slug(p.key)} }}"
        on = listing(rests[p.key]) or "nothing yet: it is cited as a source"
        parts.append(f"{title}\n\n{cite(p)}\n\nWhat rests on it: {on}.")
    if not found:
        parts.append("No paper is recorded yet.")
    return "\n\n".join(parts) + "\n"


def surveys(ctx: Context) -> str:
    """The five surveys and their words."""
    parts = [
        front("Surveys", description="How five surveys name and file the techniques."),
        "# The surveys",
        "The atlas stands on five surveys. They use conflicting words for the same "
        "cut; this is what each means by its own.",
    ]
    for v in ctx.atlas.surveys.values():
        parts.append(f"## {md(v.name)} {{ #{slug(v.id)} }}")
        parts.append(cite(ctx.atlas.papers[v.paper]))
        parts.append(f"Read for this page: {md(v.read)}")
        rows = ["| its word | what it means | here |", "|---|---|---|"]
        for term in v.terms:
            here = [
                f"[{md(ctx.atlas.families[f].name)}]({f}/index.md)"
                for f in term.families
            ]
            says = md(term.says) + ("" if term.verified else " *(not verified)*")
            rows.append(f"| {md(term.term)} | {says} | {', '.join(here)} |")
        parts.append("\n".join(rows))
    if not ctx.atlas.surveys:
        parts.append("No survey is filed yet.")
    return "\n\n".join(parts) + "\n"


def modules(ctx: Context) -> list[tuple[str, str]]:
    """The modules of the reference that exist."""
    out = []
    for name, what in MODULES:
        path = ctx.root / name.replace(".", "/")
        if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file():
            out.append((name, what))
    return out


def reference(ctx: Context) -> str:
    """The list of modules."""
    rows = [f"- [`{name}`]({name}.md): {md(what)}" for name, what in modules(ctx)]
    parts = [
        front("Reference"),
        "# Reference",
        "Read from the source.",
        "\n".join(rows),
    ]
    return "\n\n".join(parts) + "\n"


def formulas(what: str) -> str:
    """Every formula with its mathematics: lighter than its signature and source."""
    rows = []
    for name, fn in FORMULAS.items():
        says, _, source = (inspect.getdoc(fn) or "").partition("\n\n")
        rows.append(f"### {name} {{ #{name} }}\n\n{md(says)}\n")
        arguments = ", ".join(inspect.signature(fn).parameters)
        rows.append(f"\\[ {latex(fn)} \\]\n\n`{name}({arguments})` {md(source)}\n")
    title = "atlas.oracle.formulas"
    head = front(title, description=what, search={"boost": 0.5}, hide=["toc"])
    return head + f"# `{title}`\n\n{md(what)}\n\n" + "\n".join(rows)


def module(name: str, what: str) -> str:
    """The reference of one module."""
    if name == "atlas.oracle.formulas":
        return formulas(what)
    return (
        front(name, description=what, search={"boost": 0.5})
        + f"# `{name}`\n\n::: {name}\n    options:\n      show_root_heading: false\n"
        + "      heading_level: 2\n      show_source: false\n"
    )
