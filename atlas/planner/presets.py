"""Models and clusters by name: taxonomy/models and taxonomy/clusters as oracle values.

    from atlas.planner import presets
    presets.model("gpt3-175b"), presets.cluster("a100-80g")

The files are read strictly, as the rest of the taxonomy is: every problem is one
line, `file:line:column: what: expected`. Every constant of a cluster has a source.
"""

# key() is dataclasses.field() with a sentence: no shared default.
# ruff: noqa: RUF009

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from atlas.planner import cluster as oracle
from atlas.planner.errors import OracleError, nearest
from atlas.planner.model import Model
from atlas.planner.network import Item, network
from atlas.planner.recommender import recommender
from atlas.planner.transformer import transformer
from atlas.taxonomy import TaxonomyError, bibtex, find_root
from atlas.taxonomy.kinds import IS_LINK, TAXONOMY, Count, Id, Source, Text
from atlas.taxonomy.typed import BAD, Reader, Rule, key, schema
from atlas.taxonomy.yamlmarks import Problem, Refused, read_text, read_tree, shown

__all__ = [
    "ClusterFile",
    "ModelFile",
    "RunSpec",
    "built_cluster",
    "built_model",
    "check_levels",
    "cluster",
    "clusters",
    "items",
    "load",
    "model",
    "models",
    "runs",
]

ASSUMED = "assumed"  # the source of a constant that nobody published
MEASURED = "measured"  # the source of one that `atlas calibrate` has found
WORDS = (ASSUMED, MEASURED)
#: What a device does whose file does not say what it sustains: it is taken for an
#: accelerator like the slower of the two that were fitted, the H100.
TYPICAL: Mapping[str, float] = {
    "top": 0.53,
    "attention": 0.37,
    "streamed": 0.67,
    "contention": 0.1256,
    "host": 0.2e-3,
}
#: How far published runs on both lay from their predictions.
TYPICAL_BAND = (0.74, 1.3)

Positive = Annotated[
    float, Rule("more than 0", lambda x: x > 0, (("exclusiveMinimum", 0),))
]
NotNegative = Annotated[float, Rule("0 or more", lambda x: x >= 0, (("minimum", 0),))]
Whole = Annotated[int, Rule("0 or more", lambda n: n >= 0, (("minimum", 0),))]
Share = Annotated[
    float,
    Rule("above 0, at most 1", lambda x: 0 < x <= 1, (("exclusiveMinimum", 0),)),
]


@dataclass(frozen=True)
class Transformer:
    """A decoder-only transformer's dimensions."""

    layers: Count = key("layers")
    width: Count = key("width of a token's vector")
    heads: Count = key("heads of attention")
    vocabulary: Count = key("words, with the padding that training uses")
    tokens: Count = key("tokens of a sequence")
    kv_heads: Count | None = key("heads of keys and values, if fewer", default=None)
    head: Count | None = key("width of a head, if not width / heads", default=None)
    ffn: Count | None = key("width of the perceptron, if not 4 width", default=None)
    gated: bool = key("true: the perceptron has a gate", default=False)
    bias: bool = key("false: matrices have no biases", default=True)
    dropout: bool = key("false: no dropout", default=True)
    norm: Annotated[int, Rule("1 or 2", lambda n: n in (1, 2))] = key(
        "vectors of a norm: 2 with a bias, 1 without", default=2
    )
    positions: bool = key("false: places are not learned", default=True)
    tied: bool = key("false: the head has a matrix of its own", default=True)
    experts: Annotated[int, Rule("0 or more", lambda n: n >= 0)] = key(
        "perceptrons of a layer that tokens are routed to", default=0
    )
    chosen: Count = key("experts of a token", default=1)
    common: Whole = key("width of the perceptron that all tokens pass too", default=0)
    dense: Whole = key("first layers without experts", default=0)
    dense_ffn: Count | None = key("width of their perceptron", default=None)
    whole: Whole = key("other parameters of a layer, in norms", default=0)
    slanted: bool = key("true: queries, keys, values alone have biases", default=False)
    query_rank: Whole = key("width of latent queries", default=0)
    rank: Whole = key("width of latent keys and values", default=0)
    turned: Whole = key("part of a head that says where a token is", default=0)
    value: Whole = key("width of a head's values, if not its keys'", default=0)


@dataclass(frozen=True)
class Line:
    """One line of a network: one of conv, pool, basic, bottleneck and linear."""

    conv: Count | None = key("filters of a convolution", default=None)
    pool: Literal["max", "average", "all"] | None = key(
        "the kind of pooling; all: over the whole map", default=None
    )
    basic: Count | None = key("filters of a residual block of two", default=None)
    bottleneck: Count | None = key("filters of the middle convolution", default=None)
    linear: Count | None = key("outputs of a linear layer", default=None)
    kernel: Count = key("side of the window", default=3)
    stride: Count = key("how far the window moves", default=1)
    padding: Annotated[int, Rule("0 or more", lambda n: n >= 0)] | None = key(
        "rows added on each side; left out: half the kernel, for pools none",
        default=None,
    )
    norm: bool = key("true: a batch norm follows", default=False)
    relu: bool = key("false: no activation follows", default=True)
    bias: bool = key("false: no bias", default=True)
    ceil: bool = key("true: sizes are rounded up", default=False)
    repeat: Count = key("how many of these follow one another", default=1)


@dataclass(frozen=True)
class Network:
    """A convolutional network, layer by layer."""

    image: tuple[Count, ...] = key("channels, rows, columns, and depth if there is")
    layers: tuple[Line, ...] = key("the layers, in order")


@dataclass(frozen=True)
class Recommender:
    """A recommendation model with tables."""

    tables: Count = key("tables of embeddings")
    rows: Count = key("rows of a table")
    width: Count = key("width of a row")
    dense: Count = key("features that are numbers")
    bottom: tuple[Count, ...] = key("widths of the perceptron below")
    top: tuple[Count, ...] = key("widths of the perceptron above")


@dataclass(frozen=True)
class RunSpec:
    """A training run that its makers published."""

    strategy: Text = key("axes joined by *, as `atlas predict` takes them")
    cluster: Id = key("a cluster of taxonomy/clusters")
    batch: Count = key("samples of a step")
    micro_batch: Count = key("samples at a time on a replica")
    precision: Id = key("how numbers are kept: mixed, fp32, ...")
    recompute: Literal["none", "selective", "full"] = key("what backward repeats")
    seconds: Positive = key("of a step, as published")
    source: Source = key("a key of papers.bib, or a link")


@dataclass(frozen=True)
class ModelFile:
    """A network that the oracle knows by name."""

    name: Text | None = key("the name in sentences", default=None)
    summary: Text | None = key("one sentence: what it is known for", default=None)
    sources: Mapping[Id, Source] = key(
        "what -> a key of papers.bib, or a link", default_factory=dict
    )
    epoch: Count | None = key("samples of its data set", default=None)
    transformer: Transformer | None = key("if it is one", default=None)
    cnn: Network | None = key("if it is one", default=None)
    recommender: Recommender | None = key("if it is one", default=None)
    runs: tuple[RunSpec, ...] = key("runs that were published", default=())


@dataclass(frozen=True)
class DeviceSpec:
    """One accelerator."""

    flops: Mapping[Id, Positive] = key("peak operations a second, by arithmetic")
    memory: Positive = key("bytes that a program can use")
    bandwidth: Positive = key("bytes a second of its memory")
    name: Text = key("its name", default="device")
    top: Share | None = key(
        "share of the peak that the products of a step sustain", default=None
    )
    tops: Mapping[Id, Share] = key(
        "the same share for other arithmetic: fp8", default_factory=dict
    )
    half: NotNegative = key("operations at which half of that is reached", default=0.0)
    attention: Share | None = key(
        "share of the 16-bit peak that flash attention sustains", default=None
    )
    streamed: Share = key(
        "share of the bandwidth that element-wise work reaches", default=1.0
    )
    contention: NotNegative = key(
        "of a hidden exchange's seconds, what it adds to computing", default=0.0
    )
    reserved: NotNegative = key(
        "bytes of memory that drivers and libraries take", default=0.0
    )
    host: NotNegative = key(
        "seconds of the host for a product and what goes with it", default=0.0
    )
    overhead: NotNegative = key("seconds that a kernel costs of itself", default=0.0)
    step: NotNegative = key("seconds that a step costs of itself", default=0.0)
    measured: Mapping[Id, Positive] = key(
        "model -> seconds of a sample, forward and backward", default_factory=dict
    )


@dataclass(frozen=True)
class LinkSpec:
    """Seconds of a collective: launch + rounds * alpha + bytes sent / bandwidth."""

    bandwidth: Positive = key("bytes a second that a rank sends")
    alpha: NotNegative = key("seconds of a round", default=0.0)
    launch: NotNegative = key("seconds that a call costs of itself", default=0.0)


@dataclass(frozen=True)
class LevelSpec:
    """A level of the network, innermost first."""

    name: Id = key("its name: node, rack")
    size: Count = key("ranks that it connects")
    links: Mapping[
        Literal[
            "any",
            "all_reduce",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "p2p",
        ],
        LinkSpec,
    ] = key("collective -> its link; any: all others")
    rails: Count = key("links by which a unit of the level below leaves it", default=1)
    crossing: NotNegative = key(
        "seconds more of a round that leaves such a unit", default=0.0
    )
    decay: NotNegative = key(
        "power of the units by which the bandwidth falls", default=0.0
    )


@dataclass(frozen=True)
class BandSpec:
    """How far measured steps lay from predicted ones, as factors."""

    low: Positive = key("the lowest measured over predicted")
    high: Positive = key("the highest")
    of: Text = key("which measurements")


@dataclass(frozen=True)
class FittedSpec:
    """How well a line fits what was measured of one thing."""

    what: Text = key("what was measured, and on how many ranks")
    points: Count = key("sizes that were measured")
    error: NotNegative = key("mean relative error of the fit")
    low: Positive = key("the lowest measured over fitted")
    high: Positive = key("the highest")


@dataclass(frozen=True)
class CalibrationSpec:
    """Where and when `atlas calibrate` measured, and how well its lines fit."""

    recorded: Text = key("the date")
    cores: Count = key("processors of the machine")
    backend: Text = key("gloo or nccl")
    versions: Mapping[Id, Text] = key("of python and torch")
    fitted: tuple[FittedSpec, ...] = key("how well the lines fit")


@dataclass(frozen=True)
class ClusterFile:
    """Devices and what connects them."""

    device: DeviceSpec = key("the accelerator")
    levels: tuple[LevelSpec, ...] = key("levels of the network, innermost first")
    name: Text | None = key("the name in sentences", default=None)
    summary: Text | None = key("one sentence: what it is", default=None)
    sources: Mapping[str, Source] = key(
        "path of a constant, like device.memory -> a key of papers.bib, or a link",
        default_factory=dict,
    )
    price: NotNegative | None = key("of a device for an hour", default=None)
    currency: Text = key("of the price", default="USD")
    host_bandwidth: Positive | None = key(
        "bytes a second between a device and its host's memory", default=None
    )
    host_memory: Positive | None = key("bytes of it for a device", default=None)
    band: BandSpec | None = key("of predictions, if any were checked", default=None)
    calibration: CalibrationSpec | None = key(
        "how this machine was measured, if it was", default=None
    )


def models(root: Path | None = None) -> list[str]:
    """The names of all models."""
    return _names(root, "models")


def clusters(root: Path | None = None) -> list[str]:
    """The names of all clusters."""
    return _names(root, "clusters")


def model(name: str, root: Path | None = None) -> Model:
    """A model by name; raises OracleError if there is none, TaxonomyError if broken."""
    path = _path(root, "models", name)
    made, reader = _read(path, ModelFile, root)
    if made is not BAD:
        check_named(made, reader)
        if not made.sources:
            reader.note(reader.place(made), 'missing key "sources"', "one or more")
    built = built_model(made, name, reader) if made is not BAD else None
    _raise(reader.problems)
    assert built is not None
    return built


def items(name: str, root: Path | None = None) -> tuple[Item, ...]:
    """The layers of a convolutional network by name; raises as `model` does."""
    made, reader = _read(_path(root, "models", name), ModelFile, root)
    _raise(reader.problems)
    if made.cnn is None:
        raise OracleError(f"{name} is no convolutional network: it has no such layers")
    return tuple(_items(made.cnn))


def _items(cnn: Network) -> list[Item]:
    return [Item(**dataclasses.asdict(line)) for line in cnn.layers]


def runs(name: str, root: Path | None = None) -> tuple[RunSpec, ...]:
    """The published runs of a model by name; raises as `model` does."""
    made, reader = _read(_path(root, "models", name), ModelFile, root)
    _raise(reader.problems)
    found: tuple[RunSpec, ...] = made.runs
    return found


def cluster(name: str, root: Path | None = None) -> oracle.Cluster:
    """A cluster by name; raises as `model` does."""
    path = _path(root, "clusters", name)
    made, reader = _read(path, ClusterFile, root)
    if made is not BAD:
        check_named(made, reader)
        check_levels(made, reader)
        check_sources(made, reader)
    _raise(reader.problems)
    return built_cluster(made, name)


Presets = tuple[dict[str, Model], dict[str, oracle.Cluster]]


def load(root: Path | None = None) -> Presets:
    """All models and clusters, every problem of all files at once."""
    problems: list[str] = []
    found: Presets = ({}, {})
    for name in models(root):
        try:
            found[0][name] = model(name, root)
        except TaxonomyError as error:
            problems += error.problems
    for name in clusters(root):
        try:
            found[1][name] = cluster(name, root)
        except TaxonomyError as error:
            problems += error.problems
    if problems:
        raise TaxonomyError(problems)
    return found


def _folder(root: Path | None, folder: str) -> Path:
    return (root or find_root()) / TAXONOMY / folder


def _names(root: Path | None, folder: str) -> list[str]:
    return sorted(path.stem for path in _folder(root, folder).glob("*.yaml"))


def _path(root: Path | None, folder: str, name: str) -> Path:
    known = _names(root, folder)
    if name not in known:
        what = f"unknown {folder.removesuffix('s')} {shown(name)}"
        raise OracleError(f"{what}: expected {nearest(name, known)}")
    return _folder(root, folder) / f"{name}.yaml"


def _read(path: Path, kind: type, root: Path | None) -> tuple[Any, Reader]:
    """A file as its kind: BAD, and problems, if it is not one."""
    home = root or find_root()
    file = path.relative_to(home).as_posix()
    try:
        node, problems = read_tree(read_text(path, file), file)
    except Refused as refused:
        raise TaxonomyError([str(refused.problem)]) from None
    reader = Reader(file, problems)
    made = reader.record(node, kind)
    keys = _papers(home)
    for used in reader.references:
        if not IS_LINK.holds(used.name) and used.name not in {*keys, *WORDS}:
            what = f"unknown source {shown(used.name)}"
            words = " or ".join(WORDS)
            reader.note(used.mark, what, f"a key of papers.bib, a link, {words}")
    return made, reader


def _papers(root: Path) -> frozenset[str]:
    file = f"{TAXONOMY}/papers.bib"
    return _keys(read_text(root / file, file), file)


@functools.lru_cache(maxsize=1)  # all presets ask, and the text is long
def _keys(text: str, file: str) -> frozenset[str]:
    entries, _ = bibtex.parse(text, file)
    return frozenset(entry.key for entry in entries)


def _raise(problems: list[Problem]) -> None:
    if problems:
        raise TaxonomyError([str(problem) for problem in sorted(set(problems))])


def built_model(made: ModelFile, name: str, reader: Reader) -> Model | None:
    """The model; None, and a problem, if it is not one of the three kinds."""
    kinds = ("transformer", "cnn", "recommender")
    named = [kind for kind in kinds if getattr(made, kind) is not None]
    if len(named) != 1:
        what = " and ".join(named) or "neither transformer nor cnn nor recommender"
        reader.note(reader.place(made), what, "one of " + ", ".join(kinds))
        return None
    try:
        if made.transformer is not None:
            given = dataclasses.asdict(made.transformer)
            sources = dict(made.sources)
            return transformer(name, **given, epoch=made.epoch, sources=sources)
        if made.cnn is not None:
            return network(
                name,
                made.cnn.image,
                _items(made.cnn),
                epoch=made.epoch,
                sources=dict(made.sources),
            )
        assert made.recommender is not None
        given = dataclasses.asdict(made.recommender)
        return recommender(name, **given, sources=dict(made.sources))
    except OracleError as error:
        reader.note(reader.place(made, named[0]), str(error), "a network that works")
        return None


def built_cluster(made: ClusterFile, name: str) -> oracle.Cluster:
    """The cluster that a file describes."""
    given = {f.name: getattr(made.device, f.name) for f in fields(made.device)}
    band = made.band
    if made.device.top is None:
        unsaid = {f.name for f in fields(made.device) if given[f.name] == f.default}
        given |= {name: value for name, value in TYPICAL.items() if name in unsaid}
        band = band or BandSpec(*TYPICAL_BAND, "published runs on A100 and H100")
    device = oracle.Device(**given)
    levels = tuple(
        oracle.Level(
            level.name,
            level.size,
            {
                op: oracle.Link(link.alpha, 1 / link.bandwidth, link.launch)
                for op, link in level.links.items()
            },
            level.rails,
            level.crossing,
            level.decay,
        )
        for level in made.levels
    )
    return oracle.Cluster(
        name,
        device,
        levels,
        price=made.price,
        currency=made.currency,
        host_bandwidth=made.host_bandwidth,
        host_memory=made.host_memory,
        band=oracle.Band(band.low, band.high, band.of) if band else oracle.Band(),
        sources=dict(made.sources),
    )


def check_named(made: ModelFile | ClusterFile, reader: Reader) -> None:
    """A preset is introduced; a file of the reader's own need not be."""
    for word in ("name", "summary"):
        if getattr(made, word) is None:
            reader.note(reader.place(made), f'missing key "{word}"', "a sentence")


def check_levels(made: ClusterFile, reader: Reader) -> None:
    """Levels grow, and have a link for every collective."""
    sizes = [level.size for level in made.levels]
    if not sizes or sizes != sorted(set(sizes)):
        where = reader.place(made, "levels")
        reader.note(where, f"levels of {sizes}", "each larger than the one before")
    for level in made.levels:
        if "any" not in level.links:
            where = reader.place(level, "links")
            reader.note(where, f'level "{level.name}" without "any"', "a link for it")


def check_sources(made: ClusterFile, reader: Reader) -> None:
    """A source for every constant; a file of the reader's own needs none."""
    constants = list(_constants(made))
    for path in constants:
        if not any(_covers(source, path) for source in made.sources):
            reader.note(reader.place(made, "sources"), f"{path} has no source", "one")
    for source in made.sources:
        if not any(_covers(source, path) for path in constants):
            where = reader.place(made, "sources", source)
            reader.note(where, f"source of {shown(source)}", "a constant of this file")


def _covers(source: str, path: str) -> bool:
    return path == source or path.startswith(source + ".")


def _constants(made: ClusterFile) -> Iterator[str]:
    """The path of every number that says something of hardware or of money."""
    for f in fields(made.device):
        value = getattr(made.device, f.name)
        if isinstance(value, Mapping):
            yield from (f"device.{f.name}.{name}" for name in value)
        elif isinstance(value, float) and value != f.default:
            yield f"device.{f.name}"
    for level in made.levels:
        yield f"levels.{level.name}.size"
        if level.rails != 1:
            yield f"levels.{level.name}.rails"
        for name in ("crossing", "decay"):
            if getattr(level, name):
                yield f"levels.{level.name}.{name}"
        for op, link in level.links.items():
            for f in fields(link):
                if getattr(link, f.name) != f.default:
                    yield f"levels.{level.name}.{op}.{f.name}"
    for name in ("price", "host_bandwidth", "host_memory", "band"):
        if getattr(made, name) is not None:
            yield name


def json_schema() -> dict[str, dict[str, Any]]:
    """JSON Schema of both kinds of file, for editors: kind -> schema."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    kinds = {"model": ModelFile, "cluster": ClusterFile}
    return {
        kind: {**dialect, "title": f"The atlas: {kind}", **schema(made)}
        for kind, made in kinds.items()
    }


def write_schemas(root: Path) -> None:
    """Write taxonomy/schema/model.schema.json and cluster.schema.json, each whole."""
    for kind, made in json_schema().items():
        path = root / TAXONOMY / "schema" / f"{kind}.schema.json"
        partial = path.with_suffix(".part")
        text = json.dumps(made, indent=2, ensure_ascii=False) + "\n"
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)


def main(arguments: list[str]) -> int:
    """Check all presets; with --schema also write their schemas."""
    if arguments not in ([], ["--schema"]):
        print(f"{' '.join(arguments)}: expected nothing, or --schema", file=sys.stderr)
        return 2
    try:
        if arguments:
            write_schemas(find_root())
        found = load()
    except TaxonomyError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"models: {len(found[0])}, clusters: {len(found[1])}; no problem")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
