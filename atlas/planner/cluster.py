"""A cluster: a device, the levels of its network, and which level an axis uses.

Ranks are numbered so that those of one node are neighbors. A group of ranks uses
the innermost level that holds all of it; where several groups leave a node at once
they share its rails (network cards) equally.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from atlas.planner import placing
from atlas.planner.errors import OracleError, nearest
from atlas.planner.records import Link, Speed

__all__ = ["Band", "Cluster", "Device", "Group", "Level", "Link"]

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p", "broadcast")


@dataclass(frozen=True)
class Device:
    """One accelerator. Its efficiency for a product of f flops: top f / (f + half)."""

    name: str
    flops: Mapping[str, float]  # peak a second, by arithmetic: "bf16", "fp32"
    memory: float  # bytes
    bandwidth: float  # bytes a second
    top: float = 1.0
    half: float = 0.0  # flops
    attention: float | None = None  # share of the 16-bit peak, of flash attention
    streamed: float = 1.0  # share of bandwidth that element-wise work reaches
    contention: float = 0.0  # of a hidden exchange's seconds, added to computing
    host: float = 0.0  # seconds of the host for a product and what goes with it
    overhead: float = 0.0  # seconds of a kernel
    step: float = 0.0  # seconds of a step
    reserved: float = 0.0  # bytes of memory that drivers and libraries take
    tops: Mapping[str, float] = field(default_factory=dict)
    """The share `top` of other arithmetic than most: by its name."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Seconds for a sample, forward and backward, by model: used instead of flops."""

    def speed(self, arithmetic: str) -> Speed:
        """The device in numbers."""
        if arithmetic not in self.flops:
            raise OracleError(
                f'{self.name} has no "{arithmetic}": expected '
                + nearest(arithmetic, self.flops)
            )
        plain = self.flops.get("bf16", self.flops[arithmetic])
        return Speed(
            peak=self.flops[arithmetic],
            top=self.tops.get(arithmetic, self.top),
            half=self.half,
            bandwidth=self.bandwidth * self.streamed,
            attention=plain * self.attention if self.attention is not None else 0.0,
            overhead=self.overhead,
            host=self.host,
            step=self.step,
        )


@dataclass(frozen=True)
class Level:
    """A level of the network: all ranks within `size` of one another."""

    name: str
    size: int  # ranks that it connects
    links: Mapping[str, Link]  # by collective; "any" for the rest
    rails: int = 1  # links by which a unit of the level below leaves it
    crossing: float = 0.0  # seconds more of a round that leaves such a unit
    decay: float = 0.0  # power of the units by which bandwidth falls

    def link(self, op: str) -> Link:
        """What a collective costs here, for a group that has a rail to itself."""
        found = self.links.get(op) or self.links.get("any")
        if found is None:
            raise OracleError(f'level "{self.name}" has no link for {op}')
        return found


@dataclass(frozen=True)
class Band:
    """How far measurements lay from predictions, as factors of the prediction."""

    low: float = 1.0
    high: float = 1.0
    of: str = "not calibrated"

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise OracleError(
                f"band {self.low} to {self.high}: expected 0 < low <= high"
            )


@dataclass(frozen=True)
class Group:
    """Where the ranks of a group are."""

    ranks: int
    level: int  # of the cluster's levels, 0 innermost
    inside: int  # ranks of the group in one unit of the level below


@dataclass(frozen=True)
class Cluster:
    """Many devices and what connects them, innermost level first."""

    name: str
    device: Device
    levels: tuple[Level, ...]
    price: float | None = None  # of a device for an hour
    currency: str = "USD"
    host_bandwidth: float | None = None  # bytes a second to the host's memory
    host_memory: float | None = None  # bytes for each device
    band: Band = Band()
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Ranks at most."""
        return self.levels[-1].size

    @property
    def room(self) -> float:
        """Bytes of a device that a program has to itself."""
        return self.device.memory - self.device.reserved

    def group(self, axes: Iterable[tuple[int, int]]) -> Group:
        """The group that axes, each (stride, length), span together."""
        pairs = list(axes)
        ranks = math.prod(length for _, length in pairs)
        span = 1 + sum(placing.reach(stride, length) for stride, length in pairs)
        level = next((i for i, lv in enumerate(self.levels) if span <= lv.size), None)
        if level is None:
            raise OracleError(
                f"{span} ranks on {self.name}: expected at most {self.size}"
            )
        unit = self.levels[level - 1].size if level else 1
        inside = math.prod(placing.inside_unit(unit, *pair) for pair in pairs)
        return Group(ranks, level, min(inside, unit))

    def link(self, group: Group, op: str) -> Link:
        """What a collective of the group costs, rails shared with the groups beside."""
        own = self.levels[group.level].link(op)
        if group.level == 0 or group.ranks == 1:
            return own
        below = self.levels[group.level - 1]
        fastest = below.link(op).beta if group.inside > 1 else 0.0
        rails, message = self.levels[group.level].rails, op == "p2p"
        beta = placing.shared_beta(
            own.beta, rails, group.inside, below.size, fastest, message
        )
        level, units = self.levels[group.level], group.ranks // group.inside
        alpha = placing.ring_alpha(own.alpha, level.crossing, group.ranks, units)
        slower = placing.slower(units, level.decay)
        return Link(alpha, beta * (1.0 if message else slower), own.launch)
