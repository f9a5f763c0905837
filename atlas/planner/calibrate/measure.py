"""What is measured of a machine: collectives, products, copies, the smallest steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from atlas.planner.calibrate.timing import Work, timed
from exemplars.runtime import World

__all__ = ["OPS", "PRODUCTS", "Sizes", "collectives", "computing"]

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
PRODUCTS = (32, 64, 96, 128, 192, 256, 384, 512, 768)  # sides of square matrices
COPY = 2**24  # elements
WIDTH, DEPTHS = 8, (2, 6, 12)  # of steps that are all overhead
TYPES = {"fp32": torch.float32, "fp64": torch.float64}

Times = dict[str, list[tuple[float, list[float]]]]  # op -> (size, seconds of repeats)


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    messages: tuple[int, ...] = tuple(2**k for k in range(10, 25, 2))
    repeats: int = 15


QUICK = Sizes(tuple(2**k for k in (10, 16, 20)), 5)


def collectives(w: World, sizes: Sizes) -> Times:
    """Of every collective, at every size: the seconds of this rank."""
    found: Times = {op: [] for op in OPS}
    for n in sizes.messages:
        for op, work in _calls(w, n):
            found[op].append((n, timed(w, work, sizes.repeats)))
    return found


def _calls(w: World, n: int) -> Iterator[tuple[str, Work]]:
    """The collectives on n bytes: of a gather or a scatter, of the whole."""
    p, part = w.size, -(-n // (4 * w.size))
    whole = torch.zeros(part * p, device=w.device)
    other, own = torch.zeros_like(whole), torch.zeros(part, device=w.device)
    yield "all_reduce", lambda: dist.all_reduce(whole)
    yield "all_gather", lambda: dist.all_gather_single(whole, own)
    yield "reduce_scatter", lambda: dist.reduce_scatter_single(own, whole)
    yield "all_to_all", lambda: dist.all_to_all_single(other, whole)
    yield "p2p", lambda: _pass_on(w, whole, other)


def _pass_on(w: World, outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
    """From rank 0 to rank 1 and back: two messages, one after the other."""
    if w.rank == 0:
        dist.send(outgoing, 1)
        dist.recv(incoming, 1)
    elif w.rank == 1:
        dist.recv(incoming, 0)
        dist.send(outgoing, 0)


def computing(w: World, sizes: Sizes) -> Times:
    """Products, a copy, and steps that are all overhead, while all ranks do them."""
    found: Times = {}
    for name, kind in TYPES.items():
        found[name] = []
        for n in PRODUCTS:
            a, b = (torch.ones(n, n, dtype=kind, device=w.device) for _ in range(2))
            c = torch.empty_like(a)
            calls = max(1, 2**22 // n**3)  # a product of 32 is over too soon to time
            seconds = timed(w, _often(a, b, c, calls), sizes.repeats)
            found[name].append((2.0 * n**3, [s / calls for s in seconds]))
    source, target = (torch.ones(COPY, device=w.device) for _ in range(2))
    copied = timed(w, lambda: target.copy_(source), sizes.repeats)
    found["copy"] = [(2.0 * source.nbytes, copied)]
    found["step"] = [
        (float(depth), timed(w, _step(w, depth), sizes.repeats)) for depth in DEPTHS
    ]
    return found


def _often(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, calls: int) -> Work:
    def work() -> None:
        for _ in range(calls):
            torch.mm(a, b, out=c)

    return work


def _step(w: World, depth: int) -> Work:
    """A step of so many layers that have next to nothing to compute."""
    layers: Sequence[nn.Module] = [nn.Linear(WIDTH, WIDTH) for _ in range(depth)]
    net = nn.Sequential(*layers).to(w.device)
    x = torch.zeros(1, WIDTH, device=w.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def work() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    return work
