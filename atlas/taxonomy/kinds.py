"""What the taxonomy holds: axes, techniques, systems, surveys and papers, as types.

The annotations are the schema: `typed.py` reads YAML by them and describes them to
editors. A comment that a reader of the YAML needs is the key's own sentence.
"""

# key() is dataclasses.field() with a sentence: no shared default.
# ruff: noqa: RUF009

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from atlas.taxonomy.typed import Ref, Rule, given, key, pattern

if TYPE_CHECKING:
    from atlas.taxonomy.tables import Tables

TAXONOMY = "taxonomy"  # the folder

_HTML = re.compile(r"</?[A-Za-z!]|&(?:[A-Za-z]+|#\w+);|\]\(")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def _is_plain(text: str) -> bool:
    return bool(text.strip()) and not _HTML.search(text) and not _CONTROL.search(text)


IS_PLAIN = Rule("plain text, without HTML or links", _is_plain, (("minLength", 1),))
_CODE = Rule("some text", bool, (("minLength", 1),))
IS_LINK = pattern(r"https?://[A-Za-z0-9][^\s<>\"'`\\]*", "a link, http:// or https://")
IS_KEBAB = pattern(r"[a-z0-9]+(-[a-z0-9]+)*", "a name like one-two-3")
_SNAKE = pattern(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", "a name like one_two_3")
IS_YEAR = Rule(
    "a year from 1950 to this one",
    lambda year: 1950 <= year <= datetime.date.today().year,
    (("minimum", 1950),),
)
_COUNT = Rule("at least 1", lambda n: n >= 1, (("minimum", 1),))

Text = Annotated[str, IS_PLAIN]
Code = Annotated[str, _CODE]
Link = Annotated[str, IS_LINK]
Id = Annotated[str, IS_KEBAB]
Name = Annotated[str, _SNAKE]
Year = Annotated[int, IS_YEAR]
Count = Annotated[int, _COUNT]
PaperKey = Annotated[str, Ref("paper")]
Source = Annotated[str, Ref("source")]
TechniqueId = Annotated[str, Ref("technique")]
FamilyPath = Annotated[str, Ref("family")]
SystemId = Annotated[str, Ref("system")]
SurveyId = Annotated[str, Ref("survey")]
Entry = Annotated[str, Ref("entry")]
ModelId = Annotated[str, Ref("model")]
ClusterId = Annotated[str, Ref("cluster")]


@dataclass(frozen=True)
class Family:
    """A family of techniques: one answer to its facet's question."""

    id: Id = key("the family's name in paths")
    name: Text = key("the family's name in sentences")
    summary: Text = key("one sentence: what its techniques have in common")
    explains: Text | None = key("what the choice means, a paragraph", default=None)
    axis: str = given(default="")
    facet: str = given(default="")

    @property
    def path(self) -> str:
        """The family's path, "axis/family"."""
        return f"{self.axis}/{self.id}"


@dataclass(frozen=True)
class Usual:
    """What a run answers where it uses no family of a facet."""

    id: Id = key("its name in data")
    name: Text = key("its name in sentences")
    summary: Text = key("one sentence: what it means")


@dataclass(frozen=True)
class Facet:
    """A part of an axis's question: a run gives exactly one answer to it."""

    id: Id = key("the facet's name in data")
    name: Text = key("the facet's name in sentences")
    question: Text = key("the question that its families answer")
    told_by: Text = key("by what test one tells its families apart")
    families: tuple[Family, ...] = key("the closed list of answers")
    default: Usual | None = key("the answer that needs no technique", default=None)


@dataclass(frozen=True)
class Axis:
    """One of the questions every technique answers."""

    id: Id = key("the axis's name in paths")
    name: Text = key("the axis's name in sentences")
    question: Text = key("the question that its families answer")
    facets: tuple[Facet, ...] = key("its independent sub-questions")
    explains: tuple[Text, ...] = key("what the choice is, by paragraphs", default=())

    @property
    def families(self) -> tuple[Family, ...]:
        """The families of all its facets."""
        return tuple(f for facet in self.facets for f in facet.families)


@dataclass(frozen=True)
class Axes:
    """The axes, their facets and families: the closed vocabulary of the atlas."""

    axes: tuple[Axis, ...] = key("the axes, in the order in which pages show them")


Unit = Literal[
    "bytes",
    "seconds",
    "elements",
    "samples",
    "tokens",
    "ranks",
    "steps",
    "rounds",
    "messages",
    "calls",
    "layers",
    "stages",
    "units",
    "heads",
    "micro-batches",
    "updates",
    "versions",
    "flops",
    "index",
    "ratio",
    "count",
]


@dataclass(frozen=True)
class Quantity:
    """Something that formulas take: a word for code, a symbol for mathematics."""

    word: Name = key("the argument's name in formulas, exemplars and commands")
    symbol: Code = key("its symbol, as LaTeX")
    unit: Unit = key("what it is counted in")
    says: Text = key("what it means, in a few words")


@dataclass(frozen=True)
class Symbols:
    """Every quantity of the atlas, once."""

    quantities: tuple[Quantity, ...] = key("the quantities")


@dataclass(frozen=True)
class Law:
    """A formula without its roundings, as one remembers it."""

    says: Code = key("the expression, in the words of symbols.yaml")
    equal_when: Code = key("the condition under which it is exact")
    within: Code = key("how far it may be off elsewhere, an expression")


@dataclass(frozen=True)
class Claim:
    """What a run of the exemplar must show."""

    id: Name = key("the name under which the exemplar reports the value")
    says: Text = key("what is claimed, in a few words")
    kind: Literal["equal", "close", "exact", "bound", "statistical"] = key(
        "equal: bit for bit; close: to rounding; exact: the formula's integer; "
        "bound: never above the formula; statistical: within the band"
    )
    per: Literal["rank", "run"] = key("checked on every rank, or once", default="rank")
    formula: Name | None = key(
        "a function of atlas/formulas/AXIS/FAMILY.py", default=None
    )
    unit: Unit | None = key("what the value is counted in", default=None)
    of: (
        Literal["memory", "traffic", "time", "staleness", "limit", "loss", "calls"]
        | None
    ) = key("which cost of the technique it counts", default=None)
    floor: Name | None = key(
        "for a bound: a formula that the value must reach", default=None
    )
    law: Law | None = key("the formula as one remembers it", default=None)
    band: tuple[float, float] | None = key(
        "lowest and highest value, for statistical", default=None
    )


@dataclass(frozen=True)
class Sighting:
    """Where a mutant's mistake was made in earnest."""

    what: Text = key("who made it, and how")
    source: Link = key("where that can be read")


@dataclass(frozen=True)
class Mutant:
    """A plausible mistake in the exemplar, and the claims that catch it."""

    id: Id = key("the mutant's name")
    says: Text = key("the mistake, in a few words")
    find: Code = key("text that occurs once in the exemplar")
    replace: str = key("what stands there instead")
    fails: tuple[Name, ...] = key("the claims that must then fail", default=())
    deadline: bool = key("true: it never ends, and the deadline says so", default=False)
    seen_in: Sighting | None = key("where it happened in earnest", default=None)


Symptom = Literal[
    "differs-from-one-process",
    "ranks-differ",
    "does-not-learn",
    "scale-is-hidden",
    "seeds-and-data",
]


@dataclass(frozen=True)
class Seen:
    """Where a bug was seen: an issue or a pull request that was read."""

    project: Annotated[str, pattern(r"[\w.-]+/[\w.-]+", "a repository, owner/name")] = (
        key("the repository, as GitHub spells it")
    )
    number: Count = key("the number of the issue or pull request")
    kind: Literal["issue", "pull request"] = key("which of the two it is")
    state: Literal["open", "closed", "merged"] = key("its state when it was read")
    says: Text = key("what it says, in a few words of ours")

    @property
    def link(self) -> str:
        """Its address."""
        word = "issues" if self.kind == "issue" else "pull"
        return f"https://github.com/{self.project}/{word}/{self.number}"


@dataclass(frozen=True)
class Bug:
    """A mistake of distributed training, with a program that shows it."""

    id: str = given()
    name: Text = key("the mistake, in a few words")
    symptom: Symptom = key("under which symptom a reader looks for it")
    sees: Text = key("what one sees, and what one does not")
    cause: Text = key("why it happens")
    fix: Text = key("what to do instead")
    program: Name = key("the right program, in atlas/check/programs")
    find: Code = key("text that occurs once in the program")
    replace: str = key("what stands there instead: the mistake")
    diagnosis: Id = key("what atlas check says of it")
    one: str = key("arguments on one process", default="")
    many: str = key("arguments on the ranks", default="--batch 8")
    seen: tuple[Seen, ...] = key("where it was seen", default=())


@dataclass(frozen=True)
class Production:
    """How a production library is told to do the same thing."""

    name: Text = key("the library's class or function")
    setting: Code = key("the setting that selects it")
    version: Text = key("the version in which this was checked, in quotes")
    source: Link = key("the page that documents it")


@dataclass(frozen=True)
class Ranks:
    """How many ranks the exemplar allows, and at how many it is counted dry."""

    min: Count = key("the fewest ranks", default=1)
    max: Count | None = key("the most ranks; left out: no limit", default=None)
    dry: tuple[Count, ...] = key("world sizes of the dry runs", default=(64, 1024))


@dataclass(frozen=True)
class Attribution:
    """Where a survey names a technique or a system, and what it calls it."""

    where: Text = key("the section, table, figure or reference that says it")
    as_: Text | None = key("the survey's own term", default=None)

    def __str__(self) -> str:
        """As one line."""
        return f"{self.as_} ({self.where})" if self.as_ else self.where


Held = Literal["whole", "1/p", "partly", "elsewhere", "recomputed", "none"]


@dataclass(frozen=True)
class Holds:
    """What a rank holds of each kind of state, as one of p that share the work."""

    parameters: Held = key("the weights")
    gradients: Held = key("their gradients, after a step")
    optimizer: Held = key("moments and master weights")
    activations: Held = key("what backward needs")
    samples: Held = key("the data")
    grows: tuple[
        Literal["parameters", "gradients", "optimizer", "activations", "samples"], ...
    ] = key("of what there is twice as much in the run on twice the ranks", default=())
    sizes: Mapping[str, int] = key(
        "sizes of the runs that measure it, where the usual ones do not divide",
        default_factory=dict,
    )


@dataclass(frozen=True)
class Technique:
    """A technique: where it belongs, what it claims, and when to use it."""

    id: str = given()
    axis: str = given()
    family: str = given()
    name: Text = key("the name in sentences")
    summary: Text = key("one sentence: what it does")
    since: Year = key("the year in which it first appeared in deep learning")
    papers: tuple[PaperKey, ...] = key("keys of taxonomy/papers.bib")
    use_when: Text = key("when it is the right choice")
    avoid_when: Text = key("when it is not")
    pros: Text = key("what it gives")
    cons: Text = key("what it costs")
    claims: tuple[Claim, ...] = key("what a run must show")
    not_shown: Text | None = key("what the exemplar's run cannot show", default=None)
    surveys: Mapping[SurveyId, Attribution] = key(
        "survey -> where it is named there, and how", default_factory=dict
    )
    also: Mapping[Annotated[str, Ref("axis")], str] = key(
        "other axis -> its family there", default_factory=dict
    )
    roots: tuple[PaperKey, ...] = key(
        "keys of older work that it grew from, in this field or another", default=()
    )
    optimizer: Literal["central", "per-worker"] = key(
        "per-worker: each worker trains a copy of its own, and copies are merged",
        default="central",
    )
    holds: Holds | None = key("who holds what under it", default=None)
    unseen: Mapping[Literal["consistency", "pipelining", "topology"], Text] = key(
        "facet -> why the logs of a run cannot tell it", default_factory=dict
    )
    also_called: tuple[Text, ...] = key("other names", default=())
    stands_on: tuple[TechniqueId, ...] = key(
        "techniques whose exemplars it imports: at most two", default=()
    )
    ranks: Ranks = key("how many ranks it runs on", default=Ranks())
    mutants: tuple[Mutant, ...] = key("mistakes that the claims catch", default=())
    production: tuple[Production, ...] = key("the same, in production", default=())
    see_also: tuple[TechniqueId, ...] = key("neighboring techniques", default=())

    @property
    def path(self) -> str:
        """The path that the taxonomy, the exemplars and the site share."""
        return f"{self.axis}/{self.family}/{self.id}"

    @property
    def module(self) -> str:
        """The exemplar's module, for `python -m`."""
        return "exemplars." + self.path.replace("-", "_").replace("/", ".")

    @property
    def exemplar(self) -> Path:
        """The exemplar's file, from the root."""
        return Path("exemplars", self.path.replace("-", "_") + ".py")

    @property
    def formulas(self) -> Path:
        """The file of its family's formulas, from the root."""
        family = f"{self.axis}/{self.family}".replace("-", "_")
        return Path("atlas", "formulas", f"{family}.py")

    @property
    def yaml(self) -> Path:
        """This technique's own file, from the root."""
        return Path(TAXONOMY, "techniques", self.path + ".yaml")

    @property
    def min_ranks(self) -> int:
        """The fewest ranks the exemplar allows."""
        return self.ranks.min

    @property
    def max_ranks(self) -> int | None:
        """The most ranks the exemplar allows; None: no limit."""
        return self.ranks.max

    @property
    def dry(self) -> tuple[int, ...]:
        """The world sizes at which the exemplar is counted dry."""
        return self.ranks.dry

    def claim(self, id: str) -> Claim:
        """The claim of that name."""
        return next(claim for claim in self.claims if claim.id == id)


@dataclass(frozen=True, kw_only=True)
class Sourced:
    """A statement that a source makes."""

    verified: bool = key("true: the source was read and says so")
    source: Source | None = key("a paper's key, or a link", default=None)
    where: Text | None = key("the place in the source that says it", default=None)
    read: Count = key("how many readers found it there, on their own", default=1)


@dataclass(frozen=True)
class Use(Sourced):
    """A technique that a system uses."""

    technique: TechniqueId = key("a technique's id")


@dataclass(frozen=True)
class Cell(Sourced):
    """A family that a system belongs to, where no technique is as yet described."""

    family: FamilyPath = key("axis/family")


@dataclass(frozen=True)
class Parallelism(Sourced):
    """What a system splits."""

    value: tuple[
        Literal[
            "data",
            "tensor",
            "pipeline",
            "spatial",
            "sequence",
            "expert",
            "embedding",
            "layer-local",
            "model",
            "task",
        ],
        ...,
    ] = key("the kinds of parallelism it offers")


@dataclass(frozen=True)
class OptimizerLocation:
    """Where a system's optimizer runs, which follows from the techniques it uses.

    Langer calls it central if all gradients meet in one model, and decentral if every
    worker trains a model of its own and the models are merged.
    """

    value: Literal["central", "per-worker", "either"]
    because: tuple[str, ...]  # the techniques that decide it
    verified: bool  # whether the sources of all of them were read


@dataclass(frozen=True)
class Topology(Sourced):
    """Who talks to whom, which Lian calls centralized or decentralized."""

    value: Literal["star", "ring", "tree", "line", "all", "graph", "host"] = key(
        "star: through servers; line: stage to stage; all: whichever collective the "
        "library picks; graph: neighbors; host: one device and its host's memory"
    )


@dataclass(frozen=True)
class Fact(Sourced):
    """A statement about a system, with its source."""

    says: Text = key("the fact, in a few words")


@dataclass(frozen=True)
class Relation(Sourced):
    """How a system stands to another."""

    kind: Literal["derived-from", "succeeds", "implements", "compares-with"] = key(
        "derived-from: built on its code or ideas; succeeds: takes its place; "
        "implements: offers its method; compares-with: measured against it"
    )
    system: SystemId = key("the other system's id")


@dataclass(frozen=True)
class System:
    """A system, placed on the axes by this project, each cell with its source."""

    id: str = given()
    name: Text = key("the system's name")
    summary: Text = key("one sentence: what it is known for")
    year: Year = key("the year in which the work first appeared")
    papers: tuple[PaperKey, ...] = key("keys of taxonomy/papers.bib")
    status: Literal["active", "maintenance", "archived", "research", "unknown"] = key(
        "how it stands today; research: code of a paper, not kept up"
    )
    uses: tuple[Use, ...] = key("techniques it uses, each with its source")
    venue_year: Year | None = key("the year of publication at a venue", default=None)
    home: Link | None = key("its home page or repository", default=None)
    license: Text | None = key("its license, as an SPDX name", default=None)
    made_by: Text | None = key("who made it", default=None)
    cells: tuple[Cell, ...] = key("families it belongs to", default=())
    unanswered: Mapping[
        Annotated[str, Ref("axis")], Literal["not-its-concern", "not-found"]
    ] = key(
        "axis -> why it has no place there: it leaves that to its user, or no source "
        "that was read says it",
        default_factory=dict,
    )
    parallelism: Parallelism | None = key("what it splits", default=None)
    optimizer_location: OptimizerLocation | None = given(default=None)
    topology: Topology | None = key("who talks to whom", default=None)
    hardware: Fact | None = key("the devices and links it runs on", default=None)
    reported_run: Fact | None = key("a run that its source reports", default=None)
    relations: tuple[Relation, ...] = key("how it stands to others", default=())
    also_called: tuple[Text, ...] = key("other names", default=())
    surveys: Mapping[SurveyId, Attribution] = key(
        "survey -> where it is named there, and how", default_factory=dict
    )

    @property
    def statements(self) -> tuple[Sourced, ...]:
        """All that its file says on the word of a source."""
        facts = (self.parallelism, self.topology, self.hardware, self.reported_run)
        listed = (*self.uses, *self.cells, *self.relations)
        return (*listed, *(fact for fact in facts if fact))

    @property
    def yaml(self) -> Path:
        """This system's own file, from the root."""
        return Path(TAXONOMY, "systems", self.id + ".yaml")


@dataclass(frozen=True)
class Term:
    """A word of a survey, and what it is called here."""

    term: Text = key("the survey's own word")
    says: Text = key("what the survey means by it, in our words")
    verified: bool = key("true: read in the survey itself, not about it")
    families: tuple[FamilyPath, ...] = key("what it covers here", default=())


@dataclass(frozen=True)
class Finding:
    """A result that a survey reports."""

    says: Text = key("the result, in our words")
    read: Literal["paper", "translation", "figure", "abstract", "report", "draft"] = (
        key(
            "where it was read: the paper, a translation, a figure, the abstract, an "
            "earlier report of the authors, or a draft"
        )
    )
    techniques: tuple[TechniqueId, ...] = key("what it is about", default=())


@dataclass(frozen=True)
class Figure:
    """A number of a record that is kept here."""

    name: Name = key("what `holds` calls it")
    technique: TechniqueId = key("whose record")
    claim: Name = key("the claim whose measured value it is, or whose error")
    ranks: Count = key("which run: its number of ranks")
    of: Literal["largest", "smallest", "sum"] = key(
        "which of the ranks' values", default="largest"
    )


@dataclass(frozen=True)
class Comparison:
    """A survey's statement beside the runs recorded here."""

    id: Id = key("the comparison's name")
    says: Text = key("what the survey says, in our words")
    verdict: Literal["agrees", "in-part", "differs"] = key("what our runs say to it")
    here: Text = key("what our runs show, without numbers")
    figures: tuple[Figure, ...] = key("the numbers, from records")
    holds: Code = key("what is true of the figures, such as a / b == 1.5")


@dataclass(frozen=True)
class Survey:
    """How one survey names and files things, and what became of its results here."""

    id: str = given()
    name: Text = key("authors and year")
    paper: PaperKey = key("its key in taxonomy/papers.bib")
    read: Text = key("which text of it was read for this file")
    terms: tuple[Term, ...] = key("its words")
    about: Text | None = key("one sentence: what it is", default=None)
    taxonomy: tuple[Text, ...] = key("its taxonomy in our words", default=())
    results: tuple[Finding, ...] = key("its headline results", default=())
    comparisons: tuple[Comparison, ...] = key("beside our runs", default=())
    notes: tuple[Text, ...] = key("what to know when citing it", default=())

    @property
    def yaml(self) -> Path:
        """This survey's own file, from the root."""
        return Path(TAXONOMY, "surveys", self.id + ".yaml")


@dataclass(frozen=True)
class Column:
    """Whose words a column of the crosswalk holds."""

    id: Id = key("the column's name")
    name: Text = key("its heading")
    source: Source = key("a paper's key, or a link")


@dataclass(frozen=True)
class Usage:
    """What a concept is called by one of the columns."""

    by: Id = key("a column's id")
    word: Text = key("the word used there")
    verified: bool = key("true: the source was read and says so")


@dataclass(frozen=True)
class Concept:
    """One cut or idea, and its names."""

    id: Id = key("the concept's name in addresses")
    name: Text = key("the concept in plain words")
    families: tuple[FamilyPath, ...] = key("where it is filed here")
    words: tuple[Usage, ...] = key("what others call it")


@dataclass(frozen=True)
class Sense(Sourced):
    """One of the meanings of a word."""

    who: Text = key("who uses it so")
    says: Text = key("what they mean")


@dataclass(frozen=True)
class Ambiguity:
    """A word that means two things."""

    id: Id = key("its name in addresses")
    word: Text = key("the word")
    senses: tuple[Sense, ...] = key("its meanings")
    here: Text = key("what this atlas does about it")


@dataclass(frozen=True)
class Dimension:
    """A dimension of Langer's taxonomy, and the axes that hold it here."""

    name: Text = key("the dimension")
    axes: tuple[Annotated[str, Ref("axis")], ...] = key("the axes")
    says: Text = key("how it is held")


@dataclass(frozen=True)
class Crosswalk:
    """The same cut under its several names."""

    columns: tuple[Column, ...] = key("whose words")
    concepts: tuple[Concept, ...] = key("the concepts, row by row")
    ambiguities: tuple[Ambiguity, ...] = key("words with two meanings")
    dimensions: tuple[Dimension, ...] = key("Langer's dimensions as axes")


@dataclass(frozen=True)
class Word:
    """A word of the glossary."""

    term: Text = key("the word, as it stands in a sentence")
    says: Text = key("what it means here, in one or two sentences")
    aliases: tuple[Text, ...] = key("other words for it", default=())
    see: tuple[Entry, ...] = key(
        "technique ids, system ids or family paths that it leads to", default=()
    )
    papers: tuple[PaperKey, ...] = key("where it comes from", default=())
    tip: bool = key("false: too common to be explained in passing", default=True)


@dataclass(frozen=True)
class Glossary:
    """The words that the pages explain."""

    words: tuple[Word, ...] = key("the words, in the order of the alphabet")


@dataclass(frozen=True)
class Plan:
    """A plan to ask the oracle for."""

    model: ModelId = key("a file of taxonomy/models")
    cluster: ClusterId = key("a file of taxonomy/clusters")
    gpus: Count = key("how many devices")
    batch: Count = key("samples of one step")

    @property
    def command(self) -> str:
        """The command that prints it."""
        return (
            f"atlas plan --model {self.model} --cluster {self.cluster} "
            f"--gpus {self.gpus} --batch {self.batch}"
        )


@dataclass(frozen=True)
class Leaf:
    """Where the questions end: techniques, and why these."""

    id: Id = key("the leaf's name in answers")
    says: Text = key("the advice in a few words")
    why: Text = key("why, in our own words")
    techniques: tuple[TechniqueId, ...] = key("what to use, the first one first")
    sources: tuple[Source, ...] = key("papers or links that the advice rests on")
    plan: Plan = key("an example, worked out by the oracle")


@dataclass(frozen=True)
class Answer:
    """One answer to a question."""

    id: Id = key("the answer's name in addresses")
    says: Text = key("the answer in a few words")
    to: Id = key("a later question, or a leaf")


@dataclass(frozen=True)
class Question:
    """A question about the reader's model and machines."""

    id: Id = key("the question's name in answers")
    asks: Text = key("the question")
    why: Text = key("why the answer matters")
    answers: tuple[Answer, ...] = key("two answers or more")


@dataclass(frozen=True)
class Choose:
    """Questions that lead to a technique; the first one is asked first."""

    questions: tuple[Question, ...] = key("each leads only to later ones or to leaves")
    leaves: tuple[Leaf, ...] = key("where they end")


@dataclass(frozen=True)
class Paper:
    """A work of taxonomy/papers.bib."""

    key: str
    kind: str
    title: str
    authors: tuple[str, ...]
    year: int
    venue: str | None
    doi: str | None
    eprint: str | None
    url: str | None

    @property
    def first_year(self) -> int:
        """The year in which it could first be read: arXiv's, where that is earlier."""
        new = self.eprint and re.match(r"(\d\d)\d\d\.", self.eprint)
        return min(self.year, 2000 + int(new[1])) if new else self.year

    @property
    def link(self) -> str:
        """Where to read it: the publisher's page, arXiv, or its own address."""
        if self.doi:
            return f"https://doi.org/{self.doi}"
        if self.eprint:
            return f"https://arxiv.org/abs/{self.eprint}"
        return self.url or ""


@dataclass(frozen=True)
class Atlas:
    """Everything the taxonomy holds; dictionaries are by id, in order of id."""

    root: Path
    axes: tuple[Axis, ...]
    techniques: dict[str, Technique]
    systems: dict[str, System]
    surveys: dict[str, Survey]
    papers: dict[str, Paper]
    glossary: tuple[Word, ...] = ()
    choose: Choose | None = None
    crosswalk: Crosswalk | None = None
    symbols: Mapping[str, Quantity] = field(default_factory=dict)
    tables: Tables | None = None
    bugs: Mapping[str, Bug] = field(default_factory=dict)

    @property
    def families(self) -> dict[str, Family]:
        """Every family by its path, "axis/family", in the order of the axes."""
        return {f.path: f for axis in self.axes for f in axis.families}

    def users(self, technique: str) -> list[System]:
        """The systems that use a technique, oldest first."""
        found = [
            s
            for s in self.systems.values()
            if any(use.technique == technique for use in s.uses)
        ]
        return sorted(found, key=lambda s: (s.year, s.id))
