"""State in the host's memory: what crosses to the device, and what it still holds."""

from collections.abc import Iterator

from atlas.planner import agreement, computing
from atlas.planner.prediction import Collective
from atlas.planner.records import Bytes
from atlas.planner.strategy import Offload
from atlas.planner.traffic import Site, alone, whole

__all__ = ["copied", "left"]


def copied(site: Site, how: Offload, bandwidth: float) -> Iterator[Collective]:
    """Gradients that a step copies down, and weights up."""
    m = site.mesh
    micros, own = m.schedule.micros, _own(site)
    units = _units(site)
    last = units[-1] / _shard(site) if units else 0.0
    turns = micros * len(units)
    #: Elements and copies. One by one, the last layer is there when backward begins.
    (down, downs), (up, ups) = {
        "optimizer": ((own, 1), (own, 1)),
        "parameters": ((own, 1), (2 * micros * own, 2 * turns)),
        "layers": (
            (micros * own, turns),
            (micros * (2 * own - last), 2 * turns - micros),
        ),
    }[how.what]
    for what, calls, n in (
        ("gradients down", downs, down * m.recipe.gradient),
        ("weights up", ups, up * m.recipe.weight),
    ):
        took = n / bandwidth
        yield Collective("Offload", "copy", what, 1, "host", calls, n, n, took)


def left(site: Site, how: Offload, held: Bytes) -> Bytes:
    """What stays on the device, and the room that copies need there."""
    recipe = site.mesh.recipe
    if how.what == "layers":
        largest = max(_units(site), default=0.0)
        gathered = 2 if recipe.overlap else 1
        room = largest * (gathered * recipe.weight + recipe.gradient)
        return held._replace(
            parameters=0.0, gradients=0.0, optimizer=0.0, buffers=held.buffers + room
        )
    landing = _own(site) * recipe.gradient
    held = held._replace(optimizer=0.0, buffers=held.buffers + landing)
    if how.what == "parameters":
        largest = site.work.largest * computing.cut_part(site.work, site.mesh.cut)
        unit = 2 * largest * recipe.weight
        held = held._replace(parameters=0.0, buffers=held.buffers + unit)
    return held


def _own(site: Site) -> float:
    """Elements that are this rank's to step."""
    replicas = site.mesh.replicas
    sharers = agreement.alone_shard(replicas) if replicas.stage > 0 else 1
    return whole(site, _shard(site)) / _shard(site) + alone(site) / sharers


def _units(site: Site) -> list[float]:
    """Elements of each layer that has any, on one rank."""
    cut = site.mesh.cut
    every = [
        agreement.held(layer.work, cut) + agreement.held_alone(layer.work, cut)
        for layer in site.layers
    ]
    return [n for n in every if n > 0]


def _shard(site: Site) -> int:
    replicas = site.mesh.replicas
    return replicas.shard if replicas.stage > 0 else 1
