"""Every generated page by its address: pure functions of the files below a root."""

from pathlib import Path
from typing import Any

from atlas import export
from atlas.oracle import FORMULAS
from atlas.oracle.emit import javascript
from atlas.site import (
    accuracy,
    address,
    calculator,
    choose,
    chronology,
    compare,
    coverage,
    crosswalk,
    families,
    glossary,
    grid,
    library,
    matrix,
    names,
    notebooks,
    oracle,
    overview,
    papers,
    surveys,
    system,
    systems,
    technique,
)
from atlas.site.context import Context, read
from atlas.site.text import attr

MAP, STATS = "<!-- atlas: map -->", "<!-- atlas: stats -->"
Nav = list[Any]


def render(root: Path, context: Context | None = None) -> dict[str, str | bytes]:
    """Address in the site -> Markdown, or the bytes of a file."""
    ctx = context or read(root)
    out: dict[str, str | bytes] = {}
    for axis in ctx.atlas.axes:
        out[f"{axis.id}/index.md"] = families.axis_page(ctx, axis)
        for family in axis.families:
            page = families.family_page(ctx, axis, family)
            out[f"{axis.id}/{family.id}/index.md"] = page
    for t in ctx.atlas.techniques.values():
        out[f"{t.path}.md"] = technique.page(ctx, t)
    out["systems/index.md"] = systems.page(ctx)
    out.update(system.pages(ctx))
    out.update(compare.pages(ctx))
    out["timeline.md"] = chronology.page(ctx)
    out["papers.md"] = papers.page(ctx)
    out["papers.bib"] = papers.source(ctx)
    out.update(surveys.pages(ctx))
    out["crosswalk.md"] = crosswalk.page(ctx)
    out["glossary.md"] = glossary.page(ctx)
    out[names.FILE] = names.script(ctx)
    out["coverage.md"] = coverage.page(ctx)
    out["changes.md"] = coverage.changes(ctx)
    out["map.md"] = matrix.page(ctx)
    out["grid.md"] = grid.page(ctx)
    out["choose.md"] = choose.page(ctx)
    out[calculator.HERE] = calculator.page(ctx)
    out.update(calculator.files())
    out[oracle.HERE] = oracle.page(ctx)
    out[accuracy.HERE] = accuracy.page(ctx)
    out["assets/js/formulas.js"] = javascript(FORMULAS.values())
    out["reference/index.md"] = library.reference(ctx)
    for name, what in library.modules(ctx):
        out[f"reference/{name}.md"] = library.module(name, what)
    out.update(notebooks.pages(root))
    out[export.DATA] = export.text(export.taxonomy(ctx.atlas))
    out[export.SCHEMA] = export.text(export.schema())
    out[export.LLMS] = export.llms(ctx.atlas, address.url)
    return out


def fill(markdown: str, context: Context) -> str:
    """A hand-written page with its marked places filled in."""
    if MAP in markdown:
        markdown = markdown.replace(MAP, overview.the_map(context))
    if STATS in markdown:
        markdown = markdown.replace(STATS, overview.stats(context))
    return markdown


def nav(root: Path, context: Context | None = None) -> Nav:
    """The site's table of contents, for the "@taxonomy" entry."""
    ctx = context or read(root)
    out: Nav = []
    for axis in ctx.atlas.axes:
        inside: Nav = [f"{axis.id}/index.md"]
        for family in axis.families:
            pages: Nav = [f"{axis.id}/{family.id}/index.md"]
            pages += [f"{t.path}.md" for t in ctx.of_family(axis.id, family.id)]
            inside.append({attr(family.name): pages})
        out.append({attr(axis.name): inside})
    views = {"Map": "map.md", "Langer's grid": "grid.md", "Choose": "choose.md"}
    views |= {"Calculator": calculator.HERE, "How the oracle computes": oracle.HERE}
    views |= {"How far to trust it": accuracy.HERE}
    out.append({"Views": [{name: uri} for name, uri in views.items()]})
    # the page of one system is reached from these; mkdocs.yml keeps it out of nav
    out.append({"Systems": ["systems/index.md", "compare.md", "timeline.md"]})
    filed = [{"All five": "surveys.md"}]
    filed += [{attr(v.name): surveys.home(v)} for v in ctx.atlas.surveys.values()]
    more: Nav = [{"Glossary": "glossary.md"}, {"Crosswalk": "crosswalk.md"}]
    more += [{"Surveys": filed}, {"Papers": "papers.md"}]
    more += [{"Coverage": "coverage.md"}, {"Changes": "changes.md"}]
    if kept := notebooks.names(root):
        pages = ["notebooks/index.md", *(f"notebooks/{n}.md" for n in kept)]
        out.append({"Notebooks": pages})
    out.append({"Library": more})
    names = [f"reference/{n}.md" for n, _ in library.modules(ctx)]
    out.append({"Reference": ["reference/index.md", *names]})
    return out


def source_of(uri: str) -> str | None:
    """The file to edit for a generated page, from the root, or None."""
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
        case ["reference", name] if name != "index":
            return name.replace(".", "/") + ".py"
        case ["surveys", name]:
            return f"taxonomy/surveys/{name}.yaml"
        case ["papers"]:
            return "taxonomy/papers.bib"
        case ["glossary" | "crosswalk" as name]:
            return f"taxonomy/{name}.yaml"
        case [*_, "index"] if parts[0] not in ("systems", "notebooks", "reference"):
            return "taxonomy/axes.yaml"
    return None
