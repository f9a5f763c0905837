"""Verdicts on the surveys' tables are computed, and each difference has its reason."""

import dataclasses
import html
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from atlas.site import delays, langer, pages, paradl, surveys
from atlas.taxonomy.tables import Delay
from atlas.views.context import Context, read
from atlas.views.race import study

ROOT = Path(__file__).resolve().parents[2]
KNOWN = read(ROOT)


# Langer's Table 1


def test_a_cell_that_differs_has_a_reason_and_no_other_has(ctx: Context) -> None:
    for found in langer.compared(ctx):
        for verdict, reasons in (
            ("differs", found.row.differs),
            ("open", found.row.open),
        ):
            cells = {c.dimension for c in found.cells if c.verdict == verdict}
            assert cells == set(reasons), (found.row.name, verdict)


def test_a_reason_goes_when_our_file_agrees(ctx: Context) -> None:
    """The verdict follows our file: were FireCaffe a star, nothing would differ."""
    system = ctx.atlas.systems["firecaffe"]
    assert system.topology is not None
    star = dataclasses.replace(system.topology, value="star")
    changed = dataclasses.replace(
        ctx.atlas,
        systems={
            **ctx.atlas.systems,
            "firecaffe": dataclasses.replace(system, topology=star),
        },
    )
    for atlas, verdict in ((ctx.atlas, "differs"), (changed, "agrees")):
        rows = langer.compared(dataclasses.replace(ctx, atlas=atlas))
        row = next(x for x in rows if x.row.name == "FireCaffe")
        cell = next(c for c in row.cells if c.dimension == "topology")
        assert cell.verdict == verdict


def test_every_system_has_four_cells_and_the_page_their_counts(ctx: Context) -> None:
    cells = [cell for found in langer.compared(ctx) for cell in found.cells]
    assert len(cells) == 4 * len(langer.tables(ctx).systems.rows)
    count = Counter(cell.verdict for cell in cells)
    judged = count["agrees"] + count["differs"]
    said = f"Of {judged} cells that can be compared, {count['agrees']} agree and "
    assert said in langer.summary(ctx)


def test_a_cell_read_in_langer_is_told_from_one_read_elsewhere(ctx: Context) -> None:
    rows = {x.row.name: x for x in langer.compared(ctx)}
    basis = {
        (name, cell.dimension): cell.basis
        for name in ("EASGD", "DistBelief", "BigDL")
        for cell in rows[name].cells
    }
    assert basis["EASGD", "parallelism"] == "langer"
    assert basis["DistBelief", "parallelism"] == "elsewhere"
    assert basis["BigDL", "topology"] == "unread"


def test_what_stands_for_a_row_of_table_2_is_in_the_race(ctx: Context) -> None:
    race = study(ctx)
    assert race is not None
    for row in langer.tables(ctx).criteria.rows:
        for name in row.race:
            assert all(name in entries for entries in race["races"].values())


# Langer's delays

PATTERNS = [d.id for d in langer.tables(KNOWN).delays.patterns]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_records_count_the_printed_factor_exactly(
    pattern: str, ctx: Context
) -> None:
    delay = next(d for d in langer.tables(ctx).delays.patterns if d.id == pattern)
    found = delays.factors(ctx, delay)
    assert bool(found) == (delay.counted is not None)
    for factor in found:
        assert factor.mean == factor.printed, factor
        given = _given(ctx, delay, factor.ranks)
        if given["elements"] % factor.ranks == 0 or factor.busiest == factor.mean:
            assert factor.busiest == factor.printed, factor
        else:  # shares that are an element larger: at most one per rank
            over = Fraction(factor.ranks, given["elements"])
            assert factor.printed < factor.busiest <= factor.printed + over, factor


def _given(ctx: Context, delay: Delay, ranks: int) -> dict[str, Any]:
    assert delay.counted is not None
    runs = ctx.runs(delay.counted.technique, "gloo")
    given: dict[str, Any] = next(r for r in runs if int(r["p"]) == ranks)["given"]
    return given


def test_every_panel_has_every_line_and_its_numbers(ctx: Context) -> None:
    made = langer.tables(ctx).delays
    drawn = list(delays.panels(made))
    assert len(drawn) == len(made.networks) * len(made.models)
    for panel in drawn:
        assert panel.drawing.count("<polyline") == len(made.patterns)
        assert panel.columns[-1] == made.workers
        for delay, values in panel.rows:
            missing = [
                n for n, v in zip(panel.columns, values, strict=True) if v is None
            ]
            assert missing == [n for n in panel.columns if n < delay.least]


def test_no_line_leaves_its_panel(ctx: Context) -> None:
    for panel in delays.panels(langer.tables(ctx).delays):
        for line in panel.drawing.split('points="')[1:]:
            for point in line.partition('"')[0].split():
                x, y = map(float, point.split(","))
                assert delays.LEFT <= x <= delays.WIDE - delays.RIGHT
                assert delays.ABOVE <= y <= delays.HIGH - delays.BELOW


# ParaDL's tables


def test_a_limit_that_differs_has_a_reason_and_no_other_has(ctx: Context) -> None:
    for row in paradl.limits(ctx):
        assert row.equal == (row.cost.differs is None), row.cost.name


def test_the_printed_limits_are_those_of_the_layers(ctx: Context) -> None:
    found = {row.cost.id: [str(a) for a, _ in row.pairs] for row in paradl.limits(ctx)}
    assert found["filter"] == ["64", "64", "64", "4"]
    assert found["channel"] == ["3", "3", "3", "4"]
    assert found["spatial"] == ["49", "49", "196", "8"]  # 7 x 7, 14 x 14, 2 x 2 x 2
    assert found["data-filter"] == ["64 B", "64 B", "64 B", "4 B"]


def test_the_printed_parameters_are_ours_cut_to_millions(ctx: Context) -> None:
    for n in paradl.networks(ctx):
        assert n.exact // 10**6 == n.experiment.millions, n.experiment.name
        if n.changed:
            unchanged = n.model.parameters // 10**6
            assert unchanged != n.experiment.millions, "no change is needed"


def test_the_layers_of_residual_networks_are_those_with_weights(ctx: Context) -> None:
    for n in paradl.networks(ctx):
        residual = n.modules is None
        assert residual == (n.weighted == n.experiment.layers), n.experiment.name


ROWS = paradl.tables(KNOWN).remarks.rows


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.remark)
def test_a_finding_says_each_row_of_table_6_or_the_page_says_why_not(
    row: Any, ctx: Context
) -> None:
    if row.case is None:
        assert row.unsaid in html.unescape(paradl.remark_table(ctx))
        return
    found = paradl.said(ctx, row.case)
    assert found is not None
    assert found.kind in ("limit", "bottleneck")


def test_a_case_of_table_6_splits_as_the_row_says(ctx: Context) -> None:
    """The strategy that is asked about is one that the row marks."""
    marks = {"Data": "d", "Spatial": "s", "Pipeline": "p", "Filter": "fc"}
    marks |= {"Channel": "fc", "Data*Filter": "df", "Data*Spatial": "ds"}
    for row in ROWS:
        if row.case:
            axes = [axis.partition("(")[0] for axis in row.case.strategy.split(" * ")]
            assert marks["*".join(axes)] in row.strategies, row.remark


# The pages


def test_the_pages_are_in_the_navigation_and_linked_from_their_survey(
    ctx: Context,
) -> None:
    listed = str(pages.nav(ROOT, ctx))
    made = surveys.pages(ctx)
    for survey, tables in surveys.TABLES.items():
        for _, uri in tables:
            assert f"'{uri}'" in listed
            assert uri in pages.WRITTEN
            assert f"({uri.removeprefix('surveys/')})" in made[f"surveys/{survey}.md"]
