"""The tables that two surveys print, as types: taxonomy/tables/.

What Langer 2020 and ParaDL (Kahira 2021) put into their tables, in their own words,
and beside it what it is called here. Verdicts are not kept: the pages compute them.
"""

# key() is dataclasses.field() with a sentence: no shared default.
# ruff: noqa: RUF009

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from atlas.taxonomy.kinds import (
    ClusterId,
    Code,
    Count,
    Id,
    ModelId,
    Name,
    PaperKey,
    Source,
    SystemId,
    TechniqueId,
    Text,
)
from atlas.taxonomy.typed import Rule, key

Amount = Annotated[
    float, Rule("more than 0", lambda x: x > 0, (("exclusiveMinimum", 0),))
]

# Langer 2020

Dimension = Literal["parallelism", "optimization", "scheduling", "topology"]


@dataclass(frozen=True)
class Schedule:
    """A word of Langer's column of scheduling."""

    word: Text = key("the word, as printed")
    is_: tuple[Literal["synchronous", "bounded", "asynchronous"], ...] = key(
        "the columns of our grid that it means"
    )
    says: Text = key("why, in a few words")


@dataclass(frozen=True)
class Wiring:
    """A word of Langer's column of topology."""

    word: Text = key("the word, as printed")
    is_: tuple[Literal["star", "ring", "tree", "line", "all", "graph", "host"], ...] = (
        key("our words for it; an empty list: it is no topology")
    )
    says: Text = key("why, in a few words")


@dataclass(frozen=True)
class Reason:
    """Why a cell of ours is not Langer's, and who says so."""

    says: Text = key("the reason, in our words")
    source: Source = key("a paper's key, or a link")
    where: Text = key("the place in the source that says it")


@dataclass(frozen=True)
class Row:
    """A system of Langer's Table 1."""

    name: Text = key("the system, as printed")
    reference: Count = key("its number in the paper's references")
    system: SystemId = key("our file of it")
    parallelism: Literal["DP only", "MP only", "MP + DP"] = key("as printed")
    optimization: Literal["central", "decentral"] = key("as printed")
    scheduling: Text = key("a word of `scheduling`")
    exchange: Text = key("how parameters are exchanged, as printed")
    topology: Text = key("a word of `topology`")
    remark: Text = key("its remark, in our words")
    differs: Mapping[Dimension, Reason] = key(
        "why our cell says something else", default_factory=dict
    )
    open: Mapping[Dimension, Reason] = key(
        "why the two cells cannot be compared", default_factory=dict
    )


@dataclass(frozen=True)
class Systems:
    """Langer's Table 1: the systems it compares."""

    where: Text = key("the place in the paper")
    scheduling: tuple[Schedule, ...] = key("its words for scheduling, each once")
    topology: tuple[Wiring, ...] = key("its words for topology, each once")
    rows: tuple[Row, ...] = key("the systems, as the paper sorts them")


@dataclass(frozen=True)
class Criterion:
    """A column of Langer's Table 2."""

    id: Text = key("its abbreviation, as printed")
    means: Text = key("what the footnote says, in our words")


@dataclass(frozen=True)
class Candidate:
    """A row of Langer's Table 2."""

    technique: Text = key("the technique, as printed")
    cells: Mapping[str, Text] = key("column -> what is printed; none: an empty cell")
    race: tuple[Code, ...] = key("what stands for it in our race", default=())


@dataclass(frozen=True)
class Criteria:
    """Langer's Table 2: its judgement of what to choose."""

    where: Text = key("the place in the paper")
    columns: tuple[Criterion, ...] = key("the criteria")
    rows: tuple[Candidate, ...] = key("the techniques")


@dataclass(frozen=True)
class Counted:
    """How a record of ours gives the factor of the transmission time."""

    technique: TechniqueId = key("whose record")
    ranks: Literal["server-and-workers", "workers"] = key(
        "server-and-workers: rank 0 serves and is no worker"
    )
    who: Literal["server", "worker", "busiest"] = key("whose bytes count")
    bytes: Literal["sent", "sent-and-received"] = key(
        "sent-and-received: one after the other, so both count"
    )
    per: Literal["run", "step", "update", "round"] = key(
        "round: as many updates as there are workers"
    )
    says: Text = key("why these bytes are that factor")


@dataclass(frozen=True)
class Drawn:
    """How Langer's Fig. 14 draws a pattern."""

    curve: Text = key("the curve's name in the legend")
    agrees: bool = key("true: it follows the printed expression")
    says: Text | None = key("where it does not", default=None)


@dataclass(frozen=True)
class Delay:
    """The least delay of one exchange that Langer gives for a pattern."""

    id: Id = key("the pattern's name")
    name: Text = key("the pattern in a few words")
    formula: Name = key("a function of atlas/formulas/")
    where: Text = key("the place in the paper")
    says: Text = key("what is exchanged with whom")
    least: Count = key("the fewest workers that it is said of", default=1)
    drawn: Drawn | None = key("its curve, if there is one", default=None)
    counted: Counted | None = key("what our records have", default=None)
    uncounted: Text | None = key("why our records have nothing", default=None)


@dataclass(frozen=True)
class Network:
    """A network of Langer's Fig. 14."""

    id: Id = key("its name in addresses")
    name: Text = key("as printed")
    mib: Amount = key("MiB that it transmits in a second")
    read: Literal["printed", "drawing"] = key("where that was read")
    highest: Mapping[Id, Amount] = key("model -> the highest tick of its panel")


@dataclass(frozen=True)
class Trained:
    """A model of Langer's Fig. 14."""

    id: Id = key("its name in addresses")
    name: Text = key("as printed")
    data: Text = key("its data set")
    mib: Amount = key("MiB of its parameters")
    seconds: Amount = key("of the gradient of one mini-batch on one GPU")
    batch: Count = key("samples of that mini-batch")


@dataclass(frozen=True)
class Delays:
    """Langer's least delays, and the figure that draws them."""

    where: Text = key("the place in the paper")
    patterns: tuple[Delay, ...] = key("the patterns")
    figure: Text = key("the figure's place in the paper")
    unprinted: tuple[Text, ...] = key("its curves that no expression is printed for")
    workers: Count = key("the most workers that it draws")
    reduce_gib: Amount = key("GiB that are reduced in a second")
    update_gib: Amount = key("GiB that are updated in a second")
    networks: tuple[Network, ...] = key("its rows")
    models: tuple[Trained, ...] = key("its columns")


@dataclass(frozen=True)
class LangerTables:
    """The tables of Langer et al. 2020."""

    paper: PaperKey = key("its key in taxonomy/papers.bib")
    systems: Systems = key("Table 1")
    criteria: Criteria = key("Table 2")
    delays: Delays = key("Section 3.4.1 and Fig. 14")


# ParaDL: Kahira et al. 2021

Strategy = Literal[
    "serial", "data", "spatial", "pipeline", "filter", "channel", "data-filter"
]


@dataclass(frozen=True)
class Cost:
    """A strategy of ParaDL's Table 3, its expressions as text."""

    id: Strategy = key("the strategy's name in data")
    name: Text = key("as printed")
    computation: Code = key("seconds of computing in an epoch")
    communication: Code = key("seconds of communication in an epoch")
    memory: Code = key("bytes of a device at most")
    limit: Code = key("devices at most")
    reads: Text | None = key("how we read its limit", default=None)
    differs: Text | None = key("why our limit is another", default=None)


@dataclass(frozen=True)
class Costs:
    """ParaDL's Table 3."""

    where: Text = key("the place in the paper")
    rows: tuple[Cost, ...] = key("the strategies")
    notes: tuple[Text, ...] = key("what to know when using it", default=())


@dataclass(frozen=True)
class Experiment:
    """A network of ParaDL's Table 5."""

    model: ModelId = key("our file of it")
    name: Text = key("as printed")
    data: Text = key("its data set")
    samples: Text = key("of the data set, as printed")
    sample: tuple[Count, ...] = key("one sample: channels, then sides")
    parameters: Text = key("as printed")
    millions: Amount = key("the same, as a number")
    layers: Count = key("as printed")
    gives: Literal["rounded-pools", "without-last"] | None = key(
        "what change of our network has the printed number of parameters: the printed "
        "sample and pools that round up, or no last layer; none: no change needed",
        default=None,
    )
    note: Text | None = key("where ours is another, and why", default=None)


@dataclass(frozen=True)
class Experiments:
    """ParaDL's Table 5."""

    where: Text = key("the place in the paper")
    rows: tuple[Experiment, ...] = key("the networks")


@dataclass(frozen=True)
class Case:
    """A question to the planner whose findings say a row."""

    model: ModelId = key("a file of taxonomy/models")
    cluster: ClusterId = key("a file of taxonomy/clusters")
    strategy: Code = key("as `atlas predict` reads it")
    batch: Count = key("samples of one step")
    finds: Text = key("a part of the finding")


@dataclass(frozen=True)
class Remark:
    """A limitation or bottleneck of ParaDL's Table 6."""

    category: Literal["Communication", "Memory Capacity", "Computation", "Scaling"] = (
        key("as printed")
    )
    remark: Text = key("as printed")
    kind: Literal["limitation", "bottleneck"] = key(
        "limitation: inherent; bottleneck: of the framework or the system"
    )
    strategies: tuple[Literal["d", "s", "p", "fc", "df", "ds"], ...] = key(
        "the strategies that are marked"
    )
    of: tuple[Literal["framework", "system"], ...] = key("what causes it, as marked")
    phases: tuple[Literal["IO", "FB", "GE", "WU"], ...] = key("the phases, as marked")
    inference: bool = key("true: it may appear in distributed inference")
    says: Text = key("what the paper means, in our words")
    case: Case | None = key("when our planner says it", default=None)
    unsaid: Text | None = key("why our planner cannot say it", default=None)


@dataclass(frozen=True)
class Remarks:
    """ParaDL's Table 6."""

    where: Text = key("the place in the paper")
    rows: tuple[Remark, ...] = key("its rows")


@dataclass(frozen=True)
class KahiraTables:
    """The tables of Kahira et al. 2021 (ParaDL)."""

    paper: PaperKey = key("its key in taxonomy/papers.bib")
    costs: Costs = key("Table 3")
    experiments: Experiments = key("Table 5")
    remarks: Remarks = key("Table 6")


@dataclass(frozen=True)
class Tables:
    """The tables of both surveys; None: no file."""

    langer2020: LangerTables | None = None
    kahira2021: KahiraTables | None = None


#: The files of taxonomy/tables, and what each holds.
FILES: dict[str, type] = {"langer2020": LangerTables, "kahira2021": KahiraTables}
