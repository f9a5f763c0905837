"""The taxonomy is read whole, or every problem in it is named with its place."""

import datetime
import functools
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atlas import taxonomy
from atlas.taxonomy import Claim, Mutant, TaxonomyError, Technique, bibtex, load
from atlas.taxonomy import schema as schemas

ROOT = Path(__file__).resolve().parents[2]
BAD = Path(__file__).parent / "data" / "bad"
BASE = BAD / "base"
FIRST = "taxonomy/techniques/sync/strict/first.yaml"


def problems(root: Path) -> list[str]:
    """What load says is wrong; nothing if nothing is."""
    try:
        load(root)
    except TaxonomyError as error:
        return error.problems
    return []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A small good taxonomy, to be spoilt."""
    return Path(shutil.copytree(BASE, tmp_path / "root"))


# Bad files: the first line of each says where it is put, the next ones what is said


def expectations(bad: Path) -> tuple[str, list[str]]:
    """Where a bad file belongs, and the problems it must cause."""
    mark = "%" if bad.suffix == ".bib" else "#"
    lines = bad.read_text(encoding="utf-8").splitlines()
    place = lines[0].removeprefix(f"{mark} as: ")
    said = [s.removeprefix(f"{mark}! ") for s in lines if s.startswith(f"{mark}! ")]
    return place, said


@pytest.mark.parametrize(
    "bad", sorted(p for p in BAD.iterdir() if p.is_file()), ids=lambda p: p.name
)
def test_a_bad_file_is_named_with_place_and_expectation(bad: Path, small: Path) -> None:
    place, said = expectations(bad)
    assert said, f"{bad.name} does not say what is wrong with it"
    target = small / place
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(bad, target)
    assert problems(small) == said


def test_a_problem_is_one_line_with_file_line_and_column(small: Path) -> None:
    (small / FIRST).write_text("name: [\n", encoding="utf-8")
    with pytest.raises(TaxonomyError) as caught:
        load(small)
    for problem in caught.value.problems:
        place, _, said = problem.partition(": ")
        file, line, column = place.rsplit(":", 2)
        assert (small / file).is_file()
        assert int(line) >= 1
        assert int(column) >= 1
        assert ": expected " in said
        assert "\n" not in problem
    assert str(caught.value) == "\n".join(caught.value.problems)


def test_the_problems_of_all_files_come_at_once(small: Path) -> None:
    spoilt = ["taxonomy/axes.yaml", "taxonomy/systems/engine.yaml", FIRST]
    for file in spoilt:
        path = small / file
        path.write_text(path.read_text(encoding="utf-8") + "extra: 1\n", "utf-8")
    assert [p.partition(":")[0] for p in problems(small)] == spoilt


def test_a_refused_file_causes_no_second_problem_elsewhere(small: Path) -> None:
    # only the refused file could have cited the second paper and have been the first
    bib = small / "taxonomy/papers.bib"
    extra = "@misc{only2001here, title={T}, author={A}, year=2001, eprint={2001.00001}}"
    bib.write_text(bib.read_text(encoding="utf-8") + extra, encoding="utf-8")
    assert len(problems(small)) == 1
    (small / FIRST).write_text("name: [", encoding="utf-8")
    assert [p.partition(":")[0] for p in problems(small)] == [FIRST]


# Hostile files


def billion_laughs() -> str:
    """Nine levels of nine aliases: a gigabyte if they were followed."""
    lines = ['a0: &a0 ["ha"]']
    for i in range(1, 10):
        lines.append(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (billion_laughs(), "anchor &a0: expected the value written out"),
        ("name: x\n" * 250_000, "too large: expected at most 256 KB"),
        ("[" * 100 + "]" * 100, "nested too deep: expected at most 20 levels"),
        ("[" * 200_000, "nested too deep: expected at most 20 levels"),
        ("{a: " * 60_000, "nested too deep: expected at most 20 levels"),
        ("name: " + "9" * 200_000, None),
        ("name: " + "9" * 200_000 + "x", None),
        ("? " * 100_000, None),
        ("- " * 100_000, None),
        ("since: " + "1:" * 100_000 + "1", None),
    ],
    ids=[
        "bomb",
        "2 MB",
        "100 deep",
        "unclosed",
        "maps",
        "digits",
        "9x",
        "?",
        "-",
        "60s",
    ],
)
def test_a_hostile_file_is_refused_within_a_second(
    text: str, said: str | None, small: Path
) -> None:
    (small / FIRST).write_text(text, encoding="utf-8")
    begin = time.process_time()
    found = problems(small)
    assert time.process_time() - begin < 1
    assert found
    assert said is None or found[0].endswith(said)


def test_a_hostile_bibliography_is_refused_within_a_second(small: Path) -> None:
    for text in (
        "@misc{" * 40_000,
        "\n" * 260_000,
        "@misc{a2000b, t = {" + "{" * 200_000,
    ):
        (small / "taxonomy/papers.bib").write_text(text, encoding="utf-8")
        begin = time.process_time()
        assert problems(small)
        assert time.process_time() - begin < 1


def test_what_is_not_utf8_is_named_by_its_line(small: Path) -> None:
    (small / FIRST).write_bytes(b"name: First\nsummary: caf\xe9\n")
    assert problems(small) == [
        f"{FIRST}:2:1: byte 0xe9 is not UTF-8: expected UTF-8 text"
    ]


def test_a_pipe_in_place_of_a_file_is_named_and_not_waited_for(small: Path) -> None:
    (small / FIRST).unlink()
    os.mkfifo(small / FIRST)
    assert problems(small) == [f"{FIRST}:1:1: not a file: expected a file"]


def test_a_file_that_cannot_be_read_is_named(small: Path) -> None:
    (small / "taxonomy/papers.bib").unlink()
    assert problems(small)[0] == (
        "taxonomy/papers.bib:1:1: cannot be read (No such file or directory): "
        "expected a readable file"
    )


loose = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
keys = {f.name for kind in (Claim, Mutant, Technique) for f in fields(kind)}
known = st.sampled_from(sorted(keys | {"min", "max", "dry"}))
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(known | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=20,
)


@loose
@given(data=st.binary(max_size=300))
def test_any_bytes_are_read_or_refused_with_a_problem(data: bytes, small: Path) -> None:
    for file in (FIRST, "taxonomy/axes.yaml", "taxonomy/papers.bib"):
        kept = (small / file).read_bytes()
        (small / file).write_bytes(data)
        assert problems(small)
        (small / file).write_bytes(kept)


@loose
@given(text=st.text(alphabet="ab:-?[]{}&*!|>'\"%@#, \n\t1.", max_size=60))
def test_any_yaml_like_text_is_read_or_refused(text: str, small: Path) -> None:
    (small / FIRST).write_text(text, encoding="utf-8")
    assert problems(small)


@loose
@given(tree=trees)
def test_any_structure_is_read_or_refused(tree: object, small: Path) -> None:
    (small / FIRST).write_text(yaml.safe_dump(tree), encoding="utf-8")
    assert problems(small)


@loose
@given(extra=st.dictionaries(known, trees, max_size=3))
def test_any_change_of_a_good_file_is_read_or_refused(
    extra: dict[str, object], small: Path
) -> None:
    good = yaml.safe_load((BASE / FIRST).read_text(encoding="utf-8"))
    (small / FIRST).write_text(yaml.safe_dump(good | extra), encoding="utf-8")
    problems(small)


@loose
@given(text=st.text(alphabet='ab1@{}=,"% \n\\', max_size=60))
def test_any_bibliography_is_read_or_refused(text: str) -> None:
    entries, found = bibtex.parse(text, "x.bib")
    assert found or entries or not text.strip("% \n") or "%" in text


# Good data


def test_the_small_taxonomy_is_good(small: Path) -> None:
    atlas = load(small)
    first = atlas.techniques["first"]
    assert first.path == "sync/strict/first"
    assert first.module == "exemplars.sync.strict.first"
    assert first.exemplar == Path("exemplars/sync/strict/first.py")
    assert (small / first.yaml).is_file()
    assert (first.min_ranks, first.max_ranks, first.dry) == (1, None, (64, 1024))
    assert first.claim("sent").formula == "first_bytes"
    assert atlas.papers["good2001paper"].authors == ("Ann Author", "Will Writer")
    assert [s.id for s in atlas.users("first")] == ["engine"]


def test_a_formula_is_asked_for_once_the_exemplar_is_written(small: Path) -> None:
    path = small / FIRST
    text = path.read_text(encoding="utf-8").replace(", formula: first_bytes", "")
    path.write_text(text, encoding="utf-8")
    assert len(problems(small)) == 1
    (small / "exemplars/sync/strict/first.py").unlink()
    assert problems(small) == []


def test_formulas_are_not_checked_where_there_are_none(small: Path) -> None:
    path = small / FIRST
    text = path.read_text(encoding="utf-8").replace("first_bytes", "other_bytes")
    path.write_text(text, encoding="utf-8")
    assert len(problems(small)) == 1
    shutil.rmtree(small / "atlas/formulas")
    assert problems(small) == []


def test_this_year_is_not_the_future(small: Path) -> None:
    path = small / FIRST
    year = datetime.date.today().year
    for since, count in ((year, 0), (year + 1, 1)):
        text = (BASE / FIRST).read_text(encoding="utf-8")
        path.write_text(text.replace("since: 2001", f"since: {since}"), "utf-8")
        assert sum("a year from" in problem for problem in problems(small)) == count


def test_every_check_costs_no_more_than_three_plain_readings() -> None:
    """Against libyaml's own reading of the same files, in a program of its own.

    Seconds would measure the machine, what else runs on it, and how much is known;
    here the collector goes through what thousands of tests have left as well.
    """
    source = """
import time, yaml
from pathlib import Path
from atlas.taxonomy import load

def seconds(work):
    begin = time.process_time()
    work()
    return time.process_time() - begin

def plain():
    for path in Path("taxonomy").rglob("*.yaml"):
        yaml.load(path.read_text("utf-8"), Loader=yaml.CSafeLoader)

pairs = [(seconds(lambda: load(Path())), seconds(plain)) for _ in range(3)]
strict, loose = map(min, zip(*pairs))
print(strict / loose)
"""
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) < 1 + 3


def test_the_taxonomy_is_good() -> None:
    atlas = load(ROOT)
    assert [axis.id for axis in atlas.axes] == [
        "sync-strategy",
        "parameter-distribution",
        "communication-pattern",
    ]
    assert [len(axis.families) for axis in atlas.axes] == [9, 11, 9]
    assert all(f.axis == axis.id for axis in atlas.axes for f in axis.families)
    assert len(atlas.surveys) == 5


def test_every_cross_reference_leads_somewhere() -> None:
    atlas = load(ROOT)
    for technique in atlas.techniques.values():
        assert f"{technique.axis}/{technique.family}" in atlas.families
        assert (ROOT / technique.yaml).is_file()
        assert all(key in atlas.papers for key in technique.papers)
        assert all(other in atlas.techniques for other in technique.see_also)
        assert technique.id not in technique.see_also
        others = {f"{axis}/{family}" for axis, family in technique.also.items()}
        assert others <= atlas.families.keys()
        # one home and one coordinate on each of the other axes
        assert {technique.axis, *technique.also} == {a.id for a in atlas.axes}
    for paper in atlas.papers.values():
        assert paper.link.startswith("http")


def test_a_name_leads_to_one_technique() -> None:
    owner: dict[str, str] = {}
    for t in load(ROOT).techniques.values():
        for name in {n.casefold() for n in (t.id, t.name, *t.also_called)}:
            assert name not in owner, f"{name}: {t.id} and {owner[name]}"
            owner[name] = t.id


@pytest.mark.parametrize(
    ("name", "technique"),
    {
        "1F1B": "one-f-one-b",
        "activation recomputation": "activation-checkpointing",
        "all-reduce ring": "ring-all-reduce",
        "AMP": "mixed-precision",
        "butterfly all-reduce": "recursive-doubling",
        "context parallelism": "ring-attention",
        "DDP": "ddp-by-hand",
        "FSDP": "zero-3",
        "gradient compression": "top-k-error-feedback",
        "MoE": "expert-parallel",
        "operator parallelism": "tensor-parallel-column-row",
        "Rabenseifner": "halving-doubling",
        "tensor slicing": "tensor-parallel-column-row",
        "weight update sharding": "zero-1",
    }.items(),
)
def test_a_name_people_search_for_is_a_technique_s(name: str, technique: str) -> None:
    assert name in load(ROOT).techniques[technique].also_called


# Schemas for editors


def yaml_files() -> list[Path]:
    return sorted((ROOT / "taxonomy").rglob("*.yaml"))


@functools.cache
def validator(schema: Path) -> jsonschema.Draft202012Validator:
    described = json.loads(schema.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(described)
    return jsonschema.Draft202012Validator(described)


def test_the_committed_schemas_are_current() -> None:
    for kind, made in schemas.json_schema().items():
        path = ROOT / "taxonomy" / "schema" / f"{kind}.schema.json"
        text = path.read_text(encoding="utf-8")
        assert text == schemas.schema_text(made), (
            "stale: run python -m atlas.taxonomy --schema"
        )


@pytest.mark.parametrize("path", yaml_files(), ids=lambda p: p.name)
def test_every_file_names_its_schema_and_obeys_it(path: Path) -> None:
    first, _, rest = path.read_text(encoding="utf-8").partition("\n")
    schema = path.parent / first.removeprefix("# yaml-language-server: $schema=")
    validator(schema.resolve()).validate(yaml.safe_load(rest))


@pytest.mark.parametrize(
    "name",
    ["unknown-key", "missing-keys", "text-for-a-number", "unknown-kind", "not-a-link"],
)
def test_the_schema_refuses_what_the_loader_refuses(name: str) -> None:
    tree = yaml.safe_load((BAD / f"{name}.yaml").read_text(encoding="utf-8"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tree, schemas.json_schema()["technique"])


# From outside


def test_the_root_is_found_from_below_and_from_elsewhere(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small / "taxonomy" / "systems")
    assert taxonomy.find_root() == small
    monkeypatch.chdir(tmp_path)
    assert taxonomy.find_root() == ROOT


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "atlas.taxonomy", *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        timeout=30,
        check=False,
    )


def test_the_command_says_what_is_wrong_and_exits_with_1(small: Path) -> None:
    assert run(cwd=small).stdout == "techniques: 1, systems: 1, papers: 1; no problem\n"
    (small / FIRST).write_text("", encoding="utf-8")
    ended = run(cwd=small)
    assert ended.returncode == 1
    assert ended.stderr == f"{FIRST}:1:1: empty file: expected keys and values\n"
    assert run("--shema", cwd=small).returncode == 2


def test_the_schemas_can_be_written_anew(small: Path) -> None:
    assert run("--schema", cwd=small).returncode == 0
    made = sorted(p.name for p in (small / "taxonomy/schema").iterdir())
    assert made == [f"{kind}.schema.json" for kind in sorted(schemas.json_schema())]


def test_reading_the_taxonomy_imports_no_torch() -> None:
    code = "import sys, atlas.taxonomy as k; k.load(); print('torch' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert ended.stdout == "False\n"
