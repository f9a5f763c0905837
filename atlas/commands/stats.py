"""`atlas stats`: how much the atlas contains, and how much of it is proven."""

from collections.abc import Iterator
from typing import Any

from atlas import record, taxonomy
from atlas.commands import common
from atlas.commands.common import Json
from atlas.taxonomy import Atlas

#: What the atlas set out to hold at least.
TARGETS = {"systems": 110, "terms": 120, "bad_files": 40}
SHOWN = 4  # outdated records that are named; --json has all
BAD_FILES = "tests/taxonomy/data/bad"


def stats(json: Json = False) -> None:
    """Count the entries of the atlas and how many are proven or verified.

    Examples:

    \b
    atlas stats
    atlas stats --json
    """
    counted = count(taxonomy.load())
    if json:
        common.print_json(counted)
        return
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="bold")
    table.add_column()
    for figure, what in _lines(counted):
        table.add_row(figure, what)
    common.out().print(table)


def count(atlas: Atlas) -> dict[str, Any]:
    """The figures of the atlas."""
    from atlas.formulas import FORMULAS

    techniques = list(atlas.techniques.values())
    proofs = {t.id: common.proofs(atlas, t) for t in techniques}
    every = [(t, proof) for t, found in proofs.items() for proof in found]
    written = sum(common.written(atlas, t) for t in techniques)
    return {
        "axes": len(atlas.axes),
        "facets": sum(len(axis.facets) for axis in atlas.axes),
        "families": len(atlas.families),
        "families_covered": len({(t.axis, t.family) for t in techniques}),
        "techniques": len(techniques),
        "exemplars": written,
        "without_exemplar": len(techniques) - written,
        "records": {m: sum(p.backend == m for _, p in every) for m in record.MODES},
        "stale": [f"{p.backend}/{t}" for t, p in every if p.stale],
        "claims": sum(len(t.claims) for t in techniques),
        "mutants": sum(len(t.mutants) for t in techniques),
        "formulas": len(FORMULAS),
        "attributions": _attributions(atlas),
        "classification": _classification(atlas),
        "systems": len(atlas.systems),
        "cells": _cells(atlas),
        "relations": sum(len(s.relations) for s in atlas.systems.values()),
        "surveys": len(atlas.surveys),
        "papers": len(atlas.papers),
        "terms": len(atlas.glossary),
        "aliases": _aliases(atlas),
        "bad_files": len(list((atlas.root / BAD_FILES).glob("*.yaml"))),
        "targets": TARGETS,
    }


def _cells(atlas: Atlas) -> dict[str, int]:
    """What is said of systems, and how much of it was read in its source."""
    from atlas.views.standing import verified

    found = [verified(s) for s in atlas.systems.values()]
    read, of = (sum(column) for column in zip(*found, strict=True)) if found else (0, 0)
    said = [said for s in atlas.systems.values() for said in s.statements]
    twice = sum(one.verified and one.read > 1 for one in said)
    return {"verified": read, "unverified": of - read, "read_twice": twice}


def _attributions(atlas: Atlas) -> int:
    """Where surveys name techniques and systems; the loader refuses one without."""
    techniques = sum(len(t.surveys) for t in atlas.techniques.values())
    return techniques + sum(len(s.surveys) for s in atlas.systems.values())


def _classification(atlas: Atlas) -> dict[str, int]:
    """Answers of the exemplars to facets: measured in runs, or declared alone."""
    from atlas.classify.judged import judge
    from atlas.classify.kept import read

    kept = read(atlas.root)
    found = [
        j
        for t in atlas.techniques.values()
        if t.id in kept
        for j in judge(atlas, t, kept[t.id])
    ]
    measured = [j.ok for j in found if j.ok is not None]
    return {
        "measured": len(measured),
        "agreeing": sum(measured),
        "declared": len(found) - len(measured),
    }


def _aliases(atlas: Atlas) -> int:
    """Other names under which a technique, a system or a term is found."""
    called = [t.also_called for t in atlas.techniques.values()]
    called += [s.also_called for s in atlas.systems.values()]
    called += [word.aliases for word in atlas.glossary]
    return sum(map(len, called))


def _lines(c: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield str(c["axes"]), f"axes with {c['facets']} facets"
    yield str(c["families"]), f"families, {c['families_covered']} with a technique"
    with_, without = c["exemplars"], c["without_exemplar"]
    about = f"techniques, {with_} with an exemplar and {without} without"
    yield str(c["techniques"]), about
    records = ", ".join(f"{n} {m}" for m, n in c["records"].items())
    yield str(sum(c["records"].values())), f"records: {records}"
    first, more = c["stale"][:SHOWN], len(c["stale"]) - SHOWN
    named = ", ".join([*first, f"{more} more"] if more > 0 else first)
    stale = f"outdated records: {named}" if named else "outdated records"
    yield str(len(c["stale"])), stale
    yield from ((str(c[k]), k) for k in ("claims", "mutants", "formulas"))
    yield str(c["systems"]), f"systems{_target(c, 'systems')}"
    read, unread = c["cells"]["verified"], c["cells"]["unverified"]
    about = f"statements about systems, {read} verified by a primary source and its "
    about += f"place, {unread} not verified"
    yield str(read + unread), about
    yield str(c["cells"]["read_twice"]), "of them found again by a second reader"
    about = "attributions to surveys, each with its place"
    yield str(c["attributions"]), about
    told = c["classification"]
    about = f"answers of exemplars to facets, {told['measured']} measured in runs "
    about += f"({told['agreeing']} as declared) and {told['declared']} declared"
    yield str(told["measured"] + told["declared"]), about
    yield str(c["relations"]), "relations between systems"
    yield from ((str(c[k]), k) for k in ("surveys", "papers"))
    yield str(c["terms"]), f"terms in the glossary{_target(c, 'terms')}"
    yield str(c["aliases"]), "aliases"
    if c["bad_files"]:
        target = _target(c, "bad_files")
        yield str(c["bad_files"]), f"invalid files that the loader must reject{target}"


def _target(c: dict[str, Any], name: str) -> str:
    """How the count stands to what was set out."""
    least = c["targets"][name]
    short = least - c[name]
    return (
        f" (target {least})" if short <= 0 else f" ({short} below the target {least})"
    )
