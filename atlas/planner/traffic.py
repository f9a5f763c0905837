"""Every collective that a rank makes in one step: calls, payload, bytes, seconds.

Payload is what a rank hands over, as the meter counts it: of an all-gather its own
part, of the others all of it. Parts that do not divide evenly are padded to the
largest, where a library pads them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from atlas.formulas.parts import chunk
from atlas.planner import agreement, computing, rings
from atlas.planner.cluster import Cluster, Group
from atlas.planner.mesh import Mesh
from atlas.planner.model import Layer, Model
from atlas.planner.prediction import Collective
from atlas.planner.records import Recompute, ScheduleKind, Work
from atlas.planner.stages import seated, stages, works

__all__ = [
    "Site",
    "alone",
    "everything",
    "inside",
    "ring",
    "send",
    "sites_of",
    "state",
    "whole",
]

#: Of a whole of n bytes on p ranks: rounds for each p - 1, share that is payload.
ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


@dataclass(frozen=True)
class Site:
    """A stage of the pipeline, and how it is run."""

    layers: tuple[Layer, ...]
    work: Work  # what they come to
    mesh: Mesh
    cluster: Cluster
    place: int = 0
    before: int = 0  # elements that the stage before passes on


def sites_of(model: Model, made: Mesh, cluster: Cluster) -> list[Site]:
    """The stages of the pipeline, in order."""
    p = made.schedule.stages
    summed = [seated(work, made.cut.capacity) for work in works(model, p)]
    passed = [0, *(work.passed for work in summed)]
    if p > 1:  # the last passes only gradients, back
        summed[-1] = summed[-1]._replace(passed=passed[-2])
    return [
        Site(layers, work, made, cluster, place, passed[place])
        for place, (layers, work) in enumerate(
            zip(stages(model, p), summed, strict=True)
        )
    ]


def ring(
    site: Site, axis: str, wire: str, op: str, what: str, calls: float, n: float
) -> Iterator[Collective]:
    """So many calls, whose wholes are n bytes together; nothing for one rank alone."""
    group = site.mesh.groups[wire]
    p = group.ranks
    if p == 1 or calls == 0:
        return
    link = getattr(getattr(site.mesh.wires, wire), op)
    run = rings.reduce_seconds if op == "all_reduce" else rings.gather_seconds
    yield Collective(
        axis,
        op,
        what,
        p,
        site.cluster.levels[group.level].name,
        calls,
        n / p if op == "all_gather" else n,
        ROUNDS[op] * (p - 1) * n / p,
        run(p, calls, n, link),
    )


def send(
    site: Site, axis: str, wire: str, what: str, calls: float, n: float
) -> Iterator[Collective]:
    """So many messages of n bytes together."""
    group: Group = site.mesh.groups[wire]
    if group.ranks == 1 or calls == 0:
        return
    link = getattr(site.mesh.wires, wire).p2p
    level = site.cluster.levels[group.level].name
    took = rings.send_seconds(calls, n, link)
    yield Collective(axis, "p2p", what, group.ranks, level, calls, n, n, took)


def inside(site: Site) -> Iterator[Collective]:
    """What happens in every micro-batch, inside layers and between stages."""
    m = site.mesh.schedule.micros
    yield from _tensor(site, m)
    yield from _convolutions(site, m)
    yield from _spatial(site, m)
    yield from _context(site, m)
    yield from _experts(site, m)
    yield from _tables(site, m)
    yield from _stages(site, m)


def _bytes(site: Site) -> float:
    """Bytes of one element of each sample that a rank has of a micro-batch."""
    return computing.samples_of(site.mesh.cut) * site.mesh.recipe.activation


def _tensor(site: Site, m: int) -> Iterator[Collective]:
    w, cut = site.work, site.mesh.cut
    again = site.mesh.recipe.recompute == Recompute.FULL
    a = m * _bytes(site)
    if cut.tensor == 1:
        return
    if not cut.sequence:
        calls = m * (w.exits + again * w.exits + w.entries)
        n = a * (w.left + again * w.left + w.entered)
        yield from ring(site, "Tensor", "cut", "all_reduce", "activations", calls, n)
        return
    calls = m * ((2 + again) * w.entries + w.exits)
    n = a * ((2 + again) * w.entered + w.left)
    yield from ring(site, "Tensor", "cut", "all_gather", "activations", calls, n)
    calls = m * (w.entries + (1 + again) * w.exits)
    n = a * (w.entered + (1 + again) * w.left)
    yield from ring(site, "Tensor", "cut", "reduce_scatter", "activations", calls, n)


def _convolutions(site: Site, m: int) -> Iterator[Collective]:
    """Filters: gather y, sum dx. Channels: sum y, gather dx."""
    w, cut, a = site.work, site.mesh.cut, m * _bytes(site)
    for p, axis, layers, width, gathered, summed in (
        (cut.filter, "Filter", w.convolutions, w.narrow, w.y, w.x),
        (cut.channel, "Channel", w.channelled, w.thin, w.channel_x, w.channel_y),
    ):
        if p > 1:
            calls = m * layers
            n = a * p * (chunk(width, p, 0) * (gathered // width))
            yield from ring(site, axis, "cut", "all_gather", "maps", calls, n)
            n = a * summed
            yield from ring(site, axis, "cut", "all_reduce", "maps", calls, n)


def _spatial(site: Site, m: int) -> Iterator[Collective]:
    w, mesh = site.work, site.mesh
    if mesh.cut.spatial == 1:
        return
    sides = 2 if mesh.cut.spatial > 2 else 1
    n = sides * m * mesh.cut.micro / mesh.cut.context * mesh.recipe.activation * w.halo
    calls = sides * m * w.halos
    yield from send(site, "Spatial", "cut", "rows beside a border", calls, n)
    n = 2 * m * (2 * w.normed + w.norms) * mesh.recipe.activation
    yield from ring(site, "Spatial", "cut", "all_reduce", "norms", 2 * m * w.norms, n)


def _context(site: Site, m: int) -> Iterator[Collective]:
    w, cut = site.work, site.mesh.cut
    c = cut.context
    if c == 1:
        return
    a = m * cut.micro * site.mesh.recipe.activation / cut.tensor
    if cut.ring:
        calls = m * w.attentions * (2 * c - 1)
        n = a * w.pairs * (2 * (c - 1) / c + 1)
        yield from send(site, "Context", "context", "keys and values", calls, n)
    else:
        calls, n = 4 * m * w.attentions, 2 * a * (w.queries + w.pairs) / c
        what = "queries, keys, values, outputs"
        yield from ring(site, "Context", "context", "all_to_all", what, calls, n)


def _experts(site: Site, m: int) -> Iterator[Collective]:
    w, mesh = site.work, site.mesh
    part = mesh.cut.tensor if mesh.cut.sequence else 1
    times = 4 + 2 * (mesh.recipe.recompute == Recompute.FULL)
    calls = times * m * w.routes if mesh.cut.expert > 1 else 0
    n = times * m * _bytes(site) * mesh.cut.capacity * w.routed / part
    yield from ring(site, "Expert", "expert", "all_to_all", "tokens", calls, n)


def _tables(site: Site, m: int) -> Iterator[Collective]:
    w, cut = site.work, site.mesh.cut
    if cut.embedding == 1 or w.tables == 0:
        return
    n = m * (2 * _bytes(site) * w.lookups + computing.samples_of(cut) * 8 * w.indices)
    what = "indices, rows and their gradients"
    yield from ring(site, "Embedding", "expert", "all_to_all", what, 3 * m, n)


def _stages(site: Site, m: int) -> Iterator[Collective]:
    mesh, p = site.mesh, site.mesh.schedule.stages
    part = mesh.cut.tensor if mesh.cut.sequence else 1
    back, on = float(site.place > 0), float(site.place < p - 1)
    what = "activations and their gradients"
    if mesh.schedule.kind == ScheduleKind.LOCAL:  # own losses: nothing goes back
        back, what = 0.0, "activations"
    if mesh.schedule.chunks > 1:  # a ring: only the very first and last have no side
        back, on = mesh.schedule.chunks - 1 + back, mesh.schedule.chunks - 1 + on
    passed = back * (site.before or site.work.passed) + on * site.work.passed
    n = m * _bytes(site) * passed / part
    yield from send(site, "Pipeline", "pipeline", what, (back + on) * m, n)


def whole(site: Site, shard: int) -> float:
    """Elements that replicas agree on, each unit padded to a multiple of shard."""
    cut = site.mesh.cut
    # All layers are cut alike, into bundles of as many as the narrowest has.
    alike = {"narrow": site.work.narrow, "thin": site.work.thin}
    held = [agreement.held(layer.work._replace(**alike), cut) for layer in site.layers]
    return sum(agreement.padded(n, 1, shard) for n in held)


def alone(site: Site) -> float:
    """Elements of experts and tables: those that hold the same ones agree on them."""
    return agreement.held_alone(site.work, site.mesh.cut)


def everything(site: Site) -> float:
    """Elements that a rank holds whole, whoever agrees on them."""
    return whole(site, 1) + alone(site)


def state(site: Site, axis: str) -> Iterator[Collective]:
    """What replicas exchange to agree: gradients, and weights if they are sharded."""
    recipe, replicas = site.mesh.recipe, site.mesh.replicas
    stage, m = replicas.stage, site.mesh.schedule.micros
    shard = replicas.shard if stage > 1 else 1
    n = whole(site, shard)
    if stage == 1:
        n = agreement.padded(n, 1, replicas.shard)
    units = (
        agreement.buckets(n, recipe)
        if stage < 2
        else sum(agreement.held(layer.work, site.mesh.cut) > 0 for layer in site.layers)
    )
    gathers = {0: 0, 1: 1, 2: 1, 3: 2 * m}[stage]
    scatters = {0: 0, 1: 1, 2: m, 3: m}[stage]
    for times, op, what, width in (
        (gathers, "all_gather", "weights", recipe.weight),
        (scatters, "reduce_scatter", "gradients", recipe.gradient),
    ):
        yield from ring(site, axis, "shard", op, what, times * units, times * n * width)
    if stage == 0:
        part = n * recipe.gradient
        yield from ring(site, axis, "data", "all_reduce", "gradients", units, part)
    else:
        part = n / replicas.shard * recipe.gradient
        what = "gradients, between copies"
        yield from ring(site, axis, "copies", "all_reduce", what, units, part)
    yield from _alone(site, axis, gathers, scatters)


def _alone(site: Site, axis: str, gathers: int, scatters: int) -> Iterator[Collective]:
    """The same of experts and tables, among those that hold the same ones."""
    recipe = site.mesh.recipe
    n = alone(site)
    if n == 0:
        return
    sparse = site.mesh.replicas.stage > 1
    units = site.work.layers if sparse else agreement.buckets(n, recipe)
    if site.mesh.replicas.stage == 0:
        args = ("all_reduce", "gradients of experts or tables", units)
        yield from ring(site, axis, "alone", *args, n * recipe.gradient)
        return
    for times, op, what, width in (
        (gathers, "all_gather", "weights of experts or tables", recipe.weight),
        (scatters, "reduce_scatter", "gradients of the same", recipe.gradient),
    ):
        yield from ring(site, axis, "alone", op, what, times * units, times * n * width)
