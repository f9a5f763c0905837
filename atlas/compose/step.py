"""One training step of a rank by two techniques, and how far it is from one process."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW

from atlas.compose.exchange import Exchange, Piece, exchange, kept
from atlas.compose.mesh import SAMPLES, TOKENS, Mesh
from atlas.compose.model import IGNORED, Net, held, numbered, whole
from atlas.compose.truth import EPS, MOST, RATE, SCALE, Vector, batch, truth
from atlas.views.composition import PIPELINES, SLACK, Pair, lengths
from exemplars.parameter_distribution.compact_state.mixed_precision import (
    MixedPrecision,
)
from exemplars.parameter_distribution.memory_tiers.cpu_offload_optimizer import (
    Link,
    Offloaded,
)
from exemplars.parameter_distribution.sharded import norm_clipping_over_shards as norms
from exemplars.runtime import Schedule, World
from exemplars.sync_strategy.pipeline_flush import schedule_as_data, zero_bubble
from exemplars.sync_strategy.pipeline_flush.one_f_one_b import one_f_one_b
from exemplars.workload import Task

MICROBATCHES = 4  # of a pipeline
ACCUMULATED = 3  # of a share: uneven parts
FLUSHES = 2  # of a pipeline that accumulates


class Watched:
    """AdamW; before it steps, the norm is computed, and clipped if asked for."""

    def __init__(self, parameters: Iterable[nn.Parameter], rank: "Rank") -> None:
        self.parameters, self.rank = [*parameters], rank
        self.local = AdamW(self.parameters, lr=RATE, eps=EPS)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        self.local.zero_grad()

    def step(self) -> None:
        """Look, clip, update."""
        self.rank.see([p.grad for p in self.parameters])
        self.local.step()


class Masters(MixedPrecision):
    """The same for weights that are 16 bits already, and averaged: an optimizer."""

    def __init__(
        self, learned: Iterable[nn.Parameter], make: Any, alone: dist.ProcessGroup
    ) -> None:
        nn.Module.__init__(self)
        self.learned, self.scale, self.group = [*learned], SCALE, alone
        self.masters = [nn.Parameter(p.detach().float()) for p in self.learned]
        self.local = make(self.masters)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients in 16 bits; no others are kept."""
        for p in self.learned:
            p.grad = None


class Rank:
    """One rank's part of a step."""

    def __init__(self, w: World, pair: Pair) -> None:
        self.w, self.has = w, set(pair)
        self.mesh = Mesh(lengths(pair))
        self.half = "mixed" in self.has
        kind = {"experts": "expert" in self.has, "tied": "tied" in self.has}
        net = partial(Net, has=self.has, mesh=self.mesh)
        numbers = net(numbered(whole(half=False, **kind)))
        self.index = {
            name: p.detach().flatten().long() for name, p in numbers.named_parameters()
        }
        self.net = net(whole(half=self.half, **kind))
        self.gradients: list[tuple[Piece, Tensor]] = []
        self.norm = torch.zeros(())
        self.passes = self.stage()
        self.exchange: Exchange = exchange(
            self.net, self.has, self.mesh, self.make(), self.backwards
        )

    @property
    def backwards(self) -> int:
        """Of each parameter, before the step."""
        rounds = FLUSHES if "accumulation" in self.has else 1
        if self.has & set(PIPELINES):
            return rounds * MICROBATCHES
        return ACCUMULATED if "accumulation" in self.has else 1

    def make(self) -> Any:
        """An optimizer in an optimizer: what is innermost steps."""
        make: Any = partial(Watched, rank=self)
        if self.half:
            make = partial(Masters, make=make, alone=self.mesh.over([]))
        if "offload" in self.has:
            make = partial(Offloaded, make=make, link=Link())
        return make

    def see(self, gradients: list[Tensor | None]) -> None:
        """Keep the gradients; compute the norm, and clip."""
        parts = []
        for own, pieces in zip(gradients, self.exchange.pieces, strict=True):
            assert own is not None
            for piece in pieces:
                copies = self.exchange.copies(piece)
                parts.append(norms.Part(piece.of(own), copies))
                self.gradients.append((piece, piece.of(own).clone()))
        if "clipping" in self.has:
            self.norm = norms.clip(self.mesh, parts, MOST)  # type: ignore[arg-type]
        else:
            self.norm = norms.global_norm(self.mesh, parts)  # type: ignore[arg-type]

    def share(self) -> tuple[Tensor, Tensor, float]:
        """This rank's samples and tokens, and what a loss is multiplied by."""
        x, y = batch(weighted="weighting" in self.has)
        tokens = y.numel()
        part, parts = self.mesh.part(SAMPLES)
        mine = held(self.has, self.mesh)[self.mesh.part(TOKENS)[0]]
        x, y = (t.tensor_split(parts)[part][:, mine] for t in (x, y))
        if "weighting" in self.has:
            #: No rank has seen all targets: one integer is summed.
            count = (y != IGNORED).sum()
            dist.all_reduce(count, group=self.mesh.over([*SAMPLES, *TOKENS]))
            tokens = int(count)
        factor = self.w.size * (SCALE if self.half else 1) / tokens
        return x, y, factor

    def stage(self) -> Any:
        """This rank's part of a pipeline, or None."""
        if not self.has & set(PIPELINES):
            return None
        place, stages = self.mesh.part(["stage"])
        line: list[nn.Module] = [nn.Identity() for _ in range(stages)]
        line[place] = self.net
        task = Task("composed", lambda: nn.Sequential(*line), _none)
        kind = Stage if "1f1b" in self.has else Halves
        return kind(self.w, task, place, self.plan())

    def plan(self) -> Schedule:
        """What every stage does, in order."""
        stages = self.mesh.size["stage"]
        if "zero-bubble" in self.has:
            return zero_bubble.plan(stages, MICROBATCHES, 1)
        return Schedule.of(
            [(a.kind, a.micro, s) for a in one_f_one_b(s, stages, MICROBATCHES)]
            for s in range(stages)
        )

    def run(self) -> None:
        """Forward and backward of all micro-batches, and one update."""
        x, y, factor = self.share()
        if self.passes is None:
            count = self.backwards
            for own, labels in zip(
                x.tensor_split(count), y.tensor_split(count), strict=True
            ):
                (self.net(own, labels).sum() * factor).backward()
        else:
            rounds = self.backwards // MICROBATCHES
            for own, labels in zip(
                x.tensor_split(rounds), y.tensor_split(rounds), strict=True
            ):
                self.flush(own, labels, factor)
        self.exchange.finish()

    def flush(self, x: Tensor, y: Tensor, factor: float) -> None:
        """Once through the pipeline and back."""
        parts = (t.tensor_split(MICROBATCHES) for t in (x, y))
        micros = [*zip(*parts, strict=True)]
        self.passes.factor = factor
        place, stages = self.mesh.part(["stage"])
        line = self.mesh.group["stage"]
        at = replace(self.w, rank=place, size=stages, group=line)
        schedule_as_data.run_batch(at, {place: self.passes}, self.plan(), micros)

    def vectors(self) -> list[Vector]:
        """What is compressed by itself on any rank, in numbers of the whole."""
        mine = []
        for pieces, length in self.exchange.vectors:
            places = torch.full((length,), -1)
            at = 0
            for piece in pieces:
                start = piece.at if self.exchange.sharded else at
                own = self.index[piece.name][piece.start : piece.stop]
                places[start : start + len(own)] = own
                at += len(own)
            mine.append((places, kept(length)))
        every: list[Any] = [None] * self.w.size
        dist.all_gather_object(every, mine)
        return [vector for own in every for vector in own]

    def compare(self) -> dict[str, float]:
        """The largest differences from one process, as shares of what they may be."""
        found = self.vectors() if "compression" in self.has else []
        true = truth(self.has, self.w.size, self.mesh.size["data"], found)
        kind = torch.half if self.half else torch.double
        slack = SLACK[str(kind).removeprefix("torch.")]
        limit = slack * self.w.size * torch.finfo(kind).eps
        updated = ((self.index[n], p) for n, p in self.exchange.weights().items())
        seen = torch.zeros(len(true.weights))
        gradients = []
        for piece, gradient in self.gradients:
            places = self.index[piece.name][piece.start : piece.stop]
            seen[places] += 1
            gradients.append((places, gradient))
        dist.all_reduce(seen)
        return {
            "gradient": worst(gradients, true.gradient, true.gradient_scale) / limit,
            "norm": float((self.norm - true.norm).abs() / true.norm) / limit,
            "update": worst(updated, true.weights, true.weight_scale) / limit,
            "missing": int((seen == 0).sum()),
        }


def worst(ours: Iterable[tuple[Tensor, Tensor]], true: Tensor, scale: Tensor) -> float:
    """The largest difference, relative to the largest number of the parameter."""
    found = 0.0
    for places, own in ours:
        if len(places):
            off = (own.flatten().to(true.dtype) - true[places]).abs() / scale[places]
            found = max(found, float(off.max().nan_to_num(nan=float("inf"))))
    return found


class Passing:
    """A stage of our own network: what enters it, and what it makes."""

    factor = 1.0
    first: bool
    last: bool
    layers: nn.Sequential

    def entering(self, x: Tensor) -> Tensor:
        """The samples, or room; other stages cannot be asked, for they communicate."""
        if self.first:
            return x
        net = self.layers[0]
        assert isinstance(net, Net)
        return torch.empty(net.between(len(x)), dtype=net.dtype)

    def forward(self, x: Tensor, labels: Tensor, count: int) -> Tensor:
        """On the last stage, this micro-batch's part of the loss."""
        x.requires_grad_(not self.first)
        y: Tensor = self.layers[0](x, labels)
        return y.sum() * self.factor if self.last else y


class Stage(Passing, schedule_as_data.Stage):
    """For 1F1B."""


class Halves(Passing, zero_bubble.Halves):
    """For zero bubble."""


def _none(step: int, size: int) -> tuple[Tensor, Tensor]:
    raise NotImplementedError("a pipeline is given its samples")


def cell(w: World, pair: Pair) -> dict[str, float]:
    """Run one pair on this rank; 1 is as far off as rounding may be."""
    rank = Rank(w, pair)
    rank.run()
    return rank.compare()
