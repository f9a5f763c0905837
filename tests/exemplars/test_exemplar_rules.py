"""What every exemplar looks like: its size, its order, its notes, its independence."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from atlas.mutants.parts import Parts, is_given, makes_a_task, parts
from atlas.record import read, stale
from atlas.site.annotate import annotate
from atlas.taxonomy import Technique, load

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = [t for t in load(ROOT).techniques.values() if (ROOT / t.exemplar).exists()]
SPACE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT}
SPACE |= {tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING}

each = pytest.mark.parametrize("technique", WRITTEN, ids=lambda t: t.id)


def text_of(technique: Technique) -> str:
    return (ROOT / technique.exemplar).read_text(encoding="utf-8")


# --- records


@pytest.mark.parametrize("mode", ["gloo", "dry", "emulated"])
@each
def test_a_record_is_of_the_present_exemplar(technique: Technique, mode: str) -> None:
    """Else its page says so; `atlas record` makes it again."""
    found = read(ROOT, mode, technique.id)
    if found is None:  # a new technique's first records are of gloo and dry runs
        assert mode == "emulated" or (mode == "dry" and not technique.dry)
        return
    assert not stale(ROOT, technique, found)
    if mode == "gloo":
        without = {**found, "mutants": found["mutants"][1:]}
        assert stale(ROOT, technique, without)


# --- size


def code_lines(text: str) -> set[int]:
    """The lines that hold code: no docstring, no comment, nothing blank."""
    said: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                said |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SPACE:
            found |= set(range(token.start[0], token.end[0] + 1))
    return found - said


def test_a_line_of_code_is_neither_said_nor_blank() -> None:
    text = '"""Said."""\n\n# why\ndef f():\n    """Said,\n    too."""\n    #: note\n'
    assert code_lines(text + "    return 1  # so\n") == {4, 8}


@each
def test_an_exemplar_has_at_most_120_lines_of_code(technique: Technique) -> None:
    count = len(code_lines(text_of(technique)))
    assert count <= 120, f"{technique.exemplar}: {count} lines of code"


@each
def test_a_function_of_an_exemplar_has_at_most_30_lines(technique: Technique) -> None:
    text = text_of(technique)
    code = code_lines(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            mine = code & set(range(node.lineno, (node.end_lineno or 0) + 1))
            place = f"{technique.exemplar}:{node.lineno}: {node.name}"
            assert len(mine) <= 30, f"{place}: {len(mine)} lines of code"


@each
def test_an_exemplar_is_79_columns_wide(technique: Technique) -> None:
    wide = [
        f"{technique.exemplar}:{number}: {len(line)} columns"
        for number, line in enumerate(text_of(technique).splitlines(), 1)
        if len(line) > 79 and not line.startswith("    torchrun --standalone ")
    ]
    assert not wide, "\n".join(wide)


# --- what it says


@each
def test_an_exemplar_has_six_to_ten_notes(technique: Technique) -> None:
    notes = annotate(text_of(technique)).notes
    assert 6 <= len(notes) <= 10, f"{technique.exemplar}: {len(notes)} notes"


@each
def test_a_note_stands_on_lines_of_its_own(technique: Technique) -> None:
    """One at the end of a line would not be found by the page."""
    for number, line in enumerate(text_of(technique).splitlines(), 1):
        place = f"{technique.exemplar}:{number}"
        assert not re.search(r"\S.*#:", line), f"{place}: a note after code"


# --- order


def order(text: str) -> list[str]:
    """What the module's statements are, in order, each kind once."""
    of = parts(text)
    kinds = [_kind(of, node) for node in of.tree.body]
    return [k for i, k in enumerate(kinds) if i == 0 or kinds[i - 1] != k]


def _kind(of: Parts, node: ast.stmt) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return "docstring"
        case ast.Import() | ast.ImportFrom():
            return "imports"
        case ast.If() if ast.unparse(node.test) == "__name__ == '__main__'":
            return "guard"
        case ast.FunctionDef(name="main"):
            return "main"
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return "mechanism" if name in mechanism(of) else "reference"
    return "mechanism"


def mechanism(of: Parts) -> set[str]:
    """All but the truth, and what only main calls to observe the mechanism."""
    before: set[str] = set()
    for node in of.tree.body:
        name = getattr(node, "name", "")
        if name == "reference":
            return of.reached(before)
        if name and name not in of.truth - of.mechanism:
            before.add(name)
    return of.reached(before - {"main"}) - (of.truth - of.mechanism)


ORDER = ["docstring", "imports", "mechanism", "reference", "main", "guard"]


@each
def test_an_exemplar_is_in_order(technique: Technique) -> None:
    expected = [kind for kind in ORDER if kind != "reference" or own(technique)]
    assert order(text_of(technique)) == expected, technique.exemplar


def own(technique: Technique) -> bool:
    """Whether its reference is its own; it may be that of what it stands on."""
    return "reference" in parts(text_of(technique)).functions


@each
def test_an_exemplar_has_a_reference(technique: Technique) -> None:
    inherited = r"^from exemplars\.\w+\.\w+\.\w+ import [^#]*?\breference\b"
    assert own(technique) or re.search(inherited, text_of(technique), re.M)


@each
def test_the_sizes_of_main_are_given_by_keyword_and_have_defaults(
    technique: Technique,
) -> None:
    arguments = parts(text_of(technique)).main.args
    assert [a.arg for a in arguments.args] == ["w"], technique.exemplar
    assert not arguments.vararg
    assert not arguments.kwarg
    assert arguments.kwonlyargs, f"{technique.exemplar}: main takes no size"
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    bare = [a.arg for a, default in pairs if default is None]
    assert not bare, f"{technique.exemplar}: no default: {', '.join(bare)}"


def test_of_rank_is_gone() -> None:
    """`seed=` says what it hid."""
    folders = ("atlas", "exemplars", "notebooks", "docs", "taxonomy")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".md", ".yaml"}
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\bof_rank\b", line)
    ]
    assert not found, "\n".join(found)


# --- what it stands on


def imported(tree: ast.Module) -> Iterator[str]:
    """The other exemplars that a source imports, as modules."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{a.name}" for a in node.names]
        for name in names:
            parents = name.split(".")
            for end in range(len(parents), 3, -1):
                if ROOT.joinpath(*parents[:end]).with_suffix(".py").is_file():
                    yield ".".join(parents[:end])


@each
def test_an_exemplar_imports_what_it_stands_on_and_no_other(
    technique: Technique,
) -> None:
    modules = {t.id: t.module for t in WRITTEN}
    stands_on = {modules[name] for name in technique.stands_on}
    assert len(stands_on) <= 2
    assert set(imported(ast.parse(text_of(technique)))) == stands_on


# --- the truth is independent

#: What both sides may use, by name: functions that make the data or the model, which
#: are given to both. They may not train, communicate or differentiate.
SHARED = {
    "batch": "the samples of a step",
    "data": "the samples",
    "samples": "the samples",
    "sentences": "the samples",
    "layer": "makes one layer of the model",
    "layers": "makes the layers of the model",
    "model": "makes the model",
    "network": "makes the model",
    "problem": "makes the data and the model",
    "table": "makes the embedding table that is to be sharded",
    "task": "makes the data and the model",
}
WORKS = re.compile(r"\bdist\.|\.backward\(|\.grad\b|autograd|optim|\b\w+_\(|span\(")


def shared(text: str) -> list[str]:
    """What the reference and the mechanism both use, and may not."""
    of = parts(text)
    both = of.truth & of.mechanism & of.functions
    found = []
    for name in sorted(both):
        node = of.definitions[name]
        if is_given(node) or makes_a_task(node):
            continue
        if name not in SHARED:
            found.append(f"{name}: not a maker of data or models by its name")
        elif does := WORKS.search(ast.unparse(node)):
            found.append(f"{name}: does more than to make data or a model: {does[0]}")
    return found


@each
def test_the_reference_calls_nothing_of_the_mechanism(technique: Technique) -> None:
    found = shared(text_of(technique))
    assert not found, f"{technique.exemplar}: " + "; ".join(found)


SOURCE = """
def {name}(w): return {body}
def train(w): return {name}(w)
def reference(w): return {name}(w)
def main(w):
    with meter() as moved:
        x = train(w)
    w.check("x", x, lambda: reference(w), slack=0)
"""


def test_a_reference_that_shares_a_step_is_seen() -> None:
    assert shared(SOURCE.format(name="step", body="w"))
    assert shared(SOURCE.format(name="layer", body="dist.all_reduce(w)"))
    assert not shared(SOURCE.format(name="layer", body="nn.Linear(w, w)"))


@each
def test_a_reference_reads_nothing_that_the_mechanism_kept(
    technique: Technique,
) -> None:
    """It is handed the world, data and sizes, never an object of the mechanism."""
    of = parts(text_of(technique))
    classes = {n for n in of.mechanism if isinstance(of.definitions[n], ast.ClassDef)}
    for name in of.roots:
        node = of.definitions[name]
        assert isinstance(node, ast.FunctionDef), name
        arguments = [*node.args.args, *node.args.kwonlyargs]
        said = [ast.unparse(a.annotation) for a in arguments if a.annotation]
        kept = {word for s in said for word in re.findall(r"\w+", s)} & classes
        assert not kept, f"{technique.exemplar}: {name} is handed {', '.join(kept)}"
