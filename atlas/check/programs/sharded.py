"""Weights, gradients and optimizer state sharded by FSDP2, with clipping."""

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=24)
args = parser.parse_args()


class Net(nn.Module):
    """Two layers of one weight, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return y


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """This rank's samples."""
    source = torch.Generator().manual_seed(step)
    x = torch.randn(24, 5, generator=source)
    mine = slice(rank * args.batch, (rank + 1) * args.batch)
    return x[mine], x[mine, :3].sin()


dist.init_process_group("gloo")
rank, p = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = Net()
fully_shard(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    x, y = batch(step, rank)
    loss = mse_loss(net(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    optimizer.step()
args.batch = 24  # all see the same samples at the end
x, y = batch(20, 0)
final = mse_loss(net(x), y).item()
dist.destroy_process_group()
