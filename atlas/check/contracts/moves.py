"""Contracts of what hands things on: a pipeline, a parameter server, a checkpoint."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from atlas.check.contracts.base import Broken, Case, Contract, Options, close

if TYPE_CHECKING:
    from exemplars.runtime import World

WIDTH, EACH, RATE = 5, 2, 0.1
#: Roundings for a few sums of a few hundred terms in another order.
LOOSE = 400

# Pipelines


def layers_of(w: "World") -> nn.Sequential:
    """One layer for each rank, the same on every rank."""
    torch.manual_seed(0)
    made = [nn.Linear(WIDTH, WIDTH, dtype=torch.double) for _ in range(w.size)]
    return nn.Sequential(*(nn.Sequential(x, nn.Tanh()) for x in made)).to(w.device)


def pipeline(
    w: "World", part: Any, options: Options, *, microbatches: int, steps: int = 1
) -> None:
    """Each layer's gradient, on the rank that has it."""
    whole, layers = layers_of(w), layers_of(w)
    made = part(layers, microbatches, F.mse_loss, **options)
    run = made.step if hasattr(made, "step") else made
    for step in range(steps):
        x, y = (
            w.randn(EACH * microbatches, WIDTH, seed=10 * step + i).to(w.device)
            for i in (1, 2)
        )
        layers.zero_grad()
        whole.zero_grad()
        run(x, y)
        F.mse_loss(whole(x), y).backward()
    held = torch.zeros(w.size, device=w.device)
    for i, (mine, of) in enumerate(zip(layers, whole, strict=True)):
        grads = [p.grad for p in mine.parameters()]
        if any(g is None for g in grads):
            continue
        held[i] = 1
        for (name, p), q in zip(mine.named_parameters(), of.parameters(), strict=True):
            assert p.grad is not None
            assert q.grad is not None
            close(f"layer {i}, the gradient of {name}", p.grad, q.grad, LOOSE)
    dist.all_reduce(held)
    for i, count in enumerate(held.tolist()):
        if not count:
            raise Broken(f"layer {i} has a gradient on no rank")


def _of_pipelines() -> Iterator[Case]:
    def most(p: int) -> int:
        """Twice every boundary, forward and back, and a little for shapes."""
        return 4 * (p - 1) * EACH * 4 * WIDTH * 8 + 8192 * p

    def least(p: int) -> int:
        return 2 * (p - 1) * EACH * 4 * WIDTH * 8

    yield Case("4 micro-batches", partial(pipeline, microbatches=4), False, most, least)
    yield Case("7 micro-batches", partial(pipeline, microbatches=7))
    yield Case("two batches", partial(pipeline, microbatches=4, steps=2))
    yield Case("1 micro-batch", partial(pipeline, microbatches=1), optional=True)


# Parameter servers


def parameter_server(
    w: "World", part: Any, options: Options, *, elements: int, rounds: int
) -> None:
    """Whatever the order, all gradients are in the weights, each of them once.

    The gradients do not depend on the weights, so a server that waits for nobody must
    end with the same weights as one that waits for all.
    """
    weights = w.randn(elements, seed=0).to(w.device)
    server = part(weights.clone(), RATE, **options)
    serves = hasattr(server, "serve")
    workers = range(1 if serves else 0, w.size)
    if serves and w.rank == 0:
        server.serve()
    else:
        for step in range(rounds):
            server.push(_gradient(w, w.rank, step, elements))
        if serves and hasattr(server, "close"):
            server.close()
    dist.barrier()
    total = [_gradient(w, q, step, elements) for q in workers for step in range(rounds)]
    expected = weights - RATE * torch.stack(total).sum(0) if total else weights
    if serves:
        found = server.weights
        if w.rank == 0:
            close("the server's weights", found, expected, LOOSE)
        return
    close("the pulled weights", server.pull(), expected, LOOSE)


def _gradient(w: "World", rank: int, step: int, elements: int) -> Tensor:
    return w.randn(elements, seed=100 * step + rank + 1).to(w.device)


def _of_servers() -> Iterator[Case]:
    run = partial(parameter_server, rounds=3)

    def most(p: int) -> int:
        """In each round all gradients and all weights, to everyone."""
        return 2 * 3 * p * p * 13 * 8

    yield Case("one round", partial(parameter_server, elements=13, rounds=1))
    yield Case("three rounds", partial(run, elements=13), False, most, None)
    yield Case("one weight", partial(run, elements=1), optional=True)


# Checkpoints

KINDS = (
    "tensors",
    "integers and masks",
    "bfloat16",
    "a scalar",
    "no element",
    "a view with gaps",
)
PLACES = ("folder", "path", "directory", "dir", "file", "checkpoint", "where")


def checkpoint(w: "World", part: Any, options: Options, *, what: str) -> None:
    """What is loaded is what was saved, bit for bit, on every rank."""
    save, load = (_method(part, name, options) for name in ("save", "load"))
    with _folder(w) as folder:
        for version in range(2):
            state = _state(w, what, version)
            save(state, folder / "checkpoint")
            dist.barrier()
            loaded = _loaded(load, state, folder)
            dist.barrier()
            #: By all ranks alike: who stops alone leaves the others waiting.
            _agree(w, _first_wrong(loaded, state, f"saved {version + 1} times"))


@contextmanager
def _folder(w: "World") -> Iterator[Path]:
    """One for all ranks; it goes when nobody writes to it any more."""
    from exemplars.scratch import shared

    with shared(w) as folder:
        try:
            yield folder
        finally:
            dist.barrier()


def _loaded(load: Any, state: dict[str, Tensor], folder: Path) -> Mapping[str, Tensor]:
    """What it returns, or what it has put into the tensors that it was given."""
    room = {n: torch.zeros_like(t) for n, t in state.items()}
    made = load(room, folder / "checkpoint")
    return made if isinstance(made, Mapping) else room


def _first_wrong(
    loaded: Mapping[str, Tensor], state: dict[str, Tensor], when: str
) -> str:
    for name, t in state.items():
        if name not in loaded:
            return f"{name} is not among what is loaded"
        try:
            close(f"{name}, {when}", loaded[name], t, 0)
        except Broken as error:
            return str(error)
    return ""


def _agree(w: "World", wrong: str) -> None:
    """Stop on all ranks if one has found something."""
    count = torch.tensor(int(bool(wrong)), device=w.device)
    dist.all_reduce(count)
    if count:
        raise Broken(wrong)  # nothing, where another rank says it


def torn(w: "World", part: Any, options: Options) -> None:
    """A file that ends in the middle is never loaded as if it were whole."""
    from torch.distributed.checkpoint.api import CheckpointException  # no Exception

    save, load = (_method(part, name, options) for name in ("save", "load"))
    state, wrong = _state(w, "tensors", 0), ""
    with _folder(w) as folder:
        save(state, folder / "checkpoint")
        dist.barrier()
        if w.rank == 0:
            files = [f for f in folder.rglob("*") if f.is_file()]
            largest = max(files, key=lambda f: f.stat().st_size)
            whole = largest.read_bytes()
            largest.write_bytes(whole[: len(whole) // 2])
        dist.barrier()
        #: An error is what should come, on the ranks that read that file.
        with suppress(Exception, CheckpointException):
            wrong = _first_wrong(_loaded(load, state, folder), state, "torn")
        dist.barrier()
        _agree(w, wrong and "a file cut in half was loaded without an error")


def _state(w: "World", what: str, version: int) -> dict[str, Tensor]:
    """What all ranks have, and what only this one has, by its name."""
    own = f"rank{w.rank}.moment"
    common = w.randn(3, 4, seed=version).to(w.device)
    mine = w.randn(5 + w.rank, seed=10 + w.rank + version).to(w.device)
    odd = {
        "integers and masks": torch.tensor([version, 2**40], device=w.device),
        "bfloat16": common.to(torch.bfloat16),
        "a scalar": common[0, 0].clone(),
        "no element": common[:0],
        "a view with gaps": common[:, ::2],
    }
    state = {"weight": common, own: mine}
    if what in odd:
        state |= {"odd": odd[what], f"{own}.mask": mine > 0}
    return state


def _method(part: Any, name: str, options: Options) -> Any:
    """Its `save` or `load`, called with (state, place) in the order it asks for."""
    method = getattr(part, name, None)
    if method is None:
        raise Broken(f"it has no {name}")
    first = next(iter(inspect.signature(method).parameters), "")
    if any(word in first.lower() for word in PLACES):
        return lambda state, place: method(place, state, **options)
    return lambda state, place: method(state, place, **options)


CONTRACTS = (
    Contract(
        "pipeline",
        "every layer's gradient is that of one process, and lies on some rank",
        "a function of (layers, micro-batches, loss) that gives an object with "
        "step(x, y)",
        list(_of_pipelines()),
    ),
    Contract(
        "parameter-server",
        "every gradient is in the weights once, whatever the order of arrival",
        "a class of (weights, rate) with push and pull, or with serve on rank 0",
        list(_of_servers()),
    ),
    Contract(
        "checkpoint",
        "what is loaded is what was saved, bit for bit, and never a torn file",
        "a class, module or object with save(state, folder) and load(state, folder)",
        [
            *(
                Case(what, partial(checkpoint, what=what), what != KINDS[0])
                for what in KINDS
            ),
            Case("a torn file", torn),
        ],
        ranks=(1, 2, 3),
        called=False,
    ),
)
