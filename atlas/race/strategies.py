"""How each exemplar is set up for a race, and which weights one would keep of it.

A strategy is a function of this rank, the course, and `look`, which it calls with
this rank's part of the weights whenever a step or an update is done.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from atlas.bench.pair import sized
from atlas.race.courses import RANKS, TOKENS, WIDTH, Course, head, network, task, vector
from exemplars.runtime import World

Look = Callable[[int, Tensor], None]  # samples so far, this rank's weights
Extras = dict[str, Any]
Strategy = Callable[[World, Course, Look], Extras]


@dataclass(frozen=True)
class Entry:
    """A strategy in a race: whose weights are kept, and how."""

    technique: str
    run: Strategy
    kept: Literal["first", "mean", "joined"]
    variant: str = ""
    clocked: bool = False  # whether the clock decides what is computed

    @property
    def name(self) -> str:
        """As it is written on the command line."""
        return f"{self.technique}:{self.variant}" if self.variant else self.technique


@contextlib.contextmanager
def exemplar(path: str, **settings: Any) -> Iterator[Any]:
    """An exemplar with its constants set, for a while."""
    module = importlib.import_module(f"exemplars.sync_strategy.{path}")
    before = {name: getattr(module, name) for name in settings}
    sized(module, **settings)
    try:
        yield module
    finally:
        sized(module, **before)


def synchronous(w: World, course: Course, look: Look) -> Extras:
    """Bulk-synchronous SGD."""
    settings: dict[str, Any] = {"STEPS": course.steps, "BATCH": course.batch}
    settings |= {"RATE": course.rate}
    settings |= {"seconds": course.seconds, "UPDATE": 0, "BUCKET": 10**9}
    with exemplar("synchronous.bsp_synchronous_sgd", **settings) as bsp:
        model = task(course).model().to(w.device)
        for i, _ in enumerate(bsp.train(w, task(course), model)):
            look((i + 1) * course.batch, vector(model))
    return {"staleness": [0]}


def _alone(course: Course) -> dict[str, Any]:
    """What the strategies share in which every rank takes batches of its own."""
    return {
        "STEPS": course.steps,
        "BATCH": course.share,
        "RATE": course.rate,
        "seconds": course.seconds,
    }


PERIOD = 8  # steps between two meetings


def local_sgd(w: World, course: Course, look: Look) -> Extras:
    """Local SGD, meeting after every eight steps; the mean is kept."""
    with exemplar("periodic.local_sgd", **_alone(course)) as local:
        model = task(course).model().to(w.device)
        trained = local.train(w, task(course), model, PERIOD)
        for i, _ in enumerate(trained):
            look((i + 1) * course.batch, vector(model))
    return {"alone": PERIOD}


def diloco(w: World, course: Course, look: Look) -> Extras:
    """DiLoCo; the centre from which all go on is kept."""
    settings = _alone(course)
    settings["INNER_RATE"] = settings.pop("RATE")
    with exemplar("periodic.diloco", PERIOD=PERIOD, **settings) as module:
        model = task(course).model().to(w.device)
        outer = module.Outer(vector(model), module.OUTER_RATE, module.MOMENTUM)
        for i, _ in enumerate(module.train(w, task(course), model, outer)):
            look((i + 1) * course.batch, outer.start.clone())
    return {"alone": PERIOD}


def elastic(w: World, course: Course, look: Look) -> Extras:
    """Synchronous elastic averaging; the centre is kept."""
    settings = {**_alone(course), "PERIOD": PERIOD}
    with exemplar("periodic.elastic_averaging", **settings) as module:
        model = task(course).model().to(w.device)
        centre = vector(model)
        for i, _ in enumerate(module.train(w, task(course), model, centre)):
            look((i + 1) * course.batch, centre.clone())
    return {"alone": PERIOD}


def consensus(w: World, course: Course, look: Look) -> Extras:
    """D-PSGD on a ring; the mean is kept."""
    settings = {**_alone(course), "digits": task(course)}
    with exemplar("consensus.d_psgd", **settings) as module:
        model = task(course).model().to(w.device)
        steps = module.train(w, model)
        #: The exemplar sets the model to what it computed the gradient at.
        for i, _ in enumerate(steps):
            look((i + 1) * course.batch, vector(model))
    return {"staleness": [0]}


def downpour(w: World, course: Course, look: Look) -> Extras:
    """Downpour: rank 0 serves, the others work at their own speed."""
    workers, slow = RANKS - 1, 3 if course.straggler else 1
    lasts = [slow if q == 1 else 1 for q in range(1, RANKS)]
    seconds = _enough(course, lasts)
    settings = {"SECONDS": seconds, "BATCH": course.share, "RATE": course.rate}
    with exemplar("asynchronous.downpour", digits=task(course), **settings) as module:
        model = task(course).model().to(w.device)
        weights, server = vector(model), module.Server(workers, slow)
        if w.rank > 0:
            module.work(w, weights, model, slow)
            return {}
        server.run = _watched(server.run(), weights, course, look)
        module.serve(weights, server)
    return {"staleness": [age for ages in server.ages.values() for age in ages]}


def _enough(course: Course, lasts: list[int], steps: int = 1) -> int:
    """The seconds in which workers whose turns last so long take all the samples."""
    turns = -(-course.samples // (course.share * steps))
    return next(s for s in count(1) if sum(s // each for each in lasts) >= turns)


def _watched(
    events: Iterator[tuple[str, int]], weights: Tensor, course: Course, look: Look
) -> Callable[[], Iterator[tuple[str, int]]]:
    """The server's events; after each update it is looked at the weights."""

    def run() -> Iterator[tuple[str, int]]:
        taken = 0
        for what, q in events:
            yield what, q
            if what == "take":  # and, by now, applied
                taken += 1
                look(taken * course.share, weights.clone())

    return run


def bounded(w: World, course: Course, look: Look) -> Extras:
    """Stale-synchronous parallel, two clocks: rank 0 serves, the others work."""
    workers = RANKS - 1
    clocks = _enough(course, [1] * workers)
    settings: dict[str, Any] = {
        "CLOCKS": clocks,
        "BATCH": course.share,
        "RATE": course.rate,
    }
    settings |= {"STALENESS": 2, "seconds": course.seconds, "digits": task(course)}
    path = "bounded_staleness.stale_synchronous_parallel"
    with exemplar(path, **settings) as module:
        model = task(course).model().to(w.device)
        if w.rank > 0:
            module.work(w, model)
            return {}
        weights = vector(model)
        ages: list[int] = []

        class Watched(module.Server):  # type: ignore[name-defined, misc]
            def run(self) -> Iterator[tuple[str, int]]:
                version, read = 0, dict[int, int]()
                inside = _watched(super().run(), weights, course, look)
                for what, q in inside():
                    if what == "take":
                        ages.append(version - read[q])
                    yield what, q
                    if what == "take":
                        version += 1
                    else:
                        read[q] = version

        module.Server, whole = Watched, module.Server
        try:
            module.serve(w, weights)
        finally:
            module.Server = whole
    return {"staleness": ages}


def elastic_asynchronous(w: World, course: Course, look: Look) -> Extras:
    """Elastic averaging on arrival; the centre, on rank 0, is kept."""
    workers = RANKS - 1
    lasts = [round(course.seconds(q, 0)) * PERIOD for q in range(1, RANKS)]
    seconds = _enough(course, lasts, PERIOD)
    settings: dict[str, Any] = {
        "SECONDS": seconds,
        "PERIOD": PERIOD,
        "RATE": course.rate,
    }
    settings |= {"BATCH": course.share, "seconds": course.seconds}
    settings |= {"ALPHA": 0.9 / workers, "digits": task(course)}
    path = "asynchronous.elastic_averaging_asynchronous"
    with exemplar(path, **settings) as module:
        model = task(course).model().to(w.device)
        centre = vector(model)
        if w.rank > 0:
            module.work(w, centre, model)
            return {}
        meetings = module.meetings(workers)

        def watched(_: int) -> Iterator[int]:
            for i, q in enumerate(meetings):
                yield q
                look((i + 1) * PERIOD * course.share, centre.clone())

        with exemplar(path, meetings=watched):
            module.serve(w, centre)
    return {"alone": PERIOD}


# Stages: each rank has a part of the network


def _flat(name: str, h: Tensor) -> Tensor:
    return h.flatten(1) if name == "characters" else h


def _deep(name: str, h: Tensor) -> Tensor:
    return h.unflatten(1, (TOKENS, -1)) if name == "characters" else h


def _features(course: Course) -> int:
    width = WIDTH[course.task]
    return width * (TOKENS if course.task == "characters" else 1)


def stashing(w: World, course: Course, look: Look) -> Extras:
    """PipeDream: every stage steps at once, each batch keeps its version."""
    parts = [*network(course.task, course.seed).to(w.device)]
    mine: list[nn.Module] = [parts[w.rank]]
    if w.rank == RANKS - 1:
        mine.append(parts[-1])
    stage, ground = nn.Sequential(*mine), task(course)
    batches = [ground.batch(i, course.batch) for i in range(course.steps)]
    second = course.seconds(w.rank, 0)
    settings: dict[str, Any] = {"ROWS": course.batch, "WIDTH": _features(course)}
    settings |= {"RATE": course.rate, "COST": {"F": second / 3, "B": 2 * second / 3}}
    settings |= {"layer": lambda w, s: vector(stage)}
    with exemplar("pipeline_stale.weight_stashing", **settings) as module:

        class Deep(module.Stage):  # type: ignore[name-defined, misc]
            """The exemplar's stage, around any module."""

            def forward(self, i: int, x: Tensor) -> Tensor:
                x = x.detach()
                first = self.w.rank == 0
                x = x if first else x.requires_grad_()
                weights = self.newest.detach().requires_grad_()
                y = _apply(stage, weights, x if first else _deep(course.task, x))
                if self.w.rank == RANKS - 1:  # the loss ends the last stage
                    labels = batches[i][1].to(y.device)
                    y = F.cross_entropy(y.flatten(0, -2), labels.flatten())
                stash = module.Stash(self.version, weights, x, y)
                self.stashed[i] = stash
                held = {s.version for s in self.stashed.values()}
                self.most: int = max(self.most, len(held))
                return y.detach() if y.ndim == 0 else _flat(course.task, y.detach())

            def backward(self, i: int, dy: Tensor | None) -> Tensor:
                dx: Tensor = super().backward(i, dy)
                self.back.clear()  # kept for the exemplar's own check
                look((i + 1) * course.batch, self.newest.clone())
                return dx

        def derive(weights: Tensor, x: Tensor, y: Tensor, dy: Tensor | None) -> Any:
            first = not x.requires_grad
            back = None if dy is None else _deep(course.task, dy)
            found = torch.autograd.grad(y, [weights] if first else [weights, x], back)
            return (x if first else found[1]), found[0]

        with exemplar("pipeline_stale.weight_stashing", derive=derive):
            pipeline = Deep(w)
            pipeline.run([x.to(w.device) for x, _ in batches])
    return {"staleness": pipeline.ages}


def _apply(stage: nn.Module, weights: Tensor, x: Tensor) -> Tensor:
    """The stage with other weights than its own."""
    sizes = [p.numel() for p in stage.parameters()]
    names = [n for n, _ in stage.named_parameters()]
    parts = zip(names, weights.split(sizes), stage.parameters(), strict=True)
    named = {n: part.view_as(p) for n, part, p in parts}
    made: Tensor = torch.func.functional_call(stage, named, (x,))
    return made


def _local(chunks: int) -> Strategy:
    def run(w: World, course: Course, look: Look) -> Extras:
        """Local parallelism: every chunk learns from a loss of its own."""
        ground, name = task(course), course.task
        width, last = _features(course), w.rank == RANKS - 1

        class Layer(nn.Module):
            """A part of the network, with a classifier of its own."""

            def __init__(self) -> None:
                super().__init__()
                parts = [*network(name, course.seed)]
                self.part = parts[w.rank]
                self.head = parts[-1] if last else _seeded(course, w.rank)
                self.taught, self.sent_back = 0, 0

            def body(self, x: Tensor) -> Tensor:
                h: Tensor = self.part(x if w.rank == 0 else _deep(name, x))
                return _flat(name, h)

            def loss(self, h: Tensor, labels: Tensor) -> Tensor:
                logits = self.head(_deep(name, h))
                return F.cross_entropy(logits.flatten(0, -2), labels.flatten())

            def update(self) -> None:
                for p in self.parameters():
                    if p.grad is not None:
                        p.data.sub_(p.grad, alpha=course.rate)
                self.zero_grad()
                self.taught += 1
                kept = self if last else self.part
                look(self.taught * course.batch, vector(kept))

        def batch(w: World, i: int) -> tuple[Tensor, Tensor]:
            x, labels = ground.batch(i, course.batch)
            if w.rank > 0:
                x = torch.empty(course.batch, width, dtype=torch.double)
            return x.to(w.device), labels.to(w.device)

        second = course.seconds(w.rank, 0)
        settings: dict[str, Any] = {"BATCHES": course.steps, "batch": batch}
        settings |= {"FORWARD": second / 3, "BACKWARD": 2 * second / 3}
        with exemplar("layer_local.local_parallelism", **settings) as module:
            for _ in module.train(w, Layer().to(w.device), chunks):
                pass
        return {"staleness": [0], "chunks": chunks}

    return run


def _seeded(course: Course, rank: int) -> nn.Module:
    """A local classifier; its numbers come after those of the network."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 * (course.seed + 1) + rank)
        return head(course.task).double()


ENTRIES = {
    e.name: e
    for e in (
        Entry("bsp-synchronous-sgd", synchronous, "first"),
        Entry("stale-synchronous-parallel", bounded, "first", clocked=True),
        Entry("downpour", downpour, "first", clocked=True),
        Entry("local-sgd", local_sgd, "mean"),
        Entry("diloco", diloco, "first"),
        Entry("elastic-averaging", elastic, "first"),
        Entry(
            "elastic-averaging-asynchronous",
            elastic_asynchronous,
            "first",
            clocked=True,
        ),
        Entry("d-psgd", consensus, "mean"),
        Entry("weight-stashing", stashing, "joined"),
        Entry("local-parallelism", _local(1), "joined", "backprop"),
        Entry("local-parallelism", _local(2), "joined", "chunked"),
        Entry("local-parallelism", _local(RANKS), "joined", "greedy"),
    )
}
