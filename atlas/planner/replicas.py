"""How replicas agree: by averaging, sharding, local steps, servers or gossip."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from atlas.formulas.sync_strategy.periodic import diloco_outer_bytes
from atlas.planner import agreement
from atlas.planner.compressing import compressed, doubts
from atlas.planner.offloading import copied, left
from atlas.planner.prediction import Collective, Finding
from atlas.planner.records import Bytes, Exchange, Times
from atlas.planner.strategy import (
    REPLICAS,
    Axis,
    Compress,
    Data,
    DiLoCo,
    Elastic,
    Gossip,
    LocalSGD,
    Offload,
    ParameterServer,
    Strategy,
)
from atlas.planner.traffic import Site, alone, everything, ring, send, state, whole

__all__ = ["Agreement", "adjusted", "agree"]


@dataclass(frozen=True)
class Agreement:
    """Seconds, collectives and findings of the data axis, and the optimizer's step."""

    exchange: Exchange
    collectives: tuple[Collective, ...]
    optimizer: float
    findings: Callable[[Times], tuple[Finding, ...]] = lambda times: ()


def agree(strategy: Strategy, site: Site) -> Agreement:
    """How this strategy's replicas agree."""
    m = site.mesh
    optimizer = agreement.optimizer_seconds(
        site.work, m.cut, m.recipe, m.replicas, m.speed
    )
    made = _of(strategy, site, optimizer)
    return _offloaded(strategy, site, made)


def _of(strategy: Strategy, site: Site, optimizer: float) -> Agreement:
    axis = next((a for a in strategy.axes if isinstance(a, REPLICAS)), Data(1))
    compress = strategy.find(Compress)
    match axis:
        case LocalSGD(every=every) | DiLoCo(every=every):
            return _periodic(site, axis, every, optimizer)
        case Elastic():
            return _elastic(site, axis, optimizer)
        case ParameterServer():
            return _server(site, axis)
        case Gossip():
            return _gossip(site, axis, optimizer)
        case _ if compress is not None:
            found = tuple(compressed(site, compress))
            notes = doubts(site, compress)
            return Agreement(_once(found), found, optimizer, lambda times: notes)
    m = site.mesh
    seconds = agreement.exchange(site.work, m.cut, m.recipe, m.replicas, m.wires)
    name = type(axis).__name__ if axis.ranks > 1 else "Data"
    return Agreement(seconds, tuple(state(site, name)), optimizer)


def _once(found: tuple[Collective, ...]) -> Exchange:
    """An exchange that nothing hides."""
    return Exchange(reduce=sum(c.seconds for c in found), pieces=1)


def _periodic(site: Site, axis: Axis, every: int, optimizer: float) -> Agreement:
    """Weights are averaged every so many steps; counted for one step."""
    name, b = type(axis).__name__, site.mesh.recipe.weight
    own = alone(site)
    what = "weights of experts or tables"
    found = (
        *ring(site, name, "data", "all_reduce", "weights", 1, whole(site, 1) * b),
        *ring(site, name, "alone", "all_reduce", what, int(own > 0), own * b),
    )
    return _seldom(found, every, optimizer)


def _seldom(found: tuple[Collective, ...], every: int, optimizer: float) -> Agreement:
    """What happens every so many steps, as a step's share."""
    share = tuple(
        replace(
            c,
            count=c.count / every,
            payload=c.payload / every,
            wire=c.wire / every,
            seconds=c.seconds / every,
        )
        for c in found
    )
    return Agreement(_once(share), share, optimizer)


def _elastic(site: Site, axis: Elastic, optimizer: float) -> Agreement:
    """All meet at once and sum their pulls; or one by one, with the center's rank."""
    if axis.mode == "sync":
        made = _periodic(site, axis, axis.every, optimizer)
        says = f"an elastic coefficient of 2 / {axis.ranks + 1} or more diverges"
        note = (Finding("limit", "Elastic", says),)
        return replace(made, findings=lambda times: note)
    n = 2 * everything(site) * site.mesh.recipe.weight
    level = site.cluster.levels[site.mesh.groups["data"].level].name
    took = agreement.server_seconds(axis.ranks, 1, n, site.mesh.wires.data.p2p)
    what, ranks = "weights to the center, the center back", axis.ranks + 1
    met = Collective("Elastic", "p2p", what, ranks, level, 2, n, n / 2, took)
    return _seldom((met,), axis.every, optimizer)


def _gossip(site: Site, axis: Gossip, optimizer: float) -> Agreement:
    """Weights go to some neighbors in every step, however many ranks there are."""
    n = everything(site) * site.mesh.recipe.weight
    degree = min(axis.degree, axis.ranks - 1)
    found = tuple(send(site, "Gossip", "data", "weights", degree, degree * n))
    return Agreement(_once(found), found, optimizer)


def _server(site: Site, axis: ParameterServer) -> Agreement:
    """Workers push gradients and pull weights; without a barrier this hides."""
    m = site.mesh
    n = everything(site) * (m.recipe.gradient + m.recipe.weight)
    link = m.wires.data.p2p
    took = agreement.server_seconds(axis.ranks, axis.servers, n, link)
    level = site.cluster.levels[m.groups["data"].level].name
    found = Collective(
        "ParameterServer",
        "p2p",
        f"gradients to {axis.servers} servers, weights back",
        axis.ranks + axis.servers,
        level,
        2 * axis.servers,
        n,
        everything(site) * m.recipe.gradient,
        took,
    )
    pieces = 1 if axis.mode == "sync" else 2**20

    def servers(times: Times) -> tuple[Finding, ...]:
        busy = times.compute + times.memory
        needed = agreement.servers_needed(axis.ranks, n, link.beta, busy)
        says = f"{needed} servers would hide their traffic behind the workers' compute"
        kind = "bottleneck" if needed > axis.servers else "limit"
        return (Finding(kind, "ParameterServer", says),)  # type: ignore[arg-type]

    return Agreement(Exchange(reduce=took, pieces=pieces), (found,), 0.0, servers)


def _offloaded(strategy: Strategy, site: Site, made: Agreement) -> Agreement:
    how = strategy.find(Offload)
    bandwidth = site.cluster.host_bandwidth
    if how is None or bandwidth is None:
        return made
    copies = tuple(copied(site, how, bandwidth))
    says = "the optimizer step on the host is not counted"
    note = (Finding("bottleneck", "Offload", says),)
    return Agreement(
        made.exchange,
        (*made.collectives, *copies),
        sum(c.seconds for c in copies),
        lambda times: (*made.findings(times), *note),
    )


def adjusted(strategy: Strategy, site: Site, held: Bytes) -> Bytes:
    """Memory, where the way of agreeing adds to it or takes from it."""
    recipe = site.mesh.recipe
    outer = strategy.find(DiLoCo)
    if outer is not None and outer.ranks > 1:
        extra = diloco_outer_bytes(round(everything(site)), recipe.weight)
        held = held._replace(optimizer=held.optimizer + extra)
    if strategy.find(Elastic):
        center = everything(site) * recipe.weight
        held = held._replace(optimizer=held.optimizer + center)
    if strategy.find(ParameterServer):
        held = held._replace(optimizer=0.0)
    how = strategy.find(Offload)
    if how is not None:
        held = left(site, how, held)
    compress = strategy.find(Compress)
    if compress is not None and compress.kind != "factors":  # those are exact
        residual = everything(site) * recipe.gradient  # of error feedback
        held = held._replace(buffers=held.buffers + residual)
    return held
