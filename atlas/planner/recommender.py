"""A recommendation model as layers: tables, and perceptrons below and above."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from atlas.planner.model import Layer, Model
from atlas.planner.records import Work

__all__ = ["recommender"]


def recommender(
    name: str,
    *,
    tables: int,
    rows: int,
    width: int,
    dense: int,
    bottom: Sequence[int],
    top: Sequence[int],
    sources: Mapping[str, str] | None = None,
) -> Model:
    """DLRM: one row of each table a sample, all pairs of vectors multiplied.

    Source: Naumov et al. 2019, section 2.
    """
    vectors = tables + 1
    pairs = vectors * (vectors - 1) // 2
    sparse = Work(
        tables=tables * rows * width,
        largest=rows * width,
        moved=2 * tables * width,
        kept=tables * width,
        passed=tables * width,
        lookups=tables * width,
        indices=tables,
    )
    dot = Work(
        layers=1,
        kernels=1,
        serial=2.0 * vectors * vectors * width,
        kept=vectors * width,
        inputs=vectors * width,
        passed=pairs + width,
    )
    layers = [
        Layer("tables", sparse, glued=True),
        *_perceptron("bottom", [dense, *bottom]),
        Layer("interaction", dot),
        *_perceptron("top", [pairs + width, *top]),
    ]
    return Model(
        name, "recommender", tuple(layers), tables=tables, sources=sources or {}
    )


def _perceptron(name: str, sizes: Sequence[int]) -> list[Layer]:
    return [
        Layer(f"{name} {i}", _linear(a, b), matrix=(b, a))
        for i, (a, b) in enumerate(pairwise(sizes))
    ]


def _linear(a: int, b: int) -> Work:
    return Work(
        layers=1,
        shared=a * b + b,
        largest=a * b + b,
        kernels=1,
        serial=2.0 * a * b,
        moved=2 * b,
        kept=a,
        working=a + b,
        inputs=a,
        passed=b,
    )
