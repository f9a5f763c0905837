"""A network as layers: what each computes, keeps and passes on, for one sample."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from atlas.planner.records import Block, Work

__all__ = ["Kind", "Layer", "Model"]

Kind = Literal["cnn", "transformer", "recommender"]


@dataclass(frozen=True)
class Layer:
    """A unit of the network: a pipeline cuts between units, ZeRO gathers one at a time.

    `work` holds its numbers; the rest says what limits a cut of it.
    """

    name: str
    work: Work
    filters: int = 0  # output channels, where they can be cut
    channels: int = 0  # input channels, where they can be cut
    rows: int = 0  # parts that its maps can be cut into, by rows
    matrix: tuple[int, int] = (0, 0)  # height and width of its weight, as one matrix
    glued: bool = False  # stays with the unit after it (or, last of all, before it)
    height: int = 0  # rows of the map that it leaves; 0: no map


@dataclass(frozen=True, eq=False)  # by identity, so that stages are cut once
class Model:
    """A network, cut into units; CNNs and transformers lower to the same."""

    name: str
    kind: Kind
    layers: tuple[Layer, ...]
    tokens: int = 1  # of a sample
    heads: int = 0
    kv_heads: int = 0
    experts: int = 0  # of a layer that routes
    dense: int = 0  # first layers that do not route
    dense_ffn: int = 0  # width of their perceptron
    tables: int = 0  # of embeddings
    uniform: bool = False  # units are alike: stages have equal numbers of them
    tied: int = 0  # parameters that the last stage of a pipeline holds a copy of
    block: Block | None = None  # a transformer's dimensions
    epoch: int | None = None  # samples of the data set that it is known by
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """Parameters of the whole network."""
        return sum(
            w.weights + w.shared + w.experts + w.tables
            for w in (layer.work for layer in self.layers)
        )

    @property
    def flops(self) -> float:
        """Operations of one forward pass of one sample."""
        return sum(
            w.flops + w.serial + w.scores for w in (layer.work for layer in self.layers)
        )
