"""What limits a strategy and what holds it back, in ParaDL's terms."""

from collections.abc import Iterator, Sequence

from atlas.planner import computing
from atlas.planner.cluster import Cluster
from atlas.planner.model import Model
from atlas.planner.prediction import Collective, Finding
from atlas.planner.records import Bytes, Times, Work
from atlas.planner.rules import limit
from atlas.planner.stages import heaviness
from atlas.planner.strategy import Data, ParameterServer, Pipeline, Strategy, Zero
from atlas.planner.traffic import Site
from atlas.planner.train import Train
from atlas.planner.units import size

__all__ = ["NAMES", "find"]

#: What each field of Times is, in a sentence.
NAMES = {
    "compute": "compute",
    "memory": "memory-bound element-wise work",
    "bubble": "the pipeline bubble",
    "cut": "communication inside layers",
    "context": "communication between parts of a sequence",
    "expert": "communication with experts or embedding tables",
    "pipeline": "communication between stages",
    "data": "synchronization between replicas",
    "optimizer": "the optimizer step",
    "overhead": "fixed overhead",
}
WORDS = {"Filter": "filter", "Channel": "channel", "Spatial": "spatial"}
WORDS |= {"Tensor": "tensor", "Pipeline": "pipeline", "Expert": "expert"}
WORDS |= {"Embedding": "embedding"}
#: Shares of a step above which a part of it is worth a sentence.
NOTABLE = 0.1


def find(
    model: Model,
    strategy: Strategy,
    sites: Sequence[Site],
    train: Train,
    times: Times,
    memory: Bytes,
    collectives: tuple[Collective, ...],
) -> tuple[Finding, ...]:
    """All of them, limits first: ParaDL's table of limits and bottlenecks."""
    cluster = sites[0].cluster
    found = [
        *_limits(model, strategy, train),
        *_memory(strategy, cluster, memory),
        *_bottlenecks(times),
        *_balance([site.work for site in sites]),
        *_repetition(sites[0]),
        *_levels(cluster, collectives),
        *_congestion(sites[0]),
    ]
    return tuple(found)


def _limits(model: Model, strategy: Strategy, train: Train) -> Iterator[Finding]:
    for axis in strategy.axes:
        name = type(axis).__name__
        most = limit(model, type(axis))
        if most is not None and axis.ranks > 1:
            says = f"{WORDS[name]} parallelism cannot exceed {most[0]} ranks: {most[1]}"
            yield Finding("limit", name, says)
        if isinstance(axis, Data | Zero | ParameterServer) and axis.ranks > 1:
            says = f"data parallelism cannot exceed {train.batch} ranks: the batch size"
            yield Finding("limit", name, says)
        if isinstance(axis, Pipeline) and axis.schedule == "local" and axis.ranks > 1:
            says = "only the last stage trains on the network's loss"
            yield Finding("limit", name, says)


def _memory(strategy: Strategy, cluster: Cluster, memory: Bytes) -> Iterator[Finding]:
    total, room = sum(memory), cluster.room
    if total > room:
        largest = max(memory._fields, key=lambda f: getattr(memory, f))
        says = (
            f"needs {size(total)} on a device with {size(room)}: "
            f"the largest part is {largest}, {size(getattr(memory, largest))}"
        )
        yield Finding("limit", "memory", says)
    data = strategy.find(Data)
    state = memory.parameters + memory.gradients + memory.optimizer
    if data is not None and data.ranks > 1 and state > NOTABLE * room:
        says = f"each of {data.ranks} replicas keeps the same {size(state)} of state"
        yield Finding("bottleneck", "memory", says)


def _bottlenecks(times: Times) -> Iterator[Finding]:
    whole = sum(times)
    for name, seconds in times._asdict().items():
        if name != "compute" and seconds > NOTABLE * whole:
            says = f"{NAMES[name]} takes {seconds / whole:.0%} of the step time"
            yield Finding("bottleneck", name, says)


def _balance(stages: Sequence[Work]) -> Iterator[Finding]:
    """Workload balancing: a pipeline is as fast as its heaviest stage."""
    costs = [heaviness(work) for work in stages]
    mean = sum(costs) / len(costs)
    if max(costs) > (1 + NOTABLE) * mean:
        over = max(costs) / mean - 1
        says = f"the heaviest of {len(costs)} stages is {over:.0%} above the mean"
        yield Finding("bottleneck", "Pipeline", says)


def _repetition(site: Site) -> Iterator[Finding]:
    """Computation redundancy: what filters and channels do not divide."""
    cut, work = site.mesh.cut, site.work
    whole = heaviness(work)
    if cut.filter * cut.channel == 1 or whole == 0:
        return
    alone = computing.whole_flops(work, cut)
    if alone > NOTABLE * whole / (cut.filter * cut.channel):
        says = f"every rank repeats {alone / whole:.1%} of the compute: it is not split"
        yield Finding("bottleneck", "Filter" if cut.filter > 1 else "Channel", says)


def _congestion(site: Site) -> Iterator[Finding]:
    """Network congestion: groups that leave a node by the same links."""
    for name, group in site.mesh.groups.items():
        if group.level == 0 or group.ranks == 1 or name in ("shard", "alone"):
            continue
        level, below = (site.cluster.levels[group.level - i] for i in (0, 1))
        beside = below.size // group.inside
        if beside > level.rails:
            links = "1 link" if level.rails == 1 else f"{level.rails} links"
            says = f"{beside} groups share {links} out of each {below.name}"
            yield Finding("bottleneck", name, says)


def _levels(cluster: Cluster, collectives: tuple[Collective, ...]) -> Iterator[Finding]:
    inner = cluster.levels[0].name
    for axis in dict.fromkeys(c.axis for c in collectives if c.axis == "Tensor"):
        if any(c.axis == axis and c.level != inner for c in collectives):
            says = f"the {axis.lower()} axis spans several {inner}s: place it innermost"
            yield Finding("bottleneck", axis, says)
