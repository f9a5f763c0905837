"""Data parallelism by hand, with padding, a tied weight, a buffer and micro-batches."""

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=24)
parser.add_argument("--parts", type=int, default=1)
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 7)
        self.hidden = nn.Linear(7, 7)
        self.head = nn.Linear(7, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", 1 + torch.rand(7))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.hidden(self.embedding(x))) * self.scale
        return self.head(y).flatten(0, 1)


def batch(step: int, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """This rank's samples, and how many letters count in the whole batch."""
    source = torch.Generator().manual_seed(step)
    x = torch.randint(10, (24, 6), generator=source)
    y = x.roll(1, 1)
    y[:8, 2:] = -100  # the first samples are short: the rest is padding
    mine = slice(rank * args.batch, (rank + 1) * args.batch)
    return x[mine], y[mine], (y >= 0).sum()


dist.init_process_group("gloo")
rank, p = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
net = Net()
for t in net.state_dict().values():
    dist.broadcast(t, 0)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    x, y, letters = batch(step, rank)
    for a, b in zip(x.chunk(args.parts), y.chunk(args.parts), strict=True):
        loss = cross_entropy(net(a), b.flatten(), reduction="sum") / letters
        (loss * p).backward()
    for w in net.parameters():
        dist.all_reduce(w.grad)
        w.grad /= p
    optimizer.step()
args.batch = 24  # all see the same samples at the end
x, y, letters = batch(20, 0)
final = cross_entropy(net(x), y.flatten()).item()
dist.destroy_process_group()
