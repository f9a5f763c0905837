"""The surveys' tables are whole, and say of every cell what is needed, and no more."""

from collections import Counter
from pathlib import Path

import pytest

from atlas import export, taxonomy
from atlas.taxonomy.tables import KahiraTables, LangerTables

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def atlas() -> taxonomy.Atlas:
    return taxonomy.load(ROOT)


@pytest.fixture(scope="module")
def langer(atlas: taxonomy.Atlas) -> LangerTables:
    assert atlas.tables is not None
    assert atlas.tables.langer2020 is not None
    return atlas.tables.langer2020


@pytest.fixture(scope="module")
def kahira(atlas: taxonomy.Atlas) -> KahiraTables:
    assert atlas.tables is not None
    assert atlas.tables.kahira2021 is not None
    return atlas.tables.kahira2021


def test_langer_s_first_table_has_the_counts_of_page_14(langer: LangerTables) -> None:
    rows = langer.systems.rows
    assert len(rows) == 17
    assert Counter(r.optimization for r in rows) == {"central": 11, "decentral": 6}
    assert Counter(r.parallelism for r in rows) == {
        "DP only": 9,
        "MP only": 1,
        "MP + DP": 7,
    }
    assert Counter(r.scheduling for r in rows) == {
        "sync.": 7,
        "async.": 3,
        "bounded async.": 5,
        "soft-bounded async.": 2,
    }
    assert [r.name.lower() for r in rows] == sorted(r.name.lower() for r in rows)


def test_every_row_s_system_is_one_that_names_langer(
    atlas: taxonomy.Atlas, langer: LangerTables
) -> None:
    for row in langer.systems.rows:
        named = atlas.systems[row.system].surveys["langer2020"]
        assert "Table 1" in named.where, row.name


def test_langer_s_second_table_is_full_but_for_the_check_marks(
    langer: LangerTables,
) -> None:
    marks = {"RLBD", "RBM"}
    columns = {c.id for c in langer.criteria.columns}
    for row in langer.criteria.rows:
        assert columns - marks <= row.cells.keys()
        assert all(row.cells[mark] == "✓" for mark in marks & row.cells.keys())


def test_two_curves_contradict_the_text(langer: LangerTables) -> None:
    drawn = [d for d in langer.delays.patterns if d.drawn]
    assert [d.id for d in drawn if d.drawn and not d.drawn.agrees] == [
        "tree",
        "requests",
    ]
    assert len(drawn) + len(langer.delays.unprinted) == 7


def test_paradl_s_tables_have_their_rows(kahira: KahiraTables) -> None:
    assert [x.id for x in kahira.costs.rows][:2] == ["serial", "data"]
    assert len(kahira.costs.rows) == 7
    assert [x.layers for x in kahira.experiments.rows] == [50, 152, 38, 20]
    remarks = kahira.remarks.rows
    assert Counter(r.kind for r in remarks) == {"limitation": 5, "bottleneck": 5}
    assert [r.remark for r in remarks if not r.inference] == [
        "Gradient-exchange",
        "Weight Update",
    ]


def test_the_tables_are_exported(atlas: taxonomy.Atlas) -> None:
    tables = export.taxonomy(atlas)["tables"]
    assert len(tables["langer2020"]["systems"]["rows"]) == 17
    word = tables["langer2020"]["systems"]["scheduling"][0]
    assert word["is"] == ["synchronous"]  # a key that Python keeps for itself
    assert len(tables["kahira2021"]["remarks"]["rows"]) == 10
