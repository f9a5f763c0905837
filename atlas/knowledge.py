"""The taxonomy, read from taxonomy/ into frozen types, every problem found at once.

    from atlas import knowledge
    atlas = knowledge.load()
    atlas.techniques["ring-all-reduce"].claims

A problem is one line, `file:line:column: what: expected`. Where a system stands on
the axes is this project's own classification, made along the surveys' dimensions;
each cell carries its source, and says whether that source was read.

    python -m atlas.knowledge            check the taxonomy
    python -m atlas.knowledge --schema   and write taxonomy/schema/*.json for editors
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from atlas import bibtex
from atlas.kinds import (
    IS_KEBAB,
    IS_LINK,
    IS_PLAIN,
    IS_YEAR,
    TAXONOMY,
    Ambiguity,
    Answer,
    Atlas,
    Axes,
    Axis,
    Cell,
    Choose,
    Claim,
    Column,
    Comparison,
    Concept,
    Crosswalk,
    Fact,
    Family,
    Glossary,
    Leaf,
    Mutant,
    OptimizerLocation,
    Paper,
    Parallelism,
    Plan,
    Production,
    Quantity,
    Question,
    Ranks,
    Relation,
    Sense,
    Sighting,
    Survey,
    Symbols,
    System,
    Technique,
    Term,
    Topology,
    Use,
    Word,
)
from atlas.relation import parse as parse_relation
from atlas.typed import BAD, Reader, Reference, nearest, one_of, schema
from atlas.yamlmarks import Mark, Node, Problem, Refused, read_text, read_tree, shown

__all__ = [
    "Ambiguity",
    "Answer",
    "Atlas",
    "Axis",
    "Cell",
    "Choose",
    "Claim",
    "Comparison",
    "Concept",
    "Crosswalk",
    "Fact",
    "Family",
    "Leaf",
    "Mutant",
    "OptimizerLocation",
    "Paper",
    "Parallelism",
    "Plan",
    "Production",
    "Quantity",
    "Question",
    "Ranks",
    "Relation",
    "Sighting",
    "Survey",
    "System",
    "TaxonomyError",
    "Technique",
    "Term",
    "Topology",
    "Use",
    "Word",
    "find_root",
    "json_schema",
    "load",
    "technique",
]


FORMULAS = "atlas/formulas"  # the folder


class TaxonomyError(Exception):
    """The taxonomy has problems; `problems` lists each as one line."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def find_root() -> Path:
    """The folder that holds taxonomy/: at or above here, else the package's own."""
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parent.parent):
        if (folder / TAXONOMY / "axes.yaml").is_file():
            return folder
    problem = Problem(
        TAXONOMY, Mark(), f"not found at or above {shown(str(here))}", "a clone"
    )
    raise TaxonomyError([str(problem)])


def load(root: Path | None = None) -> Atlas:
    """Read the whole taxonomy; raises TaxonomyError with all of its problems."""
    loader = _Loader(root if root is not None else find_root())
    atlas = loader.atlas()
    if loader.problems:
        raise TaxonomyError([str(p) for p in sorted(set(loader.problems))])
    return atlas


def technique(id: str, root: Path | None = None) -> Technique | None:
    """One technique, read alone: what it refers to is not looked at. None: unknown."""
    root = root if root is not None else find_root()
    if not IS_KEBAB.holds(id):
        return None
    paths = list((root / TAXONOMY / "techniques").glob(f"*/*/{id}.yaml"))
    if len(paths) != 1:
        return None
    loader = _Loader(root, alone=True)
    return loader.one(paths[0])


class _Loader:
    """One reading of the taxonomy: what was found, and what was wrong."""

    def __init__(self, root: Path, *, alone: bool = False) -> None:
        self.root = root
        self.problems: list[Problem] = []
        self.references: list[Reference] = []
        self.unread = False  # some file was refused: what it refers to is unknown
        self.names: dict[str, list[str]] = {}
        self.formulas = None if alone else self._formulas()

    def one(self, path: Path) -> Technique:
        """The technique of one file."""
        axis, family, _ = path.relative_to(self.root / TAXONOMY / "techniques").parts
        read = self._read(path)
        made = read and self._technique(*read, (path.stem, axis, family))
        self.problems += read[0].problems if read else []
        if self.problems:
            raise TaxonomyError([str(p) for p in sorted(set(self.problems))])
        assert isinstance(made, Technique)
        return made

    def note(self, file: str, mark: Mark, what: str, expected: str) -> None:
        self.problems.append(Problem(file, mark, what, expected))

    def atlas(self) -> Atlas:
        axes = self._axes()
        techniques: dict[str, Technique] = {}
        for id, (reader, node, place) in sorted(self._techniques(axes).items()):
            technique = self._technique(reader, node, (id, *place))
            self._keep(reader, technique, techniques)
        systems: dict[str, System] = {}
        for id, (reader, node) in self._folder("systems", "system").items():
            reader.checks = _SYSTEM_CHECKS
            self._keep(reader, reader.record(node, System, id=id), systems)
        surveys: dict[str, Survey] = {}
        for id, (reader, node) in self._folder("surveys", "survey").items():
            reader.checks = _survey_checks(techniques)
            self._keep(reader, reader.record(node, Survey, id=id), surveys)
        glossary = self._glossary()
        choose = self._choose()
        crosswalk = self._crosswalk()
        papers = self._papers()
        symbols = self._symbols()
        self._check_references()
        whole = (axes, techniques, systems, surveys, papers, glossary, choose)
        return Atlas(self.root, *whole, crosswalk, symbols)

    def _keep(self, reader: Reader, made: Any, kept: dict[str, Any]) -> None:
        if made is not BAD:
            kept[made.id] = made
        self._absorb(reader)

    def _absorb(self, reader: Reader) -> None:
        self.problems += reader.problems
        self.references += reader.references

    # Files

    def _read(self, path: Path) -> tuple[Reader, Node] | None:
        """A reader for a file and its tree; None, and a problem, if refused."""
        file = path.relative_to(self.root).as_posix()
        try:
            node, problems = read_tree(read_text(path, file), file)
        except Refused as refused:
            self.problems.append(refused.problem)
            self.unread = True
            return None
        return Reader(file, problems), node

    def _files(self, folder: str) -> Iterator[tuple[Path, tuple[str, ...]]]:
        """The YAML files below a folder, each with its path inside it."""
        top = self.root / TAXONOMY / folder
        for path in sorted(top.rglob("*")):
            inside = path.relative_to(top).parts
            if path.is_dir() or any(part.startswith(".") for part in inside):
                continue
            file = path.relative_to(self.root).as_posix()
            if path.suffix != ".yaml" or not IS_KEBAB.holds(path.stem):
                self.note(file, Mark(), shown(path.name), "a name like one-two-3.yaml")
                continue
            yield path, inside

    def _folder(self, folder: str, kind: str) -> dict[str, tuple[Reader, Node]]:
        """id -> tree, of a folder without folders in it."""
        found: dict[str, tuple[Reader, Node]] = {}
        self.names[kind] = []
        for path, inside in self._files(folder):
            if len(inside) != 1:
                file = path.relative_to(self.root).as_posix()
                expected = f"{TAXONOMY}/{folder}/{path.name}"
                self.note(file, Mark(), "a file in the wrong place", expected)
                continue
            self.names[kind].append(path.stem)
            if read := self._read(path):
                found[path.stem] = read
        return found

    def _techniques(
        self, axes: tuple[Axis, ...]
    ) -> dict[str, tuple[Reader, Node, tuple[str, str]]]:
        """id -> tree and (axis, family), from the place of each file."""
        families = {axis.id: [f.id for f in axis.families] for axis in axes}
        found: dict[str, tuple[Reader, Node, tuple[str, str]]] = {}
        first: dict[str, str] = {}
        for path, inside in self._files("techniques"):
            file = path.relative_to(self.root).as_posix()
            if len(inside) != 3:
                expected = f"{TAXONOMY}/techniques/AXIS/FAMILY/{path.name}"
                self.note(file, Mark(), "a file in the wrong place", expected)
                continue
            axis, family = inside[:2]
            if axes and axis not in families:
                expected = one_of(axis, families)
                self.note(file, Mark(), f"unknown axis {shown(axis)}", expected)
            elif axes and family not in families[axis]:
                expected = one_of(family, families[axis])
                self.note(file, Mark(), f"unknown family {shown(family)}", expected)
            if path.stem in first:
                what = f"id {shown(path.stem)} is also that of {first[path.stem]}"
                self.note(file, Mark(), what, "one file an id")
                continue
            first[path.stem] = file
            if read := self._read(path):
                found[path.stem] = (*read, (axis, family))
        self.names["technique"] = list(first)
        return found

    def _axes(self) -> tuple[Axis, ...]:
        read = self._read(self.root / TAXONOMY / "axes.yaml")
        if read is None:
            return ()
        reader, node = read
        axes = _read_axes(reader, node)
        self._absorb(reader)
        if axes:
            self.names["axis"] = [axis.id for axis in axes]
            self.names["family"] = [f.path for axis in axes for f in axis.families]
        return axes

    def _glossary(self) -> tuple[Word, ...]:
        path = self.root / TAXONOMY / "glossary.yaml"
        if not path.exists() or (read := self._read(path)) is None:
            return ()
        reader, node = read
        made = reader.record(node, Glossary)
        if made is not BAD:
            _check_words(made.words, reader)
        self._absorb(reader)
        return () if made is BAD else made.words

    def _choose(self) -> Choose | None:
        path = self.root / TAXONOMY / "choose.yaml"
        if not path.exists() or (read := self._read(path)) is None:
            return None
        for kind in ("model", "cluster"):
            presets = sorted((self.root / TAXONOMY / f"{kind}s").glob("*.yaml"))
            self.names[kind] = [preset.stem for preset in presets]
        reader, node = read
        made = reader.record(node, Choose)
        if made is not BAD:
            _check_choose(made, reader)
        self._absorb(reader)
        return None if made is BAD else made

    def _symbols(self) -> dict[str, Quantity]:
        path = self.root / TAXONOMY / "symbols.yaml"
        if not path.exists() or (read := self._read(path)) is None:
            return {}
        reader, node = read
        made = reader.record(node, Symbols)
        if made is not BAD:
            _check_symbols(made.quantities, reader)
        self._absorb(reader)
        return {} if made is BAD else {q.word: q for q in made.quantities}

    def _crosswalk(self) -> Crosswalk | None:
        path = self.root / TAXONOMY / "crosswalk.yaml"
        if not path.exists() or (read := self._read(path)) is None:
            return None
        reader, node = read
        reader.checks = {Sense: _check_cell}
        made = reader.record(node, Crosswalk)
        if made is not BAD:
            _check_crosswalk(made, reader)
        self._absorb(reader)
        return None if made is BAD else made

    def _papers(self) -> dict[str, Paper]:
        file = f"{TAXONOMY}/papers.bib"
        try:
            text = read_text(self.root / file, file)
        except Refused as refused:
            self.problems.append(refused.problem)
            return {}
        entries, problems = bibtex.parse(text, file)
        self.problems += problems
        self.problems += _check_entries(entries, file)
        self.names["paper"] = [entry.key for entry in entries]
        if not self.unread:
            used = {r.name for r in self.references if r.kind in ("paper", "source")}
            for entry in entries:
                if entry.key not in used:
                    what = f"{shown(entry.key)} is cited nowhere"
                    self.note(file, entry.mark, what, "an entry that some file cites")
        if self.problems:
            return {}
        return {paper.key: paper for paper in sorted(map(_paper, entries), key=_by_key)}

    def _formulas(self) -> dict[str, tuple[str, ...]] | None:
        """The formulas of atlas/formulas/ and their arguments; None: no such folder."""
        folder = self.root / FORMULAS
        if not folder.is_dir():
            return None
        found: dict[str, tuple[str, ...]] = {}
        for path in sorted(folder.rglob("*.py")):
            file = path.relative_to(self.root).as_posix()
            try:
                tree = ast.parse(read_text(path, file))
            except (SyntaxError, ValueError, Refused) as error:
                line = getattr(error, "lineno", None) or 1
                self.note(file, Mark(line), f"not Python ({error})", "Python")
                return None
            for node in tree.body:
                if isinstance(node, ast.FunctionDef) and node.decorator_list:
                    found[node.name] = tuple(arg.arg for arg in node.args.args)
        return found

    # Meaning

    def _technique(
        self, reader: Reader, node: Node, place: tuple[str, str, str]
    ) -> Any:
        id, axis, family = place
        path = f"{axis}/{family}/{id}".replace("-", "_")
        written = (self.root / "exemplars" / f"{path}.py").is_file()

        def check_claim(claim: Claim, reader: Reader) -> None:
            _check_claim(claim, reader, written)
            self._check_formula(claim, reader)

        reader.checks = {
            Claim: check_claim,
            Mutant: _check_mutant,
            Ranks: _check_ranks,
            Technique: self._check_technique,
        }
        return reader.record(node, Technique, id=id, axis=axis, family=family)

    def _check_technique(self, technique: Technique, reader: Reader) -> None:
        claims = [claim.id for claim in technique.claims]
        _once(technique.claims, reader)
        _once(technique.mutants, reader)
        for mutant in technique.mutants:
            for failed in mutant.fails:
                if failed not in claims:
                    where = reader.place(mutant, "fails")
                    what = f"unknown claim {shown(failed)}"
                    reader.note(where, what, one_of(failed, claims))
        for axis, family in technique.also.items():
            self._check_also(technique, axis, family, reader)

    def _check_formula(self, claim: Claim, reader: Reader) -> None:
        for place in ("formula", "floor"):
            name = getattr(claim, place)
            if self.formulas is None or name is None or name in self.formulas:
                continue
            what = f"unknown formula {shown(name)}"
            near = nearest(name, self.formulas)
            expected = f'"{near}"' if near else f"a function of {FORMULAS}/"
            reader.note(reader.place(claim, place), what, expected)

    def _check_also(
        self, technique: Technique, axis: str, family: str, reader: Reader
    ) -> None:
        where = reader.place(technique, "also", axis)
        families = [
            path.partition("/")[2]
            for path in self.names.get("family", [])
            if path.startswith(axis + "/")
        ]
        if axis == technique.axis:
            reader.note(where, f"{shown(axis)} in also", "an axis other than its own")
        elif families and family not in families:
            what = f"unknown family {shown(family)}"
            reader.note(where, what, one_of(family, families))

    def _check_references(self) -> None:
        for used in self.references:
            if used.kind == "source":
                self._check_source(used)
            elif used.kind == "entry":
                self._check_entry(used)
            elif used.kind in self.names and used.name not in self.names[used.kind]:
                what = f"unknown {used.kind} {shown(used.name)}"
                expected = one_of(used.name, self.names[used.kind])
                self.note(used.file, used.mark, what, expected)

    def _check_source(self, used: Reference) -> None:
        if IS_LINK.holds(used.name) or used.name in self.names.get(
            "paper", [used.name]
        ):
            return
        what = f"unknown source {shown(used.name)}"
        self.note(used.file, used.mark, what, "a key of papers.bib, or a link")

    def _check_entry(self, used: Reference) -> None:
        kinds = ("technique", "system", "family")
        known = [name for kind in kinds for name in self.names.get(kind, [])]
        if used.name not in known:
            what = f"unknown technique, system or family {shown(used.name)}"
            self.note(used.file, used.mark, what, one_of(used.name, known))


def _by_key(paper: Paper) -> str:
    return paper.key


def _read_axes(reader: Reader, node: Node) -> tuple[Axis, ...]:
    """The axes; each family learns which axis lists it."""
    made = reader.record(node, Axes)
    if made is BAD:
        return ()
    _once(made.axes, reader)
    axes: list[Axis] = []
    for axis in made.axes:
        _once(axis.families, reader)
        named = tuple(dataclasses.replace(f, axis=axis.id) for f in axis.families)
        axes.append(dataclasses.replace(axis, families=named))
    return tuple(axes)


Named = (
    Axis
    | Family
    | Claim
    | Mutant
    | Question
    | Answer
    | Leaf
    | Column
    | Concept
    | Ambiguity
    | Comparison
)


def _once(things: Iterable[Named], reader: Reader) -> None:
    """No two of these have the same id."""
    seen: set[str] = set()
    for thing in things:
        if thing.id in seen:
            what = f"id {shown(thing.id)} occurs twice"
            reader.note(reader.place(thing, "id"), what, "each id once")
        seen.add(thing.id)


def _check_words(words: tuple[Word, ...], reader: Reader) -> None:
    """Each word once, whether as a term or as an alias, in alphabetical order."""
    seen: dict[str, str] = {}
    for word in words:
        for name in (word.term, *word.aliases):
            folded = name.casefold()
            if folded in seen:
                what = f"{shown(name)} is also a word of {shown(seen[folded])}"
                reader.note(reader.place(word), what, "each word once")
            seen[folded] = word.term
    terms = [word.term.casefold() for word in words]
    for word, before, after in zip(words[1:], terms, terms[1:], strict=False):
        if after < before:
            what = f"{shown(word.term)} after {shown(before)}"
            reader.note(reader.place(word), what, "alphabetical order")


def _check_choose(made: Choose, reader: Reader) -> None:
    """Answers lead onward, to something that is there, and to everything."""
    things: tuple[Question | Leaf, ...] = (*made.questions, *made.leaves)
    _once(things, reader)
    order = [q.id for q in made.questions]
    leaves = [leaf.id for leaf in made.leaves]
    reached = set(order[:1])
    for i, question in enumerate(made.questions):
        _once(question.answers, reader)
        if len(question.answers) < 2:
            what = f"{shown(question.id)} without a choice of answers"
            reader.note(reader.place(question, "answers"), what, "two or more")
        for answer in question.answers:
            reached.add(answer.to)
            if answer.to in order[: i + 1]:
                what = f"{shown(answer.to)} does not come after {shown(question.id)}"
                where = reader.place(answer, "to")
                reader.note(where, what, "a later question, or a leaf")
            elif answer.to not in (*order, *leaves):
                what = f"unknown question or leaf {shown(answer.to)}"
                expected = one_of(answer.to, [*order[i + 1 :], *leaves])
                reader.note(reader.place(answer, "to"), what, expected)
    for thing in things:
        if thing.id not in reached:
            what = f"no answer leads to {shown(thing.id)}"
            reader.note(reader.place(thing, "id"), what, "an answer that does")
    for leaf in made.leaves:
        for name in ("techniques", "sources"):
            if not getattr(leaf, name):
                what = f"{shown(leaf.id)} without {name}"
                reader.note(reader.place(leaf, name), what, "at least one")


def _survey_checks(
    techniques: dict[str, Technique],
) -> dict[type, Callable[[Any, Reader], None]]:
    def check(made: Comparison, reader: Reader) -> None:
        _check_comparison(made, reader, techniques)

    def once(survey: Survey, reader: Reader) -> None:
        _once(survey.comparisons, reader)

    return {Comparison: check, Survey: once}


def _check_comparison(
    made: Comparison, reader: Reader, techniques: dict[str, Technique]
) -> None:
    """Each figure is a claim's, each is used, and `holds` knows no other name."""
    named: list[str] = []
    for figure in made.figures:
        if figure.name in named:
            what = f"figure {shown(figure.name)} occurs twice"
            reader.note(reader.place(figure, "name"), what, "each name once")
        named.append(figure.name)
        home = techniques.get(figure.technique)
        claims = [claim.id for claim in home.claims] if home else []
        if claims and figure.claim not in claims:
            what = f"unknown claim {shown(figure.claim)}"
            expected = one_of(figure.claim, claims)
            reader.note(reader.place(figure, "claim"), what, expected)
    where = reader.place(made, "holds")
    try:
        used = parse_relation(made.holds).names
    except ValueError as wrong:
        reader.note(
            where, f"{shown(made.holds)} ({wrong})", "a comparison, a / b == 1.5"
        )
        return
    for name in sorted(used - set(named)):
        reader.note(where, f"unknown figure {shown(name)}", one_of(name, named))
    for name in sorted(set(named) - used):
        reader.note(where, f"figure {shown(name)} is not used", "every figure")


def _check_crosswalk(made: Crosswalk, reader: Reader) -> None:
    """Ids once; a concept has one word a column, of columns that exist."""
    _once(made.columns, reader)
    _once(made.concepts, reader)
    _once(made.ambiguities, reader)
    known = [column.id for column in made.columns]
    for concept in made.concepts:
        seen: set[str] = set()
        for usage in concept.words:
            where = reader.place(usage, "by")
            if usage.by not in known:
                what = f"unknown column {shown(usage.by)}"
                reader.note(where, what, one_of(usage.by, known))
            elif usage.by in seen:
                what = f"column {shown(usage.by)} occurs twice"
                reader.note(where, what, "one word a column")
            seen.add(usage.by)


def _check_claim(claim: Claim, reader: Reader, written: bool) -> None:
    """The fields that the claim's kind needs, and none that it has no use for."""
    counted = claim.kind in ("exact", "bound")
    if counted and written and claim.formula is None:
        what = f'{claim.kind} claim "{claim.id}" without a formula'
        reader.note(reader.place(claim), what, "formula: a function of the oracle")
    counted = counted or claim.kind == "statistical"
    if written and counted and (claim.unit is None or claim.of is None):
        lacks = "unit" if claim.unit is None else "of"
        what = f'{claim.kind} claim "{claim.id}" without "{lacks}"'
        reader.note(reader.place(claim), what, f"{lacks}: what is counted")
    if claim.kind in ("equal", "close") and claim.formula is not None:
        what = f'{claim.kind} claim "{claim.id}" with a formula'
        where = reader.place(claim, "formula")
        reader.note(where, what, "no formula: the reference is the exemplar's own")
    if claim.floor is not None and claim.kind != "bound":
        what = f'{claim.kind} claim "{claim.id}" with a floor'
        reader.note(reader.place(claim, "floor"), what, "a floor for a bound alone")
    if (claim.kind == "statistical") != (claim.band is not None):
        without = "without" if claim.band is None else "with"
        what = f'{claim.kind} claim "{claim.id}" {without} a band'
        expected = "band: [lowest, highest], for statistical claims alone"
        reader.note(reader.place(claim, "band"), what, expected)
    if claim.band is not None and claim.band[0] > claim.band[1]:
        low, high = claim.band
        where = reader.place(claim, "band")
        reader.note(where, f"band [{low:g}, {high:g}]", "the lowest value first")


def _check_symbols(quantities: Iterable[Quantity], reader: Reader) -> None:
    """One word, one meaning, one symbol."""
    for name in ("word", "symbol", "says"):
        seen: dict[str, str] = {}
        for quantity in quantities:
            value = getattr(quantity, name)
            if value in seen:
                what = f"{shown(value)} is also the {name} of {shown(seen[value])}"
                where = reader.place(quantity, name)
                reader.note(where, what, f"each {name} once")
            seen[value] = quantity.word


def _check_mutant(mutant: Mutant, reader: Reader) -> None:
    """It fails claims, or it runs into the deadline: one of the two."""
    if bool(mutant.fails) == mutant.deadline:
        both = "both" if mutant.deadline else "neither"
        what = f'mutant "{mutant.id}" has {both} fails and deadline'
        what = what.replace("neither fails and", "neither fails nor")
        reader.note(reader.place(mutant), what, "fails: [claims], or deadline: true")
    if mutant.find == mutant.replace:
        what = f'mutant "{mutant.id}" replaces a text by itself'
        reader.note(reader.place(mutant, "replace"), what, "another text")


def _check_ranks(ranks: Ranks, reader: Reader) -> None:
    if ranks.max is not None and ranks.max < ranks.min:
        where = reader.place(ranks, "max")
        reader.note(where, f"max {ranks.max} below min {ranks.min}", "min <= max")
    for world in ranks.dry:
        if world < ranks.min or (ranks.max is not None and world > ranks.max):
            most = ranks.max if ranks.max is not None else "any"
            where = reader.place(ranks, "dry")
            what = f"dry world size {world}"
            reader.note(where, what, f"from {ranks.min} to {most}")


def _check_cell(
    cell: Use
    | Cell
    | Parallelism
    | OptimizerLocation
    | Topology
    | Fact
    | Relation
    | Sense,
    reader: Reader,
) -> None:
    """What is called verified names its source."""
    if cell.verified and cell.source is None:
        expected = "source: a key of papers.bib, or a link"
        reader.note(reader.place(cell), "verified without a source", expected)


def _check_system(system: System, reader: Reader) -> None:
    """Nothing is listed twice, and the venue comes after the work."""
    seen: set[str] = set()
    listed: list[tuple[Use | Cell, str]] = [(u, u.technique) for u in system.uses]
    listed += [(cell, cell.family) for cell in system.cells]
    for entry, name in listed:
        if name in seen:
            what = f"{shown(name)} is listed twice"
            reader.note(reader.place(entry), what, "each once")
        seen.add(name)
    for relation in system.relations:
        if relation.system == system.id:
            where = reader.place(relation, "system")
            reader.note(where, "a relation to itself", "another system")
    if system.venue_year is not None and system.venue_year < system.year:
        what = f"venue_year {system.venue_year} before year {system.year}"
        where = reader.place(system, "venue_year")
        reader.note(where, what, "the venue after the first appearance")


_CELLS = (Use, Cell, Parallelism, OptimizerLocation, Topology, Fact, Relation)
_SYSTEM_CHECKS: dict[type, Callable[[Any, Reader], None]] = {
    System: _check_system,
    **dict.fromkeys(_CELLS, _check_cell),
}

_REQUIRED = ("title", "author", "year")
_SHAPES = {
    "doi": (r"10\.\d{4,9}/[^\s\"<>]+", "a DOI like 10.1000/182"),
    "eprint": (r"\d{4}\.\d{4,5}|[a-z-]+/\d{7}", "an arXiv number like 2001.01234"),
    "url": (dict(IS_LINK.schema)["pattern"], IS_LINK.expected),
    "year": (r"\d{4}", IS_YEAR.expected),
}
_WORDS = ("author", "booktitle", "institution", "journal", "note", "number")
_FIELDS = (*_WORDS, "pages", "publisher", "school", "title", "volume", *_SHAPES)


def _check_entries(entries: list[bibtex.Entry], file: str) -> list[Problem]:
    """One entry a work, each complete and each with a place to read it."""
    problems: list[Problem] = []
    seen: dict[tuple[str, str], str] = {}
    for entry in entries:
        problems += _check_entry(entry, file)
        title = re.sub(r"\W+", " ", entry.fields.get("title", "").casefold()).strip()
        same = [("key", entry.key), ("title", title)]
        same += [(f, entry.fields.get(f, "")) for f in ("doi", "eprint")]
        for kind, value in same:
            if value and (kind, value) in seen:
                what = f"{kind} {shown(value)} is also that of {seen[kind, value]}"
                where = entry.marks.get(kind, entry.mark)
                problems.append(Problem(file, where, what, "one entry a work"))
            seen.setdefault((kind, value), entry.key)
    return problems


def _check_entry(entry: bibtex.Entry, file: str) -> Iterator[Problem]:
    if not re.fullmatch(r"[a-z]+\d{4}[a-z0-9]*", entry.key):
        what, expected = f"key {shown(entry.key)}", "a key like name2013word"
        yield Problem(file, entry.mark, what, expected)
    for name in _REQUIRED:
        if not entry.fields.get(name):
            what = f"{shown(entry.key)} without {name}"
            yield Problem(file, entry.mark, what, f"{name} = {{...}}")
    if not {"doi", "eprint", "url"} & entry.fields.keys():
        what = f"{shown(entry.key)} without a place to read it"
        yield Problem(file, entry.mark, what, "doi, eprint or url")
    for name, value in entry.fields.items():
        where = entry.marks[name]
        if name not in _FIELDS:
            what = f"unknown field {shown(name)}"
            yield Problem(file, where, what, one_of(name, _FIELDS))
        elif name in _SHAPES:
            shape, expected = _SHAPES[name]
            fits = re.fullmatch(shape, value)
            if not fits or (name == "year" and not IS_YEAR.holds(int(value))):
                yield Problem(file, where, shown(value), expected)
        elif not IS_PLAIN.holds(value):
            yield Problem(file, where, shown(value), IS_PLAIN.expected)


def _paper(entry: bibtex.Entry) -> Paper:
    has = entry.fields.get
    return Paper(
        key=entry.key,
        kind=entry.kind,
        title=entry.fields["title"],
        authors=tuple(_forward(a) for a in entry.fields["author"].split(" and ")),
        year=int(entry.fields["year"]),
        venue=has("journal") or has("booktitle") or has("institution") or has("school"),
        doi=has("doi"),
        eprint=has("eprint"),
        url=has("url"),
    )


def _forward(author: str) -> str:
    """ "Last, First" as "First Last"."""
    last, comma, first = author.partition(",")
    return f"{first.strip()} {last.strip()}" if comma else author.strip()


def json_schema() -> dict[str, dict[str, Any]]:
    """JSON Schema of each kind of file, for editors: kind -> schema."""
    kinds = {"axes": Axes, "choose": Choose, "glossary": Glossary, "survey": Survey}
    kinds |= {"crosswalk": Crosswalk, "symbols": Symbols}
    kinds |= {"system": System, "technique": Technique}
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {
        kind: {**dialect, "title": f"The atlas: {kind}", **schema(made)}
        for kind, made in kinds.items()
    }


def schema_text(made: dict[str, Any]) -> str:
    """A schema as it is committed."""
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def write_schemas(root: Path) -> None:
    """Write taxonomy/schema/*.schema.json, each whole or not at all."""
    for kind, made in json_schema().items():
        path = root / TAXONOMY / "schema" / f"{kind}.schema.json"
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(".part")
        partial.write_text(schema_text(made), encoding="utf-8")
        partial.replace(path)


def main(arguments: list[str]) -> int:
    """Check the taxonomy; with --schema also write the schemas."""
    if arguments not in ([], ["--schema"]):
        print(f"{' '.join(arguments)}: expected nothing, or --schema", file=sys.stderr)
        return 2
    try:
        root = find_root()
        if arguments:
            write_schemas(root)
        atlas = load(root)
    except TaxonomyError as error:
        print(error, file=sys.stderr)
        return 1
    counts = (len(atlas.techniques), len(atlas.systems), len(atlas.papers))
    print("techniques: {}, systems: {}, papers: {}; no problem".format(*counts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
