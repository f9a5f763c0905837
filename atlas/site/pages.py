"""Every generated page by its address: pure functions of the files below a root."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from atlas import export
from atlas.site import (
    accuracy,
    address,
    bubble,
    bugs,
    calculator,
    choose,
    chronology,
    collectives,
    compare,
    composition,
    compressors,
    coverage,
    crosswalk,
    cut,
    delays,
    families,
    glossary,
    grid,
    hangs,
    langer,
    library,
    matrix,
    names,
    notebooks,
    oracle,
    overview,
    papers,
    paradl,
    path,
    surveys,
    system,
    systems,
    technique,
)
from atlas.site.text import attr
from atlas.taxonomy import Axis
from atlas.views.context import Context, read

PLACE = re.compile(r"\{\{ (\w+) \}\}")
Nav = list[Any]
Made = dict[str, str | bytes]
Job = Callable[[], Mapping[str, str | bytes]]
Places = Mapping[str, Callable[[Context], object]]
#: Of the reference: the modules that are folders, as all below atlas.formulas are.
PACKAGES = ("atlas.formulas", "atlas.meter", "atlas.schedule", "atlas.taxonomy")
# The pages written by hand, below docs/, and what fills their marked places.
WRITTEN: Mapping[str, Places] = {
    overview.HERE: overview.PLACES,
    matrix.HERE: matrix.PLACES,
    grid.HERE: grid.PLACES,
    cut.HERE: cut.PLACES,
    collectives.HERE: collectives.PLACES,
    compressors.HERE: compressors.PLACES,
    composition.HERE: composition.PLACES,
    bubble.HERE: bubble.PLACES,
    crosswalk.HERE: crosswalk.PLACES,
    choose.HERE: choose.PLACES,
    compare.HERE: compare.PLACES,
    chronology.HERE: chronology.PLACES,
    surveys.INDEX: surveys.PLACES,
    langer.HERE: langer.PLACES,
    hangs.HERE: hangs.PLACES,
    "check.md": {},
    "meter.md": {},
    "run.md": {"real_gpus": overview.real_gpus, "notebooks": notebooks.listed},
    delays.HERE: delays.PLACES,
    paradl.HERE: paradl.PLACES,
    **path.PAGES,
}


def render(root: Path, context: Context | None = None) -> Made:
    """Address in the site -> Markdown, or the bytes of a file."""
    out: Made = {}
    for job in _jobs(context or read(root)):
        out.update(job())
    return out


def _jobs(ctx: Context) -> Iterator[Job]:
    """Everything to make, in the order of the site."""
    for uri, places in WRITTEN.items():
        yield _one(uri, _written, ctx, uri, places)
    for axis in ctx.atlas.axes:
        yield partial(_axis, ctx, axis)
    for t in ctx.atlas.techniques.values():
        yield _one(f"{t.path}.md", technique.page, ctx, t)
    yield _one("systems/index.md", systems.page, ctx)
    yield partial(system.pages, ctx)
    yield partial(compare.scripts, ctx)
    yield _one("papers.md", papers.page, ctx)
    yield _one("papers.bib", papers.source, ctx)
    yield partial(surveys.pages, ctx)
    yield _one("glossary.md", glossary.page, ctx)
    yield _one(names.FILE, names.script, ctx)
    yield _one(bugs.HERE, bugs.page, ctx)
    yield _one("coverage.md", coverage.page, ctx)
    yield _one("changes.md", coverage.changes, ctx)
    yield _one(calculator.HERE, calculator.page, ctx)
    yield calculator.files
    yield bubble.scripts
    yield _one(oracle.HERE, oracle.page, ctx)
    yield _one(accuracy.HERE, accuracy.page, ctx)
    for axis in ctx.atlas.axes:
        yield _one(f"assets/js/{families.script_of(axis)}", families.script, ctx, axis)
    yield partial(_reference, ctx)
    yield lambda: dict(notebooks.pages(ctx.root))
    yield _one(export.DATA, lambda: export.text(export.taxonomy(ctx.atlas)))
    yield _one(export.SCHEMA, lambda: export.text(export.schema()))
    yield _one(export.LLMS, export.llms, ctx.atlas, address.url)


def _one(uri: str, make: Callable[..., str | bytes], *of: Any) -> Job:
    return lambda: {uri: make(*of)}


def _axis(ctx: Context, axis: Axis) -> Made:
    out: Made = {f"{axis.id}/index.md": families.axis_page(ctx, axis)}
    for family in axis.families:
        page = families.family_page(ctx, axis, family)
        out[f"{axis.id}/{family.id}/index.md"] = page
    return out


def _reference(ctx: Context) -> Made:
    out: Made = {"reference/index.md": library.reference(ctx)}
    for name, what in library.modules(ctx):
        out[f"reference/{name}.md"] = library.module(ctx, name, what)
    return out


def _written(ctx: Context, uri: str, places: Places) -> str:
    markdown = (ctx.root / "docs" / uri).read_text(encoding="utf-8")
    return fill(markdown, places, ctx)


def fill(markdown: str, places: Places, context: Context) -> str:
    """A hand-written page with its marked places, `{{ name }}`, filled in."""

    def place(found: re.Match[str]) -> str:
        if found[1] not in places:
            known = ", ".join(places)
            raise KeyError(f"no place is called {found[1]!r}; there are {known}")
        return str(places[found[1]](context))

    return PLACE.sub(place, markdown)


def nav(root: Path, context: Context | None = None) -> Nav:
    """The site's table of contents, for the "@taxonomy" entry: six things to do."""
    ctx = context or read(root)
    kept = [f"notebooks/{n}.md" for n in notebooks.names(root)]
    names = [f"reference/{n}.md" for n, _ in library.modules(ctx)]
    # the page of one system is reached from these; mkdocs.yml keeps it out of nav
    placed = ["systems/index.md", "compare.md", "timeline.md"]
    asked = {"Choose": choose.HERE, "Calculator": calculator.HERE}
    asked |= {"How the oracle computes": oracle.HERE}
    asked |= {"How far to trust it": accuracy.HERE}
    own = {"Is it right?": "check.md", "Bugs by symptom": bugs.HERE}
    own |= {"What does it send?": "meter.md", "Why does it hang?": hangs.HERE}
    run: Nav = [{"Install and run": "run.md"}]
    run += [{"Notebooks": ["notebooks/index.md", *kept]}] if kept else []
    run += [{"Coverage": "coverage.md"}, {"Changes": "changes.md"}]
    return [
        {"Learn": _learn(ctx)},
        {"Techniques": _techniques(ctx)},
        {"Systems": [*placed, {"Langer's grid": grid.HERE}]},
        {"Plan": _listed(asked)},
        {"Check": _listed(own)},
        {"Run": [*run, {"Reference": ["reference/index.md", *names]}]},
    ]


def _listed(pages: Mapping[str, str]) -> Nav:
    return [{name: uri} for name, uri in pages.items()]


def _learn(ctx: Context) -> Nav:
    """What explains: how the field is cut, its words, its papers."""
    filed = [{"All surveys": "surveys.md"}]
    for v in ctx.atlas.surveys.values():
        filed.append({attr(v.name): surveys.home(v)})
        filed += [{attr(name): uri} for name, uri in surveys.TABLES.get(v.id, ())]
    views = {"How the field is cut": cut.HERE, "Glossary": "glossary.md"}
    views |= {"Crosswalk": "crosswalk.md"}
    walk = {"The path": [{s.name: s.uri} for s in path.STOPS]}
    return [walk, *_listed(views), {"Surveys": filed}, {"Papers": "papers.md"}]


def _techniques(ctx: Context) -> Nav:
    """The map, the three axes, and the pages that measure many side by side."""
    out: Nav = [{"Map": "map.md"}]
    for axis in ctx.atlas.axes:
        inside: Nav = [f"{axis.id}/index.md"]
        for family in axis.families:
            pages: Nav = [f"{axis.id}/{family.id}/index.md"]
            pages += [f"{t.path}.md" for t in ctx.of_family(axis.id, family.id)]
            inside.append({attr(family.name): pages})
        out.append({attr(axis.name): inside})
    views = {"Collectives": collectives.HERE, "Compressors": compressors.HERE}
    views |= {"What composes": composition.HERE, "Bubble playground": bubble.HERE}
    return [*out, *_listed(views)]


def source_of(uri: str) -> str | None:
    """The file to edit for a page, from the root, or None."""
    if uri in WRITTEN:
        return f"docs/{uri}"
    if not uri.endswith(".md"):
        return None
    parts = uri.removesuffix(".md").split("/")
    match parts:
        case [axis, family, name] if name != "index":
            return f"taxonomy/techniques/{axis}/{family}/{name}.yaml"
        case ["systems", name] if name != "index":
            return f"taxonomy/systems/{name}.yaml"
        case ["notebooks", name] if name != "index":
            return f"notebooks/{name}.py"
        case ["reference", name] if name.startswith(PACKAGES):
            return name.replace(".", "/") + "/__init__.py"
        case ["reference", name] if name != "index":
            return name.replace(".", "/") + ".py"
        case ["surveys", name]:
            return f"taxonomy/surveys/{name}.yaml"
        case ["papers"]:
            return "taxonomy/papers.bib"
        case ["glossary"]:
            return "taxonomy/glossary.yaml"
        case [*_, "index"] if parts[0] not in ("systems", "notebooks", "reference"):
            return "taxonomy/axes.yaml"
    return None
