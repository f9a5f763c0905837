"""The atlas for other programs: what is written agrees with itself and the site."""

import json
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from clone import ROOT
from command_line import app
from typer.testing import CliRunner

from atlas import __version__, export, taxonomy
from atlas.taxonomy import bibtex

VALIDATOR = jsonschema.Draft202012Validator


@pytest.fixture(scope="module")
def known() -> taxonomy.Atlas:
    return taxonomy.load(ROOT)


@pytest.fixture(scope="module")
def value(known: taxonomy.Atlas) -> Any:
    """taxonomy.json as a program reads it."""
    return json.loads(export.text(export.taxonomy(known)))


@pytest.fixture(scope="module")
def site(made: dict[str, str | bytes]) -> dict[str, str | bytes]:
    return made


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def atlas(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["export", *arguments])


# --- the taxonomy and its schema


def test_the_taxonomy_is_what_its_schema_says(value: Any) -> None:
    VALIDATOR.check_schema(export.schema())
    found = VALIDATOR(export.schema()).iter_errors(value)
    assert [e.message for e in found] == []


def test_the_taxonomy_is_whole(value: Any, known: taxonomy.Atlas) -> None:
    assert value["version"] == __version__
    assert value["$schema"] == export.SCHEMA
    assert [a["id"] for a in value["axes"]] == [a.id for a in known.axes]
    for kind in ("techniques", "systems", "surveys", "papers"):
        assert set(value[kind]) == set(getattr(known, kind))
    assert [w["term"] for w in value["glossary"]] == [w.term for w in known.glossary]
    assert len(value["choose"]["leaves"]) > 3
    ring = value["techniques"]["ring-all-reduce"]
    assert ring["path"] == "communication-pattern/collective/ring-all-reduce"
    assert (ROOT / ring["exemplar"]).is_file()
    unwritten = [t for t in value["techniques"].values() if t["exemplar"] is None]
    files = [t for t in known.techniques.values() if not (ROOT / t.exemplar).is_file()]
    assert len(unwritten) == len(files)
    assert all(p["link"].startswith("http") for p in value["papers"].values())


SPOILED: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "a year that is text": (("systems", "horovod", "year"), "2018"),
    "an unknown status": (("systems", "horovod", "status"), "asleep"),
    "an unknown kind of split": (
        ("systems", "horovod", "parallelism", "value"),
        ["sideways"],
    ),
    "a system that is a list": (("systems", "horovod"), []),
    "a claim without a kind": (
        ("techniques", "ring-all-reduce", "claims", 0),
        {"id": "sum", "says": "the sum"},
    ),
    "a surplus key": (("techniques", "ring-all-reduce", "color"), "blue"),
    "an empty sentence": (("techniques", "ring-all-reduce", "summary"), ""),
    "a home that is no link": (("systems", "horovod", "home"), "ftp://x"),
    "a word that is null": (("glossary", 0), None),
    "a version that is none": (("version",), "latest"),
    "a paper without a title": (("papers", "sergeev2018horovod"), {"key": "x"}),
    "no axes": (("axes",), None),
}


@pytest.mark.parametrize("what", SPOILED)
def test_the_schema_refuses(what: str, value: Any) -> None:
    (*path, last), spoiled = SPOILED[what]
    copy = json.loads(json.dumps(value))
    place = copy
    for step in path:
        place = place[step]
    place[last] = spoiled
    assert not VALIDATOR(export.schema()).is_valid(copy)


@pytest.mark.parametrize("key", ["version", "glossary", "choose", "crosswalk"])
def test_the_schema_misses_what_is_left_out(key: str, value: Any) -> None:
    copy = {k: v for k, v in value.items() if k != key}
    assert not VALIDATOR(export.schema()).is_valid(copy)


def test_what_may_be_left_out_in_yaml_is_null_and_described(value: Any) -> None:
    assert value["systems"]["horovod"]["venue_year"] is None
    described = export.schema()["$defs"]["System"]["properties"]["venue_year"]
    assert described["description"] == "the year of publication at a venue"
    assert {"type": "null"} in described["anyOf"]


# --- llms.txt


def links(text: str) -> list[tuple[str, str, str]]:
    """Name, address and sentence of every item."""
    return re.findall(r"(?m)^- \[([^\]\n]+)\]\(([^)\s]+)\): (\S.*)$", text)


def test_llms_txt_has_the_form_of_llmstxt_org(known: taxonomy.Atlas) -> None:
    text = export.llms(known)
    title, blank, summary, *rest = text.splitlines()
    assert title == f"# {export.TITLE}"
    assert blank == ""
    assert summary == f"> {export.SUMMARY}"
    body = "\n".join(rest)
    about, *sections = re.split(r"(?m)^## .+\n", body)
    assert "- [" not in about
    assert not re.search(r"(?m)^#(#{2,})? ", body)
    for section in sections:
        lines = [line for line in section.splitlines() if line]
        assert lines
        assert len(links(section)) == len(lines)
    assert text.count("\n## Optional\n") == 1


def test_llms_txt_names_every_technique_and_system(known: taxonomy.Atlas) -> None:
    found = {to: says for _, to, says in links(export.llms(known))}
    for t in known.techniques.values():
        assert found[f"{t.path}/"] == t.summary
    for s in known.systems.values():
        assert found[f"systems/{s.id}/"] == f"{s.year}. {s.summary}"


def test_every_link_of_llms_txt_leads_to_a_page(site: dict[str, str | bytes]) -> None:
    text = site[export.LLMS]
    assert isinstance(text, str)
    there = {export.folder(uri) if uri.endswith(".md") else uri for uri in site}
    found = [to for _, to, _ in links(text)]
    assert len(found) > 250
    assert [to for to in found if to not in there] == []
    assert len(set(found)) == len(found)


def test_llms_txt_of_a_site_for_files_leads_to_files(
    known: taxonomy.Atlas, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atlas.site import address

    monkeypatch.setenv("OFFLINE", "1")
    text = export.llms(known, address.url)
    assert "(communication-pattern/collective/ring-all-reduce.html)" in text
    assert "(systems/index.html)" in text


# --- the site and the command write the same


@pytest.mark.parametrize(
    ("what", "file"),
    [
        ("taxonomy", export.DATA),
        ("schema", export.SCHEMA),
        ("bibtex", export.BIBTEX),
        ("llms", export.LLMS),
    ],
)
def test_the_site_has_what_the_command_writes(
    what: str, file: str, site: dict[str, str | bytes], tmp_path: Path
) -> None:
    told = atlas("--what", what)
    assert told.exit_code == 0, told.stderr
    assert told.stdout == site[file]
    target = tmp_path / file
    done = atlas("--what", what, "-o", str(target))
    assert done.stdout == f"wrote {target}\n"
    assert target.read_text(encoding="utf-8") == site[file]
    assert [p.name for p in tmp_path.iterdir()] == [file]


def test_the_exported_bibliography_is_read_without_a_problem(
    known: taxonomy.Atlas,
) -> None:
    entries, problems = bibtex.parse(export.bibtex(known), export.BIBTEX)
    assert problems == []
    assert {e.key for e in entries} == set(known.papers)


def test_two_exports_are_equal_byte_for_byte(known: taxonomy.Atlas) -> None:
    again = taxonomy.load(ROOT)
    assert export.text(export.taxonomy(known)) == export.text(export.taxonomy(again))
    assert export.text(export.schema()) == export.text(export.schema())
    assert export.llms(known) == export.llms(again)


# --- writing


def test_a_file_is_replaced_whole_and_has_ordinary_permissions(tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    target.write_text("old")
    assert atlas("--what", "schema", "-o", str(target)).exit_code == 0
    assert json.loads(target.read_text())["$id"] == export.SCHEMA
    beside = tmp_path / "beside"
    beside.touch()
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(beside.stat().st_mode)


def test_what_cannot_be_written_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / "x.json"
    target.write_text("old")
    monkeypatch.setattr(Path, "replace", full)
    done = atlas("-o", str(target))
    assert done.exit_code == 2
    assert done.stderr == f"{target} cannot be written: No space left on device\n"
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_device_is_written_through_and_a_link_kept(tmp_path: Path) -> None:
    """As root, a device node could be replaced by a file of its name."""
    pipe, link, target = (tmp_path / name for name in ("pipe", "link", "target"))
    os.mkfifo(pipe)
    link.symlink_to(target)
    target.write_text("old")
    with ThreadPoolExecutor() as reader:
        read = reader.submit(pipe.read_text)
        assert atlas("--what", "schema", "-o", str(pipe)).exit_code == 0
        assert json.loads(read.result(timeout=10))["$id"] == export.SCHEMA
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert atlas("--what", "schema", "-o", str(link)).exit_code == 0
    assert link.is_symlink()
    assert json.loads(target.read_text())["$id"] == export.SCHEMA
