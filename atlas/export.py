"""The atlas for other programs: one JSON value, its JSON Schema, BibTeX, llms.txt.

All four are pure functions of the taxonomy, so that two builds of one tree are equal
byte for byte. Where the YAML may leave a key out, the JSON has null or its default:
a program finds every key everywhere.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from atlas import __version__
from atlas.taxonomy.kinds import (
    TAXONOMY,
    Atlas,
    Axis,
    Choose,
    Crosswalk,
    Paper,
    Survey,
    System,
    Technique,
    Word,
)
from atlas.taxonomy.tables import Tables
from atlas.taxonomy.typed import Rule

TITLE = "The Atlas of Distributed Deep Learning"
SUMMARY = (
    "An executable survey of how many machines train one network: every technique as "
    "data with its sources, a program that runs, a formula that predicts it and a "
    "measurement that agrees; and the systems that use them."
)
DATA, SCHEMA, BIBTEX, LLMS = (
    "taxonomy.json",
    "taxonomy.schema.json",
    "papers.bib",
    "llms.txt",
)
DIALECT = "https://json-schema.org/draft/2020-12/schema"


# The taxonomy as one value


def taxonomy(atlas: Atlas) -> dict[str, Any]:
    """Everything the taxonomy holds, as JSON has it."""
    techniques = {
        name: {
            **_plain(t),
            "path": t.path,
            "exemplar": t.exemplar.as_posix() if _written(atlas, t) else None,
        }
        for name, t in atlas.techniques.items()
    }
    papers = {key: {**_plain(p), "link": p.link} for key, p in atlas.papers.items()}
    return {
        "$schema": SCHEMA,
        "version": __version__,
        "axes": _plain(atlas.axes),
        "techniques": techniques,
        "systems": _plain(atlas.systems),
        "surveys": _plain(atlas.surveys),
        "papers": papers,
        "glossary": _plain(atlas.glossary),
        "crosswalk": _plain(atlas.crosswalk),
        "choose": _plain(atlas.choose),
        "tables": _plain(atlas.tables),
    }


def _written(atlas: Atlas, t: Technique) -> bool:
    return (atlas.root / t.exemplar).is_file()


def _plain(value: Any) -> Any:
    """A frozen record as dictionaries and lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name.rstrip("_"): _plain(getattr(value, f.name)) for f in fields}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return value


def text(value: dict[str, Any]) -> str:
    """A value as its file has it."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


# Its schema

_EXTRA: dict[type, dict[str, dict[str, Any]]] = {
    Technique: {
        "path": {
            "type": "string",
            "description": "axis/family/id, also in the site's addresses",
        },
        "exemplar": {
            "type": ["string", "null"],
            "description": "the program's file; null: not written yet",
        },
    },
    Paper: {"link": {"type": "string", "description": "where to read it"}},
}


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what `taxonomy` returns."""
    defs: dict[str, dict[str, Any]] = {}

    def many(cls: type) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": _described(cls, defs)}

    properties = {
        "$schema": {"const": SCHEMA},
        "version": {
            "type": "string",
            "pattern": r"^\d+\.\d+\.\d+",
            "description": "the version of the atlas that wrote this",
        },
        "axes": _described(tuple[Axis, ...], defs),
        "techniques": many(Technique),
        "systems": many(System),
        "surveys": many(Survey),
        "papers": many(Paper),
        "glossary": _described(tuple[Word, ...], defs),
        "crosswalk": _described(Crosswalk | None, defs),
        "choose": _described(Choose | None, defs),
        "tables": _described(Tables | None, defs),
    }
    return {
        "$schema": DIALECT,
        "$id": SCHEMA,
        "title": TITLE,
        "description": "The whole taxonomy; what is by name is by id, or by key.",
        **_closed(properties),
        "$defs": defs,
    }


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _described(hint: Any, defs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The schema of a value of this type; of a record, a reference to its own."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _record(typing.cast(type, hint), defs)
    if origin is Annotated:
        made = _described(args[0], defs)
        for rule in args[1:]:
            if isinstance(rule, Rule):
                made |= dict(rule.schema)
        return made
    if origin is types.UnionType or origin is typing.Union:
        return {"anyOf": [_described(a, defs) for a in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is tuple and args[-1] is Ellipsis:
        return {"type": "array", "items": _described(args[0], defs)}
    if origin is tuple:
        made = {"type": "array", "items": _described(args[0], defs)}
        return {**made, "minItems": len(args), "maxItems": len(args)}
    if origin is collections.abc.Mapping:
        return {"type": "object", "additionalProperties": _described(args[1], defs)}
    return {"type": _NAMES[hint]}


_NAMES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def _record(cls: type, defs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if cls.__name__ not in defs:
        hints = typing.get_type_hints(cls, include_extras=True)
        defs[cls.__name__] = {}  # holds its place while the fields are described
        properties: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            says = field.metadata.get("says")
            about = {"description": str(says)} if says else {}
            described = _described(hints[field.name], defs)
            properties[field.name.rstrip("_")] = {**about, **described}
        properties |= _EXTRA.get(cls, {})
        about = {"description": (cls.__doc__ or "").strip().splitlines()[0]}
        defs[cls.__name__] = {**about, **_closed(properties)}
    return {"$ref": f"#/$defs/{cls.__name__}"}


# BibTeX


def bibtex(atlas: Atlas) -> str:
    """The bibliography, as it is kept."""
    return (atlas.root / TAXONOMY / BIBTEX).read_text(encoding="utf-8")


# llms.txt

#: Pages that are not about one thing: file -> title, what it is.
VIEWS = {
    "map.md": ("Map", "sync strategy by parameter distribution, cell by cell"),
    "grid.md": (
        "Langer's grid",
        "where the optimizer runs, by how workers are scheduled",
    ),
    "choose.md": ("Choose", "a few questions that lead to a technique"),
    "systems/index.md": ("Systems", "every system in one table, with filters"),
    "compare.md": ("Compare", "two to four systems or techniques side by side"),
    "timeline.md": ("Timeline", "systems and techniques year by year"),
    "papers.md": ("Papers", "the bibliography, and what rests on each work"),
    "glossary.md": ("Glossary", "the words of the field, and where each leads"),
    "crosswalk.md": ("Crosswalk", "the same cut under the names that others give it"),
    "surveys.md": ("Surveys", "what each survey found, beside the runs here"),
    "surveys/langer-table.md": (
        "Langer's table",
        "the systems of Langer's Table 1, cell by cell, beside our classification",
    ),
    "surveys/langer-delays.md": (
        "Langer's least delays",
        "the least time of one exchange, pattern by pattern, and what runs count",
    ),
    "surveys/paradl-tables.md": (
        "ParaDL's tables",
        "limits, networks and bottlenecks, beside what the planner computes",
    ),
    "coverage.md": ("Coverage", "what is proven, and what is missing"),
}


def folder(uri: str) -> str:
    """A page's file -> its address in the site."""
    bare = uri.removesuffix(".md")
    return bare.removesuffix("index") if bare.endswith("index") else f"{bare}/"


def llms(atlas: Atlas, url: Callable[[str], str] = folder) -> str:
    """A guide for language models, in the form of llmstxt.org."""
    return "\n".join(_guide(atlas, url)) + "\n"


def _guide(atlas: Atlas, url: Callable[[str], str]) -> Iterator[str]:
    yield f"# {TITLE}"
    yield f"\n> {SUMMARY}\n"
    written = sum(_written(atlas, t) for t in atlas.techniques.values())
    yield (
        f"{len(atlas.techniques)} techniques, {written} of them with a program that "
        f"was run and measured; {len(atlas.systems)} systems. Where a system stands "
        "on the axes is this project's own classification; every cell says whether its "
        "source was read. Links are relative to this file."
    )
    yield "\n## Data\n"
    yield _item("Taxonomy", DATA, "everything below as one JSON value")
    yield _item("Schema", SCHEMA, "the JSON Schema of that value")
    yield _item("Bibliography", BIBTEX, f"{len(atlas.papers)} works as BibTeX")
    yield "\n## Views\n"
    for uri, (name, says) in VIEWS.items():
        yield _item(name, url(uri), says)
    for axis in atlas.axes:
        yield f"\n## {axis.name}: {axis.question}\n"
        for family in axis.families:
            page = url(f"{family.path}/index.md")
            yield _item(f"Family: {family.name}", page, family.summary)
            for t in atlas.techniques.values():
                if (t.axis, t.family) == (axis.id, family.id):
                    yield _item(t.name, url(f"{t.path}.md"), t.summary)
    yield "\n## Systems\n"
    for s in sorted(atlas.systems.values(), key=lambda s: (s.year, s.id)):
        says = f"{s.year}. {s.summary}"
        yield _item(s.name, url(f"systems/{s.id}.md"), says)
    yield "\n## Surveys\n"
    for v in atlas.surveys.values():
        says = v.about or atlas.papers[v.paper].title
        yield _item(v.name, url(f"surveys/{v.id}.md"), says)
    yield "\n## Optional\n"
    yield _item("Reference", url("reference/index.md"), "the API of the Python code")
    yield _item("Changes", url("changes.md"), "what was added lately")


def _item(name: str, to: str, says: str) -> str:
    return f"- [{' '.join(name.split())}]({to}): {' '.join(says.split())}"
