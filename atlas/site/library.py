"""The reference: the public modules, read from the source, and every formula."""

import inspect

from atlas.oracle import FORMULAS
from atlas.oracle.emit import latex
from atlas.site.context import Context
from atlas.site.text import front, md

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
