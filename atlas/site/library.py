"""The reference: the public modules, read from the source, and every formula."""

import inspect
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from atlas.formulas import FORMULAS
from atlas.script.latex import latex
from atlas.site.templating import markup, render
from atlas.site.text import front
from atlas.views.context import Context
from atlas.views.proof import meaning

# The public modules of the reference, with what each is for.
MODULES = (
    ("exemplars.runtime", "what every exemplar imports"),
    ("exemplars.workload", "the two tasks the training exemplars share"),
    ("atlas.taxonomy", "the taxonomy as types"),
    ("atlas.formulas", "formulas that several axes share"),
    ("atlas.formulas.sync_strategy", "every formula of the axis, once"),
    ("atlas.formulas.parameter_distribution", "every formula of the axis, once"),
    ("atlas.formulas.communication_pattern", "every formula of the axis, once"),
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
    head = markup(front("Reference"))
    return render("reference.md.j2", front=head, modules=modules(ctx))


@dataclass(frozen=True)
class Shown:
    """A formula as the reference has it."""

    name: str
    says: str
    source: str
    latex: Markup
    arguments: tuple[str, ...]
    meaning: str


def formulas(ctx: Context, package: str, what: str) -> str:
    """The formulas of an axis, or the shared ones, with what their words mean."""
    head = front(package, description=what, search={"boost": 0.5}, hide=["toc"])
    found = [
        _shown(ctx, name, fn)
        for name, fn in FORMULAS.items()
        if _package(fn) == package
    ]
    return render(
        "formulas.md.j2", front=markup(head), title=package, what=what, formulas=found
    )


def _package(formula: Any) -> str:
    return str(formula.__module__).rpartition(".")[0]


def _shown(ctx: Context, name: str, fn: Any) -> Shown:
    says, _, source = (inspect.getdoc(fn) or "").partition("\n\n")
    words = tuple(inspect.signature(fn).parameters)
    known = [ctx.atlas.symbols[w] for w in words if w in ctx.atlas.symbols]
    return Shown(name, says, source, markup(latex(fn)), words, meaning(known))


def module(ctx: Context, name: str, what: str) -> str:
    """The reference of one module."""
    if name.startswith("atlas.formulas"):
        return formulas(ctx, name, what)
    head = front(name, description=what, search={"boost": 0.5})
    return render("module.md.j2", front=markup(head), name=name)
