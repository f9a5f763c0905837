"""What the calculator asks of the oracle; the page runs this file as JavaScript."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from atlas.planner import layerwise, pipelining, replicas, rings
from atlas.planner.cluster import Band, Cluster, Device, Level
from atlas.planner.errors import OracleError, numbers
from atlas.planner.mesh import mesh
from atlas.planner.model import Layer, Model
from atlas.planner.predict import predict
from atlas.planner.prediction import Collective, Prediction
from atlas.planner.records import (
    Cut,
    Exchange,
    Link,
    Load,
    Recipe,
    Replicas,
    Schedule,
    Speed,
    Times,
    Wires,
    Work,
)
from atlas.planner.rules import divisors, limit
from atlas.planner.stages import heaviness, units
from atlas.planner.strategy import (
    Axis,
    Channel,
    Compress,
    Context,
    Data,
    DiLoCo,
    Elastic,
    Embedding,
    Expert,
    Filter,
    Gossip,
    LocalSGD,
    Offload,
    ParameterServer,
    Pipeline,
    Spatial,
    Strategy,
    Tensor,
    Zero,
)
from atlas.planner.traffic import sites_of
from atlas.planner.train import OPTIMIZERS, PRECISIONS, Train
from atlas.planner.transformer import transformer

__all__ = ["ask", "axes_of", "cluster_of", "legal", "model_of", "recall", "strategy_of"]

#: The sliders, by the names that the address has for them.
KINDS: dict[str, type[Axis]] = {
    "pipeline": Pipeline,
    "expert": Expert,
    "embedding": Embedding,
    "context": Context,
    "tensor": Tensor,
    "filter": Filter,
    "channel": Channel,
    "spatial": Spatial,
}
AXES_OF = {
    "transformer": ("pipeline", "expert", "context", "tensor"),
    "cnn": ("pipeline", "filter", "channel", "spatial"),
    "recommender": ("pipeline", "embedding"),
}


def model_of(name: str, data: Mapping[str, Any]) -> Model:
    """A model from its compact form."""
    if "transformer" in data:
        return transformer(name, **data["transformer"], epoch=data.get("epoch"))
    layers = []
    for words, at, filters, channels, rows, matrix, glued, height in data["layers"]:
        work = Work(**data["works"][at])
        cuts = (filters, channels, rows, tuple(matrix), bool(glued), height)
        layers.append(Layer(words, work, *cuts))
    return Model(
        name,
        data["kind"],
        tuple(layers),
        tables=data.get("tables", 0),
        epoch=data.get("epoch"),
    )


def cluster_of(name: str, data: Mapping[str, Any]) -> Cluster:
    """A cluster from its compact form."""
    levels = []
    for level in data["levels"]:
        links = {op: Link(*link) for op, link in level["links"].items()}
        more = (level["rails"], level["crossing"], level["decay"])
        levels.append(Level(level["name"], level["size"], links, *more))
    return Cluster(
        name,
        Device(**data["device"]),
        tuple(levels),
        price=data.get("price"),
        host_bandwidth=data.get("host_bandwidth"),
        host_memory=data.get("host_memory"),
        band=Band(*data["band"]),
    )


def axes_of(model: Model) -> list[str]:
    """The sliders that make sense for a model."""
    found = []
    for name in AXES_OF[model.kind]:
        if name != "expert" or model.experts > 0:
            found.append(name)
    return found


def legal(model: Model, gpus: int, name: str) -> list[int]:
    """Lengths that an axis may have on so many devices."""
    kind = KINDS[name]
    most = limit(model, kind)
    found = []
    for n in divisors(gpus):
        fits = most is None or n <= most[0]
        if kind is Tensor:
            fits = fits and model.heads % n == 0 and model.kv_heads % n == 0
        if kind is Expert:
            fits = fits and model.experts % n == 0
        if kind is Context:
            fits = fits and model.tokens % n == 0
        if fits:
            found.append(n)
    return found


def strategy_of(choice: Mapping[str, Any], node: int) -> Strategy:
    """The strategy that the sliders say: what talks most is innermost."""
    inner = 1
    for name in KINDS:
        inner = inner * choice.get(name, 1)
    gpus = choice["gpus"]
    if gpus % inner:
        raise OracleError(
            f"{gpus} devices for axes with a product of {inner}: expected a divisor, "
            + numbers(inner, divisors(gpus))
        )
    d = gpus // inner
    outer = list[Axis]()
    if choice.get("pipeline", 1) > 1:
        outer.append(_pipeline(choice))
    own = _replicas(choice, d, node)
    found = [own, *outer] if choice.get("outside") else [*outer, own]
    if choice.get("expert", 1) > 1:
        found.append(Expert(choice["expert"]))
    if choice.get("embedding", 1) > 1:
        found.append(Embedding(choice["embedding"]))
    if choice.get("context", 1) > 1:
        found.append(Context(choice["context"], choice.get("method", "ring")))
    if choice.get("tensor", 1) > 1:
        found.append(Tensor(choice["tensor"], bool(choice.get("sequence"))))
    if choice.get("filter", 1) > 1:
        found.append(Filter(choice["filter"]))
    if choice.get("channel", 1) > 1:
        found.append(Channel(choice["channel"]))
    if choice.get("spatial", 1) > 1:
        found.append(Spatial(choice["spatial"]))
    if choice.get("compress", "none") != "none" and d > 1:
        found.append(Compress(choice["compress"]))
    if choice.get("offload", "none") != "none":
        found.append(Offload(choice["offload"]))
    kept = [axis for axis in found if _counts(axis)]
    return Strategy(tuple(kept) if kept else (Data(1),))


def _counts(axis: Axis) -> bool:
    """Whether a factor changes anything: those of one rank do not, settings do."""
    return axis.ranks > 1 or isinstance(axis, Zero | Compress | Offload)


def _pipeline(choice: Mapping[str, Any]) -> Pipeline:
    schedule = choice.get("schedule", "1f1b")
    chunks = max(2, choice.get("chunks", 2)) if schedule == "interleaved" else 1
    return Pipeline(choice["pipeline"], schedule, chunks)


def _replicas(choice: Mapping[str, Any], d: int, node: int) -> Axis:
    way = choice.get("replicas", "data")
    if way == "zero1":
        return Zero(1, d)
    if way == "zero2":
        return Zero(2, d)
    if way == "zero3":
        return Zero(3, d)
    if way == "hybrid":
        inside = max(1, node // (choice.get("tensor", 1) * choice.get("context", 1)))
        within = max(n for n in divisors(d) if n <= inside)
        return Zero(3, d, within)
    if way == "local-sgd":
        return LocalSGD(d)
    if way == "diloco":
        return DiLoCo(d)
    if way == "elastic":
        return Elastic(d)
    if way == "server":
        return ParameterServer(d, choice.get("servers", 1))
    if way == "gossip":
        return Gossip(d)
    return Data(d)


def train_of(choice: Mapping[str, Any]) -> Train:
    """The training that the page says."""
    return Train(
        choice["batch"],
        micro_batch=choice.get("micro") or None,
        precision=PRECISIONS[choice.get("precision", "mixed")],
        optimizer=OPTIMIZERS[choice.get("optimizer", "adam")],
        recompute=choice.get("recompute", "none"),
        flash=not choice.get("scores"),
        eager=bool(choice.get("eager")),
    )


def ask(model: Model, cluster: Cluster, choice: Mapping[str, Any]) -> Prediction:
    """The prediction for what the page says."""
    strategy = strategy_of(choice, cluster.levels[0].size)
    pipeline = strategy.find(Pipeline)
    if pipeline is not None and pipeline.ranks > units(model):
        raise OracleError(f"{pipeline} for {units(model)} layers: expected fewer")
    return predict(model, strategy, cluster, train_of(choice))


class Recall(NamedTuple):
    """What the arithmetic of a prediction was given, by the names that it uses."""

    work: Work
    cut: Cut
    recipe: Recipe
    replicas: Replicas
    wires: Wires
    speed: Speed
    schedule: Schedule
    one: Load
    agree: Exchange
    optimizer: float
    overhead: float
    times: Times
    link: Link
    full: Work  # of the fullest stage
    place: int
    versions: int
    backward: bool


def recall(p: Prediction) -> Recall:
    """The numbers behind a prediction, of its heaviest and its fullest stage."""
    m = mesh(p.model, p.strategy, p.cluster, p.train)
    sites = sites_of(p.model, m, p.cluster)
    heavy = max(sites, key=lambda site: heaviness(site.work))
    agree = replicas.agree(p.strategy, heavy)
    totals = [sum(held) for held in p.stages]
    full = sites[totals.index(max(totals))]
    return Recall(
        work=heavy.work,
        cut=m.cut,
        recipe=m.recipe,
        replicas=m.replicas,
        wires=m.wires,
        speed=m.speed,
        schedule=m.schedule,
        one=layerwise.load(heavy.work, m.cut, m.recipe, m.speed, m.wires),
        agree=agree.exchange,
        optimizer=agree.optimizer,
        overhead=m.speed.step,
        times=p.times,
        link=m.wires.pipeline.p2p,
        full=full.work,
        place=full.place,
        versions=pipelining.stash(m.schedule, full.place),
        backward=False,
    )


class Called(NamedTuple):
    """The arguments of the formula by which a collective was timed."""

    name: str
    p: int
    calls: float
    n: float
    link: Link


def called(p: Prediction, c: Collective) -> Called | None:
    """The formula of a collective and what it was given; None: it has none."""
    m = mesh(p.model, p.strategy, p.cluster, p.train)
    if c.op not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"):
        return None
    n = c.payload * c.ranks if c.op == "all_gather" else c.payload
    for wire, group in m.groups.items():
        if group.ranks != c.ranks:
            continue
        link = getattr(getattr(m.wires, wire), c.op)
        if c.op == "p2p":
            name, seconds = "send_seconds", rings.send_seconds(c.count, n, link)
        elif c.op == "all_reduce":
            name, seconds = (
                "reduce_seconds",
                rings.reduce_seconds(c.ranks, c.count, n, link),
            )
        else:
            name, seconds = (
                "gather_seconds",
                rings.gather_seconds(c.ranks, c.count, n, link),
            )
        if abs(seconds - c.seconds) <= 1e-9 * c.seconds:
            return Called(name, c.ranks, c.count, n, link)
    return None
