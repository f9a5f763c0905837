"""The stages of a pipeline: which layers each has, and what they come to."""

from functools import lru_cache, reduce

from atlas.planner.errors import OracleError
from atlas.planner.joining import joined
from atlas.planner.model import Layer, Model
from atlas.planner.records import Work

__all__ = ["heaviness", "seated", "stages", "total", "units", "works"]


def total(layers: tuple[Layer, ...]) -> Work:
    """The layers' numbers, one after the other."""
    return reduce(joined, (layer.work for layer in layers))


def seated(work: Work, capacity: float) -> Work:
    """The work when experts have so many seats for each token: all are computed."""
    if work.routes == 0 or capacity == 1:
        return work
    more = capacity - 1
    return work._replace(
        flops=work.flops + more * work.seat_flops,
        moved_cut=work.moved_cut + round(more * work.seat_moved),
        kept=work.kept + round(more * work.seat_kept),
        kept_cut=work.kept_cut + round(more * work.seat_kept_cut),
        working_cut=max(work.working_cut, round(capacity * work.seat_working)),
    )


def heaviness(work: Work) -> float:
    """What the time of a stage goes by: its operations."""
    return work.flops + work.serial + work.scores


def units(model: Model) -> int:
    """Stages at most: units that stand alone."""
    return sum(not layer.glued for layer in model.layers)


@lru_cache(maxsize=256)
def works(model: Model, p: int) -> tuple[Work, ...]:
    """What each of p stages comes to."""
    return tuple(map(total, stages(model, p)))


@lru_cache(maxsize=256)
def stages(model: Model, p: int) -> tuple[tuple[Layer, ...], ...]:
    """The layers of each of p stages, in order."""
    if p > units(model):
        raise OracleError(
            f"Pipeline({p}) for {units(model)} layers of {model.name}: expected fewer"
        )
    if p == 1:
        return (model.layers,)
    free = [layer for layer in model.layers if not layer.glued]
    sizes = _equal(len(free), p) if model.uniform else _balanced(free, p)
    return _glue(model, sizes)


def _equal(n: int, p: int) -> list[int]:
    """Numbers of units, the first stages having one more where p does not divide n."""
    return [-(-(n - i) // p) for i in range(p)]


def _balanced(free: list[Layer], p: int) -> list[int]:
    """Numbers of units, so that the heaviest stage is as light as can be."""
    costs = [heaviness(layer.work) for layer in free]
    low, high = max(costs), sum(costs)
    for _ in range(60):  # halves the interval until nothing is left of it
        middle = (low + high) / 2
        if len(_filled(costs, middle, p)) <= p:
            high = middle
        else:
            low = middle
    return _filled(costs, high, p)


def _filled(costs: list[float], most: float, p: int) -> list[int]:
    """Numbers of units when each stage takes what fits; none is left empty."""
    sizes: list[int] = []
    held = 0.0
    for i, cost in enumerate(costs):
        must = len(costs) - i <= p - len(sizes)  # one each for the stages to come
        if not sizes or held + cost > most or must:
            sizes.append(0)
            held = 0.0
        sizes[-1] += 1
        held += cost
    return sizes


def _glue(model: Model, sizes: list[int]) -> tuple[tuple[Layer, ...], ...]:
    """The stages, each glued layer with the unit after it, the last before it."""
    made: list[list[Layer]] = [[]]
    wanted = list(sizes)
    taken = 0
    for layer in model.layers:
        if not layer.glued and taken == wanted[len(made) - 1]:
            made.append([])
            taken = 0
        made[-1].append(layer)
        taken += not layer.glued
    if model.tied:
        copy = Layer("tied copy", Work(weights=model.tied), glued=True)
        made[-1].insert(0, copy)
    return tuple(map(tuple, made))
