"""What becomes of the gradients of a rank: summed, sharded, compressed, applied.

Dense weights are copied along every axis on which samples and tokens lie, experts along
all of these but their own. So every parameter has a home: the group over which its
gradient is summed, and over which ZeRO cuts it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from atlas.compose.mesh import TOKENS, Mesh
from atlas.compose.model import Net
from exemplars.communication_pattern.sparsification.top_k_error_feedback import (
    TopK,
    sum_of_all,
)
from exemplars.parameter_distribution.inter_layer import tied_embedding_over_stages
from exemplars.parameter_distribution.replicated.ddp_by_hand import DataParallel
from exemplars.parameter_distribution.sharded import zero_1, zero_2, zero_3

BUCKET = 1500  # elements of one all-reduce
KEPT = 4  # of so many entries, compression sends one

Make = Callable[[list[nn.Parameter]], Any]


@dataclass(frozen=True)
class Piece:
    """Elements of a parameter, and where they lie in what the optimizer has."""

    name: str
    start: int
    stop: int
    at: int = 0

    def of(self, flat: Tensor) -> Tensor:
        """Its elements, as a view."""
        return flat.view(-1)[self.at : self.at + self.stop - self.start]


class Replicated:
    """A shard with copies: what is left of a gradient is summed over them."""

    replicas: dist.ProcessGroup | None = None
    compress = False
    shard: nn.Parameter

    def scatter(self) -> Tensor:
        """The mean of this rank's shard, over the shards' ranks and the copies'."""
        mine: Tensor = super().scatter()  # type: ignore[misc]
        if self.replicas is None:
            return mine
        if self.compress:
            return shrunk(mine, self.replicas)
        dist.all_reduce(mine, group=self.replicas)
        return mine


class Flat(Replicated, zero_1.Flat):
    """Of ZeRO-1."""


class Unit(Replicated, zero_2.Unit):
    """Of ZeRO-2."""


class WholeUnit(Replicated, zero_3.Unit):
    """Of ZeRO-3."""


Cut = Callable[[type[Any], list[nn.Parameter]], list[Any]]


class One(zero_1.Zero1):
    """ZeRO-1, with shards over the homes."""

    def __init__(self, learned: list[nn.Parameter], make: Make, cut: Cut) -> None:
        self.learned, self.flats = learned, cut(Flat, learned)
        self.local = make([each.shard for each in self.flats])


class Two(zero_2.Zero2):
    """ZeRO-2, with shards over the homes."""

    def __init__(self, net: Net, make: Make, cut: Cut) -> None:
        self.by = cut
        super().__init__(net, make)

    def cut(self, own: list[nn.Parameter]) -> list[zero_2.Unit]:
        """A unit for each home."""
        return self.by(Unit, own)


class Three(zero_3.Zero3):
    """ZeRO-3, with shards over the homes."""

    def __init__(self, net: Net, cut: Cut) -> None:
        self.by = cut
        super().__init__(net)

    def cut(self, own: list[nn.Parameter]) -> list[zero_3.Unit]:
        """A unit for each home."""
        return self.by(WholeUnit, own)


def among(ranks: dist.ProcessGroup) -> type[DataParallel]:
    """Data parallelism of fewer ranks than all."""

    class Own(DataParallel):
        group = ranks

    return Own


def shrunk(mine: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of what all of the group send of their vectors."""
    top = TopK(mine, kept=kept(len(mine)))
    return sum_of_all(*top.compress(mine), len(mine), group)


def kept(elements: int) -> int:
    """How many of them are sent."""
    return max(1, elements // KEPT)


class Exchange:
    """From the gradients that backward leaves to the optimizer's step."""

    def __init__(self, net: Net, has: set[str], mesh: Mesh) -> None:
        self.net, self.has, self.mesh = net, has, mesh
        self.kinds = net.kinds()
        self.names = {p: name for name, p in net.named_parameters()}
        summed = [a for a in mesh.long if a in ("shard", "expert", *TOKENS)]
        self.inner = summed
        #: By the optimizer's parameters, what each consists of.
        self.pieces: list[list[Piece]] = []
        #: What is compressed by itself, as pieces, and its length.
        self.vectors: list[tuple[list[Piece], int]] = []
        self.optimizer: Any = None

    def home(self, p: nn.Parameter, axes: Iterable[str]) -> dist.ProcessGroup:
        """The ranks that hold copies of a parameter along these axes."""
        own = "expert" if p in self.kinds.experts else ""
        return self.mesh.over(a for a in axes if a != own)

    def at_home(
        self, parameters: Iterable[nn.Parameter], axes: Sequence[str]
    ) -> Iterator[tuple[list[nn.Parameter], dist.ProcessGroup]]:
        """The parameters by their homes."""
        found: dict[dist.ProcessGroup, list[nn.Parameter]] = {}
        for p in parameters:
            found.setdefault(self.home(p, axes), []).append(p)
        for group, own in found.items():
            yield own, group

    def copies(self, piece: Piece) -> frozenset[str]:
        """The axes along which others have the same elements."""
        p = next(p for p, name in self.names.items() if name == piece.name)
        cut = {"stage"} if p is not self.net.tied else set[str]()
        cut |= {"tensor"} if p in self.kinds.cut else set[str]()
        cut |= {"expert"} if p in self.kinds.experts else set[str]()
        cut |= set(self.sharded)
        return frozenset(self.mesh.long) - cut

    @property
    def sharded(self) -> list[str]:
        """The axes along which the optimizer's parameters are cut."""
        return []

    def complete(self) -> None:
        """Add up what only some ranks have seen: tokens of others, other stages."""
        for name, view in self.views():
            p = next(p for p, own in self.names.items() if own == name)
            if self.net.sequence is not None and p not in self.kinds.cut:
                dist.all_reduce(view, group=self.net.sequence)
            if p is self.net.tied:
                line = self.mesh.group["stage"]
                far = self.mesh.size["stage"] - 1 if self.net.first else 0
                held: Any = SimpleNamespace(
                    e=SimpleNamespace(grad=view), other=dist.get_global_rank(line, far)
                )
                tied_embedding_over_stages.add(held)

    def views(self) -> list[tuple[str, Tensor]]:
        """The gradients as they now are, by name."""
        every = ((name, p.grad) for p, name in self.names.items())
        return [(name, grad) for name, grad in every if grad is not None]

    def finish(self) -> None:
        """What is left to do between the last backward and the step."""
        self.complete()
        self.optimizer.step()

    def weights(self) -> dict[str, Tensor]:
        """This rank's part of the model after the step, by name."""
        return {name: p.detach() for p, name in self.names.items()}


class Data(Exchange):
    """Copies of the weights on all ranks of a home."""

    def __init__(
        self, net: Net, has: set[str], mesh: Mesh, make: Make, backwards: int
    ) -> None:
        super().__init__(net, has, mesh)
        parameters = [*self.names]
        self.pieces = [[Piece(n, 0, p.numel())] for p, n in self.names.items()]
        self.optimizer = make(parameters)
        self.axes = [a for a in mesh.long if a == "data" or a in self.inner]
        #: A bucket leaves as soon as backward has filled it. But zero bubble has a
        #: backward for every layer, and compression needs the sum first.
        self.late = bool(has & {"zero-bubble", "compression"})
        if not self.late:
            for own, group in self.at_home(parameters, self.axes):
                among(group)(
                    nn.ParameterList(own), bucket=BUCKET, microbatches=backwards
                )
        if "compression" in has:
            self.vectors = [
                ([Piece(self.names[p], 0, p.numel()) for p in own], sum(map(size, own)))
                for own, _ in self.alike()
            ]

    def finish(self) -> None:
        """Sum, compress, step."""
        if self.late:
            compress = "compression" in self.has
            axes = self.inner if compress else self.axes
            for own, group in self.at_home(self.names, axes):
                vector = zero_1.packed([zero_1.gradient(p) for p in own], group)
                dist.all_reduce(vector, group=group)
                put(vector / dist.get_world_size(), own)
        self.complete()
        if "compression" in self.has:
            for own, group in self.alike():
                vector = flat([zero_1.gradient(p) for p in own])
                put(shrunk(vector, group), own)
        self.optimizer.step()

    def alike(self) -> Iterator[tuple[list[nn.Parameter], dist.ProcessGroup]]:
        """Vectors to compress: what is copied and what is cut go apart.

        Copies along another axis must stay equal, so the entries that are sent of them
        may depend on nothing that is cut there.
        """
        found: dict[tuple[bool, bool, bool], list[nn.Parameter]] = {}
        for p in self.names:
            cut, experts = p in self.kinds.cut, p in self.kinds.experts
            found.setdefault((cut, experts, p is self.net.tied), []).append(p)
        for own in found.values():
            yield own, self.mesh.over(["data"])


class Zero(Exchange):
    """Shards over the homes, by one of the three stages."""

    def __init__(
        self, net: Net, has: set[str], mesh: Mesh, make: Make, backwards: int
    ) -> None:
        super().__init__(net, has, mesh)
        learned = [*self.names]
        asked = (n for n in (1, 2) if f"zero-{n}" in has)
        self.stage = next(asked, 3)
        self.model: Three | None = None
        if self.stage == 1:
            self.optimizer = One(learned, make, self.cut)
            self.flats: Sequence[zero_1.Flat] = self.optimizer.flats
        elif self.stage == 2:
            self.optimizer = Two(net, make, self.cut)
            self.flats = self.optimizer.units
        else:
            self.model = Three(net, self.cut)
            self.flats = self.model.units
            self.optimizer = make([*self.model.shards])
        self.pieces = [[*self.overlaps(each)] for each in self.flats]
        if "compression" in has:
            lengths = [len(each.shard) for each in self.flats]
            self.vectors = [*zip(self.pieces, lengths, strict=True)]

    def cut(self, kind: type[Any], parameters: list[nn.Parameter]) -> list[Any]:
        """A vector for each home, in shards over it, with copies along data."""
        found = []
        for own, group in self.at_home(parameters, self.inner):
            made = kind(own, group)
            if self.mesh.size["data"] > 1:
                made.replicas = self.mesh.over(["data"])
                made.compress = "compression" in self.has
            found.append(made)
        return found

    def overlaps(self, each: zero_1.Flat) -> Iterator[Piece]:
        """What of each parameter lies in this rank's shard."""
        length = len(each.shard)
        first, offset = dist.get_rank(each.group) * length, 0
        for p in each.parameters:
            start = min(max(first - offset, 0), p.numel())
            stop = min(max(first + length - offset, 0), p.numel())
            if start < stop:
                at = offset + start - first
                yield Piece(self.names[p], start, stop, at)
            offset += p.numel()

    @property
    def sharded(self) -> list[str]:
        """All axes over which gradients are summed, but that of the copies."""
        return self.inner

    def views(self) -> list[tuple[str, Tensor]]:
        """From stage 2 on, backward leaves shards."""
        if self.stage == 1:
            return super().views()
        return [
            (piece.name, piece.of(zero_1.gradient(each.shard)))
            for each, pieces in zip(self.flats, self.pieces, strict=True)
            for piece in pieces
        ]

    def weights(self) -> dict[str, Tensor]:
        """Gathered once more, where they are not whole."""
        return super().weights() if self.model is None else self.model.whole()


def exchange(
    net: Net, has: set[str], mesh: Mesh, make: Make, backwards: int
) -> Exchange:
    """By what the techniques ask for."""
    kind = Zero if "shard" in mesh.long else Data
    return kind(net, has, mesh, make, backwards)


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """As one vector, without padding."""
    return nn.utils.parameters_to_vector(tensors)


def put(vector: Tensor, own: Sequence[nn.Parameter]) -> None:
    """The parts of a vector as gradients; what is left over is padding."""
    used = vector[: sum(map(size, own))]
    for p, part in zip(own, used.split([*map(size, own)]), strict=True):
        p.grad = part.view_as(p).clone()


def size(p: nn.Parameter) -> int:
    """Its elements."""
    return p.numel()
