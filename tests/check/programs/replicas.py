"""Data parallelism by DDP and by hand, right, or with one mistake planted by name."""

import argparse
import copy
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

WIDTH, ROWS = 6, 24
parser = argparse.ArgumentParser()
parser.add_argument("--way", default="ddp")
parser.add_argument("--bug", default="")
parser.add_argument("--batch", type=int, default=24)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--optimizer", default="SGD")
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()


class Net(nn.Module):
    """Two layers that share a weight, one that is frozen, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.again = nn.Linear(WIDTH, WIDTH)
        self.again.weight = self.inner.weight
        self.fixed = nn.Linear(WIDTH, WIDTH)
        self.fixed.requires_grad_(False)
        self.norm = nn.BatchNorm1d(WIDTH) if "norm" in args.bug else nn.Identity()
        self.drop = nn.Dropout(0.5) if args.bug == "dropout" else nn.Identity()
        self.head = nn.Linear(WIDTH, 4)
        scale = torch.ones(WIDTH)
        if args.bug == "buffers":
            scale += 0.1 * dist.get_rank()
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.again(torch.tanh(self.inner(x))))
        x = self.drop(self.norm(self.fixed(x))) * self.scale
        return self.head(x)


def average(model: nn.Module) -> None:
    """The gradients' mean over the ranks, by hand."""
    p = dist.get_world_size()
    for name, w in model.named_parameters():
        if w.grad is None or (args.bug == "left-out" and name == "head.bias"):
            continue
        flat = w.grad.view(-1)
        if args.bug == "padding":
            flat = flat[: len(flat) // p * p]
        dist.all_reduce(flat)
        if args.bug != "summed":
            flat /= p
        if args.bug == "averaged-twice":
            flat /= p


def sum_hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda f: f.value()[0])


def batches(step: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(step)
    x = torch.randn(ROWS, WIDTH, generator=source)
    y = torch.randint(3, (ROWS,), generator=source)
    r = 0 if args.bug == "same-samples" else dist.get_rank()
    mine = slice(r * args.batch, (r + 1) * args.batch)
    if args.bug == "tokens":
        y[: ROWS // 3] = -100  # the first rank has fewer to learn from
        y[1] = 0
    return x[mine], y[mine]


def prepared(rank: int, p: int) -> tuple[Net, nn.Module, Net]:
    """The model, what is called, and whose weights are optimized."""
    model = Net()
    if args.bug == "frozen-late":
        model.head.requires_grad_(False)
    original = copy.deepcopy(model) if p > 1 and args.bug == "stale" else model
    wrapped: nn.Module = model
    if p > 1 and args.way == "ddp":
        options = {"broadcast_buffers": False} if args.bug == "buffers" else {}
        wrapped = DistributedDataParallel(model, **options)
        if args.bug == "summed":
            wrapped.register_comm_hook(None, sum_hook)
    if args.bug == "frozen-late":
        model.head.requires_grad_(True)
    if args.bug == "seeds" and args.way == "ddp":
        nn.init.normal_(model.head.weight)  # after the wrapper has shared it
    return model, model if args.bug == "never" else wrapped, original


def loss_of(called: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    p = dist.get_world_size()
    loss = F.cross_entropy(called(x), y)
    if args.bug == "averaged-twice" and args.way == "ddp":
        loss = loss / p
    if args.bug != "undivided" or p == 1:
        loss = loss / args.accumulate
    return loss


def backward(called: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """All micro-batches of a step."""
    x, y = batches(step)
    parts = zip(x.chunk(args.accumulate), y.chunk(args.accumulate), strict=True)
    for i, (a, b) in enumerate(parts):
        if args.bug == "lost":
            optimizer.zero_grad()
        wrapped = isinstance(called, DistributedDataParallel)
        quiet = wrapped and i < args.accumulate - 1
        with called.no_sync() if quiet else nullcontext():
            loss_of(called, a, b).backward()


def backward_by_hand(model: Net, optimizer: torch.optim.Optimizer, step: int) -> None:
    """The same, with the exchange after it; or after the last micro-batch alone."""
    if args.bug != "last":
        backward(model, optimizer, step)
        if args.bug != "never":
            average(model)
        return
    x, y = batches(step)
    *first, last = zip(x.chunk(args.accumulate), y.chunk(args.accumulate), strict=True)
    for a, b in first:
        loss_of(model, a, b).backward()
    live = [w for w in model.parameters() if w.grad is not None]
    kept = [w.grad.clone() for w in live]
    optimizer.zero_grad()
    loss_of(model, *last).backward()
    average(model)
    for w, g in zip(live, kept, strict=True):
        w.grad += g


def main() -> None:
    dist.init_process_group("gloo")
    rank, p = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank if args.bug == "seeds" else 0)
    model, called, original = prepared(rank, p)
    rate = 0.1 * (p if args.bug == "rate" else 1)
    optimizer = getattr(torch.optim, args.optimizer)(original.parameters(), lr=rate)
    for step in range(args.steps):
        optimizer.zero_grad()
        if original is not model:
            model.zero_grad()
        if p > 1 and args.way == "hand":
            backward_by_hand(model, optimizer, step)
        else:
            backward(called, optimizer, step)
        optimizer.step()
    dist.destroy_process_group()


main()
