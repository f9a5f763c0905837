"""Which pairs of techniques compose: the list, the boxes of ranks, what is refused.

The table has no torch in it: `atlas.compose` runs what it names, and the page draws
what was found. Every pair of two techniques is a cell, and a cell is one of three:

    proven       run on 4 or 8 ranks, equal to one process
    refused      the two exclude one another, for a reason of one line
    not tried    no run of today's source
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from atlas.record import RecordError, hash_of
from atlas.views.context import Json

PLACE = Path("measurements") / "studies" / "composition.json"
ROOM = Path("atlas") / "compose"
#: What every rank may need of the box, outermost first: neighbors lie in the last.
AXES = ("data", "shard", "stage", "expert", "context", "heads", "tensor")

#: Roundings per rank that a figure may be off, relative to the largest number of its
#: parameter: sums over ranks, micro-batches and layers are in another order.
SLACK = {"float64": 64, "float16": 8}

Pair = tuple[str, str]


@dataclass(frozen=True)
class Sizes:
    """The small transformer that all pairs train."""

    layers: int = 4
    width: int = 16
    heads: int = 4
    tokens: int = 8
    vocabulary: int = 13  # odd: parts are uneven
    experts: int = 4
    batch: int = 16

    @property
    def says(self) -> str:
        """For the page."""
        return (
            f"{self.layers} layers of width {self.width} with {self.heads} heads, "
            f"{self.batch} samples of {self.tokens} tokens, a vocabulary of "
            f"{self.vocabulary}, and {self.experts} experts after every second layer "
            "where expert parallelism is in the pair"
        )


MODEL = Sizes()


@dataclass(frozen=True)
class Entry:
    """A technique of the table: its name, its page, and the axes that it needs."""

    name: str
    short: str
    #: Its technique in the taxonomy, whose mechanism is used.
    technique: str
    axes: tuple[str, ...] = ()
    #: Of which of these axes it needs one, the first if there is none.
    one_of: tuple[str, ...] = ()


SAMPLES = ("data", "shard", "expert", "context")
SHARDED = ("zero-1", "zero-2", "zero-3")
PIPELINES = ("1f1b", "zero-bubble")
CONTEXT = ("ring", "gathered", "ulysses")

ENTRIES: dict[str, Entry] = {
    "data": Entry("Data parallelism", "data", "ddp-by-hand", ("data",)),
    "zero-1": Entry("ZeRO-1", "ZeRO-1", "zero-1", ("shard",)),
    "zero-2": Entry("ZeRO-2", "ZeRO-2", "zero-2", ("shard",)),
    "zero-3": Entry("ZeRO-3", "ZeRO-3", "zero-3", ("shard",)),
    "hsdp": Entry("Hybrid sharding (HSDP)", "HSDP", "hybrid-sharded", SAMPLES[:2]),
    "tensor": Entry(
        "Tensor parallelism", "tensor", "tensor-parallel-column-row", ("tensor",)
    ),
    "sequence": Entry(
        "Sequence parallelism", "sequence", "sequence-parallel", ("tensor",)
    ),
    "ring": Entry("Ring attention", "ring", "ring-attention", ("context",)),
    "gathered": Entry(
        "Gathered keys and values", "gathered", "gathered-keys-values", ("context",)
    ),
    "ulysses": Entry("Ulysses", "Ulysses", "ulysses", ("context",)),
    "expert": Entry("Expert parallelism", "expert", "expert-parallel", ("expert",)),
    "1f1b": Entry("Pipeline, 1F1B", "1F1B", "one-f-one-b", ("stage",)),
    "zero-bubble": Entry(
        "Pipeline, zero bubble", "zero bubble", "zero-bubble", ("stage",)
    ),
    "checkpointing": Entry(
        "Activation checkpointing", "checkpointing", "activation-checkpointing"
    ),
    "offload": Entry("Offloaded optimizer", "offload", "cpu-offload-optimizer"),
    "mixed": Entry("Mixed precision", "mixed", "mixed-precision"),
    "accumulation": Entry(
        "Gradient accumulation", "accumulation", "gradient-accumulation"
    ),
    "clipping": Entry("Norm clipping", "clipping", "norm-clipping-over-shards"),
    "weighting": Entry(
        "Token weighting", "weighting", "token-weighted-mean", one_of=SAMPLES
    ),
    "vocabulary": Entry(
        "Vocabulary-parallel loss",
        "vocabulary",
        "vocabulary-parallel-cross-entropy",
        ("tensor",),
    ),
    "tied": Entry("Tied embeddings", "tied", "tied-embedding-over-stages"),
    "compression": Entry(
        "Compression (top-k)", "compression", "top-k-error-feedback", ("data",)
    ),
}

REFUSED: dict[Pair, str] = {
    **{
        pair: "each is ZeRO up to a stage, and the higher one contains the lower"
        for pair in combinations(SHARDED, 2)
    },
    **{
        (stage, "hsdp"): "HSDP is ZeRO-3 on one of its axes: the stage is given"
        for stage in SHARDED
    },
    ("data", "hsdp"): "HSDP has an axis of replicas already: data parallelism is half "
    "of it",
    ("1f1b", "zero-bubble"): "two orders of work for one pipeline: choose one",
    ("ring", "gathered"): "two ways to bring keys and values to the same queries: "
    "choose one",
    ("zero-bubble", "checkpointing"): "W needs the graph that checkpointing gave up "
    "before B: forward would run a third time",
}


def pairs() -> Iterator[Pair]:
    """Every cell, by the order of the table."""
    return combinations(ENTRIES, 2)


def key(pair: Pair) -> str:
    """The name of a cell in the study."""
    return " + ".join(pair)


def open_pairs() -> list[Pair]:
    """The cells that are to be run."""
    return [pair for pair in pairs() if pair not in REFUSED]


def lengths(pair: Pair) -> dict[str, int]:
    """The box of ranks for a pair: each axis has two, a lone one four."""
    asked = [axis for name in pair for axis in ENTRIES[name].axes]
    if set(pair) <= set(CONTEXT):
        asked.append("heads")
    for name in pair:
        choice = ENTRIES[name].one_of
        if choice and not set(choice) & set(asked):
            asked.append(choice[0])
    found = [axis for axis in AXES if axis in asked] or ["data"]
    return dict.fromkeys(found, 2 if len(found) > 1 else 4)


def ranks(pair: Pair) -> int:
    """How many ranks the box has."""
    count = 1
    for length in lengths(pair).values():
        count *= length
    return count


# The study as it lies there


def sources(root: Path) -> str:
    """Hash of all that a cell runs: the package, and the exemplars it imports."""
    own = sorted((root / ROOM).glob("*.py"))
    names = {
        "exemplars/" + module.removeprefix("exemplars.").replace(".", "/") + ".py"
        for path in own
        for module in _imported(path.read_text(encoding="utf-8"))
    }
    below = {path for name in names for path in _closed(root, root / name)}
    found = [*own, *sorted(below), root / "atlas" / "views" / "composition.py"]
    return hash_of(root, (path.relative_to(root) for path in found))


def _imported(text: str) -> set[str]:
    """The exemplars that a source imports, as modules."""
    import ast

    found = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            module = node.module
            found |= {module, *(f"{module}.{name.name}" for name in node.names)}
    return {module for module in found if module.count(".") == 3}


def _closed(root: Path, path: Path) -> set[Path]:
    """An exemplar and all that it imports."""
    if not path.is_file():
        return set()
    found, todo = set[Path](), [path]
    while todo:
        if (one := todo.pop()) in found:
            continue
        found.add(one)
        modules = _imported(one.read_text(encoding="utf-8"))
        below = (root / (m.replace(".", "/") + ".py") for m in modules)
        todo += [p for p in below if p.is_file()]
    return found


def study(root: Path) -> Json | None:
    """The kept study, or None."""
    try:
        found: Json = json.loads((root / PLACE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RecordError(f"{PLACE}: {error}; remove it and run it again") from None
    return found
