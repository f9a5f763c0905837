"""FSDP2 and tensor parallelism, right, or with one mistake planted by name."""

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F

WIDTH, ROWS = 6, 24
parser = argparse.ArgumentParser()
parser.add_argument("--way", default="fsdp2")
parser.add_argument("--bug", default="")
parser.add_argument("--batch", type=int, default=24)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--optimizer", default="SGD")
args = parser.parse_args()
#: FSDP2 pads what 3 ranks do not divide; DTensor's column and row styles refuse it.
HIDDEN = 10 if args.way == "fsdp2" else 12


class Net(nn.Module):
    """Two layers between a norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.down(torch.tanh(self.up(self.norm(x)))))


def batches(step: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(step)
    x = torch.randn(ROWS, WIDTH, generator=source)
    y = torch.randint(3, (ROWS,), generator=source)
    r = dist.get_rank() if args.way == "fsdp2" and args.bug != "same-samples" else 0
    mine = slice(r * args.batch, (r + 1) * args.batch)
    if args.bug == "tokens":
        y[: ROWS // 3] = -100
        y[1] = 0
    return x[mine], y[mine]


def clip(model: nn.Module) -> None:
    """Scale all gradients so that their norm is args.clip."""
    if not args.bug.startswith("norm"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        return
    grads = [p.grad for p in model.parameters()]
    local = [g.to_local() if isinstance(g, DTensor) else g for g in grads]
    square = sum((g**2).sum() for g in local)
    if args.bug == "norm-twice":
        dist.all_reduce(square)  # what is replicated is counted on every rank
    for g in local:
        g *= args.clip / square.sqrt()


def sharded(model: nn.Module) -> None:
    if args.way == "fsdp2":
        fully_shard(model.up)
        fully_shard(model)
        return
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, mesh, plan)


def main() -> None:
    dist.init_process_group("gloo")
    rank, p = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank if args.bug == "seeds" else 0)
    model = Net()
    early = torch.optim.SGD(model.parameters(), lr=0.1)
    if p > 1:
        sharded(model)
    kind = getattr(torch.optim, args.optimizer)
    optimizer = kind(model.parameters(), lr=0.1)
    if p > 1 and args.bug == "stale":
        optimizer = early
    for step in range(4):
        optimizer.zero_grad()
        model.zero_grad()
        x, y = batches(step)
        parts = list(
            zip(x.chunk(args.accumulate), y.chunk(args.accumulate), strict=True)
        )
        for i, (a, b) in enumerate(parts):
            if args.bug == "lost":
                optimizer.zero_grad()
            if p > 1 and args.way == "fsdp2":
                last = i == len(parts) - 1 or args.bug == "lost"
                model.set_requires_gradient_sync(last and args.bug != "never")
            loss = F.cross_entropy(model(a), b)
            if args.bug == "averaged-twice":
                loss = loss / p
            if args.bug == "summed":
                loss = loss * p
            if args.bug != "undivided" or p == 1:
                loss = loss / len(parts)
            loss.backward()
        if args.clip:
            clip(model)
        optimizer.step()
    dist.destroy_process_group()


main()
