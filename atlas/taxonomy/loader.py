"""Reads taxonomy/ into frozen types, every problem found at once."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atlas.taxonomy import bibtex, checks, optimizing, papers, tabulated
from atlas.taxonomy.kinds import (
    IS_KEBAB,
    IS_LINK,
    TAXONOMY,
    Atlas,
    Axes,
    Axis,
    Bug,
    Choose,
    Claim,
    Crosswalk,
    Glossary,
    Mutant,
    Paper,
    Quantity,
    Ranks,
    Sense,
    Survey,
    Symbols,
    System,
    Technique,
    Word,
)
from atlas.taxonomy.sources import appearances
from atlas.taxonomy.tables import FILES, Delay, Tables
from atlas.taxonomy.typed import BAD, Reader, Reference, nearest, one_of
from atlas.taxonomy.yamlmarks import (
    Mark,
    Node,
    Problem,
    Refused,
    read_text,
    read_tree,
    shown,
)

FORMULAS = "atlas/formulas"  # the folder
#: The right programs of the bugs: the package has them where a taxonomy comes alone.
PROGRAMS = Path(__file__).resolve().parents[1] / "check" / "programs"


class TaxonomyError(Exception):
    """The taxonomy has problems; `problems` lists each as one line."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def find_root() -> Path:
    """The folder that holds taxonomy/: at or above here, else the package's own."""
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[2]):
        if (folder / TAXONOMY / "axes.yaml").is_file():
            return folder
    problem = Problem(
        TAXONOMY, Mark(), f"not found at or above {shown(str(here))}", "a clone"
    )
    raise TaxonomyError([str(problem)])


def installed(root: Path) -> bool:
    """Whether pip put this tree here: it is read, and nothing is kept in it."""
    return (root / "__init__.py").is_file()  # a checkout's root is no package


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
        self.since: dict[str, tuple[str, Mark]] = {}  # file and place, by technique
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
            reader.checks = checks.SYSTEM_CHECKS
            self._keep(reader, reader.record(node, System, id=id), systems)
        systems = optimizing.place(systems, techniques, axes)
        surveys: dict[str, Survey] = {}
        for id, (reader, node) in self._folder("surveys", "survey").items():
            reader.checks = checks.survey_checks(techniques)
            self._keep(reader, reader.record(node, Survey, id=id), surveys)
        bugs = self._bugs()
        self._presets()
        tables = self._tables()
        glossary = self._glossary()
        choose = self._choose()
        crosswalk = self._crosswalk()
        papers = self._papers()
        symbols = self._symbols()
        self._check_references()
        self._check_since(techniques, systems, papers)
        self._check_answered(axes, techniques, systems)
        whole = (axes, techniques, systems, surveys, papers, glossary, choose)
        return Atlas(self.root, *whole, crosswalk, symbols, tables, bugs)

    def _bugs(self) -> dict[str, Bug]:
        bugs: dict[str, Bug] = {}
        for id, (reader, node) in self._folder("bugs", "bug").items():
            reader.checks = {Bug: self._check_planted}
            self._keep(reader, reader.record(node, Bug, id=id), bugs)
        return bugs

    def _check_planted(self, bug: Bug, reader: Reader) -> None:
        """The mistake has one place in a program that is there."""
        own = self.root / "atlas" / "check" / "programs"
        path = (own if own.is_dir() else PROGRAMS) / f"{bug.program}.py"
        if not path.is_file():
            expected = "a file of atlas/check/programs"
            what = f"there is no program {shown(bug.program)}"
            reader.note(reader.place(bug, "program"), what, expected)
            return
        times = path.read_text(encoding="utf-8").count(bug.find)
        if times != 1:
            what = f"its text occurs {times} times in {bug.program}.py"
            reader.note(reader.place(bug, "find"), what, "a text that occurs once")

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

    def _presets(self) -> None:
        """The names of models and clusters, whose files the planner reads."""
        for kind in ("model", "cluster"):
            presets = sorted((self.root / TAXONOMY / f"{kind}s").glob("*.yaml"))
            self.names[kind] = [preset.stem for preset in presets]

    def _tables(self) -> Tables:
        made: dict[str, Any] = {}
        for id, (reader, node) in self._folder("tables", "tables").items():
            if id not in FILES:
                reader.note(Mark(), f"tables of {shown(id)}", one_of(id, FILES))
            else:
                reader.checks = {**tabulated.CHECKS, Delay: self._check_delay}
                found = reader.record(node, FILES[id])
                made |= {} if found is BAD else {id: found}
            self._absorb(reader)
        return Tables(**made)

    def _check_delay(self, delay: Delay, reader: Reader) -> None:
        tabulated.check_delay(delay, reader)
        self._check_known(delay, "formula", delay.formula, reader)

    def _glossary(self) -> tuple[Word, ...]:
        path = self.root / TAXONOMY / "glossary.yaml"
        if not path.exists() or (read := self._read(path)) is None:
            return ()
        reader, node = read
        made = reader.record(node, Glossary)
        if made is not BAD:
            checks.check_words(made.words, reader)
        self._absorb(reader)
        return () if made is BAD else made.words

    def _choose(self) -> Choose | None:
        path = self.root / TAXONOMY / "choose.yaml"
        if not path.exists() or (read := self._read(path)) is None:
            return None
        reader, node = read
        made = reader.record(node, Choose)
        if made is not BAD:
            checks.check_choose(made, reader)
        self._absorb(reader)
        return None if made is BAD else made

    def _symbols(self) -> dict[str, Quantity]:
        path = self.root / TAXONOMY / "symbols.yaml"
        if not path.exists() or (read := self._read(path)) is None:
            return {}
        reader, node = read
        made = reader.record(node, Symbols)
        if made is not BAD:
            checks.check_symbols(made.quantities, reader)
        self._absorb(reader)
        return {} if made is BAD else {q.word: q for q in made.quantities}

    def _crosswalk(self) -> Crosswalk | None:
        path = self.root / TAXONOMY / "crosswalk.yaml"
        if not path.exists() or (read := self._read(path)) is None:
            return None
        reader, node = read
        reader.checks = {Sense: checks.check_cell}
        made = reader.record(node, Crosswalk)
        if made is not BAD:
            checks.check_crosswalk(made, reader)
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
        self.problems += papers.check_entries(entries, file)
        self.names["paper"] = [entry.key for entry in entries]
        if not self.unread:
            used = {r.name for r in self.references if r.kind in ("paper", "source")}
            for entry in entries:
                if entry.key not in used:
                    what = f"{shown(entry.key)} is cited nowhere"
                    self.note(file, entry.mark, what, "an entry that some file cites")
        if self.problems:
            return {}
        return {
            paper.key: paper
            for paper in sorted(map(papers.paper, entries), key=_by_key)
        }

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
            checks.check_claim(claim, reader, written)
            self._check_formula(claim, reader)

        reader.checks = {
            Claim: check_claim,
            Mutant: checks.check_mutant,
            Ranks: checks.check_ranks,
            Technique: self._check_technique,
        }
        return reader.record(node, Technique, id=id, axis=axis, family=family)

    def _check_technique(self, technique: Technique, reader: Reader) -> None:
        self.since[technique.id] = reader.file, reader.place(technique, "since")
        claims = [claim.id for claim in technique.claims]
        checks.check_once(technique.claims, reader)
        checks.check_once(technique.mutants, reader)
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
            self._check_known(claim, place, getattr(claim, place), reader)

    def _check_known(
        self, thing: Any, place: str, name: str | None, reader: Reader
    ) -> None:
        """There is a formula of that name."""
        if self.formulas is None or name is None or name in self.formulas:
            return
        what = f"unknown formula {shown(name)}"
        near = nearest(name, self.formulas)
        expected = f'"{near}"' if near else f"a function of {FORMULAS}/"
        reader.note(reader.place(thing, place), what, expected)

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

    def _check_since(
        self,
        techniques: dict[str, Technique],
        systems: dict[str, System],
        papers: dict[str, Paper],
    ) -> None:
        """A technique is as old as the oldest paper or finished system that has it."""
        if not papers:  # they have problems of their own
            return
        for technique in techniques.values():
            found = sorted(appearances(technique, systems.values(), papers))
            if found and found[0][0] != technique.since:
                year, evidence = found[0]
                what = f"since {technique.since}, but its first evidence is {evidence}"
                self.note(*self.since[technique.id], what, str(year))

    def _check_answered(
        self,
        axes: tuple[Axis, ...],
        techniques: dict[str, Technique],
        systems: dict[str, System],
    ) -> None:
        """A system has a place on every axis, or says why not; never both."""
        for system in systems.values():
            if any(use.technique not in techniques for use in system.uses):
                continue  # unknown, or refused: that is said already
            found = {techniques[use.technique].axis for use in system.uses}
            found |= {cell.family.partition("/")[0] for cell in system.cells}
            for axis in axes:
                if (axis.id in found) != (axis.id in system.unanswered):
                    continue
                both = axis.id in found
                what = f"{'a place' if both else 'no place'} on {shown(axis.id)}"
                what += ", which is also unanswered" if both else ""
                expected = "a technique or a cell there, or its reason in unanswered"
                self.note(str(system.yaml), Mark(), what, expected)

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
    """The axes; each family learns which facet of which axis lists it."""
    made = reader.record(node, Axes)
    if made is BAD:
        return ()
    checks.check_once(made.axes, reader)
    for axis in made.axes:
        checks.check_facets(axis, reader)
    return tuple(_named(axis) for axis in made.axes)


def _named(axis: Axis) -> Axis:
    facets = []
    for facet in axis.facets:
        families = tuple(
            dataclasses.replace(f, axis=axis.id, facet=facet.id) for f in facet.families
        )
        facets.append(dataclasses.replace(facet, families=families))
    return dataclasses.replace(axis, facets=tuple(facets))
