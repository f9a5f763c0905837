"""What the oracle says of one strategy: time, traffic, memory, limits, in words too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from atlas.planner.cluster import Cluster
from atlas.planner.model import Model
from atlas.planner.records import Bytes, Times
from atlas.planner.strategy import Strategy
from atlas.planner.train import Train

__all__ = ["Collective", "Finding", "Prediction"]


#: Share of a device's memory above which most runs crash: what drivers, libraries and
#: fragmentation take is not predicted.
TIGHT = 0.85


@dataclass(frozen=True)
class Collective:
    """All calls of one kind that a rank makes in one step."""

    axis: str  # the strategy's factor: "Tensor", "Data"
    op: str  # all_reduce, all_gather, reduce_scatter, all_to_all, p2p, copy
    what: str  # what it carries, in a few words
    ranks: int  # of the group
    level: str  # of the network
    count: float  # calls; a fraction where they happen every so many steps
    payload: float  # bytes handed to them
    wire: float  # bytes that this rank sends
    seconds: float  # if nothing hides them


@dataclass(frozen=True)
class Finding:
    """A limit that the strategy runs into, or what holds it back."""

    kind: Literal["limit", "bottleneck"]
    axis: str
    says: str


@dataclass(frozen=True)
class Prediction:
    """One step of training, before it is run."""

    model: Model
    strategy: Strategy
    cluster: Cluster
    train: Train
    micro_batch: int  # samples of a micro-batch on one replica
    micro_batches: int  # of a step
    seconds: float  # of a step
    low: float  # of the band that calibration gives
    high: float
    times: Times  # adds up to seconds
    collectives: tuple[Collective, ...]
    memory: Bytes  # of the fullest rank
    stages: tuple[Bytes, ...]  # of every stage of the pipeline
    capacity: float  # bytes of a device
    flops: float  # of the step, of the model alone, on all ranks
    executed: float  # of the step, what is computed again included
    fullest: float  # of the step, on the rank that computes the most
    findings: tuple[Finding, ...]
    binds: str  # what takes the most time

    @property
    def fits(self) -> bool:
        """Whether the fullest rank's bytes fit into its device."""
        return sum(self.memory) <= self.capacity

    @property
    def verdict(self) -> str:
        """Whether it fits in words: a device that is nearly full seldom runs."""
        if not self.fits:
            return "does not fit"
        return "tight" if sum(self.memory) > TIGHT * self.capacity else "fits"

    @property
    def samples_per_second(self) -> float:
        """Throughput of all ranks together."""
        return self.train.batch / self.seconds

    @property
    def mfu(self) -> float:
        """Share of the peak that the model's own operations use."""
        return self._share(self.flops)

    @property
    def hfu(self) -> float:
        """Share of the peak in use, what is computed again included."""
        return self._share(self.executed)

    def _share(self, flops: float) -> float:
        peak = self.cluster.device.flops[self.train.precision.arithmetic]
        return flops / (self.seconds * peak * self.strategy.ranks)
