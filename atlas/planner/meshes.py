"""The meshes that so many devices can form, for one model."""

from collections.abc import Iterator, Sequence
from itertools import product

from atlas.planner.model import Model
from atlas.planner.rules import divisors, limit
from atlas.planner.strategy import (
    Axis,
    Channel,
    Context,
    Data,
    Embedding,
    Expert,
    Filter,
    Pipeline,
    Spatial,
    Strategy,
    Tensor,
)

__all__ = ["meshes"]

#: Tokens from which on sequences are cut: Llama 3 does so above 8192 (Llama Team
#: 2024, section 3.3.2); below, one device holds a sequence.
LONG = 8193
Factors = Sequence[Axis]


def meshes(model: Model, gpus: int, node: int) -> Iterator[Strategy]:
    """Every mesh, replicas as Data; innermost what talks most."""
    for inner in _inner(model, gpus):
        rest = gpus // Strategy(tuple(inner)).ranks
        for p in divisors(rest):
            if p > _most(model, Pipeline):
                break
            yield from _outer(rest // p, p, tuple(inner), node)


def _outer(d: int, p: int, inner: tuple[Axis, ...], node: int) -> Iterator[Strategy]:
    """Data outside or inside the pipeline, where that makes a difference."""
    stages = (Pipeline(p),) if p > 1 else ()
    yield Strategy((*stages, Data(d), *inner))
    if d > 1 and p > 1 and Strategy(inner).ranks < node:
        yield Strategy((Data(d), *stages, *inner))


def _inner(model: Model, gpus: int) -> Iterator[Factors]:
    """The axes that cut a sample or a layer, one of each kind at most."""
    if model.kind == "cnn":
        yield []
        for kind in (Filter, Channel, Spatial):
            for n in _lengths(gpus, _most(model, kind)):
                yield [kind(n)]
        return
    if model.kind == "recommender":
        for n in (1, *_lengths(gpus, _most(model, Embedding))):
            yield [Embedding(n)] if n > 1 else []
        return
    choices = (_experts(model, gpus), _contexts(model, gpus), _tensors(model, gpus))
    for chosen in product(*choices):
        axes = [axis for axis in chosen if axis is not None]
        if gpus % Strategy(tuple(axes)).ranks == 0:
            yield axes


def _experts(model: Model, gpus: int) -> list[Expert | None]:
    legal = [n for n in _lengths(gpus, _most(model, Expert)) if model.experts % n == 0]
    return [None, *map(Expert, legal)]


def _contexts(model: Model, gpus: int) -> list[Context | None]:
    found: list[Context | None] = [None]
    if model.tokens < LONG:
        return found
    for n in _lengths(gpus, gpus):
        if model.tokens % n == 0:
            found.append(Context(n))
            if model.kv_heads % n == 0:
                found.append(Context(n, "ulysses"))
    return found


def _tensors(model: Model, gpus: int) -> list[Tensor | None]:
    legal = [
        n
        for n in _lengths(gpus, _most(model, Tensor))
        if model.heads % n == 0 and model.kv_heads % n == 0
    ]
    return [None, *(Tensor(n, sp) for n in legal for sp in (False, True))]


def _lengths(gpus: int, most: int) -> list[int]:
    return [n for n in divisors(gpus) if 1 < n <= most]


def _most(model: Model, kind: type[Axis]) -> int:
    found = limit(model, kind)
    assert found is not None
    return found[0]
