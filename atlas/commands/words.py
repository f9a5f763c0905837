"""Terms, papers and surveys as `atlas show` tells them."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from atlas import export
from atlas.commands.names import shell
from atlas.commands.sections import Sections, citation, citations
from atlas.taxonomy import Atlas, Paper, Survey, Word

# Terms


def word_named(atlas: Atlas, term: str) -> Word:
    """The word of the glossary that stands under this term."""
    return next(word for word in atlas.glossary if word.term == term)


def term(atlas: Atlas, word: Word) -> Sections:
    """Other words for it, where it leads, where it comes from."""
    yield "Also called", [", ".join(word.aliases)] if word.aliases else []
    yield "See", [line for entry in word.see for line in _lead(atlas, entry)]
    yield "Papers", citations(atlas, word.papers)


def _lead(atlas: Atlas, entry: str) -> list[str]:
    for known in (atlas.techniques, atlas.systems):
        if entry in known:
            return [f"{known[entry].name}:", f"  {_command(entry)}"]
    return [f"{atlas.families[entry].name}:", f"  {_command(entry)}"]


def _command(entry: str) -> str:
    _, slash, family = entry.partition("/")
    return f"atlas list --family {family}" if slash else f"atlas show {entry}"


def plain_term(word: Word) -> dict[str, Any]:
    """As JSON."""
    commands = [_command(entry) for entry in word.see]
    return {**asdict(word), "kind": "term", "id": word.term, "commands": commands}


# Papers


def paper(atlas: Atlas, p: Paper) -> Sections:
    """How to cite it, where to read it, and what cites it here."""
    yield "Key", [p.key]
    yield "Read it", [p.link]
    for kind, ids in rests(atlas, p.key).items():
        only = " --kind term" if kind == "terms" else ""
        shown = [f"atlas show {shell(name)}{only}" for name in ids]
        yield f"Cited by: {kind}", shown
    yield "BibTeX", entry(atlas, p.key).splitlines()


def published(p: Paper) -> str:
    """Who wrote it, when, and where it stands."""
    return ". ".join(
        part for part in (", ".join(p.authors), str(p.year), p.venue) if part
    )


def entry(atlas: Atlas, key: str) -> str:
    """The paper's entry in the bibliography."""
    from atlas.views.papers import entries

    return entries(export.bibtex(atlas))[key]


def rests(atlas: Atlas, key: str) -> dict[str, list[str]]:
    """Kind -> what cites a paper, or names it as a source."""
    words = {word.term: word for word in atlas.glossary}
    kinds: dict[str, dict[str, Any]] = {
        "techniques": dict(atlas.techniques),
        "systems": dict(atlas.systems),
        "surveys": dict(atlas.surveys),
        "terms": dict(words),
    }
    found = {
        kind: [name for name, made in known.items() if key in _texts(asdict(made))]
        for kind, known in kinds.items()
    }
    return {kind: ids for kind, ids in found.items() if ids}


def _texts(value: Any) -> Iterator[str]:
    """Every text inside; a paper's key is like no other text."""
    match value:
        case str():
            yield value
        case dict():
            yield from _each(value.values())
        case list() | tuple():
            yield from _each(value)


def _each(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        yield from _texts(value)


def plain_paper(atlas: Atlas, p: Paper) -> dict[str, Any]:
    """As JSON. The kind of its BibTeX entry is called type, since kind is ours."""
    return {
        **asdict(p),
        "type": p.kind,
        "kind": "paper",
        "id": p.key,
        "link": p.link,
        "rests": rests(atlas, p.key),
        "bibtex": entry(atlas, p.key),
    }


# Surveys

_READ = {
    "paper": "read in the paper",
    "translation": "read in a translation",
    "figure": "read off a figure",
    "abstract": "read in the abstract",
    "report": "read in an earlier report",
    "draft": "read in a draft",
}


def survey(atlas: Atlas, v: Survey) -> Sections:
    """Its taxonomy, its results, its words, and what of it is here."""
    yield "Paper", [citation(atlas.papers[v.paper]), f"  {atlas.papers[v.paper].link}"]
    yield "What was read", [v.read]
    yield "Its taxonomy", list(v.taxonomy)
    results = [f"{r.says} ({_READ.get(r.read, r.read)})" for r in v.results]
    yield "Its results", results
    yield (
        "Compared with our runs",
        [f"{c.says} {c.verdict}: {c.here}" for c in v.comparisons],
    )
    yield "Its terms", [_word(t.term, t.says, t.verified) for t in v.terms]
    yield "Notes for citing it", list(v.notes)
    here = [
        f"{len(_techniques(atlas, v))} techniques: atlas list --survey {v.id}",
        f"{len(_systems(atlas, v))} systems: atlas list --systems --survey {v.id}",
    ]
    yield "In the atlas", here


def _word(word: str, says: str, verified: bool) -> str:
    return f"{word}: {says}{'' if verified else ' (not verified)'}"


def _techniques(atlas: Atlas, v: Survey) -> list[str]:
    return [t.id for t in atlas.techniques.values() if v.id in t.surveys]


def _systems(atlas: Atlas, v: Survey) -> list[str]:
    return [s.id for s in atlas.systems.values() if v.id in s.surveys]


def plain_survey(atlas: Atlas, v: Survey) -> dict[str, Any]:
    """As JSON."""
    here = {"techniques": _techniques(atlas, v), "systems": _systems(atlas, v)}
    return {**asdict(v), "kind": "survey", **here}
