"""Data parallelism by DistributedDataParallel, with micro-batches."""

import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=24)
parser.add_argument("--parts", type=int, default=1)
args = parser.parse_args()


def network() -> nn.Module:
    """Three layers with a normalization that looks at one sample at a time."""
    layers = [nn.Linear(5, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 8)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(8, 3))


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """This rank's samples."""
    source = torch.Generator().manual_seed(step)
    x = torch.randn(24, 5, generator=source)
    mine = slice(rank * args.batch, (rank + 1) * args.batch)
    return x[mine], x[mine, :3].sin()


dist.init_process_group("gloo")
rank, p = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = network()
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    x, y = batch(step, rank)
    parts = list(zip(x.chunk(args.parts), y.chunk(args.parts), strict=True))
    for i, (a, b) in enumerate(parts):
        last = i == len(parts) - 1
        with nullcontext() if last else model.no_sync():
            loss = mse_loss(model(a), b) / len(parts)
            loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 100.0)
    optimizer.step()
args.batch = 24  # all see the same samples at the end
x, y = batch(20, 0)
final = mse_loss(net(x), y).item()
dist.destroy_process_group()
