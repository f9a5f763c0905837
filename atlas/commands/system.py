"""A system as `atlas show` tells it: facts, places, relations, each with its source."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from atlas.commands import common
from atlas.commands.sections import Sections, citations, run, source
from atlas.taxonomy import Atlas, Fact, System, Technique


def sections(atlas: Atlas, s: System) -> Sections:
    """All that is known of a system."""
    from atlas.views.standing import verified

    yield "Overview", list(_about(s))
    yield "Hardware", _fact(atlas, s.hardware)
    yield "Reported run", _fact(atlas, s.reported_run)
    yield "Techniques it uses", list(_uses(atlas, s))
    cells = [line for c in s.cells for line in (c.family, source(atlas, c))]
    yield "Families it belongs to", cells
    yield "Design", list(_built(atlas, s))
    yield "Relations", list(_relations(atlas, s))
    yield "Similar systems", list(_alike(atlas, s))
    names = [f"{v}: {atlas.surveys[v].name}, {x}" for v, x in s.surveys.items()]
    yield "In the surveys", names
    yield "Papers", citations(atlas, s.papers)
    yield "Files", [str(s.yaml)]
    read, of = verified(s)
    yield (
        "This classification",
        [
            "is ours, along the dimensions of the surveys; "
            f"{read} of its {of} statements are verified in their source."
        ],
    )


def _about(s: System) -> Iterator[str]:
    published = ""
    if s.venue_year and s.venue_year != s.year:
        published = f" (published {s.venue_year})"
    yield f"{s.year}{published}, {s.status}"
    yield from (x for x in (s.made_by, s.license, s.home) if x)
    if s.also_called:
        yield f"also called: {', '.join(s.also_called)}"


def _fact(atlas: Atlas, fact: Fact | None) -> list[str]:
    return [fact.says, source(atlas, fact)] if fact else []


def _uses(atlas: Atlas, s: System) -> Iterator[str]:
    for use in s.uses:
        t = atlas.techniques[use.technique]
        yield f"{t.id}: {t.axis}, {t.family}"
        yield f"  {runs(atlas, t) or 'exemplar not written yet'}"
        yield source(atlas, use)


def runs(atlas: Atlas, t: Technique) -> str | None:
    """The command that runs a technique; None where there is nothing to run."""
    return run(t) if common.written(atlas, t) else None


def _built(atlas: Atlas, s: System) -> Iterator[str]:
    for what, cell in {
        "splits": s.parallelism,
        "topology": s.topology,
    }.items():
        if cell is not None:
            yield f"{what}: {_words(cell.value)}"
            yield source(atlas, cell)
    if place := s.optimizer_location:
        yield f"optimizer: {place.value}"
        yield f"  follows from {', '.join(place.because)}"


def _words(value: str | Iterable[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)


def _relations(atlas: Atlas, s: System) -> Iterator[str]:
    """From its own file, then from the files of those that name it."""
    from atlas.views.standing import FORWARD, REVERSED, reverse

    for r in s.relations:
        yield f"{FORWARD[r.kind]} {r.system}"
        yield source(atlas, r)
    for other, r in reverse(atlas).get(s.id, ()):
        yield f"{REVERSED[r.kind]} {other.id}"
        yield source(atlas, r)


def _alike(atlas: Atlas, s: System) -> Iterator[str]:
    from atlas.views.standing import likeness

    found = likeness(atlas)[s.id]
    for like in found:
        yield f"{like.system}: shares {', '.join(like.shared)}"
    if found:
        yield f"atlas compare {s.id} {' '.join(like.system for like in found[:2])}"


def plain(atlas: Atlas, s: System) -> dict[str, Any]:
    """As JSON: its file, and what other files say of it."""
    from atlas.views.standing import likeness, reverse, verified

    read, of = verified(s)
    named = [{**asdict(r), "system": o.id} for o, r in reverse(atlas).get(s.id, ())]
    used = [atlas.techniques[use.technique] for use in s.uses]
    return {
        **asdict(s),
        "kind": "system",
        "papers": [asdict(atlas.papers[key]) for key in s.papers],
        "named_by": named,
        "alike": [like.system for like in likeness(atlas)[s.id]],
        "commands": {t.id: runs(atlas, t) for t in used},
        "statements": {"verified": read, "unverified": of - read},
        "files": [str(s.yaml)],
    }
