"""The command line: what it prints, how it ends, and what it leaves behind."""

import dataclasses
import functools
import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clone as clones
import psutil
import pytest
from clone import ROOT
from command_line import app
from leftovers import alive, wait_until
from typer.testing import CliRunner

from atlas import __version__, taxonomy
from atlas import measure as measuring
from atlas.commands import (
    browse,
    check,
    collectives,
    common,
    compare,
    compressors,
    filters,
    names,
    new,
    race,
    run,
    serve,
    show,
    stats,
)
from atlas.commands import export as exporting
from atlas.commands import record as recording
from atlas.launch import LaunchError
from atlas.planner.commands import plan, predict
from atlas.views import standing

RING = "ring-all-reduce"
#: Described, but not yet written; some day there will be none.
PLANNED = [
    t.path
    for t in taxonomy.load(ROOT).techniques.values()
    if not (ROOT / t.exemplar).exists()
]
MODULES = (browse, compare, exporting, new, recording, run, serve, show, stats)
MODULES += (check, plan, predict, race, collectives, compressors)


def atlas(*arguments: str) -> Any:
    """One command in this process, on a terminal wide enough for its lines."""
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that may be changed; commands in this process read it too."""
    made = clones.make(tmp_path)
    monkeypatch.chdir(made)
    return made


@functools.cache
def known() -> taxonomy.Atlas:
    """The taxonomy, read once."""
    return taxonomy.load(ROOT)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> taxonomy.Atlas:
    """The taxonomy; commands do not read it anew."""
    made = known()
    monkeypatch.setattr(taxonomy, "load", lambda *_: made)
    return made


def row(text: str, claim: str) -> str:
    """The line of the table about a claim."""
    (line,) = [x for x in text.splitlines() if x.split()[:1] == [claim]]
    return line


def strict(text: str) -> Any:
    """JSON that has no Infinity or NaN in it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


# --- list, show, stats


def test_list_has_every_technique_with_its_sentence() -> None:
    done = atlas("list")
    assert done.exit_code == 0
    said = " ".join(done.stdout.split())  # a long sentence goes over lines
    for t in taxonomy.load(ROOT).techniques.values():
        assert t.id in said
        assert t.summary in said


def test_list_keeps_to_what_was_asked() -> None:
    by_axis = strict(atlas("list", "--axis", "sync-strategy", "--json").stdout)
    assert {t["axis"] for t in by_axis} == {"sync-strategy"}
    by_family = strict(atlas("list", "--family", "collective", "--json").stdout)
    assert RING in [t["id"] for t in by_family]
    assert {t["family"] for t in by_family} == {"collective"}
    by_text = strict(atlas("list", "--text", "ALL-REDUCE", "--json").stdout)
    assert RING in [t["id"] for t in by_text]
    assert "no technique matches" in atlas("list", "--text", "no such text").stdout


def test_show_has_formulas_commands_and_papers() -> None:
    text = atlas("show", RING).stdout
    assert "ring_all_reduce_rounds(ranks) = 2 * (ranks - 1)" in text
    assert f"atlas run {RING} --ranks 4\n" in text
    module = "exemplars.communication_pattern.collective.ring_all_reduce"
    assert f"torchrun --standalone --nproc-per-node 4 -m {module}\n" in text
    assert "Patarasuk" in text
    shown = strict(atlas("show", RING, "--json").stdout)
    assert shown["kind"] == "technique"
    assert any(c["latex"] for c in shown["claims"])


def test_every_technique_and_system_can_be_shown(
    loaded: taxonomy.Atlas, monkeypatch: pytest.MonkeyPatch
) -> None:
    alike = standing.likeness(loaded)
    monkeypatch.setattr(standing, "likeness", lambda _: alike)
    for name in (*loaded.techniques, *loaded.systems):
        assert atlas("show", name).exit_code == 0
        assert strict(atlas("show", name, "--json").stdout)["id"] == name


def test_a_systems_cells_say_whether_their_source_was_read() -> None:
    text = atlas("show", "horovod").stdout
    assert "Horovod" in text
    assert "verified in https://" in text
    assert "not verified: https://" in text
    assert "is ours" in text


def test_a_formula_with_steps_is_shown_with_its_steps() -> None:
    assert show.formula("ring_all_reduce_rounds") == [
        "ring_all_reduce_rounds(ranks) = 2 * (ranks - 1)"
    ]
    assert all(show.formula(name) for name in show.FORMULAS)


def test_stats_count_what_is_there() -> None:
    known = taxonomy.load(ROOT)
    counted = strict(atlas("stats", "--json").stdout)
    files = [t for t in known.techniques.values() if (ROOT / t.exemplar).is_file()]
    assert counted["techniques"] == len(known.techniques)
    assert counted["exemplars"] == len(files)
    assert counted["claims"] == sum(len(t.claims) for t in known.techniques.values())
    assert counted["papers"] == len(known.papers)
    kept = len(list((ROOT / "measurements" / "gloo").glob("*.json")))
    assert counted["records"]["gloo"] == kept
    assert f"{len(known.systems)}  systems" in atlas("stats").stdout


@pytest.mark.usefixtures("loaded")
def test_list_names_what_has_no_exemplar_yet() -> None:
    known = taxonomy.load()
    missing = []
    for axis in known.axes:
        said = atlas("list", "--without-exemplar", axis.id, "--json").stdout
        missing += [entry["id"] for entry in strict(said)]
    written = [t for t in known.techniques.values() if (ROOT / t.exemplar).exists()]
    assert sorted(missing) == sorted(known.techniques.keys() - {t.id for t in written})


@pytest.mark.usefixtures("loaded")
def test_stats_meet_what_was_set_out() -> None:
    counted = strict(atlas("stats", "--json").stdout)
    for name, least in counted["targets"].items():
        assert counted[name] >= least, name
    assert counted["targets"] == {"systems": 110, "terms": 120, "bad_files": 40}
    assert counted["exemplars"] + counted["without_exemplar"] == counted["techniques"]
    files = [f.read_text() for f in (ROOT / "taxonomy" / "systems").glob("*.yaml")]
    said = re.findall(r"\bverified: (true|false)\b", "\n".join(files))
    kept = {"verified": said.count("true"), "unverified": said.count("false")}
    twice = counted["cells"].pop("read_twice")
    assert counted["cells"] == kept
    assert 0 < twice <= kept["verified"]
    text = " ".join(atlas("stats").stdout.split())
    read, unread = counted["cells"]["verified"], counted["cells"]["unverified"]
    assert f"{read} verified by a primary source and its place, {unread} not" in text
    assert f"{twice} of them found again by a second reader" in text
    assert f"{counted['attributions']} attributions to surveys, each with" in text
    placed = counted["classification"]
    assert placed["agreeing"] == placed["measured"] > placed["declared"] > 0
    assert f"{placed['measured']} measured in runs" in text
    assert f"{counted['terms']} terms in the glossary (target 120)" in text


def test_stats_say_how_much_is_missing(
    loaded: taxonomy.Atlas, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = dataclasses.replace(loaded, systems={}, glossary=loaded.glossary[:7])
    monkeypatch.setattr(taxonomy, "load", lambda: few)
    text = " ".join(atlas("stats").stdout.split())
    assert "0 systems (110 below the target 110)" in text
    assert "0 statements about systems, 0 verified by a primary source" in text
    assert "7 terms in the glossary (113 below the target 120)" in text


# --- systems: filters


def listed(*arguments: str) -> list[str]:
    """What `atlas list` finds."""
    done = atlas("list", *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return [found["id"] for found in strict(done.stdout)]


def test_the_systems_that_use_a_technique_since_a_year(
    loaded: taxonomy.Atlas,
) -> None:
    expected = [s.id for s in loaded.users(RING) if s.year >= 2017]
    assert "horovod" in expected
    assert listed("--uses", RING, "--year", "2017..") == expected
    text = atlas("list", "--uses", RING, "--year", "2017..").stdout
    assert f"{len(expected)} systems; the classification is ours" in text
    assert all(re.search(rf"^ {name} +20\d\d ", text, re.M) for name in expected)
    assert "tensor-fusion" in row(text, "horovod")


def test_systems_are_listed_oldest_first_where_asked(loaded: taxonomy.Atlas) -> None:
    every = listed("--systems")
    assert set(every) == set(loaded.systems)
    years = [loaded.systems[name].year for name in every]
    assert years == sorted(years)


@pytest.mark.usefixtures("loaded")
def test_a_filter_about_systems_lists_systems_unless_techniques_are_asked_for() -> None:
    together = listed("--techniques", "--uses", RING)
    assert "tensor-fusion" in together
    assert RING not in together
    assert "horovod" in listed("--uses", RING)


def fits(s: taxonomy.System, asked: tuple[str, ...]) -> bool:
    """The filters once more, each on its own."""
    option, value = asked[-2:]
    match option:
        case "--year":
            first, last = value.split("..")
            return int(first or 0) <= s.year <= int(last or 9999)
        case "--parallelism":
            return s.parallelism is not None and value in s.parallelism.value
        case "--topology":
            return s.topology is not None and s.topology.value == value
        case "--optimizer":
            where = s.optimizer_location
            return where is not None and where.value in (value, "either")
        case "--status":
            return s.status == value
        case "--survey":
            return value in s.surveys
        case "--uses":
            return value in {use.technique for use in s.uses}
        case "--text":
            return value.casefold() in "\n".join(s.also_called).casefold()
    raise AssertionError(option)


@pytest.mark.parametrize(
    "asked",
    [
        ("--systems", "--year", "..2012"),
        ("--systems", "--year", "2014..2015"),
        ("--parallelism", "spatial"),
        ("--topology", "graph"),
        ("--optimizer", "per-worker"),
        ("--status", "archived"),
        ("--systems", "--survey", "nagrecha2023"),
        ("--systems", "--text", "DistributedDataPARALLEL"),
    ],
    ids=" ".join,
)
def test_a_filter_keeps_the_systems_that_fit_and_no_other(
    asked: tuple[str, ...], loaded: taxonomy.Atlas
) -> None:
    expected = {s.id for s in loaded.systems.values() if fits(s, asked)}
    assert 0 < len(expected) < len(loaded.systems)
    assert set(listed(*asked)) == expected


def test_repeated_filters_all_have_to_fit(loaded: taxonomy.Atlas) -> None:
    both = ("--parallelism", "tensor", "--parallelism", "pipeline")
    for name in (found := listed(*both)):
        cell = loaded.systems[name].parallelism
        assert cell is not None
        assert {"tensor", "pipeline"} <= set(cell.value)
    assert found
    assert set(found) < set(listed("--parallelism", "tensor"))


def test_an_axis_or_a_family_keeps_the_systems_that_are_there(
    loaded: taxonomy.Atlas,
) -> None:
    found = listed("--systems", "--family", "consensus")
    assert "ad-psgd" in found or "d-psgd-system" in found
    for name in found:
        on = standing.places(loaded, loaded.systems[name])["sync-strategy"]
        assert "sync-strategy/consensus" in [p.family for p in on]
    axis = ("--systems", "--axis", "parameter-distribution", "--text", "horovod")
    text = atlas("list", *axis).stdout
    assert "parameter-distribution families" in text
    assert "replicated" in row(text, "horovod")


@pytest.mark.parametrize("year", ["2015", "..2015", "2015..2015"])
@pytest.mark.usefixtures("loaded")
def test_years_are_those_in_which_a_technique_appeared(year: str) -> None:
    assert RING in listed("--year", year, "--text", "ring")
    assert RING not in listed("--year", "2016..", "--text", "ring")


@pytest.mark.usefixtures("loaded")
def test_a_technique_is_asked_for_by_any_of_its_names() -> None:
    done = atlas("list", "--uses", "Bandwidth-Optimal all_reduce", "--json")
    assert [s["id"] for s in strict(done.stdout)] == listed("--uses", RING)
    assert done.stderr.strip().endswith(f"is {RING}")


@pytest.mark.usefixtures("loaded")
def test_a_list_that_is_empty_says_how_to_see_all() -> None:
    done = atlas("list", "--systems", "--year", "..1960")
    assert done.exit_code == 0
    assert done.stdout == "no system matches; atlas list --systems shows all\n"
    assert strict(atlas("list", "--systems", "--year", "..1960", "--json").stdout) == []


def test_a_table_of_systems_fits_on_80_columns(loaded: taxonomy.Atlas) -> None:
    done = CliRunner().invoke(app, ["list", "--systems"], env={"COLUMNS": "80"})
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "status" not in done.stdout.splitlines()[1]
    assert "status" in atlas("list", "--systems").stdout.splitlines()[1]
    first = [x.split()[0] for x in done.stdout.splitlines() if x[1:2].strip()]
    assert set(loaded.systems) <= set(first)


# --- show: every kind of thing, by every kind of name


def test_a_system_is_shown_with_all_that_is_known(loaded: taxonomy.Atlas) -> None:
    text = atlas("show", "horovod").stdout
    s = loaded.systems["horovod"]
    assert s.hardware is not None
    assert s.reported_run is not None
    for said in (s.hardware.says, s.reported_run.says, "Nichols et al. 2021"):
        assert said in text
    assert f"    atlas run {RING} --ranks 4\n" in text
    assert "derived from baidu-allreduce" in text
    assert "basis of horovod-elastic" in text
    read, of = standing.verified(s)
    assert f"{read} of its {of} statements are verified" in text


def test_a_system_as_json_has_what_other_files_say_of_it() -> None:
    shown = strict(atlas("show", "horovod", "--json").stdout)
    named = {(r["system"], r["kind"]) for r in shown["named_by"]}
    assert ("horovod-elastic", "derived-from") in named
    assert shown["commands"][RING] == f"atlas run {RING} --ranks 4"
    assert shown["hardware"]["verified"] in (True, False)


def test_a_system_says_which_of_its_techniques_cannot_be_run_yet(
    clone: Path,
) -> None:
    known = taxonomy.load(clone)
    technique = next(t for t in known.techniques.values() if known.users(t.id))
    user = known.users(technique.id)[0].id
    (clone / technique.exemplar).unlink()
    text = atlas("show", user).stdout
    after = text.split(f"  {technique.id}: {technique.axis}")[1].splitlines()
    assert after[1].strip() == "exemplar not written yet"
    assert (
        strict(atlas("show", user, "--json").stdout)["commands"][technique.id] is None
    )


@pytest.mark.parametrize(
    ("words", "title", "remark"),
    [
        (["tensor", "slicing"], "tensor-parallel-column-row", "is tensor-parallel-"),
        (["RABENSEIFNER"], "halving-doubling", "is halving-doubling"),
        (["operator parallelism"], "tensor-parallel-column-row", "is tensor-"),
        (["ring", "all", "reduce"], RING, f"is {RING}"),
        (["gpipe"], "gpipe", "also: atlas show gpipe-system"),
        ([RING], RING, ""),
    ],
)
@pytest.mark.usefixtures("loaded")
def test_another_name_leads_to_the_thing_and_says_so(
    words: list[str], title: str, remark: str
) -> None:
    done = atlas("show", *words, "--json")
    assert strict(done.stdout)["id"] == title
    assert remark in done.stderr
    assert done.stderr.count("\n") == bool(remark)


@pytest.mark.usefixtures("loaded")
def test_a_name_of_several_things_lists_them() -> None:
    done = atlas("show", "FSDP")
    assert done.exit_code == 0
    first, *rest = done.stdout.splitlines()
    assert first == '"FSDP" is ambiguous:'
    shown = [re.split(r"  +", line.strip())[:2] for line in rest]
    assert ["atlas show pytorch-fsdp", "system"] in shown
    assert ["atlas show zero-3", "technique"] in shown
    found = strict(atlas("show", "fsdp", "--json").stdout)
    assert found["kind"] == "several"
    assert len(found["found"]) == len(rest)


def test_every_command_that_a_list_of_meanings_gives_shows_one_thing(
    loaded: taxonomy.Atlas,
) -> None:
    alike = 0
    for thing in names.things(loaded):
        _, _, *words = shlex.split(thing.command)
        kinds = ("term",) if "--kind" in words else names.KINDS
        word = " ".join(words[: words.index("--kind")] if "--kind" in words else words)
        assert names.find(loaded, word, kinds).best == (thing,)
        alike += 1
    assert alike > 500


@pytest.mark.usefixtures("loaded")
def test_a_term_is_shown_with_its_meaning_and_where_it_leads() -> None:
    done = atlas("show", "straggler")
    assert "A worker slower than the others." in done.stdout
    assert "    atlas show backup-workers\n" in done.stdout
    assert done.stderr == ""
    shown = strict(atlas("show", "collective communication", "--json").stdout)
    assert (shown["kind"], shown["id"]) == ("term", "collective")
    assert "atlas list --family collective" in shown["commands"]


@pytest.mark.usefixtures("loaded")
def test_a_paper_is_shown_with_what_rests_on_it_and_its_bibtex() -> None:
    text = atlas("show", "sergeev2018horovod").stdout
    assert "Alexander Sergeev, Mike Del Balso. 2018" in text
    assert "  atlas show horovod\n" in text
    assert "  @misc{sergeev2018horovod,\n" in text
    shown = strict(atlas("show", "sergeev2018horovod", "--json").stdout)
    assert shown["kind"] == "paper"
    assert "horovod" in shown["rests"]["systems"]
    assert shown["bibtex"].startswith("@misc{sergeev2018horovod,")


def test_every_paper_survey_and_term_can_be_shown(loaded: taxonomy.Atlas) -> None:
    for thing in names.things(loaded):
        if thing.kind in ("survey", "term") or thing.id < "b":
            assert atlas("show", thing.id, "--kind", thing.kind).exit_code == 0
            done = atlas("show", thing.id, "--kind", thing.kind, "--json")
            assert strict(done.stdout)["id"] == thing.id


@pytest.mark.usefixtures("loaded")
def test_a_survey_is_shown_with_what_of_it_is_here() -> None:
    text = atlas("show", "nichols2021").stdout
    count = len(listed("--systems", "--survey", "nichols2021"))
    assert f"{count} systems: atlas list --systems --survey nichols2021" in text


# --- compare


@pytest.mark.usefixtures("loaded")
def test_differences_come_first_and_what_is_the_same_is_one_line() -> None:
    done = atlas("compare", "horovod", "pytorch-ddp")
    assert done.exit_code == 0
    table, same = done.stdout.split("same in all: ")
    assert "topology" in table
    assert "splits" not in table
    assert "splits" in same.splitlines()[0]
    assert same.splitlines()[0].endswith("(--all shows them)")
    whole = atlas("compare", "horovod", "pytorch-ddp", "--all").stdout
    assert re.search(r"^ splits +data +data *$", whole, re.M)
    assert "--all" not in whole


@pytest.mark.usefixtures("loaded")
def test_what_is_not_verified_is_marked_in_a_comparison() -> None:
    text = atlas("compare", "horovod", "pytorch-ddp").stdout
    assert "of Summit. (?)" in row(text, "reported")
    assert text.endswith("(?) not verified: nobody has checked the source\n")


@pytest.mark.usefixtures("loaded")
def test_a_comparison_as_json_has_every_row() -> None:
    three = ("zero-1", "zero-2", "zero-3")
    found = strict(atlas("compare", *three, "--json").stdout)
    assert (found["kind"], found["compared"]) == ("technique", list(three))
    order = [r["same"] for r in found["rows"]]
    assert order == sorted(order)
    rows = {r["row"]: r["values"] for r in found["rows"]}
    asked = {"claims", "formulas", "use it when", "avoid it when", "gives", "costs"}
    assert {*asked, "proven on", "used by", "parameter distribution"} <= set(rows)
    assert all(set(values) == set(three) for values in rows.values())
    assert rows["parameter distribution"]["zero-1"] == [
        {"value": "sharded", "verified": True}
    ]


def test_rows_are_the_same_whatever_the_order_or_the_verification() -> None:
    item = compare.Item
    row = compare.Row("x", ((item("a"), item("b", False)), (item("b"), item("a"))))
    assert row.same
    row = compare.Row("x", ((item("a"),), (item("b"), item("a"))))
    assert not row.same
    assert row.shared == {"a"}


@pytest.mark.usefixtures("loaded")
def test_four_can_be_compared_by_any_of_their_names() -> None:
    done = atlas("compare", "PyTorch DDP", "Horovod", "zero", "megatron-lm", "--json")
    found = strict(done.stdout)["compared"]
    assert found == ["pytorch-ddp", "horovod", "zero", "megatron-lm"]
    assert '"PyTorch DDP" is pytorch-ddp' in done.stderr


# --- run


@pytest.fixture(scope="module")
def ring() -> dict[str, Any]:
    """One real run, to be doctored."""
    technique = taxonomy.load(ROOT).techniques[RING]
    return measuring.measure(technique, 4)


def test_run_prints_predicted_measured_and_verdict() -> None:
    done = atlas("run", RING, "--ranks", "4")
    assert done.exit_code == 0, done.stderr
    sent = row(done.stdout, "bytes_sent")
    assert sent.count("1,200,032 to 1,200,040") == 2
    assert sent.rstrip().endswith("holds")
    assert row(done.stdout, "rounds").split() == ["rounds", "6", "6", "holds"]
    count = len(taxonomy.load(ROOT).techniques[RING].claims)
    assert f"all {count} claims hold on 4 ranks (gloo)" in done.stdout


def test_all_ranks_have_a_line_each_where_asked() -> None:
    lines = atlas("run", RING, "--ranks", "2", "--all-ranks").stdout.splitlines()
    sent = [line.split() for line in lines if line.strip().startswith("bytes_sent")]
    assert sent == [
        ["bytes_sent", str(r), "800,024", "800,024", "holds"] for r in (0, 1)
    ]


def test_a_dry_run_counts_and_says_that_values_mean_nothing() -> None:
    done = atlas("run", RING, "--dry", "64")
    assert done.exit_code == 0, done.stderr
    assert "holds" in row(done.stdout, "bytes_sent")
    assert "not judged" in row(done.stdout, "sum")
    assert "on ranks 0, 1, 63 of 64 (dry: values mean nothing)" in done.stdout


@pytest.mark.usefixtures("loaded")
def test_a_run_says_where_its_record_was_made_with_another_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from atlas import record

    line = ["run", "ring-all-reduce", "--ranks", "1"]
    assert "was made with" not in atlas(*line).stderr
    monkeypatch.setattr(record, "versions", lambda: {"torch": "2.11.0"})
    said = atlas(*line)
    assert "was made with torch" in said.stderr
    assert said.stderr.endswith("this is torch 2.11.0\n")


def test_run_as_json_has_every_claim_of_every_rank() -> None:
    done = atlas("run", RING, "--ranks", "3", "--json")
    found = strict(done.stdout)
    assert (found["p"], found["mode"], found["holds"]) == (3, "gloo", True)
    sent = [c for c in found["claims"] if c["claim"] == "bytes_sent"]
    assert [c["rank"] for c in sent] == [0, 1, 2]
    assert all(c["predicted"] == c["measured"] for c in sent)


def test_a_run_takes_the_sizes_of_the_exemplar() -> None:
    done = atlas("run", RING, "--ranks", "4", "elements=1000", "--json")
    assert done.exit_code == 0, done.stderr
    found = strict(done.stdout)
    assert found["given"]["elements"] == 1000
    sent = [c["measured"] for c in found["claims"] if c["claim"] == "bytes_sent"]
    assert sent == [2 * 3 * 1000 // 4 * found["given"]["itemsize"]] * 4


def test_a_dry_run_takes_sizes_too() -> None:
    done = atlas("run", RING, "--dry", "64", "elements=640", "--json")
    assert done.exit_code == 0, done.stderr
    assert strict(done.stdout)["given"]["elements"] == 640


def test_sizes_are_handed_on_as_the_types_that_main_wants(
    ring: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def measure(*_: Any, mode: str, source: Any, timeout: float, **sizes: Any) -> Any:
        asked.append(sizes)
        return ring

    monkeypatch.setattr(measuring, "measure", measure)
    for words in ([], ["elements=1_000"], ["elements=0", "--ranks", "2"]):
        assert atlas("run", RING, *words).exit_code == 0
    assert asked == [{}, {"elements": 1000}, {"elements": 0}]


def doctor(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], **said: Any) -> None:
    """Let the run have found something else on rank 2."""
    changed = json.loads(json.dumps(found))
    changed["ranks"][2]["measured"].update(said.get("measured", {}))
    changed["ranks"][2]["checks"].update(said.get("checks", {}))
    changed["mode"] = said.get("mode", "gloo")
    monkeypatch.setattr(measuring, "measure", lambda *_, **__: changed)


def test_a_failed_claim_is_exit_code_1_and_names_its_rank(
    ring: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    doctor(monkeypatch, ring, measured={"bytes_sent": 1})
    done = atlas("run", RING)
    assert done.exit_code == 1
    assert "FAILS on rank 2" in row(done.stdout, "bytes_sent")
    assert re.search(
        r"1 of \d claims fails on 4 ranks \(gloo\): bytes_sent", done.stdout
    )
    told = atlas("run", RING, "--json")
    assert told.exit_code == 1
    assert strict(told.stdout)["failed"] == ["bytes_sent"]


def test_an_infinite_error_is_still_json(
    ring: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = {"sum": {"ok": False, "error": float("inf"), "limit": 1e-15}}
    doctor(monkeypatch, ring, checks=endless)
    assert strict(atlas("run", RING, "--json").stdout)["failed"] == ["sum"]
    assert "off by inf" in row(atlas("run", RING).stdout, "sum")


def test_emulated_and_nccl_runs_are_labeled(
    ring: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode in ("emulated", "nccl"):
        doctor(monkeypatch, ring, mode=mode)
        title, *_, conclusion = atlas("run", RING).stdout.splitlines()
        assert title.endswith(f"on 4 ranks ({mode})")
        assert f"hold on 4 ranks ({mode})" in conclusion


def test_modes_and_counts_follow_the_options(
    ring: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, str, float]] = []

    def measure(_: Any, p: int, *, mode: str, source: Any, timeout: float) -> Any:
        asked.append((p, mode, timeout))
        return ring

    monkeypatch.setattr(measuring, "measure", measure)
    atlas("run", RING)
    atlas("run", RING, "--ranks", "2", "--emulate-gpu", "--timeout", "5")
    atlas("run", RING, "--dry", "1024")
    assert asked == [(4, "gloo", 120.0), (2, "emulated", 5.0), (1024, "dry", 120.0)]
    for gpus, expected in ((8, (4, "nccl")), (2, (2, "nccl"))):
        monkeypatch.setattr(run, "visible_gpus", lambda gpus=gpus: gpus)
        atlas("run", RING)
        assert asked[-1] == (*expected, 120.0)
    done = atlas("run", "backup-workers")
    assert asked[-1] == (4, "gloo", 120.0)
    assert "backup-workers needs 3 GPUs, here are 2: runs on gloo" in done.stderr
    monkeypatch.setattr(run, "visible_gpus", lambda: 4)
    atlas("run", RING, "--mutant", "whole-tensors")
    atlas("run", "stale-synchronous-parallel", "--mutant", "never-wakes")
    assert asked[-2:] == [(4, "nccl", 120.0), (4, "nccl", 8.0)]


def test_a_run_that_does_not_end_says_how_to_let_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hang(*_: Any, timeout: float, **__: Any) -> None:
        raise LaunchError(f"no end after {timeout:g} s: ranks [1] are still at work")

    monkeypatch.setattr(measuring, "measure", hang)
    done = atlas("run", RING, "--timeout", "3")
    assert done.exit_code == 1
    longer = "no end after 3 s: ranks [1] are still at work; --timeout SECONDS allows"
    assert longer in done.stderr


def test_a_failing_run_says_why_first_and_shows_the_trace_where_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise LaunchError("rank 2: ValueError: no such chunk", "--- rank 2\nTraceback")

    monkeypatch.setattr(measuring, "measure", fail)
    short = atlas("run", RING)
    assert short.exit_code == 1
    assert short.stderr == "rank 2: ValueError: no such chunk (--verbose shows where)\n"
    long = atlas("run", RING, "--verbose")
    assert long.exit_code == 1
    first, *rest = long.stderr.splitlines()
    assert first == "rank 2: ValueError: no such chunk"
    assert rest == ["--- rank 2", "Traceback"]


@pytest.mark.parametrize("ranks", ["0", "-1", "65"])
def test_a_refused_rank_count_is_one_line_and_exit_code_2(ranks: str) -> None:
    done = atlas("run", RING, "--ranks", ranks)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"{ranks} ranks: ")
    assert done.stderr.count("\n") == 1


def test_what_ranks_print_stays_out_of_the_json(
    ring: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: Any, **__: Any) -> Any:
        print("[rank 0] hello")
        return ring

    monkeypatch.setattr(measuring, "measure", measure)
    done = atlas("run", RING, "--json")
    assert strict(done.stdout)["holds"]
    assert "[rank 0] hello" in done.stderr


# --- wrong use


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "ring-al"], "did you mean ring-all-reduce"),
        (["run", "ring"], "did you mean ring-all-reduce"),
        (["run", "qqqq"], "atlas list shows all"),
        (["run", "horovod"], "a system, not a technique: atlas show horovod"),
        (["show", "horovd"], "did you mean horovod?"),
        (["show", "tensor", "slicin"], "did you mean tensor slicing?"),
        (["show", "hybrid"], "hybrid is a family: atlas list --family hybrid"),
        (["show", "sync-strategy"], "is an axis: atlas list --axis sync-strategy"),
        (["show", "qqqq"], "atlas list shows the techniques"),
        (["show", "zero", "--kind", "sys"], "did you mean system?"),
        (["show", "horovod", "--kind", "technique"], "there is no technique"),
        (["compare", "horovod"], "got 1: give two to four"),
        (["compare", *"abcde"], "got 5: give two to four"),
        (["compare", "horovod", RING], "compare only one kind"),
        (["compare", "horovod", "Horovod"], "horovod is given twice"),
        (["compare", "horovod", "byteps-2"], "did you mean byteps?"),
        (["compare", "horovod", "DDP"], '"DDP" is ambiguous: '),
        (["list", "--uses", "ring-all-reduc"], "did you mean ring-all-reduce"),
        (["list", "--uses", "horovod"], 'there is no technique "horovod"'),
        (["list", "--year", "201x"], '--year "201x": expected a year, 2019, or'),
        (["list", "--year", ".."], '--year "..": expected'),
        (["list", "--year", "18.."], '--year "18..": expected'),
        (["list", "--year", "2016..2014"], "2016 is after 2014; try 2014..2016"),
        (["list", "--parallelism", "tensors"], "did you mean tensor?"),
        (["list", "--topology", "rings"], "did you mean ring?"),
        (["list", "--optimizer", "xyz"], "there are central, per-worker, either"),
        (["list", "--status", "act"], "did you mean active"),
        (["list", "--survey", "nichols"], "did you mean nichols2021?"),
        (["export", "--what", "json"], "there are taxonomy, schema, bibtex, llms"),
        (["export", "-o", "atlas"], "atlas is a folder: give a file name"),
        (["export", "-o", "no/such/file"], "no/such/file cannot be written: No such"),
        (["record", "zero-3d"], "did you mean zero-3"),
        (["record", "zero"], "a system, not a technique: atlas show zero"),
        (["record", RING, "--mode", "glo"], "did you mean gloo?"),
        (["record"], "give technique names or --all"),
        (["record", RING, "--all"], "give only one"),
        (["list", "--axis", "sync"], "did you mean sync-strategy?"),
        (["list", "--family", "shard"], "did you mean sharded"),
        (["list", "--without-exemplar", "sync"], "did you mean sync-strategy?"),
        (
            ["list", "--systems", "--without-exemplar", "sync-strategy"],
            "--systems have no exemplars: leave out --without-exemplar",
        ),
        (["run", RING, "--mutant", "qqqq"], "there is no mutant"),
        (["run", RING, "elements"], f"elements: expected NAME=VALUE; {RING} has"),
        (["run", RING, "element=3"], "no such size; did you mean elements?"),
        (["run", RING, "zzz=3"], f"no such size; {RING} has elements=100_003"),
        (["run", RING, "elements=many"], "expected a whole number, 0 or more"),
        (["run", RING, "elements=-1"], "elements=-1: expected a whole number"),
        (["run", RING, "elements=1", "elements=2"], "elements is given twice"),
        (["run", RING, "--dry", "8", "--ranks", "2"], "give only one"),
    ],
)
@pytest.mark.usefixtures("loaded")
def test_wrong_use_is_one_line_and_exit_code_2(
    arguments: list[str], expected: str
) -> None:
    done = atlas(*arguments)
    assert done.exit_code == 2
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_technique_without_an_exemplar_cannot_be_run(clone: Path) -> None:
    (clone / taxonomy.load(clone).techniques[RING].exemplar).unlink()
    assert "has no exemplar yet" in atlas("run", RING).stderr
    assert "exemplar not written yet" in atlas("list").stdout


def test_another_trees_exemplars_are_not_run_by_mistake(clone: Path) -> None:
    done = atlas("run", RING)
    assert done.exit_code == 2
    assert f"pip install -e {clone}" in done.stderr


def test_problems_of_the_taxonomy_are_one_line_each(clone: Path) -> None:
    file = clone / taxonomy.load(clone).techniques[RING].yaml
    text = (
        file.read_text().replace("name:", "nmae:", 1).replace("since: 2015", "since: 9")
    )
    file.write_text(text)
    done = atlas("list")
    assert done.exit_code == 2
    lines = done.stderr.splitlines()
    assert len(lines) >= 2
    place = re.escape(file.relative_to(clone).as_posix())
    assert all(re.match(rf"{place}:\d+:\d+: ", line) for line in lines)


def test_an_unexpected_error_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(taxonomy, "load", fail)
    assert isinstance(atlas("list").exception, ZeroDivisionError)


# --- record


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A clone in which the ring was recorded, and then its exemplar changed."""
    made = clones.make(tmp_path_factory.mktemp("recorded"))
    said = clones.several(
        made,
        ["record", RING, "--mode", "gloo,dry"],
        ["list", "--text", RING, "--json"],
    )
    exemplar = made / taxonomy.load(made).techniques[RING].exemplar
    exemplar.write_text(exemplar.read_text() + "\nCHANGED = True\n")
    return {"clone": made, **said}


STUDIES = ("classification", "determinism")


def test_record_writes_and_names_what_it_wrote(recorded: dict[str, Any]) -> None:
    wrote, listed = recorded["said"]
    assert wrote["code"] == 0, wrote["err"]
    names = [f"measurements/{mode}/{RING}.json" for mode in ("gloo", "dry")]
    studies = [f"measurements/studies/{s}/{RING}.json" for s in STUDIES]
    names[1:1] = studies
    assert wrote["out"].splitlines() == [f"wrote {name}" for name in names]
    (technique,) = [t for t in json.loads(listed["out"]) if t["id"] == RING]
    assert technique["proven"]["gloo"]["ranks"] == [1, 2, 3, 4, 8]
    assert technique["proven"]["dry"]["ranks"] == [64, 1024]
    assert not technique["proven"]["gloo"]["stale"]


def test_no_torch_is_imported_even_to_record(
    recorded: dict[str, Any],
) -> None:
    assert recorded["torch"] is False


def test_a_record_of_older_source_says_so(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recorded["clone"])
    assert "gloo 1 2 3 4 8 (older source)" in atlas("list").stdout
    assert "gloo 1 2 3 4 8 (older source): 20" in atlas("show", RING).stdout
    assert f"gloo/{RING}" in strict(atlas("stats", "--json").stdout)["stale"]


def test_nothing_is_recorded_where_a_claim_fails(clone: Path) -> None:
    exemplar = clone / taxonomy.load(clone).techniques[RING].exemplar
    text = exemplar.read_text()
    assert text.count("into.add_(") == 1
    exemplar.write_text(text.replace("into.add_(", "into.sub_("))
    done = clones.atlas(clone, "record", RING, "--mode", "gloo")
    assert done.returncode == 1
    assert "failed; nothing was written" in done.stderr
    assert not list(clone.glob("measurements/*/*"))


def test_a_read_only_measurements_folder_is_one_line(clone: Path) -> None:
    before = clones.without_override()
    if not before:
        pytest.skip("root without CAP_SETPCAP: permissions cannot be made to bind")
    folder = clone / "measurements"
    folder.mkdir(mode=0o555)
    done = clones.atlas(clone, "record", RING, before=before)
    assert done.returncode == 2
    expected = r"measurements/(gloo|dry) cannot be written: Permission denied\n"
    assert re.fullmatch(expected, done.stderr)
    assert not list(folder.iterdir())


def test_a_file_in_place_of_the_measurements_folder_is_one_line(clone: Path) -> None:
    (clone / "measurements").write_text("not a folder")
    done = clones.atlas(clone, "record", RING)
    assert done.returncode == 2
    assert re.fullmatch(r"measurements/\w+ cannot be written: .+\n", done.stderr)


# --- serve


def test_serve_takes_the_next_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    executed: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: executed.append(command))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = atlas("serve", "--port", str(port))
    address = executed[0][-1]
    assert address.startswith("127.0.0.1:")
    assert int(address.partition(":")[2]) > port
    assert f"port {port} is taken" in done.stdout
    assert f"http://{address}" in done.stdout


def test_serve_runs_no_strangers_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taxonomy").mkdir()
    (tmp_path / "taxonomy" / "axes.yaml").touch()
    (tmp_path / "mkdocs.yml").write_text("site_name: planted\nhooks: [planted.py]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("it was served"))
    done = atlas("serve")
    assert done.exit_code == 2
    assert str(tmp_path) in done.stderr
    assert done.stderr.count("\n") == 1


def test_serve_without_mkdocs_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda _: None)
    done = atlas("serve")
    assert done.exit_code == 2
    assert 'pip install -c constraints.txt -e ".[docs]"' in done.stderr


# --- help and completion


def test_the_version_is_the_packages() -> None:
    assert atlas("--version").stdout == f"atlas {__version__}\n"


def examples() -> list[list[str]]:
    """Every command that the help texts show."""
    found = []
    for module in MODULES:
        for _, fn in inspect.getmembers(module, inspect.isfunction):
            lines = (fn.__doc__ or "").splitlines()
            found += [x.split() for x in lines if x.strip().startswith("atlas ")]
    return found


def test_every_command_has_help_with_examples_that_name_real_things() -> None:
    known = taxonomy.load(ROOT)
    commands = {line[1] for line in examples()}
    assert commands == {
        *("list", "show", "compare", "run", "record", "serve", "stats", "new"),
        *("check", "export", "race", "plan", "predict"),
        *("collectives", "compressors"),
    }
    for command in commands:
        text = atlas(command, "--help").stdout
        assert re.search(rf"Examples:\s+atlas {command}", text)
    for _, command, *rest in examples():
        if command in ("run", "record") and rest[0] != "--all":
            assert rest[0] in known.techniques
        if command in ("show", "compare"):
            words = " ".join(word for word in rest if not word.startswith("--"))
            said = [words] if command == "show" else words.split()
            assert all(len(names.find(known, word).best) == 1 for word in said)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("atlas run ring-all", RING),
        (f"atlas run {RING} el", "elements="),
        (f"atlas run {RING} zz", ""),
        ("atlas run no-such-technique el", ""),
        ("atlas show horo", "horovod-elastic horovod"),
        ("atlas show straggl", "straggler"),
        ("atlas show sergeev2018", "sergeev2018horovod"),
        ("atlas show all --kind ter", "term"),
        ("atlas compare horovod pytorch-d", "pytorch-ddp"),
        ("atlas list --axis com", "communication-pattern"),
        ("atlas list --family shar", "sharded"),
        ("atlas list --uses ring-all", RING),
        ("atlas list --year 2011", "2011 2011.."),
        ("atlas list --parallelism ten", "tensor"),
        ("atlas list --topology sta", "star"),
        ("atlas list --optimizer per", "per-worker"),
        ("atlas list --status arch", "archived"),
        ("atlas list --survey nich", "nichols2021"),
        ("atlas check m:f --contract data", "data-parallel"),
        ("atlas export --what tax", "taxonomy"),
        ("atlas new sync-strategy/syn", "sync-strategy/synchronous/"),
        ("atlas new communication-pattern/star/c", ""),
        *[(f"atlas new {place}", place) for place in PLANNED[:1]],
        ("atlas st", "stats"),
    ],
)
def test_the_shell_completes_names(words: str, expected: str) -> None:
    count = str(len(words.split()) - 1)
    done = clones.atlas(
        ROOT, _ATLAS_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=count
    )
    assert done.stdout.split() == expected.split()


def test_completion_outside_a_clone_or_in_a_broken_one_is_silent(clone: Path) -> None:
    (clone / "taxonomy" / "axes.yaml").write_text("axes: 3")
    assert common.complete_axis("") == []
    assert filters.complete_year("") == []
    assert "nichols2021" in filters.complete_survey("")
    assert RING in common.complete_technique("")


def test_list_imports_no_torch() -> None:
    found = clones.several(
        ROOT,
        ["list"],
        ["list", "--systems"],
        ["show", RING],
        ["show", "horovod"],
        ["compare", "horovod", "pytorch-ddp"],
        ["stats"],
        ["export", "--what", "schema"],
    )
    assert {one["code"] for one in found["said"]} == {0}
    assert found["torch"] is False


# --- Ctrl-C

HANGS = """
import os, time
from pathlib import Path
from exemplars.runtime import World
def main(w: World) -> None:
    Path(os.environ["STARTED"], str(w.rank)).touch()
    time.sleep(600)
"""


def interrupt(process: subprocess.Popen[str]) -> tuple[str, float]:
    """Press Ctrl-C: what was said, and how long the end took."""
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    return said, time.monotonic() - begun


@pytest.fixture
def hanging(clone: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run on two ranks that never ends."""
    (clone / taxonomy.load(clone).techniques[RING].exemplar).write_text(HANGS)
    process = subprocess.Popen(
        [sys.executable, "-m", "atlas", "run", RING, "--ranks", "2"],
        cwd=clone,
        env=clones.environment(STARTED=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.kill()


def test_ctrl_c_ends_a_run_with_130_no_traceback_and_nothing_left(
    hanging: subprocess.Popen[str], tmp_path: Path
) -> None:
    started = [tmp_path / "0", tmp_path / "1"]
    assert wait_until(lambda: all(p.exists() for p in started), 60)
    below = psutil.Process(hanging.pid).children(recursive=True)
    assert len(below) >= 3  # the server and two ranks
    said, seconds = interrupt(hanging)
    assert hanging.returncode == 130
    assert "Traceback" not in said
    assert seconds < 5
    assert wait_until(lambda: not any(map(alive, below)), 2), below


def test_ctrl_c_while_the_ranks_start_leaves_nothing(
    hanging: subprocess.Popen[str],
) -> None:
    process = psutil.Process(hanging.pid)
    assert wait_until(process.children, 60)
    below = process.children(recursive=True)
    said, _ = interrupt(hanging)
    assert hanging.returncode == 130
    assert "Traceback" not in said
    assert wait_until(lambda: not any(map(alive, below)), 2), below
