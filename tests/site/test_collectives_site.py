"""The page of collectives: every one is on it, and it says what the study says."""

import dataclasses
import html
from pathlib import Path

import pytest

from atlas.site import collectives as page
from atlas.taxonomy import load
from atlas.views import collectives as view
from atlas.views.collectives import COLLECTIVES, KINDS, Constants
from atlas.views.context import Context, Json

MACHINE = Constants(alpha=1e-4, beta=1e-9, gamma=1e-10)


def test_every_collective_technique_is_in_the_table() -> None:
    family = [t for t in load().techniques.values() if t.family == "collective"]
    listed = {c.technique for c in COLLECTIVES.values()}
    assert {t.id for t in family if t.axis == "communication-pattern"} <= listed


def test_every_technique_of_the_table_is_described() -> None:
    techniques = {c.technique for c in COLLECTIVES.values() if c.technique}
    assert techniques <= set(load().techniques)


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_stands_first_in_every_kind(kind: str) -> None:
    first, *others = view.of_kind(kind).values()
    assert first.technique is None
    assert all(c.technique for c in others)


def test_a_law_is_rounds_and_bytes() -> None:
    ring = COLLECTIVES["ring-all-reduce"]
    said = ring.seconds(4, 1_000_000, MACHINE)
    assert said == pytest.approx(6 * 1e-4 + 1.5e-3 + 0.75e-4)
    assert COLLECTIVES["shared-memory-all-reduce"].seconds(4, 1.0, MACHINE) is None


@pytest.mark.parametrize("p", [2, 3, 4, 5, 8, 16])
def test_no_all_reduce_needs_fewer_rounds_or_bytes_than_is_possible(p: int) -> None:
    for name, c in view.of_kind("all-reduce").items():
        if c.rounds:
            assert c.rounds(p) >= view.depth(p), name
            assert c.sent(p) >= 2 * (p - 1) / p * (1 - 1e-12) or p == 2, name


def test_the_laws_cross_where_both_take_the_same_time() -> None:
    few, many = COLLECTIVES["recursive-doubling"], COLLECTIVES["ring-all-reduce"]
    n = view.exact(few, many, 8, MACHINE)
    assert n is not None
    assert few.seconds(8, n, MACHINE) == pytest.approx(many.seconds(8, n, MACHINE))
    assert view.exact(few, few, 8, MACHINE) is None


def test_a_measured_crossing_lies_between_two_sizes() -> None:
    assert view.between([(1.0, 1.0, 2.0), (4.0, 2.0, 1.0)]) == pytest.approx(2.0)
    assert view.between([(1.0, 1.0, 2.0), (4.0, 1.0, 2.0)]) is None
    back = [(1.0, 1.0, 2.0), (4.0, 2.0, 1.0), (16.0, 1.0, 2.0)]
    assert view.between(back) is None


@pytest.fixture
def study(ctx: Context) -> Json:
    """The study, which has to be whole wherever there is one."""
    if not (ctx.root / view.PLACE).is_file():
        pytest.skip("not measured yet: atlas collectives --write")
    made = page.found(ctx)
    assert made is not None, "not whole: atlas collectives --write goes on"
    return made


def test_a_page_without_a_study_says_how_to_make_it(
    ctx: Context, tmp_path: Path
) -> None:
    bare = dataclasses.replace(ctx, root=tmp_path)
    text = " ".join(str(make(bare)) for make in page.PLACES.values())
    assert "atlas collectives --write" in text
    assert "<svg" not in text


def test_the_page_shows_every_collective(ctx: Context, study: Json) -> None:
    drawn = page.plots(ctx)
    for c in COLLECTIVES.values():
        assert c.says in html.unescape(drawn)
    assert drawn.count("<svg") == len(KINDS) * len(study["given"]["ranks"])


def test_the_study_is_whole_and_of_this_source(ctx: Context, study: Json) -> None:
    now = view.sources(ctx.root)
    assert study["sources"] == now, "run: atlas collectives --write"
    for rows in study["cells"].values():
        for row in rows.values():
            assert set(row) == set(COLLECTIVES)
    sizes = {str(n) for n in study["given"]["shaped"]["sizes"]}
    assert set(study["shaped"]) == sizes


def test_a_collective_without_messages_has_no_line() -> None:
    line = page.Line("shared-memory-all-reduce", [(4096.0, 1e-3)], [])
    drawn = page.draw([line], "one")
    assert "<polyline" not in drawn
    assert drawn.count("<circle") == 1


def test_no_frame_was_lost_between_the_nodes(study: Json) -> None:
    lost = [r["lost"] for row in study["shaped"].values() for r in row.values()]
    assert not any(lost)
