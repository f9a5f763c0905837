"""The page of the compressors: every one is there, and its sentences follow."""

import json
import re
import shutil
from pathlib import Path

import pytest

from atlas.site import compressors as site
from atlas.site import families, pages
from atlas.taxonomy import find_root
from atlas.views import compressors as view
from atlas.views import context
from atlas.views.compressors import Cost, Figures, OnWire, Row
from atlas.views.context import Context

ROOT = find_root()


@pytest.fixture(scope="module")
def ctx() -> Context:
    return context.read(ROOT)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what the page reads, which may be changed."""
    parts = ("taxonomy", "exemplars", "atlas/compressors", str(view.PLACE))
    for part in parts:
        shutil.copytree(ROOT / part, tmp_path / part)
    return tmp_path


def text(ctx: Context) -> str:
    """The page as Markdown."""
    return pages.fill((ROOT / "docs" / site.HERE).read_text(), site.PLACES, ctx)


def cells(page: str, path: str) -> str:
    """The row of a compressor in the first table."""
    table = page.split("<tbody>")[1].split("</tbody>", maxsplit=1)[0]
    return next(row for row in table.split("<tr>") if path in row)


def test_every_compressor_is_on_the_page(ctx: Context) -> None:
    page = text(ctx)
    for t in view.compressors(ctx.atlas):
        assert f"../{t.path}/" in page, t.id


def test_one_that_was_not_measured_is_said_to_be_missing(copy: Path) -> None:
    (copy / view.PLACE / "qsgd.json").unlink()
    page = text(context.read(copy))
    missing = page[page.index("<p>Not in this record yet") :].split("</p>")[0]
    assert "quantization/qsgd/" in missing


def test_a_part_that_was_not_measured_is_said_to_be_missing(copy: Path) -> None:
    place = copy / view.PLACE / "qsgd.json"
    found = json.loads(place.read_text())
    found["parts"].pop("wires", None)
    found["parts"].pop("loss", None)
    place.write_text(json.dumps(found))
    page = text(context.read(copy))
    assert "not in this record yet" in cells(page, "quantization/qsgd/")


def test_a_page_without_a_record_says_how_to_make_one(copy: Path) -> None:
    shutil.rmtree(copy / view.PLACE)
    assert "Not measured yet: `atlas compressors --write`" in text(context.read(copy))


def test_figures_of_older_exemplars_say_so(copy: Path) -> None:
    place = copy / view.PLACE / "qsgd.json"
    found = json.loads(place.read_text())
    found["parts"]["values"]["source"] = "sha256:0"
    place.write_text(json.dumps(found))
    assert "older source" in cells(text(context.read(copy)), "quantization/qsgd/")


@pytest.mark.parametrize("load", [0.5, 9.0])
def test_figures_of_a_busy_machine_say_so(copy: Path, load: float) -> None:
    for place in (copy / view.PLACE).glob("*.json"):
        found = json.loads(place.read_text())
        for part in found["parts"].values():
            part["load"] = load
        place.write_text(json.dumps(found))
    said = "The machine was busy" in text(context.read(copy))
    assert said == (load > site.CALM)


def figures(seconds: float, loss: float, even: float) -> Figures:
    """Of a compressor whose every step lasts so long."""
    steps = tuple(
        OnWire(rate, seconds, seconds, seconds, 1.1 * seconds)
        for rate in (10**8, 10**9)
    )
    band = {"mean": loss, "low": loss - 0.1, "high": loss + 0.1, "rate": 0.1}
    return Figures(loss=band, cost=Cost(0, 0, 0), pays={"2": even}, steps=steps)


def row(ctx: Context, id: str | None, found: Figures) -> Row:
    technique = ctx.atlas.techniques[id] if id else None
    return Row(technique, {}, {"digits": found}, (), ())


def test_the_sentences_follow_from_the_rows(ctx: Context) -> None:
    rows = [
        row(ctx, None, figures(1.0, loss=2.0, even=0.0)),
        row(ctx, "qsgd", figures(0.5, loss=2.15, even=1e9)),
        row(ctx, "powersgd", figures(2.0, loss=2.5, even=1e6)),
    ]
    found = site.finding(rows, "digits")
    assert found.faster == {10**8: [rows[1]], 10**9: [rows[1]]}
    assert (found.count, found.compared) == (2, 2)
    assert found.worse == [rows[2]]  # its best seed, 2.4, is above 2.1
    assert (found.most, found.least) == (rows[1], rows[2])
    assert found.errors == pytest.approx([0.1] * 6)


def test_the_sentences_on_the_page_are_those_of_the_record(ctx: Context) -> None:
    rows, page = site.measured(ctx), text(ctx)
    for task in view.TASKS:
        plain = {s.rate: s.low for s in rows[0].tasks[task].steps}
        timed = [r.tasks[task].steps for r in rows[1:] if r.tasks[task].steps]
        said = page.partition(f'id="found-{task}"')[2].split("</ul>")[0]
        for rate, limit in plain.items():
            faster = sum(s.seconds < limit for x in timed for s in x if s.rate == rate)
            speed = (
                f"{rate / 1e9:g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:g} Mbit/s"
            )
            words = {len(timed): f"all {faster}", 0: f"none of the {len(timed)}"}
            count = words.get(faster, f"{faster} of {len(timed)}")
            assert f"At {speed}, the median step of {count} compressors" in said


def test_the_plots_have_every_compressor_that_was_measured(ctx: Context) -> None:
    rows = site.measured(ctx)
    for task in view.TASKS:
        drawn = re.findall(r'data-line="(\d+)"', site.errors(rows, task))
        have = [i for i, r in enumerate(rows) if r.technique and r.tasks[task].wire]
        assert sorted(map(int, drawn)) == have


def test_a_logarithmic_axis_keeps_what_is_beyond_on_its_edge() -> None:
    axis = site.Axis(1.0, 100.0, 0.0, 200.0)
    assert [axis(v) for v in (0.1, 1, 10, 100, 1e9)] == [0, 0, 100, 200, 200]
    assert axis.ticks == [1, 3, 10, 30, 100]


def test_the_axis_and_its_families_lead_to_the_page(ctx: Context) -> None:
    axis = next(a for a in ctx.atlas.axes if a.id == view.AXIS)
    made = [families.axis_page(ctx, axis)]
    for family in axis.families:
        if family.id in view.FAMILIES:
            made.append(families.family_page(ctx, axis, family))
    assert len(made) == 1 + len(view.FAMILIES)
    assert all("/compressors/" in page for page in made)
    assert {"Compressors": site.HERE} in next(
        entry["Techniques"] for entry in pages.nav(ROOT, ctx) if "Techniques" in entry
    )
