"""What a strategy may be: refusals, each one line with the nearest valid choices."""

from collections.abc import Iterator

from atlas.planner.cluster import Cluster
from atlas.planner.errors import OracleError, numbers
from atlas.planner.mesh import CUTS
from atlas.planner.model import Model
from atlas.planner.stages import units
from atlas.planner.strategy import (
    REPLICAS,
    Axis,
    Channel,
    Compress,
    Context,
    Data,
    Embedding,
    Expert,
    Filter,
    Offload,
    Pipeline,
    Spatial,
    Strategy,
    Tensor,
)

__all__ = ["check", "divisors", "limit"]


def divisors(n: int) -> list[int]:
    """The numbers that divide n, in order."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def limit(model: Model, kind: type[Axis]) -> tuple[int, str] | None:
    """Ranks at most along such an axis, and why; None: no limit of the model's."""
    cut = [layer for layer in model.layers if layer.filters]
    channels = [layer.channels for layer in model.layers if layer.channels]
    rows = [layer.rows for layer in model.layers if layer.rows]
    if kind is Filter:
        least = min((layer.filters for layer in cut), default=1)
        return least, f"the smallest layer has {least} filters"
    if kind is Channel:
        least = min(channels, default=1)
        return least, f"the smallest layer has {least} channels"
    if kind is Spatial:
        least = min(rows, default=1)
        return least, f"the smallest feature map has rows for {least}"
    if kind is Tensor:
        least = min(model.heads, model.kv_heads) or 1
        return least, f"a layer has {least} key-value heads"
    if kind is Pipeline:
        return units(model), f"it has {units(model)} separable layers"
    if kind is Expert:
        return max(1, model.experts), f"a layer has {model.experts} experts"
    if kind is Embedding:
        return max(1, model.tables), f"it has {model.tables} embedding tables"
    return None


def check(model: Model, strategy: Strategy, cluster: Cluster) -> None:
    """Raise the first problem, if there is any."""
    problem = next(_problems(model, strategy, cluster), None)
    if problem is not None:
        raise OracleError(problem)


def _problems(model: Model, strategy: Strategy, cluster: Cluster) -> Iterator[str]:
    yield from _doubles(strategy)
    if strategy.ranks > cluster.size:
        yield (
            f"{strategy.ranks} ranks on {cluster.name}: expected at most {cluster.size}"
        )
    for axis in strategy.axes:
        most = limit(model, type(axis))
        if most is not None and axis.ranks > most[0]:
            yield f"{axis} for {model.name}: expected at most {most[0]}: {most[1]}"
    yield from _divisions(model, strategy)
    yield from _compressions(model, strategy)
    if strategy.find(Offload) and cluster.host_bandwidth is None:
        yield f"Offload on {cluster.name}: expected a cluster with host_bandwidth"


def _compressions(model: Model, strategy: Strategy) -> Iterator[str]:
    how = strategy.find(Compress)
    if how is None:
        return
    if not strategy.find(Data):
        yield f"{strategy}: Compress needs Data: expected Data(...) * Compress(...)"
    if how.kind not in ("powersgd", "factors"):
        return
    cut = strategy.find(Filter, Channel, Tensor)
    if cut is not None and cut.ranks > 1:
        yield f"{how} with {cut}: expected whole matrices, or another kind of Compress"
    if not any(layer.matrix[0] for layer in model.layers):
        yield f"{how} for {model.name}: no matrices known: expected another kind"


def _doubles(strategy: Strategy) -> Iterator[str]:
    kinds = [type(axis) for axis in strategy.axes]
    for kind in kinds:
        if kinds.count(kind) > 1:
            yield f"{strategy}: two {kind.__name__} axes: expected one"
    for family, what in (
        (REPLICAS, "ways of replicating"),
        (CUTS, "splits of a layer"),
    ):
        found = [axis for axis in strategy.axes if isinstance(axis, family)]
        if len(found) > 1 and sum(a.ranks > 1 for a in found) > 1:
            names = " and ".join(type(a).__name__ for a in found)
            yield f"{strategy}: {names} are two {what}: expected one"


def _divisions(model: Model, strategy: Strategy) -> Iterator[str]:
    tensor, context = strategy.find(Tensor), strategy.find(Context)
    t, c = strategy.length(Tensor), strategy.length(Context)
    for heads in (model.heads, model.kv_heads):
        if heads % t:
            legal = [n for n in divisors(heads) if model.kv_heads % n == 0]
            yield f"Tensor({t}) for {heads} heads: expected {numbers(t, legal)}"
    if tensor and tensor.sequence_parallel and model.tokens % (t * c):
        yield f"Tensor({t}, sequence_parallel=True) for {model.tokens} tokens"
    if context and model.kind != "transformer":
        yield f"{context} for {model.name}: it has no sequences"
    if context and model.tokens % c:
        legal = divisors(model.tokens)
        yield f"{context} for {model.tokens} tokens: expected {numbers(c, legal)}"
    if context and context.method == "ulysses" and model.kv_heads % (c * t):
        legal = divisors(model.kv_heads // t or 1)
        yield f"{context} for {model.kv_heads} heads: expected {numbers(c, legal)}"
    e = strategy.length(Expert)
    if model.experts % e:
        legal = divisors(model.experts)
        yield f"Expert({e}) for {model.experts} experts: expected {numbers(e, legal)}"
    pipeline = strategy.find(Pipeline)
    if pipeline and pipeline.chunks > 1:
        most = -(-units(model) // pipeline.ranks)  # where they do not divide, of some
        if pipeline.chunks > most:
            yield (
                f"{pipeline} for {units(model)} separable layers: expected at most "
                f"{most} chunks, one for each layer of a rank"
            )
